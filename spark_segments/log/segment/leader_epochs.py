"""The leader epochs of a partition: the epoch of each offset, and where the log parts from another one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.captures import Captured
from spark_segments.log.manifest.state.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """(epoch, start offset) pairs; both rise. Offsets below the first start belong to the first epoch.

    `stamped_from`: a copy gives a batch without an epoch that of its offset from this offset on. Below, batches are as
    a cluster sent them, and stay so. `stamps_all`: batches with an epoch get that of their offset, too.
    """

    entries: tuple[tuple[int, int], ...]
    stamped_from: int = 0
    stamps_all: bool = False

    @classmethod
    def of(cls, partition: Partition) -> LeaderEpochs:
        """The epochs of a partition's row. A row without entries has its current epoch alone."""
        return cls(partition.leader_epochs or ((partition.leader_epoch, 0),))

    @classmethod
    def of_copies(cls, snapshot: Snapshot, partition: Partition) -> LeaderEpochs:
        """The epochs that copies of a partition's batches get."""
        return cls(cls.of(partition).entries, Captured.end(snapshot.states, partition.partition))

    def counted_from(self, offset: int) -> LeaderEpochs:
        """The same epochs for a copy in which offset `offset` of the log is offset 0."""
        return LeaderEpochs(tuple((epoch, start - offset) for epoch, start in self.entries), self.stamped_from - offset)

    def at(self, offsets: np.ndarray) -> np.ndarray:
        """int32[n]: the epoch of each offset of the log. A batch is stamped by this, and not by the current epoch."""
        epochs = self.epochs_of(offsets)
        return np.where(epochs < 0, self.entries[0][0], epochs).astype(np.int32)

    def epochs_of(self, offsets: np.ndarray) -> np.ndarray:
        """int64[n]: the epoch of the entry that holds each offset, -1 for an offset below all entries."""
        epochs, starts = np.array([(-1, -1), *self.entries], np.int64).T
        result: np.ndarray = epochs[np.searchsorted(starts[1:], offsets, side="right")]
        return result

    def epoch_of(self, offset: int) -> int | None:
        """The same of one offset; None for an offset below all entries."""
        epoch = int(self.epochs_of(np.array([offset]))[0])
        return None if epoch < 0 else epoch

    def before(self, offset: int) -> int:
        """The epoch of the record before an offset, which a reader's position carries; 0 where no entry holds it."""
        return self.epoch_of(offset - 1) or 0

    def parting_offset(self, offset: int, epoch: int) -> int:
        """The offset up to which a reader's log is this log, at most `offset`, the reader's position.

        `epoch`: that of the record before the position. Kafka's rule: a log that has a later epoch from a lower offset
        on has replaced the records from there on.
        """
        later = (start for later_epoch, start in self.entries if later_epoch > epoch)
        return min(offset, next(later, offset))

    def allows(self, epoch: int) -> bool:
        """Whether a record of this epoch can have been read from this log, or from a part of it that has left the log.

        An epoch that is not there, above the first epoch that is, was that of a leader whose records were cut.
        """
        return (
            not self.entries
            or epoch <= self.entries[0][0]
            or any(epoch == started_epoch for started_epoch, _ in self.entries)
        )
