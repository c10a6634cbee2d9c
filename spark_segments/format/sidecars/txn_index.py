"""The transaction index of a segment: its aborted transactions, whose batches readers of committed records do not see.

An entry is in the index of the segment with the transaction's ABORT marker, which may be a later segment than that of
its data. So a reader of committed records needs the entries of its segment and of all segments up to the last stable
offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.sidecars import segment_kernels

TXN_ENTRY_VERSION = 0
TXN_ENTRY = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)
TXN_ENTRY_BYTES = TXN_ENTRY.itemsize
_NAMES = ("producer_id", "first_offset", "last_offset", "last_stable_offset")


@dataclass(frozen=True, slots=True)
class AbortedTransactions:
    """Aborted transactions, a row each, by the offset of their marker. All columns are int64[], offsets of the log."""

    producer_id: np.ndarray
    first_offset: np.ndarray
    last_offset: np.ndarray  # of the ABORT marker
    last_stable_offset: np.ndarray  # when the marker was written

    def __len__(self) -> int:
        return len(self.producer_id)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, int]] = ()) -> AbortedTransactions:
        """From rows of (producer id, first offset, last offset, last stable offset)."""
        columns = np.array(list(rows), np.int64).reshape(-1, 4)
        return cls(*(np.ascontiguousarray(columns[:, column]) for column in range(4)))

    @classmethod
    def concatenate(cls, parts: Iterable[AbortedTransactions]) -> AbortedTransactions:
        """The rows of all parts, in their order."""
        tables = [AbortedTransactions.of(), *parts]
        return cls(*(np.concatenate([getattr(table, name) for table in tables]) for name in _NAMES))

    def overlapping(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """The transactions that overlap [start_offset, end_offset)."""
        return self.take((self.first_offset < end_offset) & (self.last_offset >= start_offset))

    def take(self, rows: np.ndarray) -> AbortedTransactions:
        """The rows of a mask or an array of indexes."""
        return AbortedTransactions(*(getattr(self, name)[rows] for name in _NAMES))

    def shifted(self, offset_shift: int) -> AbortedTransactions:
        """The transactions with `offset_shift` added to all offsets, which turns a file's offsets into the log's."""
        offsets = (self.first_offset, self.last_offset, self.last_stable_offset)
        return AbortedTransactions(self.producer_id, *(column + offset_shift for column in offsets))

    def mask(self, batches: BatchTable, offset_shift: int = 0) -> np.ndarray:
        """bool[]: whether a batch's records were aborted. Its offsets + `offset_shift` are offsets of the log."""
        undone = np.zeros(len(batches), np.bool_)
        candidates = np.flatnonzero(batches.is_transactional & ~batches.is_control)
        if len(candidates) and len(self):
            order = np.lexsort((self.first_offset, self.producer_id))
            marks = np.empty(len(candidates), np.uint8)
            segment_kernels.mark_undone(
                batches.producer_id[candidates],
                batches.base_offset[candidates] + offset_shift,
                batches.last_offset[candidates] + offset_shift,
                self.producer_id[order],
                self.first_offset[order],
                self.last_offset[order],
                marks,
            )
            undone[candidates] = marks
        return undone


def parse_txn_index(data: Any, *, path: str = "") -> AbortedTransactions:
    """The entries of a .txnindex file.

    Raises CorruptBatchError for anything that Kafka does not write: readers would see the aborted records of a skipped
    entry.
    """
    size = memoryview(data).nbytes
    if size % TXN_ENTRY_BYTES:
        raise _damaged("The last entry of a transaction index is cut", path, size - size % TXN_ENTRY_BYTES)
    entries = np.frombuffer(data, TXN_ENTRY)
    wrong = np.flatnonzero(entries["version"] != TXN_ENTRY_VERSION)
    if len(wrong):
        byte_position = int(wrong[0]) * TXN_ENTRY_BYTES
        raise _damaged("An entry of a transaction index has a version that is not known", path, byte_position)
    aborted = AbortedTransactions(*(entries[name].astype(np.int64) for name in _NAMES))
    first_offset = aborted.first_offset
    last_offset = aborted.last_offset
    previous = np.concatenate(([-1], last_offset[:-1]))
    bad = (aborted.producer_id < 0) | (first_offset < 0) | (first_offset > last_offset) | (last_offset <= previous)
    wrong = np.flatnonzero(bad)
    if len(wrong):
        raise _damaged("An entry of a transaction index is impossible", path, int(wrong[0]) * TXN_ENTRY_BYTES)
    return aborted


def txn_index_bytes(aborted: AbortedTransactions) -> bytes:
    """The .txnindex file of these entries. Kafka writes no empty file."""
    entries = np.zeros(len(aborted), TXN_ENTRY)
    entries["version"] = TXN_ENTRY_VERSION
    for name in _NAMES:
        entries[name] = getattr(aborted, name)
    return entries.tobytes()


def _damaged(message: str, path: str, byte_position: int) -> CorruptBatchError:
    hint = "Remove the file: the log is then scanned for its transactions"
    return CorruptBatchError(message, path=path or None, byte_position=byte_position, hint=hint)
