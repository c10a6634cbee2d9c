"""Producer state: Kafka's .snapshot files, and the state while a log is walked.

A broker needs the state to go on with idempotent and transactional producers. For each producer it has the last batch
and the open transaction. It also gives the ends of transactions, and so the transaction index and the last stable
offset. A snapshot file has an offset for a name, and the state of all batches below that offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.control import read_markers
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.layout import ABORT, NO_MARKER, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window

SNAPSHOT_VERSION = 1
SNAPSHOT_HEADER = np.dtype([("version", ">i2"), ("crc", ">u4"), ("count", ">i4")])
SNAPSHOT_ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_first_offset", ">i8"),
    ]
)
CRC_START = 6  # the CRC-32C covers all bytes behind it

NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1

# Kafka's default of producer.id.expiration.ms.
DEFAULT_EXPIRATION_MS = 86_400_000

MAX_SEQUENCE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ProducerEntry:
    """The state of a producer. `last_offset` is NO_OFFSET where its epoch has no data yet."""

    producer_id: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_sequence: int = NO_SEQUENCE
    last_offset: int = NO_OFFSET
    offset_delta: int = 0  # of the last batch: its last offset − its first
    timestamp: int = NO_TIMESTAMP
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    current_txn_first_offset: int = NO_OFFSET

    @property
    def first_sequence(self) -> int:
        """The first sequence number of the last batch."""
        return NO_SEQUENCE if self.last_offset < 0 else sequence_before(self.last_sequence, self.offset_delta)


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that its marker at `last_offset` has ended."""

    producer_id: int
    first_offset: int
    last_offset: int
    aborted: bool
    last_stable_offset: int  # right after the marker


def parse_producer_snapshot(data: Any, *, path: str = "") -> list[ProducerEntry]:
    """The entries of a .snapshot file. Raises CorruptBatchError for a version, checksum or size that does not fit."""
    content = bytes(data)
    if len(content) < SNAPSHOT_HEADER.itemsize:
        raise _damaged("A producer snapshot is cut", path, f"at least {SNAPSHOT_HEADER.itemsize} bytes", len(content))
    header = np.frombuffer(content, SNAPSHOT_HEADER, count=1)[0]
    if header["version"] != SNAPSHOT_VERSION:
        raise _damaged("A producer snapshot has an unknown version", path, SNAPSHOT_VERSION, int(header["version"]))
    computed = crc32c(memoryview(content)[CRC_START:])
    if computed != header["crc"]:
        raise _damaged("The CRC-32C of a producer snapshot does not match", path, int(header["crc"]), computed)
    count = int(header["count"])
    size = SNAPSHOT_HEADER.itemsize + count * SNAPSHOT_ENTRY.itemsize
    if count < 0 or size != len(content):
        raise _damaged("A producer snapshot is not as long as its entries", path, f"{count} entries", len(content))
    entries = np.frombuffer(content, SNAPSHOT_ENTRY, offset=SNAPSHOT_HEADER.itemsize)
    return [ProducerEntry(*entry) for entry in entries.tolist()]


def producer_snapshot_bytes(entries: Iterable[ProducerEntry]) -> bytes:
    """The .snapshot file of these entries, in their order."""
    names = SNAPSHOT_ENTRY.names or ()
    rows = np.array([tuple(getattr(entry, name) for name in names) for entry in entries], SNAPSHOT_ENTRY)
    header = np.zeros(1, SNAPSHOT_HEADER)
    header["count"] = len(rows)
    content = header.tobytes()[CRC_START:] + rows.tobytes()
    header["version"] = SNAPSHOT_VERSION
    header["crc"] = crc32c(content)
    return header.tobytes()[:CRC_START] + content


