"""Record batches in memory, with their position in a file and their offsets in the log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_segments.format.batches import BatchTable


@dataclass(frozen=True, slots=True)
class Window:
    """Bytes of a file, and the batches in them to use: all or some of the batches that a scan of `data` found.

    `data[0]` is byte `byte_position` of the file `path`. The positions of `batches` count from the file's start. An
    offset in the bytes plus `offset_shift` is the offset in the log. `pieces`: `data` is put together of pieces of the
    file, one behind the other; two int64[], where each begins in the file, in order, and in `data`.
    `timestamp_type`: of all records; None: what their batches say. `behind`: of batches that are not as the file has
    them, the position in the file behind what they were made of; positions count from 0 then.
    """

    data: Any  # bytes-like
    batches: BatchTable
    byte_position: int = 0
    path: str = ""
    offset_shift: int = 0
    pieces: tuple[np.ndarray, np.ndarray] | None = None
    timestamp_type: int | None = None
    behind: int | None = None

    @property
    def is_as_written(self) -> bool:
        """Whether the batches are as the file has them."""
        return self.behind is None

    @property
    def end_position(self) -> int:
        """The position in the file behind the batches: one at least, or `behind` is known."""
        if self.behind is not None:
            return self.behind
        return int(self.batches.byte_position[-1] + self.batches.size[-1])

    @property
    def starts(self) -> np.ndarray:
        """int64[]: where each batch begins in `data`."""
        values: np.ndarray = self.batches.byte_position - self.byte_position
        if self.pieces is not None:
            positions, places = self.pieces
            rows = np.searchsorted(positions, self.batches.byte_position, side="right") - 1
            values = self.batches.byte_position - (positions - places)[rows]
        return values

    @property
    def batch_bytes(self) -> np.ndarray:
        """uint8[]: the bytes of the batches, which must be neighbours."""
        start = int(self.batches.byte_position[0]) - self.byte_position
        return np.frombuffer(self.data, np.uint8, count=int(self.batches.size.sum()), offset=start)

    def with_batches(self, batches: BatchTable) -> Window:
        """The same bytes with another table of their batches."""
        return replace(self, batches=batches)

    def take(self, rows: Any) -> Window:
        """The window with the batches of a slice, a mask or an array of indexes: itself where a mask has all."""
        has_all = isinstance(rows, np.ndarray) and rows.dtype == np.bool_ and rows.all()
        return self if has_all else replace(self, batches=self.batches.take(rows))

    def overlaps(self, start_offset: int, end_offset: int) -> np.ndarray:
        """bool[]: the batches that have offsets of the log in [start_offset, end_offset)."""
        shift = self.offset_shift
        values: np.ndarray = self.batches.last_offset + shift >= start_offset
        return values & (self.batches.base_offset + shift < end_offset)

    def between(self, start_offset: int, end_offset: int) -> Window:
        """The window with the batches that have offsets of the log in [start_offset, end_offset)."""
        return self.take(self.overlaps(start_offset, end_offset))
