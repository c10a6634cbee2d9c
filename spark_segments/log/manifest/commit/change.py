"""A change of a topic's rows by a single commit, and the files that the commit adds and removes.

Rows are replaced by copy on write: only the files that hold them are written again. A change that would break an
invariant of the log is refused before anything is committed. Reading is topic_log.py's; committing and retrying are
commit.py's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, SegmentsError, UnknownTopicError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.kept_offsets import check_kept_offsets
from spark_segments.log.manifest.files.row_files import (
    ROWS_A_FILE,
    EncodedFile,
    FileChange,
    NamedFile,
    RowFile,
    RowFiles,
    concat,
)
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import (
    SEGMENT_SCHEMA,
    Partition,
    Segment,
    has_own_path,
    path_rule,
)
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow, topic_table
from spark_segments.log.manifest.transaction import KEY_PREFIX, Transaction, transactions_table
from spark_segments.quantities import wall_ms

_TO_OTHER_VERSION = (Operation.MIRROR, Operation.RESTORE)
"""The operations that make the log what another version is: the leader's, or an earlier one. They may lower a log start
offset, to records whose files are still there, and the rows in place of others are that version's.
"""

_DELAY_KEY = "file.delete.delay.ms"

ORPHAN_AGE_MS = 7 * 24 * 60 * 60 * 1000
"""Age, by the store's clock, at which a file that no version names is deleted. A commit must not take longer."""

_SURELY_YOUNG_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Change:
    """Rows that a plan wants to change, all in the same commit.

    `operation`: the commit's operation in Delta's history. `add`: new segments. `replace`: rows that take the place of
    the rows of the same identity (`Segment.identity`). `drop`: rows whose identities leave the manifest. `partitions`:
    new rows of these partitions; a partition that has no row yet is added. `config`: the settings of the topic from now
    on; None leaves them. `topic`: a whole new topic row, which deletes a topic or makes it again. Where
    the topic is made again, `partitions` holds all of its partitions. `transactions`: the last ones, from now on, of
    their applications. `thinned`: {partition: an offset}; a policy may have taken records below it from the rows in
    place of others. Everywhere else these rows hold what the others held.
    """

    operation: str
    add: Sequence[Segment] | pa.Table = ()
    replace: Sequence[Segment] | pa.Table = ()
    drop: Sequence[Segment] | pa.Table = ()
    partitions: Sequence[Partition] | pa.Table = ()
    config: Mapping[str, str] | None = None
    topic: TopicRow | None = None
    transactions: Sequence[Transaction] = ()
    thinned: Mapping[int, int] = field(default_factory=dict)

    OLDEST_FILE_MS: ClassVar = ORPHAN_AGE_MS // 2
    """A commit refuses to add files older than this: vacuum might take them before the commit names them."""

    @staticmethod
    def check_mirrored(leader: Snapshot, live: pa.Table, after: pa.Table) -> None:
        """Raises SegmentsError where a follower's log `after` a change lacks what `live` rows of the leader hold."""
        starts = {number: start for number, (start, _) in leader.offset_bounds().items()}
        check_kept_offsets(leader.topic, Operation.MIRROR, live, after, starts, {})


