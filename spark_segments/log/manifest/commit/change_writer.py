"""The files of a change: what a commit adds to the manifest's table and takes out of it.

Rows are replaced by copy on write: only the files that hold them are written again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import CommitConflictError, SegmentsError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import (
    Change,
    check_change,
    check_leaving,
    is_made_anew,
    partitions_of,
    segment_rows,
)
from spark_segments.log.manifest.files.row_files import (
    ROWS_A_FILE,
    EncodedFile,
    FileChange,
    RowFile,
    RowFiles,
    concat,
)
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow, topic_table
from spark_segments.log.manifest.transaction import KEY_PREFIX, transactions_table
from spark_segments.quantities import wall_ms

_DELAY_KEY = "file.delete.delay.ms"

_SURELY_YOUNG_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """The files that were written in place of others, and the rows in them."""

    rows: pa.Table
    files: list[RowFile]


@dataclass(slots=True)
class ChangeWriter:
    """Writes the files of a change.

    All tries of a commit share the writer. Where the next try finds a file unchanged, it uses again what the writer
    wrote for that file. Otherwise a change of many files would lose every race to changes of few files. The files of a
    change are written together, at its end: on an object store that takes about the time of a single file.
    """

    store: RowFiles
    waiting: list[EncodedFile] = field(default_factory=list)
    """The files of the change that was planned last, until they are written."""
    contents: dict[str, pa.Buffer] = field(default_factory=dict)
    """The bytes of all files that any try has made, by path."""
    _made_ms: dict[str, int] = field(default_factory=dict)  # {path: when its file was made, by the store's clock}
    _rewritten: dict[frozenset[str], RewrittenFiles] = field(default_factory=dict)  # on the disk, by the old paths
    _unwritten: dict[frozenset[str], RewrittenFiles] = field(default_factory=dict)  # the same of what is `waiting`

    def planned(
        self, snapshot: Snapshot, files: Sequence[RowFile], change: Change, keys_from_ms: int = 0
    ) -> FileChange:
        """Checks `change` against the snapshot and its files. The files that carry it out are `waiting` then.

        `keys_from_ms`: idempotency keys from before are forgotten, where the rows of transactions are written anyway.
        """
        self.waiting.clear()
        self._unwritten.clear()
        add, replace, drop = (segment_rows(rows) for rows in (change.add, change.replace, change.drop))
        partitions = row_tables.raised(change.partitions)
        check_change(snapshot, change, add, replace, drop, partitions)
        self._check_age(snapshot, add)
        fresh = is_made_anew(snapshot, change)
        done = FileChange([], [])
        self._write_topic(snapshot, files, change, done)
        self._write_partitions(snapshot, files, partitions, fresh, done)
        leaving = self._write_segments(files, add, replace, drop, done, by_mirror=change.operation == Operation.MIRROR)
        if not fresh:
            check_leaving(snapshot, change, leaving, concat([add, replace], SEGMENT_KIND), partitions)
        self._write_transactions(snapshot, files, change, keys_from_ms, fresh, done)
        return done

    def note_written(self) -> None:
        """To be called once the `waiting` files are on the disk. Before that no other try may name them: one that was
        never written would be a commit's file that nobody can read.
        """
        self._rewritten |= self._unwritten
        self._unwritten.clear()
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
        numbers = sorted(partitions_of(replace) | partitions_of(drop))
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
        before = self._rewritten.get(key)
        if before is not None and before.rows.equals(rows):
            return before.files
        files = self._new_files(SEGMENT_KIND, rows)
        self._unwritten[key] = RewrittenFiles(rows, files)
        return files

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
