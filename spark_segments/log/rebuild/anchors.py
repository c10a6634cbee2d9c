"""Where chunks stood in the log: a segment that was made of a chunk has its batches, and their offsets.

Rolling copies batches as they are. Compaction makes some anew, and keeps the first and the last offset of each: then
the records that are left tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from spark_segments.log.manifest.rows import Segment

MOST_CANDIDATES = 16
"""A chunk with more possible places than this among batches of the same number of offsets is given none."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a file, at the offsets in its bytes.

    `keys`: uint64[n], the same for a copy of a batch at other offsets. `starts`, `ends`: int64[n], the first offset of
    each and the one behind its last. `first_ms`, `last_ms`: int64[n], base timestamps and largest timestamps.
    """

    keys: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    first_ms: np.ndarray
    last_ms: np.ndarray

    @property
    def key_set(self) -> set[int]:
        return set(self.keys.tolist())


SameRecords = Callable[[Segment, Segment, int, int], bool]
"""(chunk, segment, start, end) → whether the segment has records with log offsets in [start, end), and the chunk has
each of them at the same offset. Both rows are at offsets of the log."""


class Anchors:
    """Finds the offsets of chunks among segments: rows at offsets of the log, and their batches."""

    def __init__(self, segments: Sequence[tuple[Segment, Batches]], same_records: SameRecords) -> None:
        self._same_records = same_records
        self._rows = [row for row, _ in segments]
        parts = [(number, row.offset_shift, batches) for number, (row, batches) in enumerate(segments)]
        self._owner = _joined([np.full(len(one.keys), number) for number, _, one in parts])
        keys = _joined([one.keys for *_, one in parts], np.uint64)
        starts = _joined([one.starts + shift for _, shift, one in parts])
        order = np.argsort(keys, kind="stable")
        self._keys, self._starts_by_key = keys[order], starts[order]
        order = np.argsort(starts, kind="stable")
        self._starts, self._owner = starts[order], self._owner[order]
        self._ends = _joined([one.ends + shift for _, shift, one in parts])[order]
        self._last_ms = _joined([one.last_ms for *_, one in parts])[order]

    def find(self, chunk: Segment, batches: Batches) -> int | None:
        """The offset of the log where a chunk began; None where no segment was made of it, or several may have been."""
        found = self._by_copies(batches)
        if not found:
            found = [base for base in self._by_spans(batches) if self._is_proven(chunk, batches, base)]
        return found[0] if len(found) == 1 else None

    def _by_copies(self, batches: Batches) -> list[int]:
        first = np.searchsorted(self._keys, batches.keys, side="left")
        counts = np.searchsorted(self._keys, batches.keys, side="right") - first
        at = np.repeat(first, counts) + _places_within(counts)
        bases: list[int] = np.unique(self._starts_by_key[at] - np.repeat(batches.starts, counts)).tolist()
        return bases

    def _by_spans(self, batches: Batches) -> list[int]:
        """Where all segments' batches can have been made of the chunk's."""
        bases: set[int] = set()
        spans = self._ends - self._starts
        for start, end, first_ms, last_ms in zip(
            batches.starts, batches.ends, batches.first_ms, batches.last_ms, strict=True
        ):
            fits = (spans == end - start) & (self._last_ms >= first_ms) & (self._last_ms <= last_ms)
            bases.update((self._starts[fits] - start).tolist())
            if len(bases) > MOST_CANDIDATES:
                return []
        return sorted(base for base in bases if base >= 0 and self._may_stand(batches, base))

    def _may_stand(self, batches: Batches, base: int) -> bool:
        first, stop = self._inside(batches, base)
        starts, ends = self._starts[first:stop] - base, self._ends[first:stop] - base
        at = np.minimum(np.searchsorted(batches.starts, starts), len(batches.starts) - 1)
        same = (batches.starts[at] == starts) & (batches.ends[at] == ends)
        return bool((same & (self._last_ms[first:stop] <= batches.last_ms[at])).all())

    def _is_proven(self, chunk: Segment, batches: Batches, base: int) -> bool:
        """Whether records of the first and of the last of the segments' batches that have any are the chunk's."""
        first, stop = self._inside(batches, base)
        filled = [number for number in range(first, stop) if self._last_ms[number] >= 0]
        moved = chunk.at(base)
        return bool(filled) and all(
            self._same_records(moved, self._rows[self._owner[one]], int(self._starts[one]), int(self._ends[one]))
            for one in {filled[0], filled[-1]}
        )

    def _inside(self, batches: Batches, base: int) -> tuple[int, int]:
        bounds = np.array([base + batches.starts[0], base + batches.ends[-1]])
        first, stop = np.searchsorted(self._starts, bounds).tolist()
        return first, stop


def merged_base(rows: Sequence[Segment], batches: Batches) -> int | None:
    """The offset of the log where a merged chunk began, by the known rows that it was made of; None where the figures
    of no rows fit, or those of several.

    `rows`: in log order. The chunk may go on behind the last of them. Merging copies batches as they are.
    """
    sizes = np.concatenate(([0], np.cumsum((batches.keys & np.uint64(0xFFFFFFFF)).astype(np.int64))))
    found = [row.base_offset for number, row in enumerate(rows) if _is_made_of(rows, number, batches, sizes)]
    return found[0] if len(found) == 1 else None


def _is_made_of(rows: Sequence[Segment], number: int, batches: Batches, sizes: np.ndarray) -> bool:
    at = 0
    while number < len(rows) and at < len(batches.keys):
        row, stop = rows[number], at + rows[number].batches
        if not row.batches or stop > len(batches.keys):
            return False
        figures = (
            int(sizes[stop] - sizes[at]),
            int(batches.ends[stop - 1] - batches.starts[at]),
            int(batches.last_ms[at]),
            int(batches.last_ms[at:stop].max()),
        )
        span = row.next_offset - row.base_offset
        if figures != (row.log_bytes, span, row.first_batch_max_timestamp_ms, row.max_timestamp_ms):
            return False
        number, at = number + 1, stop
    return at > 0


def _joined(parts: Sequence[np.ndarray], dtype: type = np.int64) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts])


def _places_within(counts: np.ndarray) -> np.ndarray:
    """[0, 1, …, counts[0] - 1, 0, 1, …]"""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    places: np.ndarray = np.arange(total) - np.repeat(ends - counts, counts)
    return places