@dataclass(slots=True)
class ChangeWriter:
    """Writes the files of a change.

    All tries of a commit share the writer. Where the next try finds a file unchanged, it uses again what the writer
    wrote for that file. Otherwise a change of many files would lose every race to changes of few files. The files of a
    change (`waiting`) are written together, at its end: on an object store that takes about the time of a single file.
    """

    store: RowFiles
    waiting: list[EncodedFile] = field(default_factory=list)
    contents: dict[str, pa.Buffer] = field(default_factory=dict)
    """The bytes of all files that any try has made, by path."""
    _made_ms: dict[str, int] = field(default_factory=dict)  # {path: when its file was made, by the store's clock}
    _written: dict[frozenset[str], tuple[pa.Table, list[RowFile]]] = field(default_factory=dict)

    def planned(
        self, snapshot: Snapshot, files: Sequence[RowFile], change: Change, keys_from_ms: int = 0
    ) -> FileChange:
        """Checks `change` against the snapshot and its files. The files that carry it out are `waiting` then.

        `keys_from_ms`: idempotency keys from before are forgotten, where the rows of transactions are written anyway.
        """
        add, replace, drop = (segment_rows(rows) for rows in (change.add, change.replace, change.drop))
        partitions = row_tables.raised(change.partitions)
        check(snapshot, change, add, replace, drop, partitions)
        self._check_age(snapshot, add)
        fresh = _is_made_anew(snapshot, change)
        done = FileChange([], [])
        self._write_topic(snapshot, files, change, done)
        self._write_partitions(snapshot, files, partitions, fresh, done)
        leaving = self._write_segments(files, add, replace, drop, done, by_mirror=change.operation == Operation.MIRROR)
        if not fresh:
            _check_leaving(snapshot, change, leaving, concat([add, replace], SEGMENT_KIND), partitions)
        self._write_transactions(snapshot, files, change, keys_from_ms, fresh, done)
        return done

    def write(self, further: Iterable[NamedFile] = ()) -> None:
        """Writes the files that are waiting, and `further` ones, at the same time where each is a request."""
        try:
            self.store.storage.write_all([*self.store.named(self.waiting), *further], unique=True)
        except BaseException:
            self._written.clear()  # a file that is not there must not be used again
            raise
        finally:
            self.waiting.clear()

    def _check_age(self, snapshot: Snapshot, add: pa.Table) -> None:
        """Raises CommitConflictError for a new row whose file is older, by the store's clock, than OLDEST_FILE_MS, or
        gone: the machine was asleep, say, and vacuum elsewhere was not.

        A row of the last hour is believed: no row has a later time than its file. For every other the store says when
        its file was made. A file that other rows name already is no orphan, however old.
        """
        rows = row_tables.live(add).select(["path", "created_ms"])
        if not rows.num_rows:
            return
        storage = self.store.storage
        now_ms = storage.now_ms()
        away_ms = pc.abs(pc.subtract(rows.column("created_ms"), now_ms))
        doubtful = pc.unique(rows.column("path").filter(pc.greater(away_ms, _SURELY_YOUNG_MS))).to_pylist()
        directories = {path.rpartition("/")[0] for path in doubtful if path not in self._made_ms}
        for files in storage.at_once(storage.list, sorted(directories)):
            self._made_ms |= {file.path: file.mtime_ms for file in files}
        oldest_ms = now_ms - Change.OLDEST_FILE_MS
        # A file that the listing lacks counts as too old: vacuum may have been there already.
        old = [path for path in doubtful if self._made_ms.get(path, oldest_ms - 1) < oldest_ms]
        if old:
            named_paths = {*pc.unique(snapshot.source.read(None).column("path")).to_pylist()}
            for path in (path for path in old if path not in named_paths):
                raise CommitConflictError(
                    "A file is too old to be committed: vacuum might have taken it",
                    path=storage.location(path),
                    expected=f"a file at most {Change.OLDEST_FILE_MS // 3_600_000} hours old",
                    found="an older one" if path in self._made_ms else "none",
                    hint="Run it again: what it wrote is written anew",
                )

    def _new_files(self, kind: str, rows: pa.Table) -> list[RowFile]:
        files = self.store.encode_all(kind, rows)
        self.waiting += files
        self.contents |= {file.path: data for file, data in files}
        return [file for file, _ in files]

    def _write_topic(self, snapshot: Snapshot, files: Sequence[RowFile], change: Change, done: FileChange) -> None:
        topic = change.topic
        if topic is None and change.config is not None and dict(change.config) != snapshot.config:
            topic = dataclasses.replace(snapshot.topic_row, config=change.config)
        if topic is not None:
            topic = dataclasses.replace(topic, deleted_topics=_deleted_topics(snapshot, topic))
            done.removed.extend(file for file in files if file.kind == TOPIC_KIND)
            done.added.extend(self._new_files(TOPIC_KIND, topic_table(topic)))

    def _write_partitions(
        self, snapshot: Snapshot, files: Sequence[RowFile], rows: pa.Table, all_of_them: bool, done: FileChange
    ) -> None:
        present = [file for file in files if file.kind == PARTITION_KIND]
        if all_of_them:
            done.removed.extend(present)
            rows = rows.sort_by("partition")
            done.added.extend(self._new_files(PARTITION_KIND, rows))
        elif rows.num_rows:
            numbers = sorted(rows.column("partition").to_pylist())
            # New partitions join the last file: a topic that grows by one partition at a time keeps few files.
            last = max(file.bounds["partition"][1] for file in present)
            stale = [file for file in present if file.may_hold(numbers)]
            if numbers[-1] > last:
                stale.extend(file for file in present if file.bounds["partition"][1] == last and file not in stale)
            kept = concat(self.store.read_all(stale), PARTITION_KIND)
            existing = set(numbers).intersection(snapshot.partitions.column("partition").to_pylist())
            if not existing.issubset(kept.column("partition").to_pylist()):
                # Statistics that another writer got wrong hide a file with such a row: the partition would have two.
                stale = present
                kept = concat(self.store.read_all(stale), PARTITION_KIND)
            kept = kept.filter(pc.invert(pc.is_in(kept.column("partition"), rows.column("partition").combine_chunks())))
            merged = concat([kept, rows], PARTITION_KIND).sort_by("partition")
            # Both in this commit: with the old file a partition would have two rows, without the new one none.
            done.removed.extend(stale)
            done.added.extend(self._new_files(PARTITION_KIND, merged))

    def _write_segments(
        self,
        files: Sequence[RowFile],
        add: pa.Table,
        replace: pa.Table,
        drop: pa.Table,
        done: FileChange,
        *,
        by_mirror: bool,
    ) -> pa.Table:
        """Returns the rows that are replaced or dropped, as they were."""
        present = [file for file in files if file.kind == SEGMENT_KIND]
        self._check_new(present, add, by_row=by_mirror)
        # A large file is written again by itself. Small files and new rows go into a file together.
        merged = [add]
        merged_files = []
        leaving = []
        for file, kept, gone in self._holders(present, replace, drop):
            done.removed.append(file)
            leaving.append(gone)
            if file.rows < ROWS_A_FILE[SEGMENT_KIND] // 4:
                merged.append(kept)
                merged_files.append(file)
            else:
                done.added.extend(self._write_again([file], kept))
        done.added.extend(self._write_again(merged_files, concat(merged, SEGMENT_KIND)))
        return concat(leaving, SEGMENT_KIND)

    def _write_transactions(
        self,
        snapshot: Snapshot,
        files: Sequence[RowFile],
        change: Change,
        keys_from_ms: int,
        fresh: bool,
        done: FileChange,
    ) -> None:
        """Writes the rows of `change.transactions`. A topic that is made again begins without any."""
        present = [file for file in files if file.kind == TRANSACTION_KIND]
        topic_id = snapshot.topic_id if change.topic is None else change.topic.topic_id
        # Of an application that the change names twice, the later transaction counts.
        last = {transaction.application: transaction for transaction in change.transactions}
        rows = transactions_table(topic_id, last.values(), wall_ms())
        if fresh:
            done.removed.extend(present)
        elif last:
            rewritten = self._rewritten_transactions(present, rows, keys_from_ms)
            done.removed.extend(file for file in present if file.path in rewritten)
            rows = concat([*rewritten.values(), rows], TRANSACTION_KIND)
        done.added.extend(self._new_files(TRANSACTION_KIND, rows))

    def _rewritten_transactions(
        self, present: Sequence[RowFile], rows: pa.Table, keys_from_ms: int
    ) -> dict[str, pa.Table]:
        """{path: the rows that stay} of the files that are written again, together with new `rows`. The rows of the
        same applications leave, and keys from before `keys_from_ms`.
        """
        names = rows.column("application_id").combine_chunks()
        rewritten: dict[str, pa.Table] = {}
        unchanged: dict[str, pa.Table] = {}
        for file, table in zip(present, self.store.read_all(present), strict=True):
            remembered = table.filter(pc.invert(_forgotten_keys(table, keys_from_ms)))
            kept = remembered.filter(pc.invert(pc.is_in(remembered.column("application_id"), names)))
            # Of a file without any of the names, half may be expired keys: so each key is written few times.
            is_due = kept.num_rows < remembered.num_rows or 2 * kept.num_rows <= table.num_rows
            (rewritten if is_due else unchanged)[file.path] = kept
        if rewritten:
            return rewritten
        # New rows join the smallest file that has room, so that files stay few and a commit writes few rows.
        smallest = min(present, key=lambda file: file.rows, default=None)
        if smallest is not None and smallest.rows < ROWS_A_FILE[TRANSACTION_KIND]:
            rewritten[smallest.path] = unchanged[smallest.path]
        return rewritten

    def _holders(
        self, present: Sequence[RowFile], replace: pa.Table, drop: pa.Table
    ) -> Iterator[tuple[RowFile, pa.Table, pa.Table]]:
        """The files that hold rows to be replaced or dropped, each with its new content and these rows."""
        gone = pa.chunked_array(
            [*row_tables.keys(replace).chunks, *row_tables.keys(drop).chunks], pa.string()
        ).combine_chunks()
        numbers = sorted(_partitions_of(replace) | _partitions_of(drop))
        near = [file for file in present if file.may_hold(numbers)]
        tables, index = self._places(near, gone)
        if len(index) - index.null_count != len(gone):  # statistics that another writer got wrong hide the rest
            near = list(present)
            tables, index = self._places(near, gone)
        if len(index) - index.null_count != len(gone):
            raise CommitConflictError(
                "Rows that the plan replaces are not in the manifest",
                path=self.store.storage.location(self.store.directory),
                expected=f"{len(gone)} rows",
                found=len(index) - index.null_count,
                hint="A plan must be made anew from the snapshot that it is given",
            )
        # `gone` is the old rows, then the rows to drop:
        #
        #   gone     |replace 0|replace 1|drop 0|drop 1|
        #   place        0         1        2      3
        #
        # A place below the number of replacements is also the number of the new row. Behind it there is none: the row
        # only leaves.
        start = 0
        for file, rows in zip(near, tables, strict=True):
            places = index.slice(start, rows.num_rows)
            start += rows.num_rows
            if places.null_count < rows.num_rows:
                taken = places.filter(pc.less(places, replace.num_rows))
                kept = concat([rows.filter(places.is_null()), replace.take(taken)], SEGMENT_KIND)
                yield file, kept, rows.filter(places.is_valid())

    def _places(self, files: Sequence[RowFile], gone: pa.Array) -> tuple[list[pa.Table], pa.Array]:
        """(the rows of files, the place of each row of all files among the keys `gone`, or null)."""
        tables = self.store.read_all(files)
        return tables, pc.index_in(row_tables.keys(concat(tables, SEGMENT_KIND)), value_set=gone).combine_chunks()

    def _write_again(self, files: Sequence[RowFile], rows: pa.Table) -> list[RowFile]:
        key = frozenset(file.path for file in files)
        rows = row_tables.in_log_order(rows)
        before = self._written.get(key)
        if before is None or not before[0].equals(rows):
            before = self._written[key] = (rows, self._new_files(SEGMENT_KIND, rows))
        return before[1]

    def _check_new(self, present: Sequence[RowFile], add: pa.Table, *, by_row: bool) -> None:
        """Raises where a row is added twice. Rows carry the time their file was made: older rows need no look.

        All runs of a shared object come in one commit. Where a row names the object already, that commit was before,
        though vacuum may have dropped the very rows that are added. Only a mirror adds further runs (`by_row`), which
        the leader has restored.
        """
        if not add.num_rows:
            return
        numbers = sorted(pc.unique(add.column("partition")).to_pylist())
        oldest_ms = pc.min(add.column("created_ms")).as_py()
        near = [file for file in present if file.may_hold(numbers) and file.bounds["created_ms"][1] >= oldest_ms]
        added = (row_tables.keys(add) if by_row else add.column("path")).combine_chunks()
        for rows in self.store.read_all(near):
            twice = pc.is_in(row_tables.keys(rows) if by_row else rows.column("path"), added)
            if pc.any(twice).as_py():
                path = rows.column("path").filter(twice)[0].as_py()
                raise SegmentsError("A file can be added to the log once only", path=path)


