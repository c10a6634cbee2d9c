"""An examination of a segment's .log: its good batches, its figures, and its faults with their positions.

Whether a fault ends the log, as for a broker that starts, or is a finding behind which a verification goes on, the
caller says. format/sidecars/check.py holds the index entries against the same batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.walk import WalkStep, walk
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.figures import SegmentFigures
from spark_segments.storage import Storage
from spark_segments.storage.fetch import fetch_ahead

UNREADABLE, FALLING, SHORT = "B13", "B3", "R6"
"""The rules of docs/format that the bytes of a .log break."""

GoesOn = Callable[[CorruptBatchError, str], bool]
"""Is given a fault and the rule that it breaks. Whether to go on behind it, where the next batch can be found."""


class Examination:
    """The bytes [start_position, end_position) of a file, whose batches are a segment.

    `figures` count the batches from the one with `start_offset` on, at the offsets in the file.
    """

    def __init__(
        self,
        storage: Storage,
        path: str,
        end_position: int,
        *,
        name_offset: int,
        start_offset: int,
        start_position: int = 0,
        offset_shift: int = 0,
    ) -> None:
        self._storage = storage
        self._path = path
        self._end_position = end_position
        self._offset_shift = offset_shift
        self._start_offset = start_offset
        self.byte_position = start_position  # up to there the bytes were examined
        self.next_offset = name_offset  # after the last batch that was added
        self.figures = SegmentFigures(start_offset, start_offset)

    @classmethod
    def of(cls, storage: Storage, segment: Segment, start_offset: int) -> Examination:
        """That of a segment's bytes from `start_offset` on, an offset in the file."""
        return cls(
            storage,
            segment.path,
            segment.end_position,
            name_offset=segment.name_offset,
            start_offset=start_offset,
            start_position=segment.byte_position,
            offset_shift=segment.offset_shift,
        )

    def windows(self, goes_on: GoesOn, starts: Sequence[int] = ()) -> Iterator[Window]:
        """The good batches with offsets above all added batches, window by window. The caller adds them, or the first
        of them, before it asks for more. `starts`: positions of batches, rising, as an index has them: where a bad
        batch does not say its size, the examination goes on at the next of them.

        Raises FileNotFoundError where there is no file.
        """
        while self.byte_position < self._end_position:
            for step in self.steps(self.byte_position):
                window, rises = self._rising(step.window, goes_on)
                if len(window.batches):
                    yield window
                self.byte_position = step.end_position
                fault = step.fault(self._end_position)
                if not rises:
                    return
                if fault is None:
                    continue
                bad_bytes = self._bad_bytes(step, starts)
                rule = SHORT if step.is_short and step.error is None else UNREADABLE
                if not goes_on(fault, rule) or not bad_bytes:
                    return
                self.byte_position += bad_bytes

    def _bad_bytes(self, step: WalkStep, starts: Sequence[int]) -> int:
        """How many bytes are passed over at the fault of a step. 0: nobody knows where a batch begins behind it, and to
        guess could take the bytes within a value for a batch.
        """
        if step.error is None:
            return 0
        size = _size_of_bad_batch(step)
        if size:
            return size
        following = bisect_right(starts, self.byte_position)
        return starts[following] - self.byte_position if following < len(starts) else 0

    def steps(self, start_position: int, *, check_crc: bool = True) -> Iterator[WalkStep]:
        """The walk from the batch at `start_position` on."""
        with fetch_ahead(self._storage, self._path, self._end_position) as read:
            yield from walk(
                read,
                self._path,
                self._end_position,
                start_position=start_position,
                offset_shift=self._offset_shift,
                check_crc=check_crc,
            )

    def _rising(self, window: Window, goes_on: GoesOn) -> tuple[Window, bool]:
        """(the window without batches whose offsets are not above all before, whether to go on behind it)"""
        falls, errors = window.batches.falling(self.next_offset, self._path)
        if not errors:
            return window, True
        if all([goes_on(error, FALLING) for error in errors]):
            return window.take(~falls), True
        return window.take(slice(0, int(np.argmax(falls)))), False

    def add(self, batches: BatchTable, count_records: Callable[[BatchTable], int]) -> BatchTable:
        """Adds batches (one at least) of the last window. Returns the batches in the log, whose records are counted."""
        self.next_offset = int(batches.last_offset[-1]) + 1
        in_log = batches.from_offset(self._start_offset)
        if len(in_log):
            self.figures.add(in_log, count_records(in_log))
        return in_log


def _size_of_bad_batch(step: WalkStep) -> int:
    """How far to go on from a batch whose checksum fails while its header may be right; 0 where it cannot be."""
    start = step.end_position - step.window.byte_position
    scan = scan_batches(step.window.data.slice(start), check_crc=False, limit_bytes=1)
    return int(scan.batches.size[0]) if len(scan.batches) else 0
