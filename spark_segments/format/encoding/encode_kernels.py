"""The kernels of encode.py: records of Arrow's columns to the bytes of record batches, many batches per call."""

from __future__ import annotations

import numpy as np

from spark_segments.format.kernels.crc import crc32c_range
from spark_segments.format.kernels.jit import (
    load_u8,
    memcpy,
    njit,
    prefetch,
    store_i8,
    store_i16,
    store_i32,
    store_i64,
    varint_size,
    write_varint,
)
from spark_segments.format.layout import (
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    BASE_TIMESTAMP_POSITION,
    BATCH_LENGTH_POSITION,
    BATCH_OVERHEAD,
    CRC_POSITION,
    LAST_OFFSET_DELTA_POSITION,
    LEADER_EPOCH_POSITION,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAX_TIMESTAMP_POSITION,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    RECORDS_COUNT_POSITION,
    TIMESTAMP_TYPE_MASK,
)

_MAGIC = 2
# Largest sizes of length, attributes, timestamp delta, offset delta, key length, value length and header count.
_RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
_HEADER_OVERHEAD = 5 + 5

# The rows of a partition lie scattered among other rows. Kernels prefetch two cache lines of the row this far ahead.
_PREFETCH_RECORDS = 16
_CACHE_LINE = 64

# Columns of the table that kernels fill, one row a batch. FIRST is the number of its first record, OFFSET its offset.
POSITION, SIZE, FIRST, OFFSET, COUNT, BASE_TIMESTAMP, MAX_TIMESTAMP, ATTRIBUTES, CRC = range(9)
TABLE_COLUMNS = 9

# The reason why a kernel call ended early.
NOTHING = 0
NO_ROOM = 1
NULL_TIMESTAMP = 2
NEGATIVE_TIMESTAMP = 3
NULL_HEADER_KEY = 4
TOO_LARGE = 5


@njit(forceinline=True)
def _is_null(validity, bit):
    return len(validity) > 0 and (load_u8(validity, bit >> 3) >> (bit & 7)) & 1 == 0


@njit(forceinline=True)
def _length(offsets, validity, first_bit, row):
    """Bytes of a row of a BinaryView, -1 where it is null."""
    if _is_null(validity, first_bit + row):
        return np.int64(-1)
    return np.int64(offsets[row + 1]) - offsets[row]


@njit(forceinline=True)
def _field_size(length):
    return varint_size(length) + max(length, 0)


@njit(forceinline=True)
def _write_field(out, position, data, start, length):
    position = write_varint(out, position, length)
    if length > 0:
        memcpy(out, position, data, start, length)
        position += length
    return position


@njit
def measure(key, value, headers, header_key, header_value, rows, all_rows, run_ends, count, tombstones):
    """An upper bound of all records' bytes, or -1 where `rows` has a number that is no row. Counts each run's
    tombstones.
    """
    key_offsets, _, _, _ = key
    value_offsets, _, value_validity, value_bit = value
    header_offsets, _, _ = headers
    name_offsets, _, _, _ = header_key
    content_offsets, _, _, _ = header_value
    has_headers = len(header_offsets) > 0
    record_bytes = np.int64(0)
    number = np.int64(0)
    for run in range(len(run_ends)):
        without_value = np.int64(0)
        while number < run_ends[run]:
            row = number
            if not all_rows:
                row = rows[number]
                if row < 0 or row >= count:
                    return np.int64(-1)
            without_value += _is_null(value_validity, value_bit + row)
            record_bytes += np.int64(value_offsets[row + 1]) - value_offsets[row] + _RECORD_OVERHEAD
            record_bytes += np.int64(key_offsets[row + 1]) - key_offsets[row]
            if has_headers:
                start = header_offsets[row]
                end = header_offsets[row + 1]
                record_bytes += np.int64(name_offsets[end]) - name_offsets[start]
                record_bytes += np.int64(content_offsets[end]) - content_offsets[start]
                record_bytes += (np.int64(end) - start) * _HEADER_OVERHEAD
            number += 1
        tombstones[run] = without_value
    return record_bytes


