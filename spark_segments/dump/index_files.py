"""Entries of offset and time indexes, each checked against the .log beside it, of transaction indexes, of producer
snapshots, and the text files beside segments.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from spark_segments.dump.entry import (
    WINDOW_BYTES,
    Complaints,
    DumpOptions,
    DumpSource,
    Entry,
    base_offset_of,
    path_beside,
)
from spark_segments.dump.log_file import with_records
from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.buffers import byte_view
from spark_segments.format.layout import LOG_OVERHEAD, NO_TIMESTAMP
from spark_segments.format.sidecars.checkpoints import (
    parse_leader_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
)
from spark_segments.format.sidecars.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    parse_offset_index,
    position_for_offset,
    raw_entries,
)
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import TXN_ENTRY
from spark_segments.format.window import Window

_ENTRY_START = struct.Struct(">qiibIhi")  # baseOffset … lastOffsetDelta
_SMALLEST_LENGTH = 14


def dump_index(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    """Entries of an .index.

    As in Kafka's tool, an entry whose batch does not end with the entry's offset is called a mismatch. Appends of
    several batches leave such entries, which are correct.
    """
    base_offset = base_offset_of(path) or 0
    log = _LogReader(source, path_beside(path, "log"), options.max_message_bytes)
    if not log.exists:
        yield _missing_log(path)
    mismatches = Complaints("offset mismatches", path, ("indexOffset", "logOffset"))
    entry_number = -1
    for entry_number, entry in enumerate(_index_entries(source, path, OFFSET_ENTRY)):
        offset = base_offset + int(entry["relative_offset"])
        byte_position = int(entry["position"])
        # A preallocated index is full of zeros behind its last entry.
        if offset == base_offset and entry_number > 0:
            break
        if log.exists:
            batch = log.batch_at(byte_position)
            log_offset = -1 if batch is None else batch.last_offset
            if log_offset != offset:
                mismatches.add(offset, log_offset)
        if not options.verify_index_only:
            yield {"kind": "offset index entry", "offset": offset, "position": byte_position}
    if entry_number < 0:
        yield {"kind": "empty", "file": path}
    yield from mismatches.entries()


def dump_time_index(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    """Entries of a .timeindex, each compared with the largest timestamp of the records in its batch."""
    base_offset = base_offset_of(path) or 0
    log = _LogReader(source, path_beside(path, "log"), options.max_message_bytes)
    if not log.exists:
        yield _missing_log(path)
    checks = _TimeChecks(log, _offset_index_beside(source, path), base_offset, path)
    for number, entry in enumerate(_index_entries(source, path, TIME_ENTRY)):
        relative_offset = int(entry["relative_offset"])
        timestamp = int(entry["timestamp"])
        # A preallocated index is full of zeros behind its last entry.
        if relative_offset == 0 and number > 0:
            break
        if log.exists:
            checks.check(relative_offset, timestamp)
        if not options.verify_index_only:
            yield {"kind": "time index entry", "timestamp": timestamp, "offset": base_offset + relative_offset}
    yield from checks.entries()


class _TimeChecks:
    """The entries of a .timeindex, each compared with its batch and with the entry before it."""

    def __init__(
        self, log: _LogReader, offset_index: tuple[np.ndarray, np.ndarray], base_offset: int, path: str
    ) -> None:
        self._log = log
        self._offset_index = offset_index
        self._base_offset = base_offset
        self._previous = NO_TIMESTAMP
        self._mismatches = Complaints("timestamp mismatches", path, ("indexTimestamp", "logTimestamp"))
        self._disorder = Complaints("timestamps out of order", path, ("indexTimestamp", "previousTimestamp"))
        self._not_found = Complaints("offsets not found", path, ("indexOffset", "logOffset"))

    def check(self, relative_offset: int, timestamp: int) -> None:
        offset = self._base_offset + relative_offset
        previous = self._previous
        self._previous = timestamp
        batch = self._log.find(position_for_offset(self._offset_index, relative_offset), offset)
        if batch is None or batch.last_offset != offset:
            self._not_found.add(offset, -1 if batch is None else batch.last_offset)
            return
        largest = self._log.largest_timestamp(batch)
        if largest != timestamp:
            self._mismatches.add(timestamp, largest)
        if previous >= timestamp:
            self._disorder.add(timestamp, previous)

    def entries(self) -> Iterator[Entry]:
        for complaints in (self._mismatches, self._disorder, self._not_found):
            yield from complaints.entries(newest_first=False)


def dump_txn_index(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    """The entries of a .txnindex."""
    names = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
    for entry in _index_entries(source, path, TXN_ENTRY):
        yield {"kind": "aborted transaction", **dict(zip(names, entry.tolist(), strict=True))}
    rest = source.size(path) % TXN_ENTRY.itemsize
    if rest:
        yield {"kind": "invalid bytes", "file": path, "bytes": rest}


def _offset_index_beside(source: DumpSource, path: str) -> tuple[np.ndarray, np.ndarray]:
    index_path = path_beside(path, "index")
    try:
        return parse_offset_index(source.read(index_path), path=index_path)
    except (FileNotFoundError, CorruptBatchError):
        return np.empty(0, np.int32), np.empty(0, np.int32)


def _index_entries(source: DumpSource, path: str, entry: np.dtype) -> Iterator[np.void]:
    """All entries, zeros included. Bytes behind the last whole entry are ignored."""
    size = source.size(path)
    step = WINDOW_BYTES // entry.itemsize * entry.itemsize
    for byte_position in range(0, size - size % entry.itemsize, step):
        yield from raw_entries(source.read(path, byte_position, min(step, size - byte_position)), entry)


@dataclass(frozen=True, slots=True)
class _Found:
    byte_position: int
    size: int
    last_offset: int


@dataclass
class _LogReader:
    """The headers of batches at given positions of a .log, read through one window at a time."""

    source: DumpSource
    path: str
    max_message_bytes: int
    exists: bool = field(init=False)
    _size: int = field(init=False, default=0)
    _start: int = field(init=False, default=0)
    _window: memoryview = field(init=False, default=memoryview(b""))
    _last: _Found | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        try:
            self._size = self.source.size(self.path)
            self.exists = True
        except FileNotFoundError:
            self.exists = False

    def batch_at(self, byte_position: int) -> _Found | None:
        """The batch that begins at a position, None where no batch can begin there."""
        if not 0 <= byte_position <= self._size - _ENTRY_START.size:
            return None
        start = byte_position - self._start
        if start < 0 or start + _ENTRY_START.size > len(self._window):
            self._start = byte_position
            start = 0
            data = self.source.read(self.path, byte_position, min(WINDOW_BYTES, self._size - byte_position))
            self._window = memoryview(data).cast("B")
            if len(self._window) < _ENTRY_START.size:
                return None
        base_offset, length, _, magic, _, _, last_offset_delta = _ENTRY_START.unpack_from(self._window, start)
        size = length + LOG_OVERHEAD
        if length < _SMALLEST_LENGTH or byte_position + size > self._size or size > self.max_message_bytes:
            return None
        return _Found(byte_position, size, base_offset + (last_offset_delta if magic >= 2 else 0))

    def find(self, byte_position: int, offset: int) -> _Found | None:
        """The first batch from `byte_position` on whose last offset is `offset` or more."""
        if self._last is not None and self._last.byte_position > byte_position and self._last.last_offset <= offset:
            byte_position = self._last.byte_position  # without an offset index: do not begin at 0 for each entry
        batch = self.batch_at(byte_position)
        while batch is not None and batch.last_offset < offset:
            self._last = batch
            batch = self.batch_at(batch.byte_position + batch.size)
        return batch

    def largest_timestamp(self, batch: _Found) -> int:
        """The largest timestamp of the records in a batch, −1 where there is none."""
        data = byte_view(self.source.read(self.path, batch.byte_position, batch.size))
        batches = scan_batches(data, file_position=batch.byte_position, path=self.path, check_crc=False).batches
        if not len(batches):
            return NO_TIMESTAMP
        first = Window(data, batches.take(slice(0, 1)), batch.byte_position, self.path)
        (_, records), *_ = with_records(first, True)
        return max((record.get("timestamp", NO_TIMESTAMP) for record in records), default=NO_TIMESTAMP)


def _missing_log(path: str) -> Entry:
    return {
        "kind": "error",
        "file": path,
        "position": None,
        "message": f"No .log beside {path}: entries are not checked",
    }


def dump_snapshot(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for producer in parse_producer_snapshot(source.read(path), path=path):
        has_data = producer.last_offset >= 0
        yield {
            "kind": "producer",
            "producerId": producer.producer_id,
            "producerEpoch": producer.producer_epoch,
            "coordinatorEpoch": producer.coordinator_epoch,
            "currentTxnFirstOffset": None
            if producer.current_txn_first_offset < 0
            else producer.current_txn_first_offset,
            "timestamp": producer.timestamp,
            "firstSequence": producer.first_sequence if has_data else None,
            "lastSequence": producer.last_sequence if has_data else None,
            "lastOffset": producer.last_offset if has_data else None,
            "offsetDelta": producer.offset_delta if has_data else None,
        }


def dump_leader_epochs(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for epoch, start_offset in parse_leader_epochs(source.read(path), path=path):
        yield {"kind": "leader epoch", "epoch": epoch, "startOffset": start_offset}


def dump_offsets(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for (topic, partition), offset in parse_offsets(source.read(path), path=path).items():
        yield {"kind": "checkpoint", "topic": topic, "partition": partition, "offset": offset}


def dump_partition_metadata(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    yield {"kind": "partition metadata", "topicId": parse_partition_metadata(source.read(path), path=path)}


def dump_meta_properties(source: DumpSource, path: str, options: DumpOptions) -> Iterator[Entry]:
    for name, value in parse_meta_properties(source.read(path), path=path).items():
        yield {"kind": "property", "name": name, "value": value}
