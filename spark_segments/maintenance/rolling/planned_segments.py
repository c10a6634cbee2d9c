"""The segments that an active segment becomes: Kafka's rolling rule, over the batch headers of its chunks."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from spark_segments.format.rolling import OpenSegment, roll_points
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.log.manifest.commit.swap import RowSwap
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.report import Report, first_and_last
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance.rolling.roll_plan import MergeRules, RollRules, runs_to_merge
from spark_segments.storage import Storage

FULL_SHARE = 0.9
"""A chunk that fills this part of a segment is sealed by its row alone. It is not copied to fill up the rest."""


@dataclass(frozen=True, slots=True)
class PlannedSegment:
    """Offsets [base_offset, next_offset) of an active segment, which `chunks` hold and which become one file.

    Not `sealed`: the file is a merged chunk and stays in the active segment.
    """

    partition: int
    base_offset: int
    next_offset: int
    chunks: tuple[Segment, ...]
    sealed: bool

    @property
    def is_one_chunk(self) -> bool:
        """Whether a chunk is this file already. A run of a shared object is no file."""
        chunk = self.chunks[0]
        return (
            not chunk.is_shared
            and len(self.chunks) == 1
            and (chunk.base_offset, chunk.next_offset) == (self.base_offset, self.next_offset)
        )

    @property
    def log_bytes(self) -> int:
        """About how many bytes are to be copied."""
        return sum(_bytes_within(chunk, self.base_offset, self.next_offset) for chunk in self.chunks)

    @property
    def expected(self) -> Segment:
        """About the row that it becomes: a chunk that is only in part in it counts by its share of the offsets."""
        first = self.chunks[0]
        shares = [_share_within(chunk, self.base_offset, self.next_offset) for chunk in self.chunks]
        return replace(
            first,
            base_offset=self.base_offset,
            next_offset=self.next_offset,
            path=f"{first.path}.{self.base_offset}" if len(self.chunks) > 1 else first.path,
            log_bytes=self.log_bytes,
            records=sum(round(chunk.records * share) for chunk, share in zip(self.chunks, shares, strict=True)),
            max_timestamp_ms=max(chunk.max_timestamp_ms for chunk in self.chunks),
            created_ms=self.chunks[-1].created_ms,
            state=Segment.SEALED if self.sealed else Segment.CHUNK,
        )


@dataclass(frozen=True, slots=True)
class RolledPartition:
    """What becomes of one partition's active segment: its `chunks`, the planned segments, and the files of those
    segments that had to be copied.
    """

    partition: int
    chunks: tuple[Segment, ...]
    planned: list[PlannedSegment]
    copies: dict[PlannedSegment, Segment]

    @property
    def replaced_chunks(self) -> list[Segment]:
        """The chunks that the planned segments replace, and empty chunks: an import may have brought an empty file."""
        inside = {chunk.identity for planned in self.planned for chunk in planned.chunks}
        return [chunk for chunk in self.chunks if chunk.identity in inside or chunk.log_bytes == 0]

    @property
    def files(self) -> list[Segment]:
        """The rows that the planned segments become."""
        return [
            self.copies.get(planned) or replace(planned.chunks[0], state=Segment.SEALED) for planned in self.planned
        ]

    def swap(self) -> RowSwap:
        """The chunks that go, and the rows in their place: copies, and chunks that are sealed by their row."""
        # A merged chunk has a new file. A row that only became sealed has the identity of the row that it replaces.
        replaced = {chunk.identity for chunk in self.replaced_chunks}
        sealed = [row for row in self.files if row.identity in replaced]
        return RowSwap(list(self.replaced_chunks), [*self.copies.values(), *sealed])

    def line(self, reasons: list[str], *, is_lost: bool) -> dict[str, Any]:
        """The partition's line in the report. `is_lost`: another job has changed it meanwhile."""
        if is_lost:
            return {"partition": self.partition, "action": Report.LOST, "reasons": reasons}
        replaced = self.replaced_chunks
        files = self.files
        sealed = [planned.base_offset for planned in self.planned if planned.sealed]
        return {
            "partition": self.partition,
            "action": "roll",
            "records_in": sum(chunk.records for chunk in replaced),
            "records_out": sum(row.records for row in files),
            "bytes_in": sum(chunk.log_bytes for chunk in replaced),
            "bytes_out": sum(row.log_bytes for row in files),
            "reasons": reasons,
            "chunks": len(replaced),
            "sealed_segments": len(sealed),
            "sealed": first_and_last(sealed),
            "merged": len(self.planned) - len(sealed),
            "copied_bytes": sum(row.log_bytes for row in self.copies.values()),
        }


