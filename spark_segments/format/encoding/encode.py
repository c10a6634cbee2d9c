"""Arrow columns to Kafka's record batches (magic 2), with kernels that write many batches per call.

The caller decides which rows belong to which partition, where the bytes go, and what a missing timestamp means.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError, RecordTooLargeError
from spark_segments.format.batches import BatchTable
from spark_segments.format.compression import compress, decompressed_limit
from spark_segments.format.encoding import encode_kernels, fields
from spark_segments.format.encoding.arrow_buffers import RecordColumns
from spark_segments.format.layout import (
    BATCH_OVERHEAD,
    CREATE_TIME,
    LOG_APPEND_TIME,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NONE,
    TIMESTAMP_TYPE_MASK,
)

# Memory, used again and again, to which batches are written before they are compressed.
STAGING_BYTES = 1024 * 1024
# Batches that one kernel call writes at most.
_TABLE_ROWS = 4096

_LARGEST_SIZE = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Encoded:
    """Record batches one after another; `byte_position` in the table counts from the buffer's first byte."""

    buffer: pa.Buffer
    batches: BatchTable
    tombstones: int  # records without a value
    min_timestamps: np.ndarray  # int64[n]: the least timestamp of each batch


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows of several partitions: run i has the records starts[i] to starts[i + 1], with offsets from base_offsets[i].

    `starts` int64[n + 1], the first is 0; `base_offsets` int64[n].
    """

    starts: np.ndarray
    base_offsets: np.ndarray


def encode_runs(
    columns: RecordColumns,
    rows: np.ndarray | None,
    runs: Runs,
    *,
    codec: int,
    level: int | None,
    batch_bytes: int,
    max_message_bytes: int,
    leader_epoch: int = 0,
    timestamp_type: int = CREATE_TIME,
) -> list[Encoded]:
    """The rows of each run as record batches with dense offsets. The results are views of the same memory.

    `rows` (int64[n]) says which rows in which order; None means all.

    A batch ends with its run, and before the record that would make it larger than `batch_bytes`, uncompressed. A
    larger record is alone in its batch. Raises RecordTooLargeError where a batch as stored has more than
    `max_message_bytes`, and InvalidOptionError for columns of wrong types, null timestamps and header keys, and
    timestamps before 1970. With LOG_APPEND_TIME all records of a batch get the latest timestamp of its rows.
    """
    selected = _ALL_ROWS if rows is None else np.ascontiguousarray(rows, np.int64)
    total = int(runs.starts[-1])
    count = len(runs.base_offsets)
    run_ends = np.ascontiguousarray(runs.starts[1:], np.int64)
    tombstones = np.zeros(count, np.int64)
    record_bytes = encode_kernels.measure(columns, selected, rows is None, run_ends, tombstones)
    if record_bytes < 0:
        raise IndexError(f"rows has a number that is not among the {columns.count} rows")
    cut_bytes = max(min(batch_bytes, max_message_bytes, _LARGEST_SIZE), 1)
    # Two batches in a row of a run together exceed the limit of a batch, which bounds the number of batches.
    most_batches = min(total, 2 * record_bytes // max(cut_bytes - BATCH_OVERHEAD, 1) + count)
    encoder = _Encoder(
        columns=columns,
        rows=selected,
        all_rows=rows is None,
        run_ends=run_ends,
        shifts=np.asarray(runs.base_offsets, np.int64) - runs.starts[:-1],
        room_bytes=record_bytes + BATCH_OVERHEAD * most_batches,
        codec=codec,
        level=level,
        cut_bytes=cut_bytes,
        max_message_bytes=max_message_bytes,
        leader_epoch=leader_epoch,
        attributes=codec | (TIMESTAMP_TYPE_MASK if timestamp_type == LOG_APPEND_TIME else 0),
    )
    buffer, tables = encoder.compressed() if encoder.is_compressed else encoder.uncompressed()
    table = np.concatenate([_NO_BATCHES, *tables])
    batches = encoder.batch_table(table)
    if count == 1:
        return [Encoded(buffer, batches, int(tombstones[0]), table[:, fields.MIN_TIMESTAMP])]
    cuts = np.searchsorted(table[:, fields.FIRST], runs.starts).tolist()
    positions = [*batches.byte_position.tolist(), buffer.size]
    encoded = []
    for run, (start, end) in enumerate(itertools.pairwise(cuts)):
        own = batches.take(slice(start, end))
        own.byte_position[:] -= positions[start]
        content = buffer[positions[start] : positions[end]]
        least = table[start:end, fields.MIN_TIMESTAMP]
        encoded.append(Encoded(content, own, int(tombstones[run]), least))
    return encoded


@dataclass(frozen=True, slots=True)
class _Encoder:
    """The checked arguments of a call of encode_runs."""

    columns: RecordColumns
    rows: np.ndarray
    all_rows: bool
    run_ends: np.ndarray
    shifts: np.ndarray  # of each run: offset minus number of a record
    room_bytes: int  # upper bound of the uncompressed bytes of all batches
    codec: int
    level: int | None
    cut_bytes: int
    max_message_bytes: int
    leader_epoch: int
    attributes: int

    @property
    def total(self) -> int:
        """The number of records."""
        return int(self.run_ends[-1])

    @property
    def is_compressed(self) -> bool:
        return self.codec != NONE

    @property
    def largest_bytes(self) -> int:
        """How large a batch may be before it is compressed."""
        return _LARGEST_SIZE if self.is_compressed else self.max_message_bytes

    def uncompressed(self) -> tuple[pa.Buffer, list[np.ndarray]]:
        buffer = pa.allocate_buffer(self.room_bytes)
        out = np.frombuffer(buffer, np.uint8)
        tables = []
        number = byte_position = 0
        while number < self.total:
            number, byte_position, table = self._write(out, byte_position, number)
            assert len(table) > 0, "room_bytes is an upper bound"
            tables.append(table)
        return buffer[:byte_position], tables

    def compressed(self) -> tuple[pa.Buffer, list[np.ndarray]]:
        # A multiple of the largest batch, so that every batch begun has room.
        staged_bytes = self.cut_bytes * max(STAGING_BYTES // self.cut_bytes, 1)
        staging = np.empty(min(staged_bytes, self.room_bytes), np.uint8)
        # A codec may make data larger, so the buffer can grow. Each batch is copied at once: the next uses its memory.
        buffer = pa.allocate_buffer(self.room_bytes, resizable=True)
        out = np.frombuffer(buffer, np.uint8)
        tables = []
        number = byte_position = 0
        while number < self.total:
            number, needed, table = self._write(staging, 0, number)
            if len(table) == 0:
                staging = np.empty(needed, np.uint8)
                continue
            staged = pa.py_buffer(staging)
            stored = []
            for start, size, first in table[:, : fields.FIRST + 1].tolist():
                section, codec = self._compress(staged[start : start + size], first)
                end = byte_position + BATCH_OVERHEAD + section.size
                stored.append((byte_position, end - byte_position, self.attributes - self.codec + codec))
                if end > len(out):
                    buffer.resize(2 * end)
                    out = np.frombuffer(buffer, np.uint8)
                out[byte_position + BATCH_OVERHEAD : end] = np.frombuffer(section, np.uint8)
                byte_position = end
            table[:, [fields.POSITION, fields.SIZE, fields.ATTRIBUTES]] = stored
            tables.append(table)
        for table in tables:
            encode_kernels.seal(out, table, self.leader_epoch)
        return buffer[:byte_position], tables

    def _write(self, out: np.ndarray, byte_position: int, number: int) -> tuple[int, int, np.ndarray]:
        """Writes batches from record `number` on, to `out` from `byte_position` on, while there is room.

        Returns the number of the next record, the position after the last batch, and the table of the batches. Where
        not even one batch has room, returns the same number, the size that the batch needs, and an empty table.
        """
        table = np.empty((_TABLE_ROWS, fields.TABLE_COLUMNS), np.int64)
        number, byte_position, batches, problem, row, value = encode_kernels.write_batches(
            self, number, out, byte_position, table
        )
        if problem == fields.NO_ROOM:
            return number, byte_position if batches else value, table[:batches]
        if problem:
            raise self._error(problem, row, value)
        return number, byte_position, table[:batches]

    def _compress(self, batch: pa.Buffer, first: int) -> tuple[pa.Buffer, int]:
        """(a batch's records section as stored, its codec)"""
        section = batch[BATCH_OVERHEAD:]
        compressed = compress(self.codec, section, self.level)
        size = BATCH_OVERHEAD + compressed.size
        if size <= self.max_message_bytes and section.size <= decompressed_limit(compressed.size):
            return compressed, self.codec
        # The batch is too large when compressed, or so small that `decompress` would refuse it: stored uncompressed
        # where that fits.
        if batch.size <= self.max_message_bytes:
            return section, NONE
        raise self._error(fields.TOO_LARGE, first if self.all_rows else int(self.rows[first]), size)

    def _error(self, problem: int, row: int, value: int) -> Exception:
        if problem == fields.TOO_LARGE:
            return RecordTooLargeError(
                f"The record of row {row} makes a batch that is larger than max.message.bytes",
                expected=f"at most {self.max_message_bytes} bytes",
                found=f"{value} bytes",
                hint="Raise the topic's max.message.bytes or drop the record",
            )
        if problem == fields.NULL_TIMESTAMP:
            return InvalidOptionError(
                f"Row {row} has no timestamp", hint="Give it one, for example the time of the write"
            )
        if problem == fields.NEGATIVE_TIMESTAMP:
            return InvalidOptionError(
                f"The timestamp of row {row} is before 1970, which Kafka does not have",
                expected="0 ms or later, or -1 ms for none",
                found=f"{value} ms",
            )
        return InvalidOptionError(f"A header of row {row} has no key", hint="Only a header's value may be null")

    def batch_table(self, table: np.ndarray) -> BatchTable:
        rows = len(table)
        first = table[:, fields.OFFSET].copy()
        return BatchTable(
            byte_position=table[:, fields.POSITION].copy(),
            size=table[:, fields.SIZE].copy(),
            base_offset=first,
            last_offset=first + table[:, fields.COUNT] - 1,
            leader_epoch=np.full(rows, self.leader_epoch, np.int32),
            magic=np.full(rows, MAGIC, np.int8),
            crc=table[:, fields.CRC].astype(np.uint32),
            attributes=table[:, fields.ATTRIBUTES].astype(np.int16),
            base_timestamp=table[:, fields.BASE_TIMESTAMP].copy(),
            max_timestamp=table[:, fields.MAX_TIMESTAMP].copy(),
            producer_id=np.full(rows, NO_PRODUCER_ID, np.int64),
            producer_epoch=np.full(rows, NO_PRODUCER_EPOCH, np.int16),
            base_sequence=np.full(rows, NO_SEQUENCE, np.int32),
            count=table[:, fields.COUNT].astype(np.int32),
        )


_ALL_ROWS = np.empty(0, np.int64)
_NO_BATCHES = np.empty((0, fields.TABLE_COLUMNS), np.int64)
