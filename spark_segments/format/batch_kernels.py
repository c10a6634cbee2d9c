"""Kernels over the headers of batches, and over control batches."""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.batch_problems import *
    from spark_segments.format.kernels.crc32c import *
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *

Marker = cython.struct(kind=cython.longlong, epoch=cython.longlong, timestamp_delta=cython.longlong)


def count_batches(data: cython.const[cython.uchar][::1], limit: i64) -> int:
    """Upper bound on the number of batches that `scan` finds."""
    begin: i64 = address_of(data)
    end: i64 = data.shape[0]
    position: i64 = 0
    rows: i64 = 0
    size: i64
    with cython.nogil:
        while position < limit and position + HEADER_UP_TO_MAGIC <= end:
            size = load_i32(begin + position + BATCH_LENGTH_POSITION) + LOG_OVERHEAD
            if size < HEADER_UP_TO_MAGIC or position + size > end:
                break
            rows += 1
            position += size
    return rows


def scan(
    data: cython.const[cython.uchar][::1],
    limit: i64,
    file_position: i64,
    check_crc: cython.bint,
    table,
):
    """Fills the columns of a BatchTable: (rows, consumed, needed, problem, expected, found)."""
    positions: cython.longlong[::1] = table.byte_position
    sizes: cython.longlong[::1] = table.size
    base_offsets: cython.longlong[::1] = table.base_offset
    last_offsets: cython.longlong[::1] = table.last_offset
    leader_epochs: cython.int[::1] = table.leader_epoch
    magics: cython.schar[::1] = table.magic
    crcs: cython.uint[::1] = table.crc
    attributes: cython.short[::1] = table.attributes
    base_timestamps: cython.longlong[::1] = table.base_timestamp
    max_timestamps: cython.longlong[::1] = table.max_timestamp
    producer_ids: cython.longlong[::1] = table.producer_id
    producer_epochs: cython.short[::1] = table.producer_epoch
    base_sequences: cython.int[::1] = table.base_sequence
    counts: cython.int[::1] = table.count
    begin: i64 = address_of(data)
    end: i64 = data.shape[0]
    position: i64 = 0
    row: i64 = 0
    needed: i64 = 0
    problem: i64 = GOOD
    expected: i64 = 0
    found: i64 = 0
    at: i64
    base_offset: i64
    length: i64
    size: i64
    magic: i64
    smallest: i64
    stored: i64 = 0
    last_offset_delta: i64
    count: i64
    flags: i64
    timestamp: i64
    with cython.nogil:
        while position < limit:
            if position + HEADER_UP_TO_MAGIC > end:
                needed = BATCH_OVERHEAD
                break
            at = begin + position
            base_offset = load_i64(at)
            length = load_i32(at + BATCH_LENGTH_POSITION)
            size = length + LOG_OVERHEAD
            magic = load_i8(at + MAGIC_POSITION)
            if magic < 0 or magic > 2:
                problem = BAD_MAGIC
                expected = 2
                found = magic
                break
            smallest = BATCH_OVERHEAD if magic == 2 else MAGIC_1_OVERHEAD if magic == 1 else MAGIC_0_OVERHEAD
            if size < smallest:
                problem = BAD_LENGTH
                if base_offset == 0 and length == 0 and magic == 0 and load_i32(at + LEADER_EPOCH_POSITION) == 0:
                    problem = ZEROS
                expected = smallest - LOG_OVERHEAD
                found = length
                break
            if position + size > end:
                needed = size
                break
            if magic == 2:
                stored = load_u32(at + CRC_POSITION)
                if check_crc:
                    found = crc32c_range(at + ATTRIBUTES_POSITION, at + size)
                    if found != stored:
                        problem = BAD_CRC
                        expected = stored
                        break
                last_offset_delta = load_i32(at + LAST_OFFSET_DELTA_POSITION)
                if last_offset_delta < 0:
                    problem = BAD_LAST_OFFSET
                    expected = 0
                    found = last_offset_delta
                    break
                if base_offset < 0 or base_offset > LARGEST_OFFSET - last_offset_delta:
                    problem = BAD_OFFSET
                    expected = LARGEST_OFFSET - last_offset_delta
                    found = base_offset
                    break
                count = load_i32(at + RECORDS_COUNT_POSITION)
                # Offsets rise, so there are no more records than offsets.
                if count < 0 or count > last_offset_delta + 1:
                    problem = BAD_COUNT
                    expected = last_offset_delta + 1
                    found = count
                    break
                last_offsets[row] = base_offset + last_offset_delta
                leader_epochs[row] = cython.cast(cython.int, load_i32(at + LEADER_EPOCH_POSITION))
                crcs[row] = cython.cast(cython.uint, stored)
                attributes[row] = cython.cast(cython.short, load_i16(at + ATTRIBUTES_POSITION))
                base_timestamps[row] = load_i64(at + BASE_TIMESTAMP_POSITION)
                max_timestamps[row] = load_i64(at + MAX_TIMESTAMP_POSITION)
                producer_ids[row] = load_i64(at + PRODUCER_ID_POSITION)
                producer_epochs[row] = cython.cast(cython.short, load_i16(at + PRODUCER_EPOCH_POSITION))
                base_sequences[row] = cython.cast(cython.int, load_i32(at + BASE_SEQUENCE_POSITION))
                counts[row] = cython.cast(cython.int, count)
            else:
                if base_offset < 0:
                    problem = BAD_OFFSET
                    expected = LARGEST_OFFSET
                    found = base_offset
                    break
                flags = load_u8(at + LEGACY_ATTRIBUTES_POSITION) & (CODEC_MASK | TIMESTAMP_TYPE_MASK)
                timestamp = load_i64(at + LEGACY_TIMESTAMP_POSITION) if magic == 1 else NO_TIMESTAMP
                last_offsets[row] = base_offset
                leader_epochs[row] = -1
                crcs[row] = cython.cast(cython.uint, load_u32(at + LEGACY_CRC_POSITION))
                attributes[row] = cython.cast(cython.short, flags)
                base_timestamps[row] = timestamp
                max_timestamps[row] = timestamp
                producer_ids[row] = NO_PRODUCER_ID
                producer_epochs[row] = NO_PRODUCER_EPOCH
                base_sequences[row] = NO_SEQUENCE
                counts[row] = COUNT_UNKNOWN if flags & CODEC_MASK else 1
            positions[row] = file_position + position
            sizes[row] = size
            base_offsets[row] = base_offset
            magics[row] = cython.cast(cython.schar, magic)
            row += 1
            position += size
    return row, position, needed, problem, expected, found


