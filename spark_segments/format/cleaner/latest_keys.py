"""The latest offset of every key among decoded records: the cleaner's map, filled from Arrow columns.

If the keys do not fit a map, several maps hold a share of the keys each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from spark_segments.format.cleaner import map_kernels
from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.format.cleaner.offset_map import _GROWING_LOAD, OffsetMap
from spark_segments.format.encoding.arrow_buffers import BinaryView, binary_view


class KeyShare(NamedTuple):
    """The keys of part `number` out of `parts`. A key's hash says which part it is in, so maps need the same seed."""

    number: int = 0
    parts: int = 1


ALL_KEYS = KeyShare()


class LatestKeys(OffsetMap):
    """The latest offsets of the keys of a share, in at most `memory_bytes`."""

    def __init__(self, memory_bytes: int, share: KeyShare = ALL_KEYS, *, seed: int | None = None) -> None:
        super().__init__(memory_bytes, seed=seed)
        self.share = share

    @classmethod
    def of(cls, keys: pa.Array, *, seed: int | None = None) -> LatestKeys:
        """A map that has the keys binary[n], without null."""
        latest_keys = cls(BYTES_PER_SLOT * (2 * len(keys) + 2), seed=seed)
        latest_keys.put_records(keys, np.zeros(len(keys), np.int64))
        return latest_keys

    def contains(self, keys: pa.Array) -> np.ndarray:
        """bool[n]: which of the keys binary[n] the map has; null keys count as contained."""
        contained = np.zeros(len(keys), np.bool_)
        self.mark_superseded(keys, np.full(len(keys), -1, np.int64), contained)
        return contained

    def put_records(self, keys: pa.Array, offsets: np.ndarray) -> bool:
        """Puts records: `keys` binary[n], of which null keys are skipped, and `offsets` int64[n]. False: the map is
        full and must not be used.
        """
        hashes = self.hashes(keys)
        row = 0
        while row < len(offsets):
            growing = self.capacity < self._max_slots
            limit = int(self.capacity * _GROWING_LOAD) if growing else self.max_entries
            row, self.entries = map_kernels.put_rows(
                hashes, offsets, row, self.slots, self.entries, limit, *self._share
            )
            if row < len(offsets):
                if not growing:
                    self.full = True
                    return False
                self._grow(self.entries + len(offsets) - row)
        return True

    def mark_superseded(self, keys: pa.Array, offsets: np.ndarray, superseded: np.ndarray) -> None:
        """Sets `superseded` (bool[n]) for records without a key, and for records of this share if the map has a later
        offset of their key.
        """
        map_kernels.mark_rows(self.hashes(keys), offsets, self.slots, *self._share, superseded)

    @property
    def _share(self) -> tuple[int, int]:
        return self.share.number, self.share.parts

    def hashes(self, keys: pa.Array) -> np.ndarray:
        """int64[3n] of binary[n]: of each key the two halves of its hash, and whether it is a key."""
        count = len(keys)
        hashes = np.empty(3 * count, np.int64)
        view: BinaryView = binary_view(keys, "key", count)
        map_kernels.hash_rows(*view, count, self.seed, self.secret, hashes)
        return hashes