@dataclass(frozen=True, slots=True)
class _LastSegment:
    """The last segment while chunks are added to it. `created_ms`: of its first chunk."""

    segment: OpenSegment
    created_ms: int
    largest_timestamp_ms: int = -1


def plan_segments(
    storage: Storage,
    chunks: Sequence[Segment],
    rules: RollRules,
    now_ms: int,
    merge: MergeRules = MergeRules(),  # noqa: B008 - it is frozen
    *,
    is_expired: bool = False,
) -> list[PlannedSegment]:
    """The segments that a partition's active segment becomes at `now_ms`, and the chunks that are to be merged in the
    part that stays active. `chunks` are the active segment's, in order. A chunk that is in no planned segment stays as
    it is. `is_expired`: nothing stays active, because all of the partition has expired.

    Batch headers are read only of chunks in which a segment may have to end.
    """
    chunks = [chunk for chunk in chunks if chunk.log_bytes]
    if not chunks:
        return []
    offsets, last = _roll_offsets(storage, chunks, rules)
    end = chunks[-1].next_offset
    edges = [chunks[0].base_offset, *offsets, end]
    planned = [_planned(chunks, start, stop, sealed=True) for start, stop in itertools.pairwise(edges)]
    # The later of both, as in the plan: a record with a time in the past would seal its segment in each run.
    opened_ms = max(last.segment.first_batch_max_timestamp_ms, last.created_ms)
    if is_expired or now_ms - opened_ms > rules.roll_ms(chunks[0].partition, edges[-2]):
        return planned
    return planned + _merged_rest(chunks, planned.pop(), rules, merge)


def _merged_rest(
    chunks: Sequence[Segment], rest: PlannedSegment, rules: RollRules, merge: MergeRules
) -> list[PlannedSegment]:
    """The chunks to merge in `rest`, the part that stays active, and those that have to be copied by themselves.

    The rest may begin inside a chunk, whose first part has been sealed:

        |sealed ···········|rest ···································|
        |chunk|chunk|chunk ··· |chunk|chunk|chunk|
    """
    starts = [max(chunk.base_offset, rest.base_offset) for chunk in rest.chunks]
    sizes = [_bytes_within(chunk, rest.base_offset, rest.next_offset) for chunk in rest.chunks]
    runs = runs_to_merge(sizes, rules.limits.segment_bytes, merge.least_chunks)
    if starts[0] > rest.chunks[0].base_offset and (not runs or runs[0][0] > 0):
        # The rest of a chunk whose beginning was sealed is copied, so that a row with exact figures names it.
        runs.insert(0, (0, 1))
    merged_rows = {row for first, stop in runs for row in range(first, stop)}
    emptied = [row for row, chunk in enumerate(rest.chunks) if chunk.path in merge.emptied and row not in merged_rows]
    runs = sorted([*runs, *((row, row + 1) for row in emptied)])
    stops = [*starts[1:], rest.next_offset]
    return [_planned(chunks, starts[first], stops[stop - 1], sealed=False) for first, stop in runs]


def _planned(chunks: Sequence[Segment], start: int, stop: int, *, sealed: bool) -> PlannedSegment:
    first = bisect_right(chunks, start, key=lambda chunk: chunk.next_offset)
    last = bisect_left(chunks, stop, first, key=lambda chunk: chunk.base_offset)
    return PlannedSegment(chunks[0].partition, start, stop, tuple(chunks[first:last]), sealed)


def _bytes_within(chunk: Segment, start: int, stop: int) -> int:
    """About how many bytes of a chunk have offsets in [start, stop)."""
    return int(chunk.log_bytes * _share_within(chunk, start, stop))


def _share_within(chunk: Segment, start: int, stop: int) -> Fraction:
    """How much of a chunk's offsets are in [start, stop)."""
    offsets = min(chunk.next_offset, stop) - max(chunk.base_offset, start)
    return Fraction(offsets, max(1, chunk.next_offset - chunk.base_offset))