def _forgotten_keys(rows: pa.Table, keys_from_ms: int) -> pa.ChunkedArray:
    """bool[rows] of transactions: which are idempotency keys that were committed before `keys_from_ms`."""
    are_keys = pc.starts_with(rows.column("application_id"), KEY_PREFIX)
    return pc.and_(are_keys, pc.less(rows.column("version"), keys_from_ms))


def _deleted_topics(snapshot: Snapshot, topic: TopicRow) -> Mapping[str, str]:
    """The `deleted_topics` of the new topic row: where a topic is made again, they include the topic it replaces."""
    if topic.topic_id == snapshot.topic_id:
        return snapshot.deleted_topics
    before = {**snapshot.deleted_topics, snapshot.topic_id: snapshot.config.get(_DELAY_KEY, "")}
    ids = pc.unique(snapshot.source.read(None).column("topic_id")).to_pylist()
    return {topic_id: delay for topic_id, delay in before.items() if topic_id in ids}


def check(
    snapshot: Snapshot, change: Change, add: pa.Table, replace: pa.Table, drop: pa.Table, partitions: pa.Table
) -> None:
    """Raises SegmentsError where the change would break an invariant that can be checked without reading more rows."""
    topic_id = change.topic.topic_id if change.topic is not None else snapshot.topic_id
    for rows in (add, row_tables.live(replace), partitions):  # removed rows may be a deleted topic's, for vacuum
        others = rows.column("topic_id").filter(pc.not_equal(rows.column("topic_id"), topic_id))
        if len(others):
            raise CommitConflictError(
                f"Topic {snapshot.topic} is not the one that the rows were made for: it was deleted and made again",
                expected=f"topic id {topic_id}",
                found=others[0].as_py(),
            )
    keys = [chunk for rows in (add, replace, drop) for chunk in row_tables.keys(rows).chunks]
    if pc.count_distinct(pa.chunked_array(keys, pa.string())).as_py() != sum(map(len, keys)):
        raise SegmentsError(f"A change of topic {snapshot.topic} names a row twice")
    strange = add.filter(pc.invert(has_own_path(snapshot.topic, add)))
    if strange.num_rows:  # vacuum would take the file for one that no row names
        raise SegmentsError(
            f"A file to be added to topic {snapshot.topic} does not lie where its name says",
            path=strange.column("path")[0].as_py(),
            expected=path_rule(snapshot.topic),
            found=f"partition {strange.column('partition')[0].as_py()}",
        )
    fresh = _is_made_anew(snapshot, change)
    ends = _check_partitions(snapshot, partitions, change.operation, fresh=fresh)
    for rows in (add, replace):
        _check_ranges(snapshot.topic, row_tables.live(rows), ends)


