"""The latest offset of every key among decoded records: the cleaner's map, filled from Arrow columns.

If the keys do not fit a map, several maps hold a share of the keys each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_segments.format.cleaner.offset_map import (
    _GROWING_LOAD,
    PREFETCH_ROWS,
    OffsetMap,
    find_slot,
    latest_offset,
    prefetch_slot,
)
from spark_segments.format.encoding.arrow_buffers import BinaryView, binary_view
from spark_segments.format.kernels.jit import njit
from spark_segments.format.kernels.key_hash import key_hash, multiply_high


class KeyShare(NamedTuple):
    """The keys of part `number` out of `parts`. A key's hash says which part it is in, so maps need the same seed."""

    number: int = 0
    parts: int = 1


ALL_KEYS = KeyShare()


class LatestKeys(OffsetMap):
    """The latest offsets of the keys of a share, in at most `memory_bytes` (1.25 times that while it grows)."""

    def __init__(self, memory_bytes: int, share: KeyShare = ALL_KEYS, *, seed: int | None = None) -> None:
        super().__init__(memory_bytes, seed=seed)
        self.share = share

    def put_records(self, keys: pa.Array, offsets: np.ndarray) -> bool:
        """Puts records: `keys` binary[n], of which null keys are skipped, and `offsets` int64[n]. False: the map is
        full and must not be used.
        """
        hashed = self._hashed(keys)
        row = 0
        while row < len(offsets):
            growing = self.capacity < self._max_slots
            limit = int(self.capacity * _GROWING_LOAD) if growing else self.max_entries
            row, self.entries = _put(
                *hashed, offsets, row, self.slots, np.uint64(self.capacity), self.entries, limit, *self._share
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
        _mark(*self._hashed(keys), offsets, self.slots, np.uint64(self.capacity), *self._share, superseded)

    @property
    def _share(self) -> tuple[Any, Any]:
        return np.uint64(self.share.number), np.uint64(self.share.parts)

    def _hashed(self, keys: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(low uint64[n], high uint64[n], has a key bool[n])"""
        count = len(keys)
        found = np.empty(count, np.uint64), np.empty(count, np.uint64), np.empty(count, np.bool_)
        view: BinaryView = binary_view(keys, "key", count)
        _hash(*view, np.uint64(self.seed), self.secret, *found)
        return found


@njit
def _hash(offsets, data, validity, first_bit, seed, secret, lows, highs, has_key):
    for row in range(len(lows)):
        bit = first_bit + row
        has_key[row] = len(validity) == 0 or (validity[bit >> 3] >> (bit & 7)) & 1 != 0
        if has_key[row]:
            start = np.int64(offsets[row])
            lows[row], highs[row] = key_hash(data, start, np.int64(offsets[row + 1]) - start, seed, secret)
        else:
            lows[row] = highs[row] = 0


@njit
def _put(lows, highs, has_key, offsets, first, slots, capacity, entries, limit, share, shares):
    """(the first row that has no room, or the number of rows; entries)"""
    for row in range(first, len(offsets)):
        prefetch_slot(slots, capacity, lows, row + PREFETCH_ROWS, len(offsets))
        if not has_key[row] or (shares > 1 and multiply_high(highs[row], shares) != share):
            continue
        at = find_slot(slots, capacity, lows[row], highs[row])
        stored = np.int64(slots[at + np.uint64(2)])
        if stored == 0:
            if entries >= limit:
                return row, entries
            slots[at] = lows[row]
            slots[at + np.uint64(1)] = highs[row]
            entries += 1
        slots[at + np.uint64(2)] = np.uint64(max(stored, offsets[row] + 1))
    return len(offsets), entries


@njit
def _mark(lows, highs, has_key, offsets, slots, capacity, share, shares, superseded):
    for row in range(len(offsets)):
        prefetch_slot(slots, capacity, lows, row + PREFETCH_ROWS, len(offsets))
        if has_key[row] and (shares == 1 or multiply_high(highs[row], shares) == share):
            superseded[row] |= offsets[row] < latest_offset(slots, capacity, lows[row], highs[row])
        else:
            superseded[row] |= not has_key[row]
