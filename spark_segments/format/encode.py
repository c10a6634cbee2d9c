"""Arrow columns to Kafka's record batches (magic 2), with kernels that write many batches a call.

Which rows belong to which partition, where the bytes go, and what a missing timestamp means is left to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError, RecordTooLargeError
from spark_segments.format.batches import BatchTable
from spark_segments.format.column_views import RecordColumns, readonly
from spark_segments.format.compression import NONE, compressed_parts, decompressed_limit
from spark_segments.format.crc import crc32c_range
from spark_segments.format.jit import (
    load_u8,
    memcpy,
    njit,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    varint_size,
    write_varint,
)
from spark_segments.format.layout import (
    ATTRIBUTES_POSITION,
    BATCH_OVERHEAD,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
)

# Batches that are to be compressed are first written to this much memory, again and again.
STAGING_BYTES = 1024 * 1024
# Batches that one kernel call writes at most.
_TABLE_ROWS = 4096

_MAGIC = 2
_LARGEST_SIZE = 2**31 - 1
# Length, attributes, timestamp delta, offset delta, key length, value length, header count: the most that they take.
_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
_HEADER_OVERHEAD = 5 + 5

# Columns of the table that kernels fill, one row a batch. _FIRST is the number of its first record.
_POSITION, _SIZE, _FIRST, _COUNT, _BASE_TIMESTAMP, _MAX_TIMESTAMP, _ATTRIBUTES, _CRC = range(8)
_TABLE_COLUMNS = 8

# What ended a kernel call before it was through.
_NOTHING = 0
_NO_ROOM = 1
_NULL_TIMESTAMP = 2
_NEGATIVE_TIMESTAMP = 3
_NULL_HEADER_KEY = 4
_TOO_LARGE = 5


@dataclass(frozen=True, slots=True)
class Encoded:
    """Record batches one after another; `position` in the table counts from the buffer's first byte."""

    buffer: pa.Buffer
    batches: BatchTable
    tombstones: int  # records without a value