def _check_leaving(
    snapshot: Snapshot, change: Change, leaving: pa.Table, arriving: pa.Table, partitions: pa.Table
) -> None:
    """Raises where rows that leave the log take offsets or records with them that are to stay. A mirror's plan checks
    its own rows, by the leader's.
    """
    is_deleted = change.topic is not None and change.topic.deleted_ms is not None
    leaving = row_tables.live(leaving)
    if is_deleted or change.operation in _TO_OTHER_VERSION or not leaving.num_rows:
        return
    starts = {number: start for number, (start, _) in snapshot.offset_bounds().items()}
    moved = (partitions.column(name).to_pylist() for name in ("partition", "log_start_offset"))
    starts |= zip(*moved, strict=True)
    check_kept_offsets(snapshot.topic, change.operation, leaving, row_tables.live(arriving), starts, change.thinned)


def _is_made_anew(snapshot: Snapshot, change: Change) -> bool:
    """Whether the change makes a topic in place of another or a deleted topic. An import may keep the same topic id."""
    if change.topic is None or change.operation == Operation.RESTORE:
        return False
    was_deleted = snapshot.deleted_ms is not None and change.topic.deleted_ms is None
    return was_deleted or change.topic.topic_id != snapshot.topic_id


def _check_partitions(snapshot: Snapshot, rows: pa.Table, operation: str, *, fresh: bool) -> dict[int, int]:
    """Returns {partition: log end offset} after the change. Raises where an offset would go back."""
    names = ("partition", "log_start_offset", "log_end_offset", "first_dirty_offset", "last_stable_offset")
    before = {} if fresh else snapshot.offset_bounds()
    ends = {number: end for number, (_, end) in before.items()}
    for number, start, end, first_dirty, last_stable in zip(*(rows[name].to_pylist() for name in names), strict=True):
        # A log end that falls would give the same offsets to other records, and readers behind it would never know. A
        # log start that falls promises records whose files vacuum may have deleted.
        #
        #   before         |log start=======log end|
        #   allowed           |log start=======log end|
        #   refused     |log start=======log end|
        old_start, old_end = before.get(number, (0, 0))
        old_start = 0 if operation in _TO_OTHER_VERSION else old_start
        if not (old_start <= start <= end and old_end <= end and first_dirty <= end and last_stable <= end):
            raise SegmentsError(
                f"Offsets of {snapshot.topic}-{number} would go back or cross",
                expected=f"log start ≥ {old_start}, log end ≥ {old_end}, and no offset above the log end",
                found=f"log start {start}, log end {end}, first dirty {first_dirty}, last stable {last_stable}",
            )
        ends[number] = end
    if sorted(ends) != list(range(len(ends))):
        raise SegmentsError(f"Partitions of {snapshot.topic} would have gaps", found=sorted(ends)[:20])
    return ends


