"""Active producers: the cleaner keeps the last batch of each, so that a broker can continue its sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.layout import NO_PRODUCER_ID
from spark_segments.format.sidecars.producer_state import ProducerEntry


@dataclass(frozen=True, slots=True)
class ActiveProducers:
    """The active producers, sorted by producer id; int64[n] each.

    The last batch of each is kept, without records if necessary, for its sequence number and epoch.
    """

    producer_id: np.ndarray
    epoch: np.ndarray
    last_offset: np.ndarray  # of the log; negative if the producer's epoch has only markers

    @classmethod
    def of(cls, entries: Iterable[ProducerEntry] = ()) -> ActiveProducers:
        rows = sorted((entry.producer_id, entry.producer_epoch, entry.last_offset) for entry in entries)
        columns = np.array(rows, np.int64).reshape(-1, 3)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2])

    def mask(self, batches: BatchTable, offset_shift: int) -> np.ndarray:
        """bool[n]: the batches that are their producer's last, or markers of its epoch if the epoch has no data."""
        kept = np.zeros(len(batches), np.bool_)
        rows = np.flatnonzero(batches.producer_id > NO_PRODUCER_ID)
        if len(rows) and len(self.producer_id):
            at = np.searchsorted(self.producer_id, batches.producer_id[rows]).clip(max=len(self.producer_id) - 1)
            is_last = batches.last_offset[rows] + offset_shift == self.last_offset[at]
            is_marker = batches.is_control[rows] & (batches.producer_epoch[rows] == self.epoch[at])
            is_active = self.producer_id[at] == batches.producer_id[rows]
            kept[rows] = is_active & np.where(self.last_offset[at] >= 0, is_last, is_marker)
        return kept
