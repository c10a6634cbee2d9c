"""Transactions as the cleaner meets them: which data were aborted, and which markers the log needs no longer.

This is Kafka's CleanedTransactionMetadata. A marker may go once a cleaning has met no data of its transaction before
it. The data of an aborted transaction go at once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_segments.errors import SegmentsError
from spark_segments.format.cleaner import transaction_kernels
from spark_segments.format.control import read_markers
from spark_segments.format.layout import NO_MARKER
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window


class WholeLogNeededError(SegmentsError):
    """A partition has transactions, and the task at hand reads a part of its log without what comes before.

    Compaction catches this, and reads the log's transactions first, or cleans the partition by one task. No user sees
    it.
    """


@dataclass(frozen=True, slots=True)
class TransactionalBatches:
    """The transactional and control batches of a part of a log, in their order: an array for each field."""

    producer_id: np.ndarray  # int64
    base_offset: np.ndarray  # int64, of the log
    last_offset: np.ndarray  # int64, of the log
    control: np.ndarray  # bool
    kind: np.ndarray  # int64: the marker in a control batch, else NO_MARKER

    def __len__(self) -> int:
        return len(self.producer_id)

    @property
    def size_bytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in self.__slots__)

    @classmethod
    def of(cls, window: Window) -> TransactionalBatches:
        """Those of a window."""
        batches = window.batches.take(np.flatnonzero(window.batches.is_control | window.batches.is_transactional))
        control = batches.is_control
        kind = np.full(len(batches), NO_MARKER, np.int64)
        if control.any():
            kind[control] = read_markers(window.with_batches(batches.take(control))).type
        base_offset, last_offset = batches.base_offset + window.offset_shift, batches.last_offset + window.offset_shift
        return cls(batches.producer_id, base_offset, last_offset, control, kind)

    @classmethod
    def join(cls, parts: Iterable[TransactionalBatches]) -> TransactionalBatches:
        """Those of neighbouring parts, in order."""
        filled = [part for part in parts if len(part)] or [_NO_BATCHES]
        return cls(*(np.concatenate([getattr(part, name) for part in filled]) for name in cls.__slots__))


_NO_BATCHES = TransactionalBatches(*(np.zeros(0, kind) for kind in (np.int64, np.int64, np.int64, np.bool_, np.int64)))


class CleanedTransactions:
    """What one pass over a log knows of its transactions so far. It reads the batches from the start, in their order.

    Building the map is one pass and cleaning is another. Each has a state, and a state can be pickled: a task that goes
    on from the middle of a log takes the state of the batches before. Not `whole_log`: the pass reads some part of a
    log that is taken to have no transactions.
    """

    def __init__(self, *, whole_log: bool = True) -> None:
        self._whole_log = whole_log
        self._aborted = AbortedTransactions.of()  # still to come or under way, by first offset
        self._observed = np.zeros(0, np.bool_)  # of those: whether data of it was met
        self._committed = np.zeros(0, np.int64)  # producers with data met that no abort has undone, sorted
        self.has_met_any = False  # whether a batch had to do with transactions

    def add_aborted(self, aborted: AbortedTransactions) -> None:
        """Adds transactions of the log's index, before the first of their batches is read.

        All transactions of the log may be given at once, and given again. An entry is in the index of the segment that
        has the marker, which may come after the segment that has the data.
        """
        present = set(zip(self._aborted.producer_id.tolist(), self._aborted.first_offset.tolist(), strict=True))
        pairs = zip(aborted.producer_id.tolist(), aborted.first_offset.tolist(), strict=True)
        new = np.array([pair not in present for pair in pairs], np.bool_)
        both = AbortedTransactions.concatenate([self._aborted, aborted.take(new)])
        order = np.argsort(both.first_offset, kind="stable")
        self._aborted = both.take(order)
        self._observed = np.concatenate([self._observed, np.zeros(int(new.sum()), np.bool_)])[order]

    def read(self, window: Window) -> tuple[np.ndarray, AbortedTransactions]:
        """Walks the batches that come next: (bool[n], which may be discarded; transactions for the new index).

        A data batch may be discarded if its transaction was aborted. A control batch may be discarded if no data of its
        transaction was met, or if the cleaner has emptied it before. The transactions returned have an abort marker
        among the batches, and data of theirs was met: the rewritten segment's index names them until all of their data
        are gone. Raises WholeLogNeededError for a control batch where the pass does not read the whole log.
        """
        batches = window.batches
        if not self._whole_log:
            if batches.is_control.any():
                raise WholeLogNeededError(
                    "The log has a transaction marker", path=window.path, byte_position=window.byte_position
                )
            return np.zeros(len(batches), np.bool_), AbortedTransactions.of()
        discardable = np.zeros(len(batches), np.bool_)
        rows = batches.is_control | batches.is_transactional
        if not rows.any():
            return discardable, AbortedTransactions.of()
        discardable[rows], index = self.follow(TransactionalBatches.of(window))
        return discardable, index

    def follow(self, batches: TransactionalBatches) -> tuple[np.ndarray, AbortedTransactions]:
        """As `read`, of the batches alone that have to do with transactions."""
        if not len(batches):
            return np.zeros(0, np.bool_), AbortedTransactions.of()
        self.has_met_any = True
        producer_ids = np.unique(np.concatenate([batches.producer_id, self._aborted.producer_id, self._committed]))
        committed = np.isin(producer_ids, self._committed)
        discardable = np.zeros(len(batches), np.bool_)
        ended, retained = np.zeros((2, len(self._aborted)), np.bool_)
        transaction_kernels.walk(
            batches,
            np.searchsorted(producer_ids, batches.producer_id),
            self._aborted,
            np.searchsorted(producer_ids, self._aborted.producer_id),
            (self._observed, committed, np.empty(len(producer_ids), np.int64)),
            (discardable, ended, retained),
        )
        index = self._aborted.take(np.flatnonzero(retained))
        self._committed = producer_ids[committed]
        self._aborted = self._aborted.take(~ended)
        self._observed = self._observed[~ended]
        by_marker = np.argsort(index.last_offset, kind="stable")
        return discardable, index.take(by_marker)

    def copy(self) -> CleanedTransactions:
        """The state by itself: what is read further on changes only one of both."""
        copied = copy.copy(self)
        copied._observed = self._observed.copy()
        return copied


class UntouchedTransactions(CleanedTransactions):
    """For a pass that does not change transactions: no batch may be discarded, and no index entry is made."""

    def read(self, window: Window) -> tuple[np.ndarray, AbortedTransactions]:
        """(bool[n] of no batch, no transactions)"""
        return np.zeros(len(window.batches), np.bool_), AbortedTransactions.of()
