"""The plan of a read: which bytes of which files it needs. Pure functions over a snapshot's rows; no file is opened."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from spark_segments.errors import LogDirError
from spark_segments.format.sidecars.index import position_for_offset
from spark_segments.log.bins import in_bins
from spark_segments.log.manifest.rows import Segment, segments_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.reading.isolation import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TransactionIndex,
    check_isolation_level,
    transaction_indexes,
)

DEFAULT_MAX_PARTITION_BYTES = 128 << 20
OPEN_COST_BYTES = 1 << 20  # cost of opening a file in bytes, as spark.sql.files.openCostInBytes
RUN_COST_BYTES = 64 << 10  # cost of a request within a shared object

ROWS_AT_A_TIME = 1000
"""How many rows of a partition become values together."""

MOST_SEGMENT_BYTES = 1 << 32
"""Upper bound on a segment's size: segment.bytes and the size of a record batch have 31 bits each."""

PARALLEL_TASKS = 64
"""Partitions share a task only as far as so many tasks are left: a planner does not know the size of its cluster."""


@dataclass(frozen=True, slots=True)
class ReadRange:
    """A piece of one segment: records with offsets in [start_offset, end_offset) whose batches begin in
    [start_position, end_position) of its file.

    `begin_position`: the position of a batch at or before the first wanted batch, known without the .index; 0 where not
    known. `transactions`: for read_committed, the indexes that list the aborted transactions of this piece.
    `is_looked_up`: the .index gave `begin_position` for `start_offset`, and may lie. `is_end_looked_up`: it gave
    `end_position` for `end_offset`.
    """

    topic: str
    segment: Segment
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    begin_position: int = 0
    transactions: tuple[TransactionIndex, ...] = ()
    is_looked_up: bool = False
    is_end_looked_up: bool = False

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def partition(self) -> int:
        return self.segment.partition

    @property
    def cost_bytes(self) -> int:
        """The cost of the read as that of reading so many bytes."""
        return self.size_bytes + (RUN_COST_BYTES if self.segment.is_shared else OPEN_COST_BYTES)

    @property
    def offsets(self) -> int:
        """Upper bound on the records."""
        return self.end_offset - self.start_offset


