"""The records inside batches of magic 2: kernels that read the records of many batches per call and fill columns.

A *section* is the uncompressed records of one batch, anywhere in memory. A kernel takes addresses, so batches in a
file's buffer and decompressed batches need not be copied together. Every read is bounded by the section's end, also in
damaged bytes. batch_groups.py makes the sections, columns.py the columns.

A record is first read by `_read_usual`, which is quick and refuses all but the usual record, then by `_read_any`.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.decoding.fields import *
    from spark_segments.format.kernels.block_codecs import *
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *

# The addresses and numbers of the first fields of a record, or its problem.
Start = cython.struct(
    problem=cython.longlong,
    expected=cython.longlong,
    found=cython.longlong,
    timestamp_delta=cython.longlong,
    offset_delta=cython.longlong,
    position=cython.longlong,
    end=cython.longlong,
)
# Those of all its fields.
Record = cython.struct(
    problem=cython.longlong,
    expected=cython.longlong,
    found=cython.longlong,
    timestamp_delta=cython.longlong,
    offset_delta=cython.longlong,
    key_position=cython.longlong,
    key_size=cython.longlong,
    value_position=cython.longlong,
    value_size=cython.longlong,
    header_position=cython.longlong,
    header_count=cython.longlong,
    end=cython.longlong,
)
# The fields of outcomes.Binary.
Binary = cython.struct(
    wanted=cython.longlong,
    rows=cython.longlong,
    offsets=cython.longlong,
    validity=cython.longlong,
    data=cython.longlong,
    views=cython.longlong,
    first_buffer=cython.longlong,
)


@cython.cfunc
@cython.inline
@cython.nogil
def _pair(value: i64, at: i64) -> Varint:
    out: Varint = Varint(value, at)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _short(position: i64) -> Varint:
    """The raw bits of a varint of at most three bytes, (0, -1) for a longer varint.

    The caller has checked that three bytes can be read.
    """
    raw: i64 = load_u8(position)
    if raw < 0x80:
        return _pair(raw, position + 1)
    byte: i64 = load_u8(position + 1)
    raw += (byte << 7) - 0x80
    if byte < 0x80:
        return _pair(raw, position + 2)
    byte = load_u8(position + 2)
    raw += (byte << 14) - 0x4000
    if byte < 0x80:
        return _pair(raw, position + 3)
    return _pair(0, -1)


@cython.cfunc
@cython.inline
@cython.nogil
def _bad(problem: i64, expected: i64, found: i64) -> Record:
    out: Record = Record(problem, expected, found, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _no_start(problem: i64, expected: i64, found: i64) -> Start:
    out: Start = Start(problem, expected, found, 0, 0, 0, 0)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _read_start(position: i64, end: i64, last_offset_delta: i64, previous: i64) -> Start:
    """A record up to its key."""
    field: Varint = read_varint(position, end)
    length: i64 = field.value
    position = field.at
    if position < 0:
        return _no_start(CUT, 0, 0)
    if length < SMALLEST_RECORD - 1 or length > end - position:
        return _no_start(BAD_LENGTH, end - position, length)
    record_end: i64 = position + length
    field = read_varlong(position + 1, record_end)
    timestamp_delta: i64 = field.value
    if field.at < 0:
        return _no_start(CUT, 0, 0)
    field = read_varint(field.at, record_end)
    if field.at < 0:
        return _no_start(CUT, 0, 0)
    if field.value <= previous or field.value > last_offset_delta:
        return _no_start(BAD_OFFSET, previous + 1, field.value)
    out: Start = Start(0, 0, 0, timestamp_delta, field.value, field.at, record_end)
    return out


@cython.cfunc
@cython.nogil
def _read_any(position: i64, end: i64, last_offset_delta: i64, previous: i64) -> Record:
    """The record at `position` of a section that ends at `end`, with every field checked."""
    start: Start = _read_start(position, end, last_offset_delta, previous)
    if start.problem != GOOD:
        return _bad(start.problem, start.expected, start.found)
    position = start.position
    end = start.end
    key: Varint = read_varint(position, end)
    if key.at < 0:
        return _bad(CUT, 0, 0)
    if key.value < -1 or key.value > end - key.at:
        return _bad(BAD_KEY, end - key.at, key.value)
    value: Varint = read_varint(key.at + max(key.value, 0), end)
    if value.at < 0:
        return _bad(CUT, 0, 0)
    if value.value < -1 or value.value > end - value.at:
        return _bad(BAD_VALUE, end - value.at, value.value)
    count: Varint = read_varint(value.at + max(value.value, 0), end)
    if count.at < 0:
        return _bad(CUT, 0, 0)
    first: i64 = count.at
    if not (count.value == 0 and first == end):
        if count.value < 0 or count.value > (end - first) // 2:
            return _bad(BAD_HEADER_COUNT, (end - first) // 2, count.value)
        position = first
        field: Varint
        done: i64 = 0
        while done < count.value:
            field = read_varint(position, end)
            if field.at < 0:
                return _bad(CUT, 0, 0)
            if field.value < 0 or field.value > end - field.at:
                return _bad(BAD_HEADER_KEY, end - field.at, field.value)
            position = field.at + field.value
            field = read_varint(position, end)
            if field.at < 0:
                return _bad(CUT, 0, 0)
            if field.value < -1 or field.value > end - field.at:
                return _bad(BAD_HEADER_VALUE, end - field.at, field.value)
            position = field.at + max(field.value, 0)
            done += 1
        if position != end:
            return _bad(BAD_SIZE, end - first, position - first)
    out: Record = Record(
        0, 0, 0, start.timestamp_delta, start.offset_delta, key.at, key.value, value.at, value.value, first,
        count.value, end,
    )  # fmt: skip
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _read_usual(position: i64, end: i64, last_offset_delta: i64, previous: i64) -> Record:
    """`_read_any` for the usual record, which has short varints and no headers; any other gives the problem UNUSUAL.

    Sizes are not compared with the bytes that are left. One check at the end suffices: where the byte behind the value
    is the record's last, no field before it can have been outside of the record.
    """
    if position + MOST_HEAD_BYTES > end:
        return _bad(UNUSUAL, 0, 0)
    field: Varint = _short(position)
    if field.at < 0 or field.value & 1 != 0:
        return _bad(UNUSUAL, 0, 0)
    record_end: i64 = field.at + (field.value >> 1)
    field = _short(field.at + 1)
    timestamp_delta: i64 = field.value
    if field.at < 0:
        return _bad(UNUSUAL, 0, 0)
    field = _short(field.at)
    if field.at < 0 or field.value & 1 != 0:
        return _bad(UNUSUAL, 0, 0)
    offset_delta: i64 = field.value >> 1
    key: Varint = _short(field.at)
    if key.at < 0:
        return _bad(UNUSUAL, 0, 0)
    at: i64 = key.at
    key_size: i64 = key.value
    if key_size & 1:
        key_size = -((key_size + 1) >> 1)
    else:
        key_size >>= 1
        at += key_size
    if key_size < -1 or at + MOST_SHORT_BYTES > end:
        return _bad(UNUSUAL, 0, 0)
    value: Varint = _short(at)
    if value.at < 0:
        return _bad(UNUSUAL, 0, 0)
    at = value.at
    value_size: i64 = value.value
    if value_size & 1:
        value_size = -((value_size + 1) >> 1)
    else:
        value_size >>= 1
        at += value_size
    if value_size < -1 or at + 1 != record_end or record_end > end or load_u8(at) != 0:
        return _bad(UNUSUAL, 0, 0)
    if offset_delta <= previous or offset_delta > last_offset_delta:
        return _bad(UNUSUAL, 0, 0)
    out: Record = Record(
        0, 0, 0, (timestamp_delta >> 1) ^ -(timestamp_delta & 1), offset_delta, key.at, key_size, value.at, value_size,
        record_end, 0, record_end,
    )  # fmt: skip
    return out


@cython.cfunc
@cython.nogil
def _begin(column: Binary) -> cython.void:
    """Starts a wanted column: no rows yet, and every validity bit set, so that only nulls need to be marked."""
    if column.wanted:
        if column.views == 0:
            store_native_i32(column.offsets, 0)
        fill_bytes(column.validity, 0xFF, (column.rows + 7) // 8)


@cython.cfunc
@cython.inline
@cython.nogil
def _set_null(validity: i64, row: i64) -> cython.void:
    at: i64 = validity + (row >> 3)
    bit: i64 = 1
    store_i8(at, load_u8(at) & ~(bit << (row & 7)))


@cython.cfunc
@cython.inline
@cython.nogil
def _put(column: Binary, row: i64, filled: i64, address: i64, size: i64, end: i64) -> i64:
    """Appends bytes, or a null where `size` is -1, to a column. Returns the bytes that the column then holds."""
    if size > 0:
        copy_short(column.data + filled, address, size, end)
        filled += size
    elif size < 0:
        _set_null(column.validity, row)
    store_native_i32(column.offsets + 4 * row + 4, filled)
    return filled


@cython.cfunc
@cython.inline
@cython.nogil
def _put_view(column: Binary, row: i64, address: i64, size: i64, buffer: i64, offset: i64) -> cython.void:
    """Writes the view of a value, or a null where `size` is -1: its size, then 12 bytes.

    A value of at most 12 bytes stands there. Any other has its first 4 bytes, its buffer and its offset there.
    """
    view: i64 = column.views + 16 * row
    at: i64
    store_native_i32(view, max(size, 0))
    if size > MOST_INLINE_BYTES:
        store_native_i32(view + 4, load_native_i32(address))
        store_native_i32(view + 8, buffer)
        store_native_i32(view + 12, offset)
        return
    store_native_i32(view + 4, 0)
    store_native_i64(view + 8, 0)
    for at in range(size):
        store_i8(view + 4 + at, load_u8(address + at))
    if size < 0:
        _set_null(column.validity, row)


@cython.cfunc
@cython.inline
@cython.nogil
def _microseconds(timestamp: i64) -> i64:
    return min(max(timestamp, FIRST_MS), LAST_MS) * 1000


def decode_records(
    sections: cython.const[cython.longlong][:, ::1],
    start_offset: i64,
    end_offset: i64,
    filled,
    offsets: i64,
    timestamps: i64,
    key_column,
    value_column,
    headers,
):
    """Appends the records with offsets in [start_offset, end_offset) to columns. Returns the fields of an Outcome.

    `filled` has the fields of a Filled. `offsets` and `timestamps` (microseconds) are addresses of int64[rows]. Every
    column must have room for all records that the sections count and for all their bytes.
    """
    row: i64 = filled[0]
    key_bytes: i64 = filled[1]
    value_bytes: i64 = filled[2]
    null_keys: i64 = filled[3]
    null_values: i64 = filled[4]
    header_rows: i64 = filled[5]
    header_bytes: i64 = filled[6]
    key: Binary = _binary(key_column)
    value: Binary = _binary(value_column)
    headers_wanted: i64 = headers[0]
    header_offsets: i64 = headers[1]
    header_addresses: i64 = headers[2]
    header_ends: i64 = headers[3]
    problem: i64 = GOOD
    expected: i64 = 0
    found: i64 = 0
    section: i64 = 0
    record: i64 = 0
    count: i64
    before: i64
    position: i64
    end: i64
    base_offset: i64
    last_offset_delta: i64
    base_timestamp: i64
    timestamp_step: i64
    previous: i64
    offset: i64
    timestamp: i64
    inside: cython.bint
    calm: cython.bint
    usual: cython.bint
    read: Record
    sections_count: i64 = sections.shape[0]
    with cython.nogil:
        if row == 0:
            _begin(key)
            _begin(value)
        while section < sections_count:
            position = sections[section, ADDRESS]
            end = sections[section, END]
            count = sections[section, COUNT]
            base_offset = sections[section, BASE_OFFSET]
            last_offset_delta = sections[section, LAST_OFFSET_DELTA]
            base_timestamp = sections[section, BASE_TIMESTAMP]
            timestamp_step = sections[section, TIMESTAMP_STEP]
            previous = -1
            # Checked once per section rather than per record: all of its offsets are wanted, and no timestamp with a
            # short delta (as usual records have) is beyond the range of microseconds.
            inside = base_offset >= start_offset and base_offset + last_offset_delta < end_offset
            calm = base_timestamp > -(LAST_MS // 2) and base_timestamp < LAST_MS // 2
            record = 0
            while record < count:
                read = _read_usual(position, end, last_offset_delta, previous)
                usual = calm
                if read.problem == UNUSUAL:
                    usual = False
                    read = _read_any(position, end, last_offset_delta, previous)
                    if read.problem != GOOD:
                        problem = read.problem
                        expected = read.expected
                        found = read.found
                        break
                previous = read.offset_delta
                position = read.end
                offset = base_offset + read.offset_delta
                if inside or (offset >= start_offset and offset < end_offset):
                    store_native_i64(offsets + 8 * row, offset)
                    timestamp = wrap_i64(base_timestamp + timestamp_step * read.timestamp_delta)
                    store_native_i64(timestamps + 8 * row, timestamp * 1000 if usual else _microseconds(timestamp))
                    if key.wanted:
                        key_bytes = _put(key, row, key_bytes, read.key_position, read.key_size, end)
                        null_keys += read.key_size < 0
                    if value.wanted:
                        if value.views != 0:
                            _put_view(
                                value, row, read.value_position, read.value_size,
                                value.first_buffer + sections[section, BUFFER],
                                read.value_position - sections[section, BUFFER_ADDRESS],
                            )  # fmt: skip
                        else:
                            value_bytes = _put(value, row, value_bytes, read.value_position, read.value_size, end)
                        null_values += read.value_size < 0
                    if headers_wanted and (header_rows > 0 or read.header_count > 0):
                        if header_rows == 0:
                            for before in range(row + 1):
                                store_native_i32(header_offsets + 4 * before, 0)
                        store_native_i64(header_addresses + 8 * row, read.header_position)
                        store_native_i64(header_ends + 8 * row, read.end)
                        header_rows += read.header_count
                        header_bytes += read.end - read.header_position
                        store_native_i32(header_offsets + 4 * row + 4, header_rows)
                    row += 1
                record += 1
            if problem == GOOD and position != end:
                problem = TRAILING
                record = count - 1
                found = end - position
            if problem != GOOD:
                break
            section += 1
    if problem != GOOD:
        return 0, 0, 0, 0, 0, 0, 0, problem, section, record, expected, found
    return row, key_bytes, value_bytes, null_keys, null_values, header_rows, header_bytes, 0, 0, 0, 0, 0


@cython.cfunc
def _binary(column) -> Binary:
    out: Binary = Binary(column[0], column[1], column[2], column[3], column[4], column[5], column[6])
    return out


def decode_offsets(
    sections: cython.const[cython.longlong][:, ::1],
    start_offset: i64,
    end_offset: i64,
    row: i64,
    offsets: i64,
    timestamps: i64,
):
    """`decode_records` for offsets and timestamps alone. The rest of each record is skipped and not checked."""
    problem: i64 = GOOD
    expected: i64 = 0
    found: i64 = 0
    section: i64 = 0
    record: i64 = 0
    count: i64
    position: i64
    end: i64
    base_offset: i64
    previous: i64
    offset: i64
    timestamp: i64
    start: Start
    sections_count: i64 = sections.shape[0]
    with cython.nogil:
        while section < sections_count:
            position = sections[section, ADDRESS]
            end = sections[section, END]
            count = sections[section, COUNT]
            base_offset = sections[section, BASE_OFFSET]
            previous = -1
            record = 0
            while record < count:
                start = _read_start(position, end, sections[section, LAST_OFFSET_DELTA], previous)
                if start.problem != GOOD:
                    problem = start.problem
                    expected = start.expected
                    found = start.found
                    break
                position = start.end
                previous = start.offset_delta
                offset = base_offset + start.offset_delta
                if offset >= start_offset and offset < end_offset:
                    store_native_i64(offsets + 8 * row, offset)
                    timestamp = wrap_i64(
                        sections[section, BASE_TIMESTAMP] + sections[section, TIMESTAMP_STEP] * start.timestamp_delta
                    )
                    store_native_i64(timestamps + 8 * row, _microseconds(timestamp))
                    row += 1
                record += 1
            if problem == GOOD and position != end:
                problem = TRAILING
                record = count - 1
                found = end - position
            if problem != GOOD:
                break
            section += 1
    if problem != GOOD:
        return 0, 0, 0, 0, 0, 0, 0, problem, section, record, expected, found
    return row, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0


def mark_attributes(sections: cython.const[cython.longlong][:, ::1], marks: cython.char[::1]) -> None:
    """Sets the mark of each section in which a record has attributes. The sections were decoded without a fault."""
    section: i64 = 0
    record: i64
    position: i64
    field: Varint
    sections_count: i64 = sections.shape[0]
    with cython.nogil:
        while section < sections_count:
            position = sections[section, ADDRESS]
            record = 0
            while record < sections[section, COUNT]:
                field = read_varint(position, sections[section, END])
                if load_u8(field.at) != 0:
                    marks[section] = 1
                position = field.at + field.value
                record += 1
            section += 1


def decode_headers(first_row: i64, rows: i64, first_header: i64, headers, key_column, value_column):
    """Fills two columns with the headers of rows [first_row, rows). Returns the fields of an Outcome.

    `decode_records` has just found the places of these headers. Rows before `first_row` have `first_header` headers.
    """
    filled: i64 = 0
    key_bytes: i64 = 0
    value_bytes: i64 = 0
    null_values: i64 = 0
    key: Binary = _binary(key_column)
    value: Binary = _binary(value_column)
    header_offsets: i64 = headers[1]
    header_addresses: i64 = headers[2]
    header_ends: i64 = headers[3]
    problem: i64 = GOOD
    found: i64 = 0
    row: i64 = first_row
    position: i64
    end: i64
    until: i64
    field: Varint
    with cython.nogil:
        _begin(key)
        _begin(value)
        while row < rows:
            position = load_native_i64(header_addresses + 8 * row)
            end = load_native_i64(header_ends + 8 * row)
            until = load_native_i32(header_offsets + 4 * row + 4) - first_header
            while filled < until:
                field = read_varint(position, end)
                if field.at < 0 or field.value < 0 or field.value > end - field.at:
                    problem = BAD_HEADER_KEY
                    found = field.value
                    break
                key_bytes = _put(key, filled, key_bytes, field.at, field.value, end)
                field = read_varint(field.at + field.value, end)
                if field.at < 0 or field.value < -1 or field.value > end - field.at:
                    problem = BAD_HEADER_VALUE
                    found = field.value
                    break
                value_bytes = _put(value, filled, value_bytes, field.at, field.value, end)
                null_values += field.value < 0
                position = field.at + max(field.value, 0)
                filled += 1
            if problem != GOOD:
                break
            row += 1
    if problem != GOOD:
        return 0, 0, 0, 0, 0, 0, 0, problem, 0, row, 0, found
    return rows, key_bytes, value_bytes, 0, null_values, filled, 0, 0, 0, 0, 0, 0


def select(
    address: i64,
    size: i64,
    window,
    wanted,
    excluded: cython.const[cython.uchar][::1],
    sections: cython.longlong[:, ::1],
):
    """Fills `sections` with the batches of a Window, at `address`, that may hold WantedRecords. (sections filled in,
    problem, its row)
    """
    batches = window.batches
    file_position: i64 = window.byte_position
    offset_shift: i64 = window.offset_shift
    first_offset: i64 = wanted.first_offset
    end_offset: i64 = wanted.end_offset
    with_control: cython.bint = wanted.with_control
    positions: cython.const[cython.longlong][::1] = batches.byte_position
    sizes: cython.const[cython.longlong][::1] = batches.size
    base_offsets: cython.const[cython.longlong][::1] = batches.base_offset
    last_offsets: cython.const[cython.longlong][::1] = batches.last_offset
    attributes: cython.const[cython.short][::1] = batches.attributes
    base_timestamps: cython.const[cython.longlong][::1] = batches.base_timestamp
    max_timestamps: cython.const[cython.longlong][::1] = batches.max_timestamp
    counts: cython.const[cython.int][::1] = batches.count
    filled: i64 = 0
    row: i64 = 0
    rows: i64 = positions.shape[0]
    problem: i64 = GOOD
    begin: i64
    base_offset: i64
    last_offset: i64
    flags: i64
    appended: cython.bint
    excludes: cython.bint = excluded.shape[0] > 0
    with cython.nogil:
        while row < rows:
            begin = positions[row] - file_position
            if begin < 0 or sizes[row] < BATCH_OVERHEAD or sizes[row] > size - begin:
                problem = FOREIGN
                break
            base_offset = base_offsets[row]
            last_offset = last_offsets[row]
            if base_offset < max(0, -offset_shift) or last_offset > LARGEST_OFFSET - max(0, offset_shift):
                problem = BAD_OFFSETS
                break
            flags = attributes[row]
            if not (
                counts[row] == 0
                or (excludes and excluded[row])
                or last_offset + offset_shift < first_offset
                or base_offset + offset_shift >= end_offset
                or (flags & CONTROL_MASK and not with_control)
            ):
                appended = flags & TIMESTAMP_TYPE_MASK != 0
                sections[filled, ADDRESS] = address + begin + RECORDS_POSITION
                sections[filled, END] = address + begin + sizes[row]
                sections[filled, COUNT] = counts[row]
                sections[filled, BASE_OFFSET] = base_offset + offset_shift
                sections[filled, LAST_OFFSET_DELTA] = last_offset - base_offset
                sections[filled, BASE_TIMESTAMP] = max_timestamps[row] if appended else base_timestamps[row]
                sections[filled, TIMESTAMP_STEP] = 0 if appended else 1
                sections[filled, BUFFER] = 0
                sections[filled, BUFFER_ADDRESS] = address
                sections[filled, POSITION] = positions[row]
                sections[filled, CODEC] = flags & CODEC_MASK
                filled += 1
            row += 1
    return filled, problem, row if problem else 0


def extend(
    sections: cython.const[cython.longlong][:, ::1],
    first: i64,
    target_bytes: i64,
    payload_share: cython.double,
    opened_share: cython.double,
    row_bytes: i64,
):
    """The group from `first` on: (last, estimated bytes of its columns, rows, payload_bytes, why it ends).

    The group ends when it is full, or before a section that is compressed, has another timestamp type, or counts more
    records than its bytes can hold. `payload_share` of the bytes become columns, and `opened_share` or more of
    decompressed bytes.
    """
    last: i64 = first
    size: i64 = 0
    rows: i64 = 0
    payload_bytes: i64 = 0
    state: i64 = FULL
    payload: i64
    count: i64
    more: i64
    share: cython.double
    total: i64 = sections.shape[0]
    with cython.nogil:
        while last < total and sections[last, TIMESTAMP_STEP] == sections[first, TIMESTAMP_STEP]:
            if sections[last, CODEC] > 0:
                state = COMPRESSED
                break
            payload = sections[last, END] - sections[last, ADDRESS]
            count = sections[last, COUNT]
            # The batches' counts decide how much memory is allocated, so a count that its bytes cannot hold is refused.
            if count > payload // SMALLEST_RECORD:
                state = LYING if last == first else FULL
                break
            share = payload_share
            if sections[last, CODEC] == OPENED and share < opened_share:
                share = opened_share
            more = cython.cast(cython.longlong, payload * share) + count * row_bytes
            if last > first and size + more > target_bytes:
                break
            size += more
            rows += count
            payload_bytes += payload
            last += 1
    return last, size, rows, payload_bytes, state


def open_sections(sections: cython.longlong[:, ::1], memory, wanted_bytes: i64) -> int:
    """Decompresses leading sections of LZ4 or snappy into a buffer and points them to it. Returns how many.

    Stops once there are `wanted_bytes`, and before a section that has another codec, is damaged or needs more room.
    """
    out: i64 = address_of(memory)
    limit: i64 = out + len(memory)
    wanted: i64 = out + wanted_bytes
    rows: i64 = sections.shape[0]
    row: i64 = 0
    source: i64
    end: i64
    most: i64
    size: i64
    stated: Stated
    with cython.nogil:
        while row < rows and (row == 0 or out < wanted):
            source = sections[row, ADDRESS]
            end = sections[row, END]
            size = -1
            if sections[row, CODEC] == LZ4:
                most = lz4_most_bytes(source, end)
                if most >= 0 and most <= limit - out:
                    size = lz4_decompress(source, end, out, out + most)
            elif sections[row, CODEC] == SNAPPY:
                stated = snappy_size(source, end)
                most = stated.size
                if most >= 0 and most <= limit - out:
                    size = snappy_decompress(source, end, out, out + most)
                    if size != most:
                        size = -1
            if size < 0:
                break
            sections[row, ADDRESS] = out
            sections[row, END] = out + size
            sections[row, CODEC] = OPENED
            out += size
            row += 1
    return row


def point_sections(sections: cython.longlong[:, ::1], buffers) -> None:
    """Points leading sections to the buffers that hold what they decompress to."""
    row: i64
    rows: i64 = len(buffers)
    for row in range(rows):
        sections[row, ADDRESS] = address_of(buffers[row])
        sections[row, END] = sections[row, ADDRESS] + size_of(buffers[row])
        sections[row, CODEC] = OPENED
