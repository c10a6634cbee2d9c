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
from spark_segments.format.control import read_markers
from spark_segments.format.kernels.jit import njit
from spark_segments.format.layout import ABORT, COMMIT, NO_MARKER
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window

_NONE = -1


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
        found = [part for part in parts if len(part)] or [_NO_BATCHES]
        return cls(*(np.concatenate([getattr(part, name) for part in found]) for name in cls.__slots__))


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
        known = set(zip(self._aborted.producer_id.tolist(), self._aborted.first_offset.tolist(), strict=True))
        pairs = zip(aborted.producer_id.tolist(), aborted.first_offset.tolist(), strict=True)
        new = np.array([pair not in known for pair in pairs], np.bool_)
        both = AbortedTransactions.concatenate([self._aborted, _rows(aborted, new)])
        order = np.argsort(both.first_offset, kind="stable")
        self._aborted = _rows(both, order)
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
                    "The log has a transaction marker", path=window.path, position=window.position
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
        discardable, ended, retained = _walk(
            np.searchsorted(producer_ids, batches.producer_id),
            batches.base_offset,
            batches.last_offset,
            batches.control,
            batches.kind,
            np.searchsorted(producer_ids, self._aborted.producer_id),
            self._aborted.first_offset,
            self._aborted.last_offset,
            self._observed,
            committed,
        )
        index = _rows(self._aborted, np.flatnonzero(retained))
        self._committed = producer_ids[committed]
        self._aborted = _rows(self._aborted, ~ended)
        self._observed = self._observed[~ended]
        by_marker = np.argsort(index.last_offset, kind="stable")
        return discardable, _rows(index, by_marker)

    def copy(self) -> CleanedTransactions:
        """The state by itself: what is read further on changes only one of both."""
        copied = copy.copy(self)
        copied._observed = self._observed.copy()
        return copied


class UntouchedTransactions(CleanedTransactions):
    """For a pass that leaves transactions as they are: no batch may be discarded, and no index entry is made."""

    def read(self, window: Window) -> tuple[np.ndarray, AbortedTransactions]:
        """(bool[n] of no batch, no transactions)"""
        return np.zeros(len(window.batches), np.bool_), AbortedTransactions.of()


def _rows(aborted: AbortedTransactions, rows: np.ndarray) -> AbortedTransactions:
    return AbortedTransactions(
        aborted.producer_id[rows],
        aborted.first_offset[rows],
        aborted.last_offset[rows],
        aborted.last_stable_offset[rows],
    )


@njit(_nrt=True)
def _walk(
    producers,
    base_offsets,
    last_offsets,
    control,
    kinds,
    txn_producers,
    txn_first_offsets,
    txn_last_offsets,
    observed,
    committed,
):
    """(which batches may be discarded, which transactions have ended, whose marker is kept because of its data)

    Producers are numbers from 0 to len(committed) - 1. `observed` and `committed` are updated.
    """
    discardable = np.zeros(len(producers), np.bool_)
    ended = np.zeros(len(txn_producers), np.bool_)
    retained = np.zeros(len(txn_producers), np.bool_)
    under_way = np.full(len(committed), _NONE)
    next_txn = 0
    for row in range(len(producers)):
        while next_txn < len(txn_producers) and txn_first_offsets[next_txn] <= last_offsets[row]:
            txn_producer = txn_producers[next_txn]
            before = under_way[txn_producer]
            # A missing marker ends a transaction just as an existing one does.
            if before != _NONE and txn_last_offsets[before] < txn_first_offsets[next_txn]:
                ended[before] = True
                before = _NONE
            if before == _NONE:
                under_way[txn_producer] = next_txn
            else:
                ended[next_txn] = True
            next_txn += 1
        producer = producers[row]
        txn = under_way[producer]
        if txn != _NONE and txn_last_offsets[txn] < base_offsets[row]:
            ended[txn] = True
            under_way[producer] = _NONE
            txn = _NONE
        if not control[row]:
            if txn != _NONE:
                observed[txn] = True
                discardable[row] = True
            else:
                committed[producer] = True
        elif kinds[row] == NO_MARKER:
            discardable[row] = True
        elif kinds[row] == ABORT:
            discardable[row] = True
            if txn != _NONE:
                ended[txn] = True
                under_way[producer] = _NONE
                if observed[txn]:
                    retained[txn] = True
                    discardable[row] = False
        elif kinds[row] == COMMIT:
            discardable[row] = not committed[producer]
            committed[producer] = False
    for txn in range(next_txn):
        # Batches come in the order of offsets, so what ended before the last one is over, seen or not.
        if txn_last_offsets[txn] < last_offsets[-1]:
            ended[txn] = True
    return discardable, ended, retained
