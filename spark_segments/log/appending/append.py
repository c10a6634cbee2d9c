"""Appends to a topic: of a caller's rows in one go, or in the steps that a writer's tasks and its driver take.

Both end in the same plan: the commit that gives chunks their offsets makes them part of the log.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import CommitConflictError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.extensions import observed_job
from spark_segments.log.appending.record_rules import key_missing
from spark_segments.log.directory import LogDirectory
from spark_segments.log.eras import Eras
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.commit.committing import Commit, Plan
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TableState
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.manifest.transaction import AnyTransaction, Transaction, checked
from spark_segments.storage import Storage

if TYPE_CHECKING:  # these need kernels, which a planner's process does not
    from spark_segments.log.appending.appender import Appender, Chunks, ProducerOptions, Target
    from spark_segments.log.appending.caller_rows import Rows
    from spark_segments.log.typed import Encoders

RowOfAppend = Callable[[Snapshot, Change], TopicRow]
"""The topic's row after an append: of the snapshot that it is committed on, and its change."""


def append(
    log: LogDirectory,
    topic: str,
    rows: Rows,
    txn: Transaction | None = None,
    *,
    options: ProducerOptions | None = None,
    formats: Mapping[str, str] | None = None,
    topic_row: RowOfAppend | None = None,
) -> dict[int, tuple[int, int]]:
    """Appends rows in one commit. Takes, returns and raises what `Topic.append` says. `topic_row`: as in
    `append_plan`.
    """
    from spark_segments.log.appending.appender import Chunks

    log.check_writable()
    with log.hinting(topic) as manifest:
        tries = _Tries.of(manifest, can_repeat=not hasattr(rows, "__next__"))  # an iterator can be read once only
        while True:
            with tries as state, _appender(log, state.snapshot, options) as appender:
                for batch in _stored_batches(log, topic, rows, formats or {}):
                    appender.write(batch)
                # No rows are an append, too: their transaction is recorded, and a repeat with rows adds nothing.
                written = appender.close() or [Chunks(topic, state.snapshot.topic_id)]
                segments = with_records(written)
                if not segments and txn is None:
                    return {}
                plan = append_plan(manifest, segments, written, log.defaults, topic_row=topic_row)
                return appended_offsets(manifest.commit(plan, txn=txn, state=state))


@dataclasses.dataclass(slots=True)
class _Tries:
    """The states that an append is tried on: at first one that may be some seconds old, then the latest.

    As a context manager it gives the state of a try. It holds back the error of a try where a later state may have
    another answer: the topic can have other settings, or be another one, by now. Then the caller tries again.

        trusted state ──▶ rows written ──▶ refused ──▶ latest state ──▶ rows written ──▶ committed, or an error
    """

    manifest: Manifest
    state: TableState
    can_repeat: bool

    @classmethod
    def of(cls, manifest: Manifest, *, can_repeat: bool) -> _Tries:
        # Rows that can be read once only are written for the latest state at once.
        return cls(manifest, manifest.state_for_commit(is_latest=not can_repeat), can_repeat)

    def __enter__(self) -> TableState:
        return self.state

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not self.can_repeat or not isinstance(error, SegmentsError):
            return False
        # The age of the state is no reason for these. After an unknown outcome the rows may be in the log: a second try
        # could append them twice.
        if isinstance(error, StorageError | UnknownOutcomeError):
            return False
        latest = self.manifest.newer_state(self.state)
        if latest is None:
            return False
        self.state = latest
        self.can_repeat = False
        return True


def _appender(log: LogDirectory, snapshot: Snapshot, options: ProducerOptions | None) -> Appender:
    """An appender to the topic of a snapshot. Raises NotLeaderError where that takes no appends."""
    from spark_segments.log.appending.appender import Appender

    snapshot.check_role(Operation.APPEND)
    target = _target(log, snapshot)
    return Appender(log.storage, {snapshot.topic: target}.__getitem__, topic=snapshot.topic, options=options)


def _stored_batches(log: LogDirectory, topic: str, rows: Rows, formats: Mapping[str, str]) -> Iterable[pa.RecordBatch]:
    """A caller's rows as record batches, with keys and values as bytes."""
    from spark_segments.log.appending.caller_rows import record_batches

    batches = record_batches(rows, formats)
    return _encoded(log, topic, batches, formats) if formats else batches