@njit
def write_batches(
    key, value, timestamp, headers, header_key, header_value, rows, all_rows, number, run_ends, shifts, cut_bytes,
    largest_bytes, attributes, is_compressed, out, position, table, leader_epoch,
):  # fmt: skip
    """Writes batches from record `number` on while `out` and `table` have room, and seals them unless `is_compressed`.

    A batch ends where its run does (run_ends, int64[runs]). A record's offset is its number plus its run's shift.
    Returns (number of the next record, position after the last batch, batches, problem, its row, found value).
    """
    key_offsets, key_data, key_validity, key_bit = key
    value_offsets, value_data, value_validity, value_bit = value
    ticks, tick_validity, tick_bit, ticks_per_ms = timestamp
    header_offsets, header_validity, header_bit = headers
    name_offsets, name_data, name_validity, name_bit = header_key
    content_offsets, content_data, content_validity, content_bit = header_value
    has_headers = len(header_offsets) > 0
    total = run_ends[-1]
    run = 0
    batches = 0
    while number < total and batches < len(table):
        while run_ends[run] <= number:
            run += 1
        run_end = run_ends[run]
        first = number
        at = position + BATCH_OVERHEAD
        base_timestamp = np.int64(NO_TIMESTAMP)
        max_timestamp = np.int64(NO_TIMESTAMP)
        while number < run_end:
            row = np.int64(number)
            if not all_rows:
                row = rows[number]
                ahead = rows[min(number + _PREFETCH_RECORDS, total - 1)]
                prefetch(key_data, np.int64(key_offsets[ahead]))
                prefetch(value_data, np.int64(value_offsets[ahead]))
                prefetch(value_data, np.int64(value_offsets[ahead]) + _CACHE_LINE)
            if _is_null(tick_validity, tick_bit + row):
                return first, position, batches, NULL_TIMESTAMP, row, np.int64(0)
            created = ticks[row]
            if ticks_per_ms == 1000:
                created //= 1000
            elif ticks_per_ms == 1000000:
                created //= 1000000
            if created < NO_TIMESTAMP:
                return first, position, batches, NEGATIVE_TIMESTAMP, row, created
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
                        return first, position, batches, NULL_HEADER_KEY, row, np.int64(0)
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
                    return first, position, batches, TOO_LARGE, row, end - position
            if end > len(out):
                return first, position, batches, NO_ROOM, row, end - position
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
        batch[POSITION] = position
        batch[SIZE] = at - position
        batch[FIRST] = first
        batch[OFFSET] = first + shifts[run]
        batch[COUNT] = number - first
        batch[BASE_TIMESTAMP] = base_timestamp
        batch[MAX_TIMESTAMP] = max_timestamp
        batch[ATTRIBUTES] = attributes
        if not is_compressed:
            _seal_batch(out, batch, leader_epoch)
        batches += 1
        position = at
    return number, position, batches, NOTHING, np.int64(0), np.int64(0)


@njit
def _seal_batch(out, batch, leader_epoch):
    """Writes the header and the CRC of a batch whose records section is already in place."""
    at = batch[POSITION]
    store_i64(out, at, batch[OFFSET])
    store_i32(out, at + BATCH_LENGTH_POSITION, batch[SIZE] - LOG_OVERHEAD)
    store_i32(out, at + LEADER_EPOCH_POSITION, leader_epoch)
    store_i8(out, at + MAGIC_POSITION, _MAGIC)
    store_i16(out, at + ATTRIBUTES_POSITION, batch[ATTRIBUTES])
    store_i32(out, at + LAST_OFFSET_DELTA_POSITION, batch[COUNT] - 1)
    store_i64(out, at + BASE_TIMESTAMP_POSITION, batch[BASE_TIMESTAMP])
    store_i64(out, at + MAX_TIMESTAMP_POSITION, batch[MAX_TIMESTAMP])
    store_i64(out, at + PRODUCER_ID_POSITION, NO_PRODUCER_ID)
    store_i16(out, at + PRODUCER_EPOCH_POSITION, NO_PRODUCER_EPOCH)
    store_i32(out, at + BASE_SEQUENCE_POSITION, NO_SEQUENCE)
    store_i32(out, at + RECORDS_COUNT_POSITION, batch[COUNT])
    batch[CRC] = crc32c_range(out, at + ATTRIBUTES_POSITION, at + batch[SIZE])
    store_i32(out, at + CRC_POSITION, batch[CRC])


@njit
def seal(out, table, leader_epoch):
    """Writes header and CRC of each batch of `table`; the records sections are already in place."""
    for number in range(len(table)):
        _seal_batch(out, table[number], leader_epoch)
