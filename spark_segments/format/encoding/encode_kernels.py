"""Kernels of writing: records of Arrow's columns to the bytes of record batches, many batches per call; partitions."""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.encoding.fields import *
    from spark_segments.format.kernels.crc32c import *
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *

# The addresses of a BinaryView's arrays; 0 for a validity or data without bytes.
Column = cython.struct(
    offsets=cython.longlong, data=cython.longlong, validity=cython.longlong, first_bit=cython.longlong
)


@cython.cfunc
@cython.exceptval(check=True)
def _column(view) -> Column:
    out: Column = Column(_address(view[0]), _address(view[1]), _address(view[2]), view[3])
    return out


@cython.cfunc
@cython.exceptval(check=True)
def _address(array) -> i64:
    """0 for an array without bytes."""
    return address_of(array) if size_of(array) else 0


@cython.cfunc
@cython.inline
@cython.nogil
def _is_null(validity: i64, bit: i64) -> cython.bint:
    return validity != 0 and (load_u8(validity + (bit >> 3)) >> (bit & 7)) & 1 == 0


@cython.cfunc
@cython.inline
@cython.nogil
def _start(column: Column, row: i64) -> i64:
    return load_native_i32(column.offsets + 4 * row)


@cython.cfunc
@cython.inline
@cython.nogil
def _length(column: Column, row: i64) -> i64:
    """Bytes of a row, -1 where it is null."""
    if _is_null(column.validity, column.first_bit + row):
        return -1
    return _start(column, row + 1) - _start(column, row)


@cython.cfunc
@cython.inline
@cython.nogil
def _field_size(length: i64) -> i64:
    return varlong_size(length) + (length if length > 0 else 0)


@cython.cfunc
@cython.inline
@cython.nogil
def _write_field(at: i64, column: Column, row: i64, length: i64) -> i64:
    at = write_varlong(at, length)
    if length > 0:
        copy_bytes(at, column.data + _start(column, row), length)
        at += length
    return at


@cython.cfunc
@cython.inline
@cython.nogil
def _milliseconds(ticks: i64, ticks_per_ms: i64) -> i64:
    """Rounded down."""
    if ticks_per_ms == 1000:
        return ticks // 1000 if ticks >= 0 else -(~ticks // 1000) - 1
    if ticks_per_ms == 1000000:
        return ticks // 1000000 if ticks >= 0 else -(~ticks // 1000000) - 1
    return ticks


def measure(
    columns,
    rows: cython.const[cython.longlong][::1],
    all_rows: cython.bint,
    run_ends: cython.const[cython.longlong][::1],
    tombstones: cython.longlong[::1],
) -> int:
    """An upper bound of the bytes of all records of RecordColumns, or -1 where `rows` has a number that is no row.
    Counts each run's tombstones.
    """
    keys: Column = _column(columns.key)
    values: Column = _column(columns.value)
    names: Column = _column(columns.header_key)
    contents: Column = _column(columns.header_value)
    header_offsets: i64 = _address(columns.headers[0])
    count: i64 = columns.count
    record_bytes: i64 = 0
    number: i64 = 0
    run: i64
    runs: i64 = run_ends.shape[0]
    row: i64
    start: i64
    end: i64
    without_value: i64
    with cython.nogil:
        for run in range(runs):
            without_value = 0
            while number < run_ends[run]:
                row = number
                if not all_rows:
                    row = rows[number]
                    if row < 0 or row >= count:
                        break
                without_value += _is_null(values.validity, values.first_bit + row)
                record_bytes += _start(values, row + 1) - _start(values, row) + RECORD_OVERHEAD
                record_bytes += _start(keys, row + 1) - _start(keys, row)
                if header_offsets != 0:
                    start = load_native_i32(header_offsets + 4 * row)
                    end = load_native_i32(header_offsets + 4 * row + 4)
                    record_bytes += _start(names, end) - _start(names, start)
                    record_bytes += _start(contents, end) - _start(contents, start)
                    record_bytes += (end - start) * HEADER_OVERHEAD
                number += 1
            tombstones[run] = without_value
            if number < run_ends[run]:
                record_bytes = -1
                break
    return record_bytes