def _roll_offsets(storage: Storage, chunks: Sequence[Segment], rules: RollRules) -> tuple[list[int], _LastSegment]:
    """(log offsets at which a new segment begins, within the chunks or between them; the last segment)"""
    offsets: list[int] = []
    # If an index may fill up, its exact entries decide: every batch is looked at, from the first one on.
    exact = sum(chunk.log_bytes for chunk in chunks) >= rules.full_index_bytes
    last = _LastSegment(OpenSegment(chunks[0].base_offset), chunks[0].created_ms)
    for chunk in chunks:
        # A segment that has no batch yet begins where its first chunk does, and waits since that chunk's file was made.
        if last.segment.size_bytes == 0:
            last = _LastSegment(OpenSegment(chunk.base_offset), chunk.created_ms)
        if fills_a_segment(chunk, rules):
            if last.segment.size_bytes:
                offsets.append(chunk.base_offset)
            if chunk is chunks[-1]:
                return offsets, _with_chunk(_LastSegment(OpenSegment(chunk.base_offset), chunk.created_ms), chunk)
            # It is sealed by its row alone, so that what follows is another segment, however small.
            offsets.append(chunk.next_offset)
            last = _LastSegment(OpenSegment(chunk.next_offset), chunk.created_ms)
        # Headers are read only where a segment may have to end in the chunk: else a roll would read all that was
        # appended.
        elif exact or _may_roll(_with_chunk(last, chunk), chunk, rules):
            begun, last = _scan(storage, chunk, rules, last)
            offsets.extend(begun)
        else:
            last = _with_chunk(last, chunk)
    return offsets, last


def _with_chunk(last: _LastSegment, chunk: Segment) -> _LastSegment:
    """The segment with all of a chunk added. Index entries are not counted."""
    segment = last.segment
    first_timestamp = segment.first_batch_max_timestamp_ms if segment.size_bytes else chunk.first_batch_max_timestamp_ms
    return replace(
        last,
        segment=OpenSegment(segment.base_offset, segment.size_bytes + chunk.log_bytes, first_timestamp),
        largest_timestamp_ms=max(last.largest_timestamp_ms, chunk.max_timestamp_ms),
    )


def _may_roll(grown: _LastSegment, chunk: Segment, rules: RollRules) -> bool:
    """Whether the segment has to end within its last chunk, `chunk`, or before it."""
    segment = grown.segment
    first_timestamp = segment.first_batch_max_timestamp_ms
    # As in Kafka's LogSegment.timeWaitedForRoll: time passes by the records' timestamps where the first batch has one.
    # By the machine's clock an import of old records would never roll by time, and late files would roll at once.
    waited_ms = chunk.created_ms - grown.created_ms
    if first_timestamp >= 0:
        waited_ms = grown.largest_timestamp_ms - first_timestamp
    return (
        segment.size_bytes > rules.limits.segment_bytes
        or waited_ms > rules.roll_ms(chunk.partition, segment.base_offset)
        or chunk.next_offset - 1 - segment.base_offset > MAX_RELATIVE_OFFSET
    )


def fills_a_segment(chunk: Segment, rules: RollRules) -> bool:
    """Whether a chunk can be sealed by its row: it fills a segment so far that another batch like its own would hardly
    fit, and no segment has to end within it.
    """
    if chunk.is_shared:
        return False
    room = rules.limits.segment_bytes - chunk.log_bytes
    enough = max(rules.limits.segment_bytes * (1 - FULL_SHARE), 1.5 * chunk.log_bytes / max(1, chunk.batches))
    if room > enough or 2 * chunk.log_bytes < rules.limits.segment_bytes or chunk.log_bytes >= rules.full_index_bytes:
        return False
    return not _may_roll(
        _with_chunk(_LastSegment(OpenSegment(chunk.base_offset), chunk.created_ms), chunk), chunk, rules
    )


def _scan(storage: Storage, chunk: Segment, rules: RollRules, last: _LastSegment) -> tuple[list[int], _LastSegment]:
    """Adds a chunk batch by batch. (log offsets at which new segments begin in it; the last segment)"""
    offsets: list[int] = []
    shift = chunk.offset_shift
    segment = last.segment
    for window in SegmentFile(storage, chunk).windows(check_crc=False):
        batches = window.between(chunk.base_offset, chunk.next_offset).batches
        rolls = roll_points(
            batches,
            segment_bytes=rules.limits.segment_bytes,
            index_interval_bytes=rules.limits.index_interval_bytes,
            index_bytes=rules.limits.segment_index_bytes,
            roll_ms=partial(rules.roll_ms, chunk.partition),
            open_segment=segment,
            offset_shift=shift,
            waited_ms=0 if offsets else chunk.created_ms - last.created_ms,
        )
        offsets.extend(int(batches.base_offset[row]) + shift for row in rolls.rows)
        segment = rolls.open
    largest = chunk.max_timestamp_ms
    if offsets:
        return offsets, replace(last, segment=segment, created_ms=chunk.created_ms, largest_timestamp_ms=largest)
    largest = max(last.largest_timestamp_ms, largest)
    return offsets, replace(last, segment=segment, largest_timestamp_ms=largest)