def _check_ranges(topic: str, rows: pa.Table, ends: Mapping[int, int]) -> None:
    """Raises where rows of a partition overlap each other or reach beyond its log end."""
    if not rows.num_rows:
        return
    rows = row_tables.in_log_order(rows.select(["partition", "base_offset", "next_offset"]))
    partition, base, following = (rows.column(name).to_numpy() for name in rows.column_names)
    unknown = set(pc.unique(rows.column("partition")).to_pylist()) - ends.keys()
    if unknown:
        raise UnknownTopicError(f"Topic {topic} has no partition {min(unknown)}", hint=f"It has {len(ends)} of them")
    limit = np.array([ends.get(number, 0) for number in range(len(ends))], np.int64)[partition]
    # In log order it is enough to compare neighbours:
    #
    #   |row 0=====|     |row 1==|       a gap is what compaction or an import has left out
    #   |row 0=====|
    #          |row 1==|                 an overlap: a reader would return these offsets twice
    wrong = (following < base) | (base < 0) | (following > limit)
    wrong[:-1] |= (partition[1:] == partition[:-1]) & (base[1:] < following[:-1])
    if wrong.any():
        at = int(wrong.argmax())
        raise SegmentsError(
            f"A segment of {topic}-{partition[at]} would overlap the next one or reach beyond the log end",
            expected=f"offsets below {limit[at]}",
            found=f"{base[at]} to {following[at]}",
        )


def _partitions_of(rows: pa.Table) -> set[int]:
    return set(pc.unique(rows.column("partition")).to_pylist())


def segment_rows(rows: Sequence[Segment] | pa.Table) -> pa.Table:
    """The rows of a change as a table."""
    return rows.cast(SEGMENT_SCHEMA) if isinstance(rows, pa.Table) else Segment.table(rows)
