"""Noted batches: what the first pass of a round keeps of the batches that it put into the map.

With the map finished, their live records are known. So the second pass reads only the parts of a segment that have any,
and looks up no key of theirs. A segment that is not noted, or not whole, is read from its first byte to its last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanerStats
from spark_segments.format.cleaner.live_records import LiveRecords
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.ranges import Ranges

LEAST_MEMORY_BYTES = 1 << 20
MEMORY_SHARE = 1 / 8  # of the map's memory: for the notes, and once more for the bits of the live records

LEAST_GAP_BYTES = 64 << 10
LEAST_STORE_GAP_BYTES = 2 << 20
"""The least bytes between two ranges of a segment that are read apart, of a local file and of an object: a range of its
own costs a call, or a request.
"""


def memory_for_notes(map_bytes: int) -> int:
    """The most bytes of a round's notes, and of its bits, for a map of `map_bytes`."""
    return max(LEAST_MEMORY_BYTES, int(map_bytes * MEMORY_SHARE))


@dataclass(frozen=True, slots=True)
class BatchNotes:
    """n neighbouring batches of a file, an array of length n per field.

    `plain`: see `clean_batches`. `needed`: the second pass must see the batch, whether or not it has live records.
    `transactional`: the batch has to do with a transaction.
    """

    byte_position: np.ndarray  # int64
    size: np.ndarray  # int64
    base_offset: np.ndarray  # int64, of the log
    last_offset: np.ndarray  # int64, of the log
    count: np.ndarray  # int32
    plain: np.ndarray  # bool
    needed: np.ndarray  # bool
    transactional: np.ndarray  # bool

    @property
    def size_bytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.__slots__)

    @classmethod
    def join(cls, parts: Iterable[BatchNotes]) -> BatchNotes:
        """The notes of neighbouring parts, in order."""
        neighbours = list(parts)
        return cls(*(np.concatenate([getattr(part, name) for part in neighbours]) for name in cls.__slots__))


@dataclass(slots=True)
class NotedBatches:
    """The notes of a round, by the path of the segment, in at most `memory_bytes`."""

    memory_bytes: int
    _parts: dict[str, list[BatchNotes]] = field(default_factory=dict)
    _size_bytes: int = 0

    def add(
        self,
        segment: Segment,
        window: Window,
        plain: np.ndarray,
        producers: ActiveProducers,
        first_uncleanable_offset: int,
    ) -> None:
        """Notes the batches of the segment's next window, all of whose CRCs were checked."""
        batches = window.batches
        shift = window.offset_shift
        dense = batches.last_offset - batches.base_offset + 1 == batches.count
        ends_round = batches.last_offset + (shift + 1) == first_uncleanable_offset
        keeps_header = ends_round | producers.mask(batches, shift)
        plain = plain & dense
        transactional = batches.is_transactional | batches.is_control
        notes = BatchNotes(
            batches.byte_position,
            batches.size,
            batches.base_offset + shift,
            batches.last_offset + shift,
            batches.count,
            plain,
            ~plain | keeps_header | transactional,
            transactional,
        )
        self._size_bytes += notes.size_bytes
        if self._size_bytes <= self.memory_bytes:
            self._parts.setdefault(segment.path, []).append(notes)

    def take(self, other: NotedBatches) -> None:
        """Takes the notes of the slice of the log that comes next."""
        for path, parts in other._parts.items():
            self._parts.setdefault(path, []).extend(parts)

    def of(self, segments: Iterable[Segment]) -> NotedBatches:
        """The notes of these segments alone."""
        paths = [segment.path for segment in segments]
        return NotedBatches(self.memory_bytes, {path: self._parts[path] for path in paths if path in self._parts})

    def __contains__(self, segment: Segment) -> bool:
        """Whether batches of a segment are noted."""
        return segment.path in self._parts

    def whole(self, segment: Segment) -> BatchNotes | None:
        """The notes of all batches of a segment; None where some of its bytes are not noted."""
        parts = self._parts.get(segment.path)
        if parts is None:
            return None
        notes = BatchNotes.join(parts)
        ends = notes.byte_position + notes.size
        adjoin = (
            notes.byte_position[0] == 0
            and ends[-1] == segment.log_bytes
            and (ends[:-1] == notes.byte_position[1:]).all()
        )
        return notes if adjoin else None


def windows_to_read(
    notes: BatchNotes, live: LiveRecords, least_gap_bytes: int, most_bytes: int
) -> tuple[list[Ranges], CleanerStats]:
    """(what the second pass reads of a segment, in windows; what becomes of the batches that it passes over).

    A window has at most `most_bytes`, or one batch. Gaps of less than `least_gap_bytes` are read with what is around
    them.
    """
    counts = live.counts_between(notes.base_offset, notes.last_offset)
    numbers = np.flatnonzero(notes.needed | (counts != 0))
    if not len(numbers):
        return [], _passed(notes, np.ones(len(counts), np.bool_))
    ends = notes.byte_position + notes.size
    far = notes.byte_position[numbers[1:]] - ends[numbers[:-1]] >= least_gap_bytes
    firsts = numbers[np.concatenate(([True], far))]
    lasts = numbers[np.concatenate((far, [True]))]
    firsts[0] = 0 if notes.byte_position[firsts[0]] < least_gap_bytes else firsts[0]
    # +1 where a range begins, -1 behind its end: the running sum is above 0 within ranges.
    edges = np.zeros(len(counts) + 1, np.int64)
    edges[firsts] += 1
    edges[lasts + 1] -= 1
    is_read = np.cumsum(edges[:-1]) > 0
    rows = np.flatnonzero(is_read)
    starts = notes.byte_position[rows]
    ends = ends[rows]
    read_bytes = np.cumsum(notes.size[rows], dtype=np.int64)
    windows: list[Ranges] = []
    first = 0
    while first < len(rows):
        before = int(read_bytes[first - 1]) if first else 0
        # At least one batch: one that is larger than a window would else never be passed.
        last = max(int(np.searchsorted(read_bytes, before + most_bytes, side="right")), first + 1)
        windows.append(Ranges.of(starts[first:last], ends[first:last]))
        first = last
    return windows, _passed(notes, ~is_read)


def plain_batches(notes: BatchNotes, batches: BatchTable) -> np.ndarray:
    """bool[n]: which batches of a window are plain."""
    values: np.ndarray = notes.plain[np.searchsorted(notes.byte_position, batches.byte_position)]
    return values


def _passed(notes: BatchNotes, rows: np.ndarray) -> CleanerStats:
    """What becomes of the batches of `rows` (bool[n]), none of which has a live record."""
    records = int(notes.count[rows].sum())
    return CleanerStats(
        records_read=records,
        superseded=records,
        batches_read=int(np.count_nonzero(rows)),
        bytes_read=int(notes.size[rows].sum()),
    )