class Work(Protocol):
    """A read of a part of a partition. `offsets`: upper bound on its records."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def cost_bytes(self) -> int: ...
    @property
    def offsets(self) -> int: ...


AnyWork = TypeVar("AnyWork", bound=Work)


def read_ranges(
    snapshot: Snapshot,
    offsets: Mapping[int, tuple[int, int]],
    *,
    max_partition_bytes: int | None = None,
    isolation_level: str = READ_UNCOMMITTED,
    leave_out_aborted: bool = False,
) -> list[ReadRange]:
    """The ranges that hold `offsets` ({partition: (start, end exclusive)}), by partition and offset.

    Offsets are clipped to the log; with read_committed, also to below the last stable offset. A segment larger than
    `max_partition_bytes` gives several ranges of about that size. `leave_out_aborted` leaves out the data of aborted
    transactions at either level.
    """
    return list(
        planned_ranges(
            snapshot,
            offsets,
            max_partition_bytes=max_partition_bytes,
            isolation_level=isolation_level,
            leave_out_aborted=leave_out_aborted,
        )
    )


def planned_ranges(
    snapshot: Snapshot,
    offsets: Mapping[int, tuple[int, int]],
    *,
    max_partition_bytes: int | None = None,
    isolation_level: str = READ_UNCOMMITTED,
    leave_out_aborted: bool = False,
) -> Iterator[ReadRange]:
    """As `read_ranges`, made as they are asked for: a read of a million segments begins at once, in little memory.

    The rows are read here, so that no caller finds them gone later.
    """
    committed = check_isolation_level(isolation_level) == READ_COMMITTED
    without_aborted = committed or leave_out_aborted
    bounds = readable_bounds(snapshot, isolation_level)
    wanted = {number: _clipped(asked, bounds[number]) for number, asked in sorted(offsets.items())}
    narrowed = snapshot.narrowed([number for number, (start, end) in wanted.items() if start < end])
    _ = narrowed.live

    def ranges() -> Iterator[ReadRange]:
        for partition, (start, end) in wanted.items():
            if start >= end:
                continue
            live = narrowed.live_table(partition)
            transactions = transaction_indexes(live, snapshot.stand_ins.aborted) if without_aborted else []
            for segment in _overlapping(live, start, end):
                whole = ReadRange(
                    snapshot.topic,
                    segment,
                    max(start, segment.base_offset),
                    min(end, segment.next_offset),
                    segment.position,
                    segment.end_position,
                    transactions=_from(transactions, segment.base_offset),
                )
                yield from cut(whole, max_partition_bytes, snapshot.stand_ins.offset_indexes)

    return ranges()


def _clipped(asked: tuple[int, int], there: tuple[int, int]) -> tuple[int, int]:
    return max(asked[0], there[0]), min(asked[1], there[1])


def cut(
    whole: ReadRange, max_bytes: int | None, indexes: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> list[ReadRange]:
    """A range as ranges of about `max_bytes` that together are the range; None: the range itself.

    `indexes`: by the path of the .log, offset indexes in memory that stand in for missing files.
    """
    size_bytes = whole.size_bytes
    if max_bytes is None or size_bytes <= max_bytes * 1.1:
        return [_begin(whole, indexes)]
    if size_bytes > MOST_SEGMENT_BYTES:
        raise LogDirError(
            "A row of the manifest says more bytes than a segment can have",
            path=whole.segment.path,
            expected=f"at most {MOST_SEGMENT_BYTES}",
            found=size_bytes,
            hint="Run segments verify",
        )
    pieces = -(-size_bytes // max_bytes)
    cuts = [whole.start_position + size_bytes * piece // pieces for piece in range(pieces + 1)]
    return [_begin(replace(whole, start_position=start, end_position=end), indexes) for start, end in pairwise(cuts)]


def pack(
    work: Iterable[AnyWork], max_partition_bytes: int, *, min_tasks: int = 0, max_offsets: int | None = None
) -> list[list[AnyWork]]:
    """Puts neighbours together into tasks of at most `max_partition_bytes` and `max_offsets`, in their order.

    Neighbours of different partitions come together where there would be more than PARALLEL_TASKS tasks, and more than
    `min_tasks`: a thousand partitions are not a thousand tasks. A single piece of work may be above the limits.
    """
    everything = list(work)
    shared_bytes = sum(one.cost_bytes for one in everything) // max(PARALLEL_TASKS, min_tasks)
    shared_bytes = min(max_partition_bytes, shared_bytes)

    def begins(task: list[AnyWork], total: np.ndarray, one: AnyWork) -> bool:
        cost_bytes, offsets = int(total[0]), int(total[1])
        neighbours = (task[-1].topic, task[-1].partition) == (one.topic, one.partition)
        most_bytes = max_partition_bytes if neighbours else shared_bytes
        too_many = max_offsets is not None and offsets + one.offsets > max_offsets
        return too_many or cost_bytes + one.cost_bytes > most_bytes

    tasks = list(in_bins(everything, lambda one: np.array([one.cost_bytes, one.offsets]), begins))
    return _halved(tasks, min_tasks)


def _halved(tasks: list[list[AnyWork]], least: int) -> list[list[AnyWork]]:
    """The tasks in order, the longest in halves until there are `least`, as far as the work can be parted."""
    while len(tasks) < least:
        longest = max(range(len(tasks)), key=lambda number: len(tasks[number]), default=0)
        if not tasks or len(tasks[longest]) < 2:
            return tasks
        half = len(tasks[longest]) // 2
        tasks[longest : longest + 1] = [tasks[longest][:half], tasks[longest][half:]]
    return tasks


def _from(indexes: list[TransactionIndex], base_offset: int) -> tuple[TransactionIndex, ...]:
    return tuple(indexes[bisect_left(indexes, base_offset, key=lambda index: index.base_offset) :])


def readable_bounds(snapshot: Snapshot, isolation_level: str) -> dict[int, tuple[int, int]]:
    """{partition: (log start offset, end)}: the log end, or with read_committed the last stable offset.

    As in Kafka, the end is never below the log start, even where a row of an older version of this package says so.
    """
    bounds = offset_bounds(snapshot)
    if isolation_level != READ_COMMITTED:
        return bounds
    stable = snapshot.partitions.column("last_stable_offset").to_pylist()
    return {
        partition: (start, max(start, min(end, last_stable)))
        for (partition, (start, end)), last_stable in zip(bounds.items(), stable, strict=True)
    }


def _begin(one: ReadRange, indexes: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> ReadRange:
    """The range with the `begin_position` that an index in memory gives, where such an index stands in for the file."""
    index = indexes.get(one.segment.path)
    if index is None:
        return one
    relative_offset = one.start_offset - one.segment.offset_shift - one.segment.name_offset
    by_offset = position_for_offset(index, relative_offset)
    entry = int(np.searchsorted(index[1], one.start_position, side="right")) - 1
    return replace(one, begin_position=max(by_offset, int(index[1][entry]) if entry >= 0 else 0))


def _overlapping(table: pa.Table, start_offset: int, end_offset: int) -> Iterator[Segment]:
    """The segments that may have some of the offsets, made as they are asked for."""
    next_offsets = table.column("next_offset").to_numpy()
    base_offsets = table.column("base_offset").to_numpy()
    first = int(np.searchsorted(next_offsets, start_offset, side="right"))
    last = int(np.searchsorted(base_offsets, end_offset, side="left"))
    for row in range(first, last, ROWS_AT_A_TIME):
        rows = table.slice(row, min(ROWS_AT_A_TIME, last - row))
        yield from (segment for segment in segments_of(rows) if segment.log_bytes)
