"""Where a partition's active segment is to be cut: Kafka's rolling rule, over the batch headers of its chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_segments.format.rolling import OpenSegment, roll_points
from spark_segments.format.sidecars.index import MAX_RELATIVE_OFFSET
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.reader import windows
from spark_segments.maintenance.rolling.plan import RollRules, merges
from spark_segments.storage import Storage

FULL_SHARE = 0.9
"""A chunk that fills a segment to this part is sealed as it is, by its row alone, rather than copied to make up the
rest."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of the active segment that becomes one file: what `chunks` hold of [base_offset, next_offset)."""

    partition: int
    base_offset: int
    next_offset: int
    chunks: tuple[Segment, ...]
    sealed: bool

    @property
    def is_one_chunk(self) -> bool:
        """Whether it is a file already."""
        chunk = self.chunks[0]
        return len(self.chunks) == 1 and (chunk.base_offset, chunk.next_offset) == (self.base_offset, self.next_offset)

    @property
    def log_bytes(self) -> int:
        """About how much is to be copied."""
        return sum(_part(chunk, self.base_offset, self.next_offset) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class _Growing:
    """The last segment while chunks are added to it. `created_ms`: of its first chunk; `exact`: index entries count."""

    segment: OpenSegment
    created_ms: int
    largest_timestamp_ms: int = -1
    exact: bool = True


def find_pieces(storage: Storage, chunks: Sequence[Segment], rules: RollRules, now_ms: int) -> list[Piece]:
    """The segments that `chunks` (a partition's active segment, in order) make at `now_ms`, and the runs of what stays
    active that are to be merged. What is in no piece stays as it is.

    Reads headers only of chunks in which a segment may have to end.
    """
    chunks = [chunk for chunk in chunks if chunk.log_bytes]
    if not chunks:
        return []
    cuts, last = _cuts(storage, chunks, rules)
    end = chunks[-1].next_offset
    edges = [chunks[0].base_offset, *cuts, end]
    pieces = [_piece(chunks, start, stop, sealed=True) for start, stop in itertools.pairwise(edges)]
    opened_ms = max(last.segment.first_batch_max_timestamp_ms, last.created_ms)
    if now_ms - opened_ms > rules.roll_ms(chunks[0].partition, edges[-2]):
        return pieces
    rest = pieces.pop()
    starts = [max(chunk.base_offset, rest.base_offset) for chunk in rest.chunks]
    runs = merges([_part(chunk, rest.base_offset, end) for chunk in rest.chunks], rules.segment_bytes)
    if starts[0] > rest.chunks[0].base_offset and (not runs or runs[0][0] > 0):
        # What a cut leaves of a chunk is copied: the row of a file of its own has true figures.
        runs.insert(0, (0, 1))
    stops = [*starts[1:], end]
    merged = [_piece(chunks, starts[first], stops[stop - 1], sealed=False) for first, stop in runs]
    return pieces + merged


def _piece(chunks: Sequence[Segment], start: int, stop: int, *, sealed: bool) -> Piece:
    inside = tuple(chunk for chunk in chunks if chunk.base_offset < stop and chunk.next_offset > start)
    return Piece(chunks[0].partition, start, stop, inside, sealed)


def _part(chunk: Segment, start: int, stop: int) -> int:
    """About how many bytes of a chunk lie in [start, stop)."""
    offsets = min(chunk.next_offset, stop) - max(chunk.base_offset, start)
    return chunk.log_bytes * offsets // max(1, chunk.next_offset - chunk.base_offset)


def _cuts(storage: Storage, chunks: Sequence[Segment], rules: RollRules) -> tuple[list[int], _Growing]:
    """Log offsets at which a new segment begins, within the chunks and between them, and the last segment."""
    cuts: list[int] = []
    # An index that may fill up decides by its exact entries, so every batch counts from the first on.
    exact = sum(chunk.log_bytes for chunk in chunks) >= rules.full_index_bytes
    growing = _Growing(OpenSegment(chunks[0].base_offset), chunks[0].created_ms, exact=exact)
    for chunk in chunks:
        if growing.segment.size_bytes == 0:
            growing = _Growing(OpenSegment(chunk.base_offset), chunk.created_ms, exact=exact)
        if is_full(chunk, rules):
            if growing.segment.size_bytes:
                cuts.append(chunk.base_offset)
            whole = _grown(_Growing(OpenSegment(chunk.base_offset), chunk.created_ms), chunk)
            if chunk is chunks[-1]:
                return cuts, whole
            cuts.append(chunk.next_offset)
            growing = _Growing(OpenSegment(chunk.next_offset), chunk.created_ms, exact=exact)
        elif exact or _may_end(_grown(growing, chunk), chunk, rules):
            found, growing = _scan(storage, chunk, rules, growing)
            cuts.extend(found)
        else:
            growing = _grown(growing, chunk)
    return cuts, growing


def _grown(growing: _Growing, chunk: Segment) -> _Growing:
    """The segment with the whole of a chunk added; index entries are not counted."""
    segment = growing.segment
    first_timestamp = segment.first_batch_max_timestamp_ms if segment.size_bytes else chunk.first_batch_max_timestamp_ms
    return replace(
        growing,
        segment=OpenSegment(segment.base_offset, segment.size_bytes + chunk.log_bytes, first_timestamp),
        largest_timestamp_ms=max(growing.largest_timestamp_ms, chunk.max_timestamp_ms),
    )


def _may_end(grown: _Growing, chunk: Segment, rules: RollRules) -> bool:
    """Whether a segment that `chunk` was the last to be added to may have to end within it, or before."""
    segment = grown.segment
    first_timestamp = segment.first_batch_max_timestamp_ms
    waited_ms = chunk.created_ms - grown.created_ms
    if first_timestamp >= 0:
        waited_ms = grown.largest_timestamp_ms - first_timestamp
    return (
        segment.size_bytes > rules.segment_bytes
        or waited_ms > rules.roll_ms(chunk.partition, segment.base_offset)
        or chunk.next_offset - 1 - segment.base_offset > MAX_RELATIVE_OFFSET
    )


def is_full(chunk: Segment, rules: RollRules) -> bool:
    """Whether a chunk is as good as a segment: no more than one, and another batch like its own would hardly fit."""
    room = rules.segment_bytes - chunk.log_bytes
    enough = max(rules.segment_bytes * (1 - FULL_SHARE), 1.5 * chunk.log_bytes / max(1, chunk.batches))
    if room > enough or 2 * chunk.log_bytes < rules.segment_bytes or chunk.log_bytes >= rules.full_index_bytes:
        return False
    return not _may_end(_grown(_Growing(OpenSegment(chunk.base_offset), chunk.created_ms), chunk), chunk, rules)


def _scan(storage: Storage, chunk: Segment, rules: RollRules, growing: _Growing) -> tuple[list[int], _Growing]:
    """Adds a chunk batch by batch: where new segments begin in it, and the last segment."""
    cuts: list[int] = []
    shift = chunk.offset_shift
    segment = growing.segment
    for window in windows(storage, chunk, check_crc=False):
        batches = window.between(chunk.base_offset, chunk.next_offset).batches
        rolls = roll_points(
            batches,
            segment_bytes=rules.segment_bytes,
            segment_ms=rules.segment_ms,
            index_interval_bytes=rules.index_interval_bytes,
            index_bytes=rules.segment_index_bytes,
            jitter_ms=lambda base_offset: rules.jitter_ms(chunk.partition, base_offset),
            open_segment=segment,
            offset_shift=shift,
            waited_ms=0 if cuts else chunk.created_ms - growing.created_ms,
        )
        cuts.extend(int(batches.base_offset[row]) + shift for row in rolls.rows)
        segment = rolls.open
    largest = chunk.max_timestamp_ms
    if cuts:
        return cuts, replace(growing, segment=segment, created_ms=chunk.created_ms, largest_timestamp_ms=largest)
    largest = max(growing.largest_timestamp_ms, largest)
    return cuts, replace(growing, segment=segment, largest_timestamp_ms=largest)
