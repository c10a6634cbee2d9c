"""The leader epochs of a partition: which epoch the batches of an offset belong to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_segments.log.manifest.rows import Partition


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """(epoch, start offset) pairs; both rise. Offsets below the first start belong to the first epoch."""

    entries: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, partition: Partition) -> LeaderEpochs:
        """The epochs of a partition's row. A row without entries has its current epoch alone."""
        return cls(partition.leader_epochs or ((partition.leader_epoch, 0),))

    def counted_from(self, offset: int) -> LeaderEpochs:
        """The same epochs for a copy in which offset `offset` of the log is offset 0."""
        return LeaderEpochs(tuple((epoch, start - offset) for epoch, start in self.entries))

    def at(self, offsets: np.ndarray) -> np.ndarray:
        """int32[n]: the epoch of each offset of the log. A batch is stamped by this, and not by the current epoch."""
        epochs, starts = (np.array(column, np.int64) for column in zip(*self.entries, strict=True))
        places = np.searchsorted(starts, offsets, side="right") - 1
        found: np.ndarray = epochs[np.maximum(places, 0)].astype(np.int32)
        return found
