"""Record batches in memory, and the place that they have in a file and in the log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_segments.format.batches import BatchTable


@dataclass(frozen=True, slots=True)
class Window:
    """Batches to be used, all or some of a scan of `data`, and the bytes that they are in.

    `data[0]` is byte `position` of the file `path`, and the positions of `batches` count from the file's start. Offsets
    in the bytes plus `offset_shift` are those of the log.
    """

    data: Any  # bytes-like
    batches: BatchTable
    position: int = 0
    path: str = ""
    offset_shift: int = 0

    @property
    def starts(self) -> np.ndarray:
        """int64[]: where each batch begins in `data`."""
        values: np.ndarray = self.batches.position - self.position
        return values

    def with_batches(self, batches: BatchTable) -> Window:
        """The same bytes with other batches of them."""
        return replace(self, batches=batches)

    def take(self, rows: Any) -> Window:
        """The window with the batches of a slice, a mask or an array of indexes."""
        return replace(self, batches=self.batches.take(rows))

    def overlaps(self, start_offset: int, end_offset: int) -> np.ndarray:
        """bool[]: the batches that have offsets of the log in [start_offset, end_offset)."""
        shift = self.offset_shift
        values: np.ndarray = self.batches.last_offset + shift >= start_offset
        return values & (self.batches.base_offset + shift < end_offset)

    def between(self, start_offset: int, end_offset: int) -> Window:
        """The window with the batches that have offsets of the log in [start_offset, end_offset)."""
        wanted = self.overlaps(start_offset, end_offset)
        return self if wanted.all() else self.take(wanted)