def rebase(
    out: cython.uchar[::1],
    starts: cython.const[cython.longlong][::1],
    shift: i64,
    with_epoch: cython.bint,
    leader_epoch: i64,
):
    """Adds `shift` to the base offsets of the batches at `starts`, and sets the leader epoch if wanted."""
    begin: i64 = address_of(out)
    at: i64
    batch: i64
    batches: i64 = starts.shape[0]
    with cython.nogil:
        for batch in range(batches):
            at = begin + starts[batch]
            store_i64(at + BASE_OFFSET_POSITION, load_i64(at + BASE_OFFSET_POSITION) + shift)
            if with_epoch:
                store_i32(at + LEADER_EPOCH_POSITION, leader_epoch)


def read_markers(
    data: cython.const[cython.uchar][::1],
    starts: cython.const[cython.longlong][::1],
    ends: cython.const[cython.longlong][::1],
    counts: cython.const[cython.longlong][::1],
    base_timestamps: cython.const[cython.longlong][::1],
    types: cython.longlong[::1],
    coordinator_epochs: cython.longlong[::1],
    timestamps: cython.longlong[::1],
):
    """Fills the columns of Markers from the first record of each control batch, whose records lie in [start, end)."""
    begin: i64 = address_of(data)
    row: i64
    rows: i64 = starts.shape[0]
    marker: Marker
    with cython.nogil:
        for row in range(rows):
            types[row] = NO_MARKER
            coordinator_epochs[row] = -1
            timestamps[row] = -1
            if counts[row] > 0:
                marker = _first_marker(begin + starts[row], begin + ends[row])
                types[row] = marker.kind
                coordinator_epochs[row] = marker.epoch
                timestamps[row] = wrap_i64(base_timestamps[row] + marker.timestamp_delta)


@cython.cfunc
@cython.nogil
def _marker(kind: i64, epoch: i64, timestamp_delta: i64) -> Marker:
    out: Marker = Marker(kind, epoch, timestamp_delta)
    return out


@cython.cfunc
@cython.nogil
def _first_marker(start: i64, end: i64) -> Marker:
    field: Varint = read_varint(start, end)
    if field.at < 0 or field.value < 1 or field.value > end - field.at:
        return _marker(BAD_CONTROL, -1, 0)
    end = field.at + field.value
    field = read_varlong(field.at + 1, end)
    delta: i64 = field.value
    if field.at >= 0:
        field = read_varint(field.at, end)
    if field.at >= 0:
        field = read_varint(field.at, end)
    if field.at < 0 or field.value < 4 or field.value > end - field.at:
        return _marker(BAD_CONTROL, -1, 0)
    kind: i64 = load_i16(field.at + 2)
    if kind != ABORT and kind != COMMIT:
        return _marker(max(kind, 2), -1, delta)
    field = read_varint(field.at + field.value, end)
    if field.at < 0 or field.value < 6 or field.value > end - field.at:
        return _marker(BAD_CONTROL, -1, 0)
    return _marker(kind, load_i32(field.at + 2), delta)


def records_from(data, count: i64, dropped: i64, out):
    """Writes the records of a section whose offset delta is at least `dropped`, with `dropped` subtracted from it.

    `out` has room for one byte more than `data`. Returns (bytes, records, largest timestamp delta), or (-1 - p, 0, 0)
    where the record at position p is damaged.
    """
    begin: i64 = address_of(data)
    end: i64 = begin + size_of(data)
    target: i64 = address_of(out)
    at: i64 = target
    position: i64 = begin
    record_end: i64
    _number: i64
    kept: i64 = 0
    largest: i64 = -LARGEST_OFFSET - 1
    bad: i64 = -1
    offset_delta: i64
    timestamp_delta: i64
    attributes: i64
    field: Varint
    with cython.nogil:
        for _number in range(count):
            field = read_varint(position, end)
            if field.at < 0 or field.value < 1 or field.value > end - field.at:
                bad = position - begin
                break
            record_end = field.at + field.value
            attributes = load_u8(field.at)
            field = read_varlong(field.at + 1, record_end)
            timestamp_delta = field.value
            if field.at >= 0:
                field = read_varint(field.at, record_end)
            if field.at < 0:
                bad = position - begin
                break
            if field.value >= dropped:
                offset_delta = field.value - dropped
                # The record does not grow: its offset delta is smaller.
                at = write_varlong(
                    at, 1 + varlong_size(timestamp_delta) + varlong_size(offset_delta) + record_end - field.at
                )
                store_i8(at, attributes)
                at = write_varlong(at + 1, timestamp_delta)
                at = write_varlong(at, offset_delta)
                copy_bytes(at, field.at, record_end - field.at)
                at += record_end - field.at
                kept += 1
                largest = max(largest, timestamp_delta)
            position = record_end
        if bad < 0 and count > 0 and position != end:
            bad = position - begin
    if bad >= 0:
        return -1 - bad, 0, 0
    return at - target, kept, largest
