"""isolation.level=read_committed: the transaction indexes that list a read's aborted transactions.

Kafka's rule (LogSegment.collectAbortedTxns): the .txnindex of the segment that holds the abort marker lists the aborted
transaction. The transaction's data may lie in earlier segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import read_txn_index
from spark_segments.storage import Storage


@dataclass(frozen=True, slots=True)
class TransactionIndex:
    """The aborted transactions with their markers in a segment: a .txnindex file, or `aborted` in memory.

    `shift`: offset in the log minus offset in the file.
    """

    base_offset: int
    path: str
    size_bytes: int
    shift: int = 0
    aborted: AbortedTransactions | None = None

    def load(self, storage: Storage) -> AbortedTransactions:
        """Offsets of the log. Raises CorruptBatchError for a damaged file."""
        if self.aborted is not None:
            return self.aborted
        return read_txn_index(storage, self.path, self.size_bytes, self.shift)


def transaction_indexes(segments: pa.Table, scanned: Mapping[str, AbortedTransactions]) -> list[TransactionIndex]:
    """The transaction indexes of a partition's segment rows, by offset; a segment without aborts has no index.

    `scanned`: by the path of the .log, the scan's result for a segment whose .txnindex is missing or wrong.
    """
    mask = segments.column("txn_index_bytes").to_numpy() > 0
    if scanned:
        mask |= np.array([path in scanned for path in segments.column("path").to_pylist()], bool)
    return [_index(segment, scanned) for segment in Segment.of_table(segments.filter(pa.array(mask)))]


def _index(segment: Segment, scanned: Mapping[str, AbortedTransactions]) -> TransactionIndex:
    return TransactionIndex(
        segment.base_offset,
        segment.txn_index_path,
        segment.txn_index_bytes,
        segment.offset_shift,
        scanned.get(segment.path),
    )


def load_aborted(
    storage: Storage, indexes: Iterable[TransactionIndex], start_offset: int, end_offset: int
) -> AbortedTransactions:
    """The aborted transactions that may have data at offsets in [start_offset, end_offset).

    `indexes`: of the segment that holds `start_offset` and of all later segments, in order. Reading stops at the first
    index after which no transaction that began before `end_offset` can be open.
    """
    parts = []
    for index in indexes:
        aborted = index.load(storage)
        parts.append(aborted.overlapping(start_offset, end_offset))
        # When a transaction was aborted, all that had begun below the last stable offset of then had ended:
        #
        #   |start … end|  …  ABORT, last stable offset at or above the end
        #
        # So no later index lists a transaction with data below the end. Without this line a short read would open the
        # indexes of all segments up to the log end.
        if len(aborted) and int(aborted.last_stable_offset.max()) >= end_offset:
            break
    return AbortedTransactions.concatenate(parts)