def write_batches(task, number: i64, out: cython.uchar[::1], position: i64, table: cython.longlong[:, ::1]):
    """Writes batches from record `number` on while `out` and `table` have room, and seals them unless `is_compressed`.

    `task`: the fields of the encoder that are read first.

    A batch ends where its run does (run_ends, int64[runs]). A record's offset is its number plus its run's shift.
    Returns (number of the next record, position after the last batch, batches, problem, its row, found value).
    """
    columns = task.columns
    keys: Column = _column(columns.key)
    values: Column = _column(columns.value)
    names: Column = _column(columns.header_key)
    contents: Column = _column(columns.header_value)
    ticks: cython.const[cython.longlong][::1] = columns.timestamp[0]
    tick_validity: i64 = _address(columns.timestamp[1])
    tick_bit: i64 = columns.timestamp[2]
    ticks_per_ms: i64 = columns.timestamp[3]
    header_offsets: i64 = _address(columns.headers[0])
    header_validity: i64 = _address(columns.headers[1])
    header_bit: i64 = columns.headers[2]
    rows: cython.const[cython.longlong][::1] = task.rows
    all_rows: cython.bint = task.all_rows
    run_ends: cython.const[cython.longlong][::1] = task.run_ends
    shifts: cython.const[cython.longlong][::1] = task.shifts
    cut_bytes: i64 = task.cut_bytes
    largest_bytes: i64 = task.largest_bytes
    attributes: i64 = task.attributes
    is_compressed: cython.bint = task.is_compressed
    leader_epoch: i64 = task.leader_epoch
    begin: i64 = address_of(out)
    limit: i64 = begin + out.shape[0]
    batch: i64 = begin + position  # its address
    total: i64 = run_ends[run_ends.shape[0] - 1]
    most_batches: i64 = table.shape[0]
    appended: cython.bint = attributes & TIMESTAMP_TYPE_MASK != 0
    run: i64 = 0
    batches: i64 = 0
    first: i64 = number
    problem: i64 = NOTHING
    row: i64 = 0
    found: i64 = 0
    ahead: i64
    at: i64
    end: i64
    base_timestamp: i64
    max_timestamp: i64
    min_timestamp: i64
    created: i64
    offset_delta: i64
    timestamp_delta: i64
    key_bytes: i64
    value_bytes: i64
    name_bytes: i64
    header: i64
    header_start: i64
    header_end: i64
    header_bytes: i64
    body_bytes: i64
    with cython.nogil:
        while number < total and batches < most_batches:
            while run_ends[run] <= number:
                run += 1
            first = number
            at = batch + BATCH_OVERHEAD
            base_timestamp = NO_TIMESTAMP
            max_timestamp = NO_TIMESTAMP
            min_timestamp = NO_TIMESTAMP
            while number < run_ends[run]:
                row = number
                if not all_rows:
                    row = rows[number]
                    ahead = rows[min(number + PREFETCH_RECORDS, total - 1)]
                    prefetch(keys.data + _start(keys, ahead))
                    prefetch(values.data + _start(values, ahead))
                    prefetch(values.data + _start(values, ahead) + CACHE_LINE)
                if _is_null(tick_validity, tick_bit + row):
                    problem = NULL_TIMESTAMP
                    break
                created = _milliseconds(ticks[row], ticks_per_ms)
                if created < NO_TIMESTAMP:
                    problem = NEGATIVE_TIMESTAMP
                    found = created
                    break
                if number == first:
                    base_timestamp = created
                    min_timestamp = created
                offset_delta = number - first
                timestamp_delta = 0 if appended else created - base_timestamp
                key_bytes = _length(keys, row)
                value_bytes = _length(values, row)
                header_start = 0
                header_end = 0
                header_bytes = 1
                if header_offsets != 0 and not _is_null(header_validity, header_bit + row):
                    header_start = load_native_i32(header_offsets + 4 * row)
                    header_end = load_native_i32(header_offsets + 4 * row + 4)
                    header_bytes = varlong_size(header_end - header_start)
                    for header in range(header_start, header_end):
                        name_bytes = _length(names, header)
                        if name_bytes < 0:
                            problem = NULL_HEADER_KEY
                            break
                        header_bytes += _field_size(name_bytes) + _field_size(_length(contents, header))
                    if problem != NOTHING:
                        break
                body_bytes = 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + header_bytes
                body_bytes += _field_size(key_bytes) + _field_size(value_bytes)
                end = at + varlong_size(body_bytes) + body_bytes
                if end - batch > cut_bytes:
                    if number > first:
                        break
                    if end - batch > largest_bytes:
                        problem = TOO_LARGE
                        found = end - batch
                        break
                if end > limit:
                    problem = NO_ROOM
                    found = end - batch
                    break
                at = write_varlong(at, body_bytes)
                store_i8(at, 0)
                at = write_varlong(at + 1, timestamp_delta)
                at = write_varlong(at, offset_delta)
                at = _write_field(at, keys, row, key_bytes)
                at = _write_field(at, values, row, value_bytes)
                at = write_varlong(at, header_end - header_start)
                for header in range(header_start, header_end):
                    at = _write_field(at, names, header, _length(names, header))
                    at = _write_field(at, contents, header, _length(contents, header))
                max_timestamp = max(max_timestamp, created)
                min_timestamp = min(min_timestamp, created)
                number += 1
            if problem != NOTHING:
                number = first
                break
            if appended:
                base_timestamp = max_timestamp
                min_timestamp = max_timestamp
            table[batches, POSITION] = batch - begin
            table[batches, SIZE] = at - batch
            table[batches, FIRST] = first
            table[batches, OFFSET] = first + shifts[run]
            table[batches, COUNT] = number - first
            table[batches, BASE_TIMESTAMP] = base_timestamp
            table[batches, MAX_TIMESTAMP] = max_timestamp
            table[batches, MIN_TIMESTAMP] = min_timestamp
            table[batches, ATTRIBUTES] = attributes
            if not is_compressed:
                _seal_batch(begin, table, batches, leader_epoch)
            batches += 1
            batch = at
    return number, batch - begin, batches, problem, row if problem else 0, found


