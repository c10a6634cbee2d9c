"""The last records of a topic over all partitions: the offsets at which each partition's part begins, and the order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

# (partition, first offset, end offset, columns or None for all) → the records, by offset
Read = Callable[[int, int, int, list[str] | None], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Ends:
    """The last records of a partition: their offsets and timestamps, int64[] each, by offset."""

    offset: np.ndarray
    timestamp: np.ndarray


def last_records(read: Read, bounds: Mapping[int, tuple[int, int]], count: int) -> Iterator[pa.RecordBatch]:
    """The `count` newest records in [start, end) of each partition of `bounds`, oldest first.

    A partition's records keep their order. Between partitions the timestamp decides, then the partition's number. As
    many records as are asked for are in memory, and the offsets and timestamps of as many in each partition.
    """
    ends = {number: _ends(read, number, start, end, count) for number, (start, end) in bounds.items()}
    newest = [(-int(one.timestamp[-1]), -number, 1) for number, one in ends.items() if len(one.offset)]
    heapq.heapify(newest)
    order: list[tuple[int, int]] = []  # (partition, how many of its records come after it, and itself)
    while newest and len(order) < count:
        _, negative, taken = heapq.heappop(newest)
        order.append((-negative, taken))
        timestamps = ends[-negative].timestamp
        if taken < len(timestamps):
            heapq.heappush(newest, (-int(timestamps[-1 - taken]), negative, taken + 1))
    chosen = {number: taken for number, taken in order}  # the largest of each partition comes last
    batches: list[pa.RecordBatch] = []
    first_row: dict[int, int] = {}
    rows = 0
    for number, taken in chosen.items():
        first_row[number] = rows
        rows += taken
        batches += read(number, int(ends[number].offset[-taken]), bounds[number][1], None)
    if batches:
        wanted = [first_row[number] + chosen[number] - taken for number, taken in reversed(order)]
        yield from pa.Table.from_batches(batches).take(pa.array(wanted, pa.int64())).to_batches()


def _ends(read: Read, number: int, start: int, end: int, count: int) -> _Ends:
    """The last `count` records of a partition; fewer where there are fewer."""
    span = max(count, 1)
    while True:
        begin = max(start, end - span)
        batches = list(read(number, begin, end, ["offset", "timestamp"]))
        rows = sum(batch.num_rows for batch in batches)
        if rows >= count or begin == start:
            break
        span *= 8  # compaction and transactions leave gaps between offsets
    if not rows:
        return _Ends(np.empty(0, np.int64), np.empty(0, np.int64))
    table = pa.Table.from_batches(batches).slice(max(0, rows - count))
    return _Ends(
        table.column("offset").to_numpy(), table.column("timestamp").cast(pa.int64()).combine_chunks().to_numpy()
    )
