"""The plan of a read: which bytes of which files it needs. Pure functions over a snapshot's rows; no file is opened."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from spark_segments.config import READ_COMMITTED, READ_UNCOMMITTED, check_isolation_level
from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.execution import in_bins
from spark_segments.format.decoding.decode import OF_BATCHES
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.format.sidecars.index import position_for_offset
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.clip import OffsetRanges, Offsets, borders
from spark_segments.log.reading.field_condition import FieldCondition
from spark_segments.log.reading.isolation import TransactionIndex, transaction_indexes
from spark_segments.log.reading.time_range import TimeRange
from spark_segments.log.segment.file import FIRST_WINDOW_BYTES, NOT_LOOKED_UP, LookUp

OPEN_COST_BYTES = 1 << 20  # cost of opening a file in bytes, as spark.sql.files.openCostInBytes
RUN_COST_BYTES = 64 << 10  # cost of a request within a shared object

ROWS_AT_A_TIME = 1000
"""How many rows of a partition become values together."""

MOST_SEGMENT_BYTES = 1 << 32
"""Upper bound on a segment's size: segment.bytes and the size of a record batch have 31 bits each."""

PARALLEL_TASKS = 64
"""Partitions share a task only as far as so many tasks are left: a planner does not know the size of its cluster."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What is read of records, wherever they are. Checks itself: InvalidOptionError for an unknown name or value.

    `columns`: names of RECORD_SCHEMA, in the wanted order. `isolation`: READ_UNCOMMITTED or READ_COMMITTED. `view`:
    None, or LATEST_VIEW, which alone can leave out tombstones and never has control records. `value_type`: BINARY or
    BINARY_VIEW. `keys`: records with any of these keys alone; None: all records. `times`: records with a timestamp in
    this range alone; of a view, the records of the view that have such a timestamp. `include_keyless`: the records
    without a key come with the view, at their places. `where`: records that all of these conditions hold for; of a
    view, the records of the view that they hold for.
    """

    LATEST_VIEW: ClassVar = "latest"
    BINARY: ClassVar = "binary"
    BINARY_VIEW: ClassVar = "binary_view"

    columns: tuple[str, ...] = tuple(RECORD_SCHEMA.names)
    isolation: str = READ_UNCOMMITTED
    view: str | None = None
    include_control: bool = False
    include_tombstones: bool = True
    value_type: str = BINARY
    keys: tuple[bytes, ...] | None = None
    times: TimeRange | None = None
    include_keyless: bool = False
    where: tuple[FieldCondition, ...] = ()

    @property
    def is_of_batches(self) -> bool:
        """Whether it needs nothing but what comes from the headers of batches. A view looks at keys, too."""
        is_of_all = self.view is None and self.keys is None and self.times is None and not self.where
        return is_of_all and OF_BATCHES.issuperset(self.columns)

    def __post_init__(self) -> None:
        unknown = [name for name in self.columns if name not in RECORD_SCHEMA.names]
        if unknown:
            raise InvalidOptionError(
                "Unknown columns", expected=f"some of {', '.join(RECORD_SCHEMA.names)}", found=", ".join(unknown)
            )
        if not self.columns or len(set(self.columns)) < len(self.columns):  # batches without columns have no rows
            found = ", ".join(self.columns) or "none"
            raise InvalidOptionError("Columns are at least one, and each once", expected="such as offset", found=found)
        check_isolation_level(self.isolation)
        if self.view not in (None, Selection.LATEST_VIEW):
            raise InvalidOptionError("Unknown view", expected=Selection.LATEST_VIEW, found=self.view)
        if self.view is not None and self.include_control:
            message = "A view never contains control records"
            raise InvalidOptionError(message, expected=Selection.LATEST_VIEW, found=self.view)
        if self.view is None and not self.include_tombstones:
            raise InvalidOptionError("Only the view latest can leave out tombstones", hint="Add view='latest'")
        if self.keys is not None and self.include_control:
            raise InvalidOptionError("Control records have no keys to look for", hint="Read them without keys")
        if self.where and self.include_control:
            raise InvalidOptionError("Control records have no fields to look for", hint="Read them without where")
        if self.value_type not in (Selection.BINARY, Selection.BINARY_VIEW):
            expected = f"{Selection.BINARY} or {Selection.BINARY_VIEW}"
            raise InvalidOptionError("Unknown value_type", expected=expected, found=repr(self.value_type))


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a scan that lies in one segment: records with offsets in [start_offset, end_offset) whose batches begin
    in [start_position, end_position) of its file.

    Positions need not be the starts of batches: two parts that meet at a position share no record and lose none.
    `transactions`: the indexes that list the aborted transactions that the part leaves out. `first_window_bytes`: upper
    bound on the first read, so that first records come soon; further reads are larger.
    """

    DEFAULT_BYTES: ClassVar = 128 << 20
    """About how large a part is, as by spark.sql.files.maxPartitionBytes."""

    topic: str
    segment: Segment
    start_offset: int
    end_offset: int
    start_position: int
    end_position: int
    selection: Selection = EVERYTHING
    look_up: LookUp = NOT_LOOKED_UP
    transactions: tuple[TransactionIndex, ...] = ()
    first_window_bytes: int = FIRST_WINDOW_BYTES

    @property
    def size_bytes(self) -> int:
        return self.end_position - self.start_position

    @property
    def partition(self) -> int:
        return self.segment.partition

    @property
    def is_known(self) -> bool:
        """Whether the row says all that is wanted of the records: no file is read."""
        return self.segment.is_full and not self.transactions and self.selection.is_of_batches

    @property
    def cost_bytes(self) -> int:
        """The cost of the read as that of reading so many bytes."""
        return self.size_bytes + (RUN_COST_BYTES if self.segment.is_shared else OPEN_COST_BYTES)

    @property
    def offsets(self) -> int:
        """Upper bound on the records."""
        return self.end_offset - self.start_offset

    @staticmethod
    def planned(
        snapshot: Snapshot, offsets: Offsets, selection: Selection, max_partition_bytes: int | None = None
    ) -> Iterator[Part]:
        """The parts that hold `offsets`, which a `Scan` has clipped to the snapshot, by partition and offset.

        A segment larger than `max_partition_bytes` gives several parts of about that size. A view leaves out aborted
        data at either isolation.

        Parts are made one by one: a read of a million segments begins at once, in little memory. The rows are read in
        this call, so that no vacuum can delete them before a part is made.
        """
        filled = {}
        for number, ranges in sorted(offsets.items()):
            filled[number] = tuple((start, end) for start, end in ranges if start < end)
        narrowed = snapshot.narrowed([number for number, ranges in filled.items() if ranges])
        _ = narrowed.live
        planner = _Planner(narrowed, selection, max_partition_bytes)
        return chain.from_iterable(planner.parts(number, ranges) for number, ranges in filled.items() if ranges)


@dataclass(frozen=True, slots=True)
class _Planner:
    """Cuts ranges of offsets by the segments that hold them, and by `max_bytes`."""

    snapshot: Snapshot
    selection: Selection
    max_bytes: int | None

    def parts(self, partition: int, ranges: OffsetRanges) -> Iterator[Part]:
        """The parts of a partition, made one by one. The ranges lie in the log, and none is empty."""
        selection = self.selection
        live = self.snapshot.live_table(partition)
        transactions = self._transactions(live)  # of all segments: a marker can be younger than the range
        if selection.times is not None:
            live = selection.times.segments(live)
        for start, end in ranges:
            segments = _overlapping(live, start, end)
            if not transactions and selection.is_of_batches:
                segments = _joined(segments)
            for segment in segments:
                # The marker of a transaction lies behind its data. So the index that lists data of this segment as
                # aborted is its own, or that of a later segment.
                first = bisect_left(transactions, segment.base_offset, key=lambda index: index.base_offset)
                part = Part(
                    self.snapshot.topic,
                    segment,
                    # A file can have more than its row says: batches that another row stands for, or that an import has
                    # had before. Without both bounds these records would be read twice.
                    #
                    #             |start-------------------end|
                    #   ...==segment==|==segment==|==segment==...
                    #             |part|   part   | part |
                    max(start, segment.base_offset),
                    min(end, segment.next_offset),
                    segment.byte_position,
                    segment.end_position,
                    selection,
                    transactions=tuple(transactions[first:]),
                )
                yield from cut(part, self.max_bytes, self.snapshot.offset_indexes)

    def _transactions(self, live: pa.Table) -> list[TransactionIndex]:
        if self.selection.isolation != READ_COMMITTED and self.selection.view is None:
            return []
        return transaction_indexes(live, self.snapshot.aborted)


class ScanPart(Protocol):
    """A part of a scan: a read of a part of a partition, which can be pickled.

    `cost_bytes`: its cost as that of reading so many bytes. `offsets`: upper bound on its records. `end_offset`: behind
    the last of them.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def cost_bytes(self) -> int: ...
    @property
    def offsets(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


AnyWork = TypeVar("AnyWork", bound=ScanPart)


def cut(part: Part, max_bytes: int | None, indexes: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[Part]:
    """A part as parts of about `max_bytes` that together are the part; None: the part itself.

    `indexes`: by the path of the .log, offset indexes in memory that stand in for missing files.
    """
    size_bytes = part.size_bytes
    if max_bytes is None or size_bytes <= max_bytes * 1.1 or part.is_known:
        return [_begin(part, indexes)]
    if size_bytes > MOST_SEGMENT_BYTES:
        raise LogDirError(
            "A row of the manifest says more bytes than a segment can have",
            path=part.segment.path,
            expected=f"at most {MOST_SEGMENT_BYTES}",
            found=size_bytes,
            hint="Run segments verify",
        )
    pieces = -(-size_bytes // max_bytes)
    # Each border is computed once for both neighbours. A batch goes to the part in which it begins, so the borders need
    # not be known: a batch over a border is read once, by the part before it.
    cuts = [part.start_position + size_bytes * piece // pieces for piece in range(pieces + 1)]
    return [_begin(replace(part, start_position=start, end_position=end), indexes) for start, end in pairwise(cuts)]


def pack(
    work: Iterable[AnyWork], max_partition_bytes: int, *, min_tasks: int = 0, max_offsets: int | None = None
) -> list[list[AnyWork]]:
    """Puts neighbours together into tasks of at most `max_partition_bytes` and `max_offsets`, in their order.

    Neighbours of different partitions come together where there would be more than PARALLEL_TASKS tasks, and more than
    `min_tasks`: a thousand partitions are not a thousand tasks. A single piece of work may be above the limits.
    """
    everything = list(work)
    shared_bytes = sum(part.cost_bytes for part in everything) // max(PARALLEL_TASKS, min_tasks)
    shared_bytes = min(max_partition_bytes, shared_bytes)

    def begins(task: list[AnyWork], total: np.ndarray, part: AnyWork) -> bool:
        cost_bytes = int(total[0])
        offsets = int(total[1])
        neighbours = (task[-1].topic, task[-1].partition) == (part.topic, part.partition)
        most_bytes = max_partition_bytes if neighbours else shared_bytes
        too_many = max_offsets is not None and offsets + part.offsets > max_offsets
        return too_many or cost_bytes + part.cost_bytes > most_bytes

    tasks = list(in_bins(everything, lambda part: np.array([part.cost_bytes, part.offsets]), begins))
    return _halved(tasks, min_tasks)


def runs_of(parts: Iterable[Part], offsets: Offsets) -> Iterator[list[Part]]:
    """Neighbouring parts of a partition, as long as none begins where two of its ranges in `offsets` meet."""
    cuts = {number: borders(ranges) for number, ranges in offsets.items()}
    runs = groupby(parts, lambda part: (part.partition, bisect_right(cuts[part.partition], part.start_offset)))
    return (list(run) for _, run in runs)


def _halved(tasks: list[list[AnyWork]], least: int) -> list[list[AnyWork]]:
    """The tasks in order, the longest in halves until there are `least`, as far as the work can be parted."""
    while len(tasks) < least:
        longest = max(range(len(tasks)), key=lambda number: len(tasks[number]), default=0)
        if not tasks or len(tasks[longest]) < 2:
            return tasks
        half = len(tasks[longest]) // 2
        tasks[longest : longest + 1] = [tasks[longest][:half], tasks[longest][half:]]
    return tasks


def _begin(part: Part, indexes: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Part:
    """The part with the position that an index in memory gives, where such an index stands in for the file."""
    index = indexes.get(part.segment.path)
    if index is None:
        return part
    relative_offset = part.start_offset - part.segment.offset_shift - part.segment.name_offset
    # Both the offset and the position have an entry at or before the part's first batch. The later one is nearer: with
    # the offset's alone, each piece of a large append would be read from the append's beginning.
    by_offset = position_for_offset(index, relative_offset)
    entry = int(np.searchsorted(index[1], part.start_position, side="right")) - 1
    return replace(part, look_up=LookUp(max(by_offset, int(index[1][entry]) if entry >= 0 else 0)))


def _joined(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The segments; neighbours that are full are one, of no bytes."""
    joined: Segment | None = None
    for segment in segments:
        if joined is not None and joined.is_full and segment.is_full:
            records = joined.records + segment.records
            joined = replace(joined, next_offset=segment.next_offset, records=records, log_bytes=0)
            continue
        if joined is not None:
            yield joined
        joined = segment
    if joined is not None:
        yield joined


def _overlapping(table: pa.Table, start_offset: int, end_offset: int) -> Iterator[Segment]:
    """The segments that may have some of the offsets, made one by one."""
    next_offsets = table.column("next_offset").to_numpy()
    base_offsets = table.column("base_offset").to_numpy()
    # Rows of a partition do not overlap, so both columns rise. `next_offset` and `end_offset` are exclusive:
    #
    #   |row 0====|row 1====|      |row 3====|
    #             |start-------end|             row 0 ends where the read starts, row 3 begins at its end: neither
    #
    # Offsets between two rows are what compaction, retention or an import has left out.
    first = int(np.searchsorted(next_offsets, start_offset, side="right"))
    last = int(np.searchsorted(base_offsets, end_offset, side="left"))
    for row in range(first, last, ROWS_AT_A_TIME):
        rows = table.slice(row, min(ROWS_AT_A_TIME, last - row))
        yield from (segment for segment in Segment.of_table(rows) if segment.log_bytes)