def _encoded(
    log: LogDirectory, topic: str, batches: Iterable[pa.RecordBatch], formats: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """The rows with their keys and values as bytes. The first batch shows the types of all."""
    encoders: Encoders | None = None
    for batch in batches:
        if encoders is None:
            types = {name: batch.schema.field(name).type for name in ("key", "value") if name in batch.schema.names}
            encoders = log.values.encoders(topic, formats, types)
        yield encoders.encode(batch)


def append_target(log: LogDirectory, topic: str, txn: AnyTransaction | None = None) -> Target:
    """A topic as a writer's tasks need it; with `txn`, whether the topic holds that transaction already.

    Raises UnknownTopicError; TransactionOrderError where the topic refuses `txn`; NotLeaderError where it takes no
    appends.
    """
    log.check_writable()
    sent = None if txn is None else checked(txn)
    with log.hinting(topic) as manifest:
        state = manifest.state()
        state.snapshot.check_role(Operation.APPEND)
        return _target(log, state.snapshot, repeated=sent is not None and manifest.log.holds(state, sent))


def _target(log: LogDirectory, snapshot: Snapshot, *, repeated: bool = False) -> Target:
    from spark_segments.log.appending.appender import Target

    config = topic_config(snapshot.config, log.defaults)
    return Target(snapshot.topic, snapshot.topic_id, snapshot.partitions.num_rows, config, repeated=repeated)


@observed_job("append")
def commit_chunks(
    log: LogDirectory, topic: str, chunks: Sequence[Chunks], txn: AnyTransaction | None = None
) -> dict[int, tuple[int, int]]:
    """Gives chunks of a topic their offsets, in the order given; chunks without records record `txn` alone.

    Raises where the topic is not the one that was written to, or where it is compacted by now and a row has no key;
    CommitConflictError for chunks that were committed before and have left the log since.
    """
    segments = with_records(chunks)
    if not chunks or (not segments and txn is None):
        return {}
    with log.hinting(topic) as manifest:
        plan = append_plan(manifest, segments, chunks, log.defaults, replayed=True)
        return appended_offsets(manifest.commit(plan, txn=txn))


def append_plan(
    manifest: Manifest,
    segments: Sequence[Segment],
    written: Sequence[Chunks],
    defaults: Mapping[str, str],
    *,
    replayed: bool = False,
    topic_row: RowOfAppend | None = None,
) -> Plan:
    """The plan of a commit that appends segments to their partitions, whose next offsets they get in the order given:
    that must be (task, row).

    `written`: what the writer knows of its chunks, which the topic of each try must still take (`check_written`); where
    it has more partitions than for the writer, the append is a separate era. `replayed`: the same chunks may have been
    committed before, then rolled and vacuumed, so that no row names them; so their files are looked for. `topic_row`
    gives the topic's row that the commit has with it.

    The plan raises UnknownTopicError for a partition that is not there; CommitConflictError where the chunks were
    written for another topic id, are too old, or, if `replayed`, have lost their files.
    """

    def plan(snapshot: Snapshot) -> Change:
        check_written(snapshot, written, defaults)
        # Vacuum deletes files before their rows: after this snapshot, a file without a row was never committed.
        if replayed:
            check_files(manifest.storage, segments)
        if manifest.log.is_forced(snapshot.config):  # it may not have been when the chunks were written
            _force_files(manifest.storage, segments)
        change = plan_append(snapshot, segments)
        row = _row_in_its_era(snapshot, change, written)
        if topic_row is not None:
            row = topic_row(dataclasses.replace(snapshot, states=row.states), change)
        return change if row == snapshot.topic_row else dataclasses.replace(change, topic=row)

    return plan


def with_records(written: Iterable[Chunks]) -> list[Segment]:
    """The segments of chunks that have records, in order: an empty file has no offset to get."""
    return [segment for chunks in written for segment in chunks.segments if segment.records]


def appended_offsets(commit: Commit) -> dict[int, tuple[int, int]]:
    """{partition: (first offset, last offset)} of a commit of an append, both inclusive; {} where its transaction had
    been committed before.
    """
    offsets: dict[int, tuple[int, int]] = {}
    for segment in () if commit.change is None else commit.change.add:
        first, _ = offsets.get(segment.partition, (segment.base_offset, 0))
        offsets[segment.partition] = (first, segment.next_offset - 1)
    return offsets


def _force_files(storage: Storage, chunks: Sequence[Segment]) -> None:
    """Has the files of chunks reach the disk. Chunks of a shared object have files in common."""
    paths: set[str] = set()
    for chunk in chunks:
        paths.update((chunk.path, chunk.index_path, chunk.time_index_path))
    storage.force([*paths])


def _row_in_its_era(snapshot: Snapshot, change: Change, written: Sequence[Chunks]) -> TopicRow:
    """The topic's row after an append: with an era of its own where its writers knew fewer partitions than there are.

    Its keys went into other partitions than those of the appends around it, and only the order of commits separates
    them. So one era ends at the log ends before the append, and the next one behind what it appends:

        commits before | this append | commits after
              era n    |   era n+1   |    era n+2
    """
    partitions = min((chunks.partitions for chunks in written if chunks.partitions is not None), default=None)
    if partitions is None or partitions >= snapshot.partitions.num_rows:
        return snapshot.topic_row
    before = dataclasses.replace(snapshot, states=Eras.topic_row(snapshot).states)
    return Eras.topic_row(before, change.partitions)


def plan_append(snapshot: Snapshot, chunks: Sequence[Segment]) -> Change:
    """The change that puts chunks at the ends of their partitions and moves those ends."""
    rows = _rows_of(snapshot, {chunk.partition for chunk in chunks})
    ends = {number: row.log_end_offset for number, row in rows.items()}
    added = []
    for chunk in chunks:
        _check_topic_id(snapshot, chunk.topic_id)
        placed = chunk.at(ends[chunk.partition])
        ends[chunk.partition] = placed.next_offset
        added.append(placed)
    moved = [_with_end(row, ends[number]) for number, row in rows.items()]
    return Change(Operation.APPEND, add=added, partitions=moved)


def _with_end(row: Partition, log_end_offset: int) -> Partition:
    # An open transaction (of an import) holds the last stable offset where it is.
    stable = row.last_stable_offset == row.log_end_offset
    return dataclasses.replace(
        row,
        log_end_offset=log_end_offset,
        last_stable_offset=log_end_offset if stable else row.last_stable_offset,
    )


def check_written(snapshot: Snapshot, written: Sequence[Chunks], defaults: Mapping[str, str]) -> None:
    """Raises where the topic no longer takes the chunks written for it: CommitConflictError where it was made again,
    InvalidRecordError where it was altered to a compacted topic meanwhile and a row has no key.

    A broker validates records under the configuration at the moment of the append; here that moment is the commit.
    """
    for chunks in written:
        _check_topic_id(snapshot, chunks.topic_id)
    rows = [chunks.row_without_key for chunks in written if chunks.row_without_key is not None]
    if rows and topic_config(snapshot.config, defaults).compact:
        raise key_missing(snapshot.topic, rows[0])


def _check_topic_id(snapshot: Snapshot, topic_id: str) -> None:
    if topic_id != snapshot.topic_id:
        raise CommitConflictError(
            f"Topic {snapshot.topic} was deleted and made again since these records were written",
            expected=f"topic id {topic_id}",
            found=snapshot.topic_id,
            hint="Run the job again to append to the new topic",
        )


def _rows_of(snapshot: Snapshot, partitions: set[int]) -> dict[int, Partition]:
    mask = pc.is_in(snapshot.partitions.column("partition"), pa.array(partitions, pa.int32()))
    rows = {row.partition: row for row in Partition.of_table(snapshot.partitions.filter(mask))}
    for number in partitions - rows.keys():
        snapshot.partition(number)  # raises
    return rows


def check_files(storage: Storage, chunks: Sequence[Segment]) -> None:
    """Raises CommitConflictError for a chunk whose .log is not there."""
    files = {chunk.path: chunk for chunk in chunks}
    for chunk, exists in zip(files.values(), storage.at_once(storage.exists, files), strict=True):
        if not exists:
            raise CommitConflictError(
                "The file of a chunk is gone: its records were appended and left the log, or the file was lost",
                path=storage.location(chunk.path),
                expected=f"{chunk.log_bytes} bytes",
                found="no file",
                hint="Write the records again unless they were appended. With a txn a repeated write adds nothing",
            )
