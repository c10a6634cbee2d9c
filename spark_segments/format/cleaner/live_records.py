"""Live records: which offsets of the dirty head hold the latest record of their key, a bit for each offset.

The bits come from a finished offset map. A batch that lies wholly in the map's offsets needs no look-up of its keys
then: the rewriting pass copies the records whose bits are set.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.cleaner import map_kernels
from spark_segments.format.cleaner.offset_map import OffsetMap

_BITS_SET = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""How many bits of each byte are set."""


@dataclass(frozen=True, slots=True)
class LiveRecords:
    """The live records among offsets [start_offset, end_offset) of a log.

    `bits`: uint8[], the bit of offset `o` is bit `(o - start_offset) % 8` of byte `(o - start_offset) // 8`.
    """

    start_offset: int
    end_offset: int
    bits: np.ndarray

    @classmethod
    def of(cls, offset_map: OffsetMap, memory_bytes: int) -> LiveRecords | None:
        """The live records of a map's offsets; None where their bits would take more than `memory_bytes`."""
        count = offset_map.end_offset - offset_map.start_offset
        if count > memory_bytes * 8:
            return None
        bits = np.zeros(count // 8 + 1, np.uint8)
        map_kernels.set_bits(offset_map.slots, offset_map.start_offset, count, bits)
        return cls(offset_map.start_offset, offset_map.end_offset, bits)

    def counts(self, batches: BatchTable, offset_shift: int) -> np.ndarray:
        """int64[n]: the live records of each batch, -1 for a batch that is not wholly in these offsets."""
        return self.counts_between(batches.base_offset + offset_shift, batches.last_offset + offset_shift)

    def counts_between(self, base_offset: np.ndarray, last_offset: np.ndarray) -> np.ndarray:
        """As `counts`, of the ranges of the log [base_offset, last_offset]; int64[n] each."""
        inside = (base_offset >= self.start_offset) & (last_offset < self.end_offset)
        counts = np.full(len(base_offset), -1, np.int64)
        map_kernels.count_bits(
            self.bits, inside, base_offset - self.start_offset, last_offset - self.start_offset + 1, counts
        )
        return counts

    def share(self, base_offset: int, next_offset: int) -> float:
        """About which share of the offsets [base_offset, next_offset) of the log has a live record; 1 if not known."""
        if base_offset < self.start_offset or next_offset > self.end_offset or base_offset >= next_offset:
            return 1.0
        first, last = base_offset - self.start_offset >> 3, next_offset - 1 - self.start_offset >> 3
        return int(_BITS_SET[self.bits[first : last + 1]].sum()) / (8 * (last + 1 - first))


NO_LIVE_RECORDS = LiveRecords(0, 0, np.zeros(1, np.uint8))
"""No offsets: every batch's keys are looked up."""
