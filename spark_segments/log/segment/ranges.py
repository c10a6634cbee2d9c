"""Ranges of a file that are read as if they lay one behind the other: what is between them costs nothing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError
from spark_segments.format.walk import too_short
from spark_segments.format.window import Window
from spark_segments.storage import Storage
from spark_segments.storage.fetch import fetch_ahead, read_file


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges [start, end) of a file (int64[n] each), one at least, which rise and do not adjoin.

    A place is a position in their bytes, put one behind the other. Each range begins and ends with a batch.
    """

    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, starts: np.ndarray, ends: np.ndarray) -> Ranges:
        """The ranges of batches (int64[m] each), one at least, which rise. Adjoining batches are one range."""
        apart = np.flatnonzero(starts[1:] != ends[:-1])
        return cls(starts[np.append(0, apart + 1)], ends[np.append(apart, len(ends) - 1)])

    @property
    def size(self) -> int:
        """How many bytes they have."""
        return int((self.ends - self.starts).sum())

    def positions(self, places: np.ndarray) -> np.ndarray:
        """int64[m]: the positions in the file of places (int64[m]). Behind all is the end of the last range."""
        ends = np.cumsum(self.ends - self.starts)
        rows = np.minimum(np.searchsorted(ends, places, side="right"), len(ends) - 1)
        values: np.ndarray = places - ends[rows] + self.ends[rows]
        return values

    def between(self, place: int, end: int) -> list[tuple[int, int]]:
        """The ranges of the file with the bytes from a place up to another."""
        ends = np.cumsum(self.ends - self.starts)
        shift = self.ends - ends
        low = np.maximum(self.starts - shift, place)
        high = np.minimum(ends, end)
        rows = low < high
        return list(zip((low + shift)[rows].tolist(), (high + shift)[rows].tolist(), strict=True))

    @contextlib.contextmanager
    def reader(self, storage: Storage, path: str, log_bytes: int) -> Iterator[Callable[[int, int], pa.Buffer]]:
        """The function to read places with, as `fetch_ahead` gives it for positions.

        It raises CorruptBatchError where the file, which the log says has `log_bytes`, ends within a range.
        """
        with fetch_ahead(storage, path, *self.ends.tolist()) as read:

            def read_places(place: int, length: int) -> pa.Buffer:
                pieces = self.between(place, place + length)
                if len(pieces) == 1 or not storage.is_local:
                    parts = [read(start, end - start) for start, end in pieces]
                    data = parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))
                else:
                    data = read_file(storage, path, ranges=pieces)
                if data.size < length:
                    raise too_short(path, log_bytes, int(self.positions(np.array([place + data.size]))[0]))
                return data

            yield read_places

    def in_file(self, window: Window) -> Window:
        """A window of places, with the positions of its batches in the file."""
        ranges = np.array(self.between(window.byte_position, window.byte_position + window.data.size), np.int64)
        sizes = ranges[:, 1] - ranges[:, 0]
        return dataclasses.replace(
            window,
            batches=dataclasses.replace(window.batches, byte_position=self.positions(window.batches.byte_position)),
            byte_position=int(ranges[0, 0]),
            pieces=(ranges[:, 0], np.cumsum(sizes) - sizes),
        )

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Errors within, which say a place, say the position in the file."""
        try:
            yield
        except CorruptBatchError as error:
            error.byte_position = int(self.positions(np.array([error.byte_position or 0]))[0])
            raise
