"""Where a partition's active segment is to be cut: Kafka's rolling rule, over the batch headers of its chunks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from spark_segments.format.rolling import OpenSegment, roll_points
from spark_segments.log.rows import Segment
from spark_segments.log.segment import windows
from spark_segments.maintenance.roll_plan import RollRules, may_cut, merges
from spark_segments.storage import Storage

# A chunk that fills a segment to this share is sealed as it is, by its row alone, rather than copied to make up the
# rest.
FULL_SHARE = 0.9


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
        chunk = self.chunks[0]
        return len(self.chunks) == 1 and (chunk.base_offset, chunk.next_offset) == (self.base_offset, self.next_offset)

    @property
    def log_bytes(self) -> int:
        return sum(chunk.log_bytes for chunk in self.chunks)


def find_pieces(storage: Storage, chunks: Sequence[Segment], rules: RollRules, *, seal_all: bool) -> list[Piece]:
    """The segments that `chunks` (a partition's active segment, in order) make, and how what stays active is to be
    merged.

    Reads headers only of chunks in which a segment may have to end. With `seal_all` the last piece is sealed too.
    """
    cuts = _cuts(storage, chunks, rules)
    partition, end = chunks[0].partition, chunks[-1].next_offset
    edges = [chunks[0].base_offset, *cuts, end]
    pieces = [
        Piece(partition, start, stop, _between(chunks, start, stop), sealed=True)
        for start, stop in itertools.pairwise(edges)
    ]
    if seal_all:
        return pieces
    rest = pieces.pop()
    first = rest.chunks[0]
    if (
        first.base_offset < rest.base_offset
    ):  # what a cut leaves of a chunk is copied: a row of its own with true figures
        end = min(first.next_offset, rest.next_offset)
        pieces.append(Piece(partition, rest.base_offset, end, (first,), sealed=False))
        remaining = rest.chunks[1:]
    else:
        remaining = rest.chunks
    for start, stop in merges(remaining):
        run = remaining[start:stop]
        pieces.append(Piece(partition, run[0].base_offset, run[-1].next_offset, run, sealed=False))
    return pieces


def _between(chunks: Sequence[Segment], start: int, stop: int) -> tuple[Segment, ...]:
    return tuple(chunk for chunk in chunks if chunk.base_offset < stop and chunk.next_offset > start)


def _cuts(storage: Storage, chunks: Sequence[Segment], rules: RollRules) -> list[int]:
    """Log offsets at which a new segment begins, within the chunks and between them."""
    cuts: list[int] = []
    partition = chunks[0].partition
    # An index that may fill up decides by its exact entries, so every batch counts from the first on.
    exact_index = rules.index_may_fill(sum(chunk.log_bytes for chunk in chunks), len(chunks))
    segment = OpenSegment(chunks[0].base_offset)
    members: list[Segment] = []
    for chunk in chunks:
        if chunk.log_bytes == 0:
            continue
        if _is_full(chunk, rules, partition):
            if chunk.base_offset > chunks[0].base_offset and (not cuts or cuts[-1] != chunk.base_offset):
                cuts.append(chunk.base_offset)
            if chunk.next_offset < chunks[-1].next_offset:
                cuts.append(chunk.next_offset)
            segment, members = OpenSegment(chunk.next_offset), []
            continue
        first_timestamp = (
            chunk.first_batch_max_timestamp_ms if not segment.size_bytes else segment.first_batch_max_timestamp_ms
        )
        roll_ms = rules.roll_ms(partition, segment.base_offset)
        if not exact_index and not may_cut(rules, roll_ms, [*members, chunk], first_timestamp):
            segment = OpenSegment(segment.base_offset, segment.size_bytes + chunk.log_bytes, first_timestamp)
            members.append(chunk)
            continue
        found, segment = _scan(storage, chunk, rules, segment)
        cuts.extend(found)
        members = [chunk] if found else [*members, chunk]
    return cuts


def _is_full(chunk: Segment, rules: RollRules, partition: int) -> bool:
    roll_ms = rules.roll_ms(partition, chunk.base_offset)
    return FULL_SHARE * rules.segment_bytes <= chunk.log_bytes <= rules.segment_bytes and not may_cut(
        rules, roll_ms, [chunk], chunk.first_batch_max_timestamp_ms
    )


def _scan(storage: Storage, chunk: Segment, rules: RollRules, segment: OpenSegment) -> tuple[list[int], OpenSegment]:
    cuts: list[int] = []
    shift = chunk.offset_shift
    for window in windows(storage, chunk, check_crc=False):
        batches = window.batches
        batches = batches.take(
            (batches.last_offset + shift >= chunk.base_offset) & (batches.base_offset + shift < chunk.next_offset)
        )
        rolls = roll_points(
            batches,
            segment_bytes=rules.segment_bytes,
            segment_ms=rules.segment_ms,
            index_interval_bytes=rules.index_interval_bytes,
            index_bytes=rules.segment_index_bytes,
            jitter_ms=lambda base_offset: rules.segment_ms - rules.roll_ms(chunk.partition, base_offset),
            open_segment=segment,
            offset_shift=shift,
        )
        cuts.extend(int(batches.base_offset[row]) + shift for row in rolls.rows)
        segment = rolls.open
    return cuts, segment