def encode_records(
    records: pa.RecordBatch | Mapping[str, Any],
    rows: np.ndarray | None,
    *,
    codec: int,
    level: int | None,
    batch_bytes: int,
    max_message_bytes: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    timestamp_type: int = CREATE_TIME,
) -> Encoded:
    """Rows of `records` as record batches with dense offsets from `base_offset`.

    `records` has the columns value, timestamp (int64 ms, or a timestamp, rounded down to ms) and, if wanted, key and
    headers (list of struct key, value). Null keys, values and header values are Kafka's own nulls; a null header list
    means no headers. `rows` (int64[n]) says which rows in which order; None means all.

    A batch is cut before the record that would make it larger than `batch_bytes`, uncompressed; a larger record has a
    batch of its own. Raises RecordTooLargeError where a batch as it is stored has more than `max_message_bytes`, and
    InvalidOptionError for columns of wrong types, null timestamps and header keys, and timestamps before 1970. With
    LOG_APPEND_TIME all records of a batch get the latest timestamp of its rows.
    """
    columns = RecordColumns.of(records)
    selected = _ALL_ROWS if rows is None else readonly(np.ascontiguousarray(rows, np.int64))
    total = columns.count if rows is None else len(selected)
    record_bytes, tombstones = _measure(
        *_plain(columns.key, columns.value, columns.headers, columns.header_key, columns.header_value),
        selected,
        rows is None,
        total,
        columns.count,
    )
    if record_bytes < 0:
        raise IndexError(f"rows has a number that is not among the {columns.count} rows")
    cut_bytes = min(batch_bytes, max_message_bytes)
    # Two batches in a row hold more than one may, so there are not many more than the bytes ask for.
    most_batches = min(total, 2 * record_bytes // max(cut_bytes - BATCH_OVERHEAD, 1) + 1)
    encoder = _Encoder(
        columns=columns,
        rows=selected,
        all_rows=rows is None,
        total=total,
        room_bytes=record_bytes + BATCH_OVERHEAD * most_batches,
        codec=codec,
        level=level,
        cut_bytes=cut_bytes,
        max_message_bytes=max_message_bytes,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=codec | (TIMESTAMP_TYPE_MASK if timestamp_type == LOG_APPEND_TIME else 0),
    )
    buffer, tables = encoder.uncompressed() if codec == NONE else encoder.compressed()
    return Encoded(buffer, encoder.batch_table(np.concatenate([_NO_BATCHES, *tables])), tombstones)


@dataclass(frozen=True, slots=True)
class _Encoder:
    """One call of encode_records: its arguments, looked at once."""

    columns: RecordColumns
    rows: np.ndarray
    all_rows: bool
    total: int
    room_bytes: int  # at least what all batches take uncompressed
    codec: int
    level: int | None
    cut_bytes: int
    max_message_bytes: int
    base_offset: int
    leader_epoch: int
    attributes: int

    def uncompressed(self) -> tuple[pa.Buffer, list[np.ndarray]]:
        buffer = pa.allocate_buffer(self.room_bytes)
        out = np.frombuffer(buffer, np.uint8)
        tables = []
        number = position = 0
        while number < self.total:
            number, position, table = self._write(out, position, number)
            tables.append(table)
        return buffer[:position], tables

    def compressed(self) -> tuple[pa.Buffer, list[np.ndarray]]:
        staging = np.empty(min(max(STAGING_BYTES, 2 * self.cut_bytes), self.room_bytes), np.uint8)
        pieces: list[Any] = []
        tables = []
        number = position = 0
        while number < self.total:
            number, needed, table = self._write(staging, 0, number)
            if len(table) == 0:
                staging = np.empty(needed, np.uint8)
            staged = pa.py_buffer(staging)
            for batch in table:
                parts, size, codec = self._compress(staged, batch)
                pieces.append(_HEADER_ROOM)
                pieces += parts
                batch[_POSITION], batch[_SIZE], batch[_ATTRIBUTES] = (
                    position,
                    size,
                    self.attributes - self.codec + codec,
                )
                position += size
            tables.append(table)
        buffer = bytearray().join(pieces)
        out = np.frombuffer(buffer, np.uint8)
        for table in tables:
            _seal(out, table, self.base_offset, self.leader_epoch)
        return pa.py_buffer(buffer), tables

    def _write(self, out: np.ndarray, position: int, number: int) -> tuple[int, int, np.ndarray]:
        """Writes batches from record `number` on, to `out` from `position` on, while there is room.

        Returns the number of the next record, the position after the last batch, and their table. When not even one
        batch had room: the same number, the size that it needs, and no table.
        """
        table = np.empty((_TABLE_ROWS, _TABLE_COLUMNS), np.int64)
        columns = self.columns
        is_compressed = self.codec != NONE
        number, position, batches, problem, row, found = _write_batches(
            *_plain(columns.key, columns.value, columns.timestamp),
            *_plain(columns.headers, columns.header_key, columns.header_value),
            self.rows,
            self.all_rows,
            number,
            self.total,
            self.cut_bytes,
            _LARGEST_SIZE if is_compressed else self.max_message_bytes,
            self.attributes,
            is_compressed,
            out,
            position,
            table,
            self.base_offset,
            self.leader_epoch,
        )
        if problem == _NO_ROOM:
            return number, position if batches else found, table[:batches]
        if problem:
            raise self._error(problem, row, found)
        return number, position, table[:batches]

    def _compress(self, staged: pa.Buffer, batch: np.ndarray) -> tuple[list, int, int]:
        """The parts of a batch's records section, the size of the batch, and the codec that it was stored with."""
        position, size, first = batch[: _FIRST + 1].tolist()
        section = staged[position + BATCH_OVERHEAD : position + size]
        parts = compressed_parts(self.codec, section, self.level)
        compressed_bytes = sum(map(len, parts))
        if (
            BATCH_OVERHEAD + compressed_bytes <= self.max_message_bytes
            and section.size <= decompressed_limit(compressed_bytes)
        ):  # fmt: skip
            return parts, BATCH_OVERHEAD + compressed_bytes, self.codec
        # What a codec makes larger, or so small that no reader would believe it, is stored as it is where that fits.
        if size <= self.max_message_bytes:
            return [section.to_pybytes()], size, NONE
        raise self._error(
            _TOO_LARGE, first if self.all_rows else int(self.rows[first]), BATCH_OVERHEAD + compressed_bytes
        )

    def _error(self, problem: int, row: int, found: int) -> Exception:
        if problem == _TOO_LARGE:
            return RecordTooLargeError(
                f"The record of row {row} makes a batch that is larger than max.message.bytes",
                expected=f"at most {self.max_message_bytes} bytes",
                found=f"{found} bytes",
                hint="Raise the topic's max.message.bytes or drop the record",
            )
        if problem == _NULL_TIMESTAMP:
            return InvalidOptionError(
                f"Row {row} has no timestamp", hint="Give it one, for example the time of the write"
            )
        if problem == _NEGATIVE_TIMESTAMP:
            return InvalidOptionError(
                f"The timestamp of row {row} is before 1970, which Kafka does not have",
                expected="0 ms or later, or -1 ms for none",
                found=f"{found} ms",
            )
        return InvalidOptionError(f"A header of row {row} has no key", hint="Only a header's value may be null")

    def batch_table(self, table: np.ndarray) -> BatchTable:
        rows = len(table)
        first = self.base_offset + table[:, _FIRST]
        return BatchTable(
            position=table[:, _POSITION].copy(),
            size=table[:, _SIZE].copy(),
            base_offset=first,
            last_offset=first + table[:, _COUNT] - 1,
            leader_epoch=np.full(rows, self.leader_epoch, np.int32),
            magic=np.full(rows, _MAGIC, np.int8),
            crc=table[:, _CRC].astype(np.uint32),
            attributes=table[:, _ATTRIBUTES].astype(np.int16),
            base_timestamp=table[:, _BASE_TIMESTAMP].copy(),
            max_timestamp=table[:, _MAX_TIMESTAMP].copy(),
            producer_id=np.full(rows, NO_PRODUCER_ID, np.int64),
            producer_epoch=np.full(rows, NO_PRODUCER_EPOCH, np.int16),
            base_sequence=np.full(rows, NO_SEQUENCE, np.int32),
            count=table[:, _COUNT].astype(np.int32),
        )


def _plain(*views: tuple) -> tuple[tuple, ...]:
    return tuple(tuple(view) for view in views)


_ALL_ROWS = readonly(np.empty(0, np.int64))
_NO_BATCHES = np.empty((0, _TABLE_COLUMNS), np.int64)
_HEADER_ROOM = bytes(BATCH_OVERHEAD)


@njit(forceinline=True, _nrt=False)
def _is_null(validity, bit):
    return len(validity) > 0 and (load_u8(validity, bit >> 3) >> (bit & 7)) & 1 == 0


@njit(forceinline=True, _nrt=False)
def _length(offsets, validity, first_bit, row):
    """Bytes of a row of a BinaryView, -1 where it is null."""
    if _is_null(validity, first_bit + row):
        return np.int64(-1)
    return np.int64(offsets[row + 1]) - offsets[row]


@njit(forceinline=True, _nrt=False)
def _field_size(length):
    return varint_size(length) + max(length, 0)


@njit(forceinline=True, _nrt=False)
def _write_field(out, position, data, start, length):
    position = write_varint(out, position, length)
    if length > 0:
        memcpy(out, position, data, start, length)
        position += length
    return position


# Kernels take the arrays out of their tuples first, as each use would count references, and are compiled without
# counting any (_nrt=False), which would take longer than what they do.


@njit(_nrt=False)
def _measure(key, value, headers, header_key, header_value, rows, all_rows, total, count):
    """(an upper bound of all records' bytes or -1 where `rows` is wrong, tombstones)"""
    key_offsets, _, _, _ = key
    value_offsets, _, value_validity, value_bit = value
    header_offsets, _, _ = headers
    name_offsets, _, _, _ = header_key
    content_offsets, _, _, _ = header_value
    has_headers = len(header_offsets) > 0
    record_bytes = np.int64(0)
    tombstones = np.int64(0)
    for number in range(total):
        row = np.int64(number)
        if not all_rows:
            row = rows[number]
            if row < 0 or row >= count:
                return np.int64(-1), tombstones
        tombstones += _is_null(value_validity, value_bit + row)
        record_bytes += np.int64(value_offsets[row + 1]) - value_offsets[row] + _RECORD_OVERHEAD
        record_bytes += np.int64(key_offsets[row + 1]) - key_offsets[row]
        if has_headers:
            start = header_offsets[row]
            end = header_offsets[row + 1]
            record_bytes += np.int64(name_offsets[end]) - name_offsets[start]
            record_bytes += np.int64(content_offsets[end]) - content_offsets[start]
            record_bytes += (np.int64(end) - start) * _HEADER_OVERHEAD
    return record_bytes, tombstones


@njit(_nrt=False)
def _write_batches(
    key, value, timestamp, headers, header_key, header_value, rows, all_rows, number, total, cut_bytes, largest_bytes,
    attributes, is_compressed, out, position, table, base_offset, leader_epoch,
):  # fmt: skip
    """Batches of the records from `number` on, while `out` and `table` have room; sealed unless they get compressed.

    (number of the next record, position after the last batch, batches, problem, its row, what was found)
    """
    key_offsets, key_data, key_validity, key_bit = key
    value_offsets, value_data, value_validity, value_bit = value
    ticks, tick_validity, tick_bit, ticks_per_ms = timestamp
    header_offsets, header_validity, header_bit = headers
    name_offsets, name_data, name_validity, name_bit = header_key
    content_offsets, content_data, content_validity, content_bit = header_value
    has_headers = len(header_offsets) > 0
    batches = 0
    while number < total and batches < len(table):
        first = number
        at = position + BATCH_OVERHEAD
        base_timestamp = np.int64(NO_TIMESTAMP)
        max_timestamp = np.int64(NO_TIMESTAMP)
        while number < total:
            row = np.int64(number) if all_rows else rows[number]
            if _is_null(tick_validity, tick_bit + row):
                return first, position, batches, _NULL_TIMESTAMP, row, np.int64(0)
            created = ticks[row]
            if ticks_per_ms == 1000:
                created //= 1000
            elif ticks_per_ms == 1000000:
                created //= 1000000
            if created < NO_TIMESTAMP:
                return first, position, batches, _NEGATIVE_TIMESTAMP, row, created
            if number == first:
                base_timestamp = created
            offset_delta = number - first
            timestamp_delta = created - base_timestamp
            if attributes & TIMESTAMP_TYPE_MASK:
                timestamp_delta = np.int64(0)
            key_bytes = _length(key_offsets, key_validity, key_bit, row)
            value_bytes = _length(value_offsets, value_validity, value_bit, row)
            header_start = np.int64(0)
            header_end = np.int64(0)
            header_bytes = np.int64(1)
            if has_headers and not _is_null(header_validity, header_bit + row):
                header_start = np.int64(header_offsets[row])
                header_end = np.int64(header_offsets[row + 1])
                header_bytes = varint_size(header_end - header_start)
                for header in range(header_start, header_end):
                    name_bytes = _length(name_offsets, name_validity, name_bit, header)
                    if name_bytes < 0:
                        return first, position, batches, _NULL_HEADER_KEY, row, np.int64(0)
                    content_bytes = _length(content_offsets, content_validity, content_bit, header)
                    header_bytes += _field_size(name_bytes) + _field_size(content_bytes)
            body_bytes = (
                1
                + varint_size(timestamp_delta)
                + varint_size(offset_delta)
                + _field_size(key_bytes)
                + _field_size(value_bytes)
                + header_bytes
            )
            end = at + varint_size(body_bytes) + body_bytes
            if end - position > cut_bytes:
                if number > first:
                    break
                if end - position > largest_bytes:
                    return first, position, batches, _TOO_LARGE, row, end - position
            if end > len(out):
                return first, position, batches, _NO_ROOM, row, end - position
            at = write_varint(out, at, body_bytes)
            store_i8(out, at, 0)
            at = write_varint(out, at + 1, timestamp_delta)
            at = write_varint(out, at, offset_delta)
            at = _write_field(out, at, key_data, key_offsets[row], key_bytes)
            at = _write_field(out, at, value_data, value_offsets[row], value_bytes)
            at = write_varint(out, at, header_end - header_start)
            for header in range(header_start, header_end):
                name_bytes = _length(name_offsets, name_validity, name_bit, header)
                at = _write_field(out, at, name_data, name_offsets[header], name_bytes)
                content_bytes = _length(content_offsets, content_validity, content_bit, header)
                at = _write_field(out, at, content_data, content_offsets[header], content_bytes)
            max_timestamp = max(max_timestamp, created)
            number += 1
        if attributes & TIMESTAMP_TYPE_MASK:
            base_timestamp = max_timestamp
        batch = table[batches]
        batch[_POSITION] = position
        batch[_SIZE] = at - position
        batch[_FIRST] = first
        batch[_COUNT] = number - first
        batch[_BASE_TIMESTAMP] = base_timestamp
        batch[_MAX_TIMESTAMP] = max_timestamp
        batch[_ATTRIBUTES] = attributes
        if not is_compressed:
            _seal_batch(out, batch, base_offset, leader_epoch)
        batches += 1
        position = at
    return number, position, batches, _NOTHING, np.int64(0), np.int64(0)


@njit(_nrt=False)
def _seal_batch(out, batch, base_offset, leader_epoch):
    """Writes the header of a batch whose records section is in its place; fills in the CRC."""
    at = batch[_POSITION]
    store_i64(out, at, base_offset + batch[_FIRST])
    store_i32(out, at + 8, batch[_SIZE] - LOG_OVERHEAD)
    store_i32(out, at + 12, leader_epoch)
    store_i8(out, at + 16, _MAGIC)
    store_i16(out, at + 21, batch[_ATTRIBUTES])
    store_i32(out, at + 23, batch[_COUNT] - 1)
    store_i64(out, at + 27, batch[_BASE_TIMESTAMP])
    store_i64(out, at + 35, batch[_MAX_TIMESTAMP])
    store_i64(out, at + 43, NO_PRODUCER_ID)
    store_i16(out, at + 51, NO_PRODUCER_EPOCH)
    store_i32(out, at + 53, NO_SEQUENCE)
    store_i32(out, at + 57, batch[_COUNT])
    batch[_CRC] = crc32c_range(out, at + ATTRIBUTES_POSITION, at + batch[_SIZE])
    store_i32(out, at + 17, batch[_CRC])


@njit(_nrt=False)
def _seal(out, table, base_offset, leader_epoch):
    for number in range(len(table)):
        _seal_batch(out, table[number], base_offset, leader_epoch)
