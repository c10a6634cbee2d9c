"""What a job has to do: the ranges that no run has, and the runs that are to be merged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_segments.keys.belief import uncovered
from spark_segments.keys.index_list import IndexList
from spark_segments.keys.run import Run
from spark_segments.log import RecordField, Scan, ScanPart, Selection, Snapshot
from spark_segments.storage import Storage

RANGE_RECORDS = 2 << 20
RANGE_BYTES = 1 << 30
"""A task has a range of about so many records at most, and of so many bytes of log. Its memory is that of the records'
hashes, some 100 MB."""

MOST_MERGED = 8
"""How many runs are merged, at least, and at most twice as many: an entry is written once a level."""

LEVEL_RECORDS = 1 << 15
"""Runs of level 0 have fewer than 8 times so many records, those of each further level up to 8 times as many."""


@dataclass(frozen=True, slots=True)
class RangeToIndex:
    """A range of a partition's offsets that no run has, the parts of a scan of it, and about how large they are."""

    partition: int
    base_offset: int
    end_offset: int
    parts: tuple[ScanPart, ...]
    log_bytes: int


def selection_of(field: RecordField) -> Selection:
    """What is read of the records that are indexed."""
    return Selection((*field.columns, "offset"))


def ranges_to_index(
    storage: Storage, snapshot: Snapshot, runs: Sequence[Run], field: RecordField
) -> list[RangeToIndex]:
    """The ranges of a topic that none of the runs has, by partition and offset."""
    ranges = []
    selection = selection_of(field)
    for partition, bounds in snapshot.offset_bounds().items():
        own = [run for run in runs if run.partition == partition]
        for start, end in uncovered(bounds, own):
            for base_offset, end_offset, log_bytes in _cut(snapshot, partition, start, end):
                offsets = {partition: ((base_offset, end_offset),)}
                parts = tuple(Scan(storage, snapshot, offsets, selection).parts())
                ranges.append(RangeToIndex(partition, base_offset, end_offset, parts, log_bytes))
    return ranges


def _cut(snapshot: Snapshot, partition: int, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(start, end, bytes) of pieces of a range, each for a task."""
    base = start
    records = log_bytes = 0
    for first, following, row_records, row_bytes in _rows(snapshot, partition, start, end):
        if records and (records + row_records > RANGE_RECORDS or log_bytes + row_bytes > RANGE_BYTES):
            yield base, first, log_bytes
            base, records, log_bytes = first, 0, 0
        # A segment of very small records is cut within: its records are taken to be evenly spread.
        pieces = max(1, -(-row_records // RANGE_RECORDS))
        for piece in range(1, pieces):
            cut = first + (following - first) * piece // pieces
            if base < cut:
                yield base, cut, row_bytes // pieces
                base = cut
        records += row_records // pieces
        log_bytes += row_bytes // pieces
    if base < end:
        yield base, end, log_bytes


def _rows(snapshot: Snapshot, partition: int, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(first offset, next offset, records, bytes) of the rows of a partition in a range, cut to it."""
    live = snapshot.live_table(partition)
    names = ("base_offset", "next_offset", "records", "log_bytes")
    for base, following, records, log_bytes in zip(*(live.column(name).to_pylist() for name in names), strict=True):
        first, last = max(base, start), min(following, end)
        if first < last:
            share = (last - first) / (following - base)
            yield first, last, int(records * share), int(log_bytes * share)


def merges_of(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that are to be merged now, each list into one: as many as MOST_MERGED that lie side by side, and are of
    a level or below it.
    """
    merges = []
    by_partition: dict[int, list[Run]] = {}
    for run in sorted(runs, key=lambda run: (run.partition, run.base_offset)):
        by_partition.setdefault(run.partition, []).append(run)
    for own in by_partition.values():
        levels = sorted({_level(run) for run in own})
        merge_now = next(filter(None, (_neighbours(own, level) for level in levels)), None)
        if merge_now:
            merges.append(merge_now)
    return merges


def _level(run: Run) -> int:
    return ((run.records // LEVEL_RECORDS).bit_length() + 2) // 3


def _neighbours(runs: Sequence[Run], level: int) -> list[Run]:
    """The first neighbours among a partition's runs of at most this level, MOST_MERGED to twice as many; else none."""
    side_by_side: list[Run] = []
    for run in runs:
        if side_by_side and (_level(run) > level or side_by_side[-1].end_offset != run.base_offset):
            if len(side_by_side) >= MOST_MERGED:
                break
            side_by_side = []
        if _level(run) <= level:
            side_by_side.append(run)
        if len(side_by_side) == 2 * MOST_MERGED:
            break
    return side_by_side if len(side_by_side) >= MOST_MERGED else []


def runs_within(index_list: IndexList, log_starts: dict[int, int]) -> list[Run]:
    """The runs of a list that have an offset from the log start of their partition on."""
    return [run for run in index_list.runs if run.end_offset > log_starts.get(run.partition, run.end_offset)]