class ProducerState:
    """The producers of one partition while its batches are walked from its start or from a snapshot.

    As Kafka's ProducerStateManager does with batches that a leader has checked, it refuses no batch.
    """

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        # {producer id: first offset} of the open transactions, the oldest first: they begin in the log's order.
        begun = [entry for entry in self._entries.values() if entry.current_txn_first_offset != NO_OFFSET]
        begun.sort(key=lambda entry: entry.current_txn_first_offset)
        self._under_way = {entry.producer_id: entry.current_txn_first_offset for entry in begun}

    def entries(self) -> list[ProducerEntry]:
        """An entry per producer, by producer id."""
        return [self._entries[producer_id] for producer_id in sorted(self._entries)]

    def add(self, window: Window) -> list[CompletedTransaction]:
        """Adds the next batches. Returns the transactions that they end.

        Raises CorruptBatchError for a damaged control record.
        """
        offset_shift = window.offset_shift
        batches = window.batches.take(window.batches.producer_id > NO_PRODUCER_ID)
        control = batches.is_control
        markers = read_markers(window.with_batches(batches.take(control)))
        number_of_marker = np.cumsum(control) - 1
        completed = []
        for row in _rows_that_matter(batches, control):
            producer_id = int(batches.producer_id[row])
            entry = self._entries.get(producer_id) or ProducerEntry(producer_id)
            if not control[row]:
                after = self._entries[producer_id] = _after_batch(entry, batches, row, offset_shift)
                if after.current_txn_first_offset != NO_OFFSET:
                    self._under_way.setdefault(producer_id, after.current_txn_first_offset)
                continue
            marker = number_of_marker[row]
            if markers.type[marker] == NO_MARKER:
                # The cleaner keeps an emptied batch for its producer id. The batch has nothing else to read.
                self._entries[producer_id] = entry
                continue
            self._under_way.pop(producer_id, None)
            epoch = int(batches.producer_epoch[row])
            # A fenced producer: the batches of its old epoch no longer count.
            current = entry if epoch == entry.producer_epoch else ProducerEntry(producer_id, epoch)
            self._entries[producer_id] = replace(
                current,
                timestamp=int(markers.timestamp[marker]),
                coordinator_epoch=int(markers.coordinator_epoch[marker]),
                current_txn_first_offset=NO_OFFSET,
            )
            if entry.current_txn_first_offset != NO_OFFSET:
                offset = int(batches.base_offset[row]) + offset_shift
                aborted = bool(markers.type[marker] == ABORT)
                stable = self.last_stable_offset(offset + 1)
                first_offset = entry.current_txn_first_offset
                completed.append(CompletedTransaction(producer_id, first_offset, offset, aborted, stable))
        return completed

    def open_transactions(self) -> dict[int, ProducerEntry]:
        """{producer id: its entry} of the producers that have a transaction open."""
        return {producer_id: self._entries[producer_id] for producer_id in self._under_way}

    def last_stable_offset(self, log_end_offset: int) -> int:
        """The first offset of the oldest open transaction, else the log end. Committed reads stop before it."""
        return next(iter(self._under_way.values()), log_end_offset)

    def expire(self, now_ms: int) -> None:
        """Forgets producers that have written nothing for DEFAULT_EXPIRATION_MS and have no open transaction."""
        self._entries = {
            producer_id: entry
            for producer_id, entry in self._entries.items()
            if entry.current_txn_first_offset != NO_OFFSET or now_ms - entry.timestamp < DEFAULT_EXPIRATION_MS
        }


def aborted_transactions(completed: Iterable[CompletedTransaction]) -> AbortedTransactions:
    """The transaction index entries of the transactions that `ProducerState.add` returned."""
    return AbortedTransactions.of(
        (txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset) for txn in completed if txn.aborted
    )


def sequence_after(sequence: int, increment: int) -> int:
    """A sequence number later by `increment`. The largest int32 is followed by 0. NO_SEQUENCE is not changed."""
    return sequence if sequence == NO_SEQUENCE else (sequence + increment) % (MAX_SEQUENCE + 1)


def sequence_before(sequence: int, decrement: int) -> int:
    """A sequence number earlier by `decrement`. NO_SEQUENCE is not changed."""
    return sequence if sequence == NO_SEQUENCE else (sequence - decrement) % (MAX_SEQUENCE + 1)


def _rows_that_matter(batches: BatchTable, control: np.ndarray) -> np.ndarray:
    """Rows (int64[], rising) that can change the state: control batches, and two rows of each run of a producer's data
    batches between them: the first transactional batch, which may begin a transaction, and the last batch.
    """
    order = np.argsort(batches.producer_id, kind="stable")
    producer_id = batches.producer_id[order]
    is_control = control[order]
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (producer_id[1:] != producer_id[:-1]) | is_control[1:] | is_control[:-1]
    lasts = np.append(starts[1:], np.ones(min(len(order), 1), np.bool_))
    transactional = np.flatnonzero(batches.is_transactional[order] & ~is_control)
    _, first = np.unique(np.cumsum(starts)[transactional], return_index=True)
    return np.unique(np.concatenate((order[lasts], order[transactional[first]])))


def _after_batch(entry: ProducerEntry, batches: BatchTable, row: int, offset_shift: int) -> ProducerEntry:
    first_offset = int(batches.base_offset[row])
    last_offset = int(batches.last_offset[row])
    begins = bool(batches.is_transactional[row]) and entry.current_txn_first_offset == NO_OFFSET
    return ProducerEntry(
        producer_id=entry.producer_id,
        producer_epoch=int(batches.producer_epoch[row]),
        last_sequence=sequence_after(int(batches.base_sequence[row]), last_offset - first_offset),
        last_offset=last_offset + offset_shift,
        offset_delta=last_offset - first_offset,
        timestamp=int(batches.max_timestamp[row]),
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_first_offset=first_offset + offset_shift if begins else entry.current_txn_first_offset,
    )


def _damaged(message: str, path: str, expected: object, found: object) -> CorruptBatchError:
    hint = "Remove the file: the state is then rebuilt from the log"
    return CorruptBatchError(message, path=path or None, byte_position=0, expected=expected, found=found, hint=hint)