@cython.cfunc
@cython.nogil
def _seal_batch(begin: i64, table: cython.longlong[:, ::1], row: i64, leader_epoch: i64) -> cython.void:
    """Writes the header and the CRC of a batch whose records section is already in place."""
    at: i64 = begin + table[row, POSITION]
    size: i64 = table[row, SIZE]
    store_i64(at, table[row, OFFSET])
    store_i32(at + BATCH_LENGTH_POSITION, size - LOG_OVERHEAD)
    store_i32(at + LEADER_EPOCH_POSITION, leader_epoch)
    store_i8(at + MAGIC_POSITION, MAGIC)
    store_i16(at + ATTRIBUTES_POSITION, table[row, ATTRIBUTES])
    store_i32(at + LAST_OFFSET_DELTA_POSITION, table[row, COUNT] - 1)
    store_i64(at + BASE_TIMESTAMP_POSITION, table[row, BASE_TIMESTAMP])
    store_i64(at + MAX_TIMESTAMP_POSITION, table[row, MAX_TIMESTAMP])
    store_i64(at + PRODUCER_ID_POSITION, NO_PRODUCER_ID)
    store_i16(at + PRODUCER_EPOCH_POSITION, NO_PRODUCER_EPOCH)
    store_i32(at + BASE_SEQUENCE_POSITION, NO_SEQUENCE)
    store_i32(at + RECORDS_COUNT_POSITION, table[row, COUNT])
    table[row, CRC] = crc32c_range(at + ATTRIBUTES_POSITION, at + size)
    store_i32(at + CRC_POSITION, table[row, CRC])


def seal(out: cython.uchar[::1], table: cython.longlong[:, ::1], leader_epoch: i64):
    """Writes header and CRC of each batch of `table`; the records sections are already in place."""
    begin: i64 = address_of(out)
    row: i64
    rows: i64 = table.shape[0]
    with cython.nogil:
        for row in range(rows):
            _seal_batch(begin, table, row, leader_epoch)


def partitions_of(key, partitions: i64, numbers: cython.int[::1]):
    """The partition of each row of a BinaryView, NO_PARTITION for nulls."""
    keys: Column = _column(key)
    row: i64
    rows: i64 = numbers.shape[0]
    with cython.nogil:
        for row in range(rows):
            if _is_null(keys.validity, keys.first_bit + row):
                numbers[row] = NO_PARTITION
            else:
                numbers[row] = (
                    _murmur2(keys.data + _start(keys, row), keys.data + _start(keys, row + 1)) & LOW_31
                ) % partitions


@cython.cfunc
@cython.inline
@cython.nogil
def _murmur2(at: i64, end: i64) -> i64:
    """org.apache.kafka.common.utils.Utils.murmur2 of the bytes from `at` to `end`, as uint32."""
    state: i64 = MURMUR_SEED ^ (end - at)
    word: i64
    index: i64
    while at + 4 <= end:
        word = (load_u32_le(at) * MURMUR_FACTOR) & LOW_32
        word = ((word ^ (word >> 24)) * MURMUR_FACTOR) & LOW_32
        state = ((state * MURMUR_FACTOR) & LOW_32) ^ word
        at += 4
    if at < end:
        word = 0
        for index in range(end - at):
            word |= load_u8(at + index) << (8 * index)
        state = ((state ^ word) * MURMUR_FACTOR) & LOW_32
    state = ((state ^ (state >> 13)) * MURMUR_FACTOR) & LOW_32
    return state ^ (state >> 15)


def group(ids: cython.const[cython.int][::1], order: cython.longlong[::1], starts: cython.longlong[::1]) -> int:
    """Fills `order` and `starts` of group_rows. Returns -1, or the first row whose partition does not exist."""
    partitions: i64 = starts.shape[0] - 1
    row: i64
    rows: i64 = ids.shape[0]
    partition: i64
    wrong: i64 = -1
    with cython.nogil:
        for row in range(rows):
            if ids[row] < 0 or ids[row] >= partitions:
                wrong = row
                break
            starts[ids[row] + 1] += 1
        if wrong < 0:
            for partition in range(partitions):
                starts[partition + 1] += starts[partition]
            # Each start is used as the place of its partition's next row, and so ends where the next partition starts.
            for row in range(rows):
                order[starts[ids[row]]] = row
                starts[ids[row]] += 1
            for partition in range(partitions, 0, -1):
                starts[partition] = starts[partition - 1]
            starts[0] = 0
    return wrong
