"""Offset assignment: the commit that makes chunks part of the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import CommitConflictError
from spark_segments.log.appending.record_rules import key_missing
from spark_segments.log.eras import Eras
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TableState
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.manifest.transaction import AnyTransaction
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.appending.appender import Chunks


RowOfAppend = Callable[[Snapshot, Change], TopicRow]
"""The topic's row after an append: of the snapshot that it is committed on, and its change."""


def commit_append(
    manifest: Manifest,
    chunks: Sequence[Segment],
    txn: AnyTransaction | None = None,
    *,
    written: Sequence[Chunks] = (),
    defaults: Mapping[str, str] = {},
    state: TableState | None = None,
    replayed: bool = False,
    topic_row: RowOfAppend | None = None,
) -> dict[int, tuple[int, int]]:
    """Appends chunks to their partitions and returns {partition: (first offset, last offset)}, both inclusive.

    Chunks of a partition get the next offsets in the order given, which must be (task, row). A `txn` that was committed
    before adds nothing and returns {}; without chunks it is recorded all the same. `written`: what the
    writer knows of its chunks, which the topic of each try must still take (`check_written`); where it has more
    partitions than for the writer, the append is a separate era. `state`: as in `Manifest.commit`. `replayed`: the
    same chunks may have been committed before, then rolled and vacuumed, so that no row names them; so their files are
    looked for. `topic_row` gives the topic's row that the commit has with it.

    Raises UnknownTopicError for a partition that is not there; CommitConflictError where the chunks were written for
    another topic id, are too old, or, if `replayed`, have lost their files.
    """
    chunks = [chunk for chunk in chunks if chunk.records]
    if not chunks and txn is None:
        return {}

    def plan(snapshot: Snapshot) -> Change:
        check_written(snapshot, written, defaults)
        # Vacuum deletes files before their rows: after this snapshot, a file without a row was never committed.
        if replayed:
            check_files(manifest.storage, chunks)
        if manifest.log.is_forced(snapshot.config):  # it may not have been when the chunks were written
            _force_files(manifest.storage, chunks)
        change = plan_append(snapshot, chunks)
        row = _row_in_its_era(snapshot, change, written)
        if topic_row is not None:
            row = topic_row(dataclasses.replace(snapshot, states=row.states), change)
        return change if row == snapshot.topic_row else dataclasses.replace(change, topic=row)

    commit = manifest.commit(plan, txn=txn, state=state)
    return {} if commit.change is None else _offsets_of(commit.change.add)


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


def _offsets_of(segments: Iterable[Segment]) -> dict[int, tuple[int, int]]:
    """{partition: (first offset, last offset)} of segments in the log, those of a partition in order."""
    offsets: dict[int, tuple[int, int]] = {}
    for segment in segments:
        first, _ = offsets.get(segment.partition, (segment.base_offset, 0))
        offsets[segment.partition] = (first, segment.next_offset - 1)
    return offsets


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
