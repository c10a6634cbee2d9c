"""The records inside batches of magic 2: kernels that read the records of many batches per call and fill columns.

A *section* is the uncompressed records of one batch, anywhere in memory. A kernel takes addresses, so batches in a
file's buffer and decompressed batches need not be copied together. Every read is bounded by the section's end, whatever
the bytes say. batch_groups.py makes the sections, columns.py the columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.decoding.record import (
    BAD_HEADER_COUNT,
    BAD_HEADER_KEY,
    BAD_HEADER_VALUE,
    BAD_KEY,
    BAD_LENGTH,
    BAD_OFFSET,
    BAD_SIZE,
    BAD_VALUE,
    CUT,
    GOOD,
    TRAILING,
    UNUSUAL,
    read_any,
    read_start,
    read_usual,
)
from spark_segments.format.kernels.jit import (
    MEMORY,
    copy_short,
    load_native_i32,
    load_native_i64,
    load_u8,
    njit,
    read_varint,
    store_i8,
    store_native_i32,
    store_native_i64,
)

# Columns of the int64[n, 11] that describes n sections to a kernel.
ADDRESS = 0
END = 1  # address behind the last byte
COUNT = 2  # records
BASE_OFFSET = 3
LAST_OFFSET_DELTA = 4
BASE_TIMESTAMP = 5
TIMESTAMP_STEP = 6  # 1, or 0 where all records have BASE_TIMESTAMP
# The buffer that holds the section, for columns of views: its number among its group's, and the address of its first
# byte.
BUFFER = 7
BUFFER_ADDRESS = 8
# Used by batch_groups.py, not by kernels.
POSITION = 9  # of the batch in its file
CODEC = 10
SECTION_FIELDS = 11

# Timestamps become microseconds in an int64: milliseconds beyond these limits do not fit.
_LAST_MS = (2**63 - 1) // 1000
_FIRST_MS = -_LAST_MS

_MOST_INLINE_BYTES = 12  # of a value in an Arrow view


class Binary(NamedTuple):
    """The addresses of an Arrow binary column's buffers, which a kernel fills."""

    wanted: bool
    rows: int  # capacity
    offsets: int  # int32[rows + 1]
    validity: int  # uint8[(rows + 7) // 8]
    data: int  # uint8, with COPY_SLACK bytes of room behind the content
    # Of a column of views, which has neither offsets nor data. 0: the column is none.
    views: int = 0  # Arrow's views, 16 bytes a row
    first_buffer: int = 0  # the number of the group's first buffer among the column's


class HeaderPlaces(NamedTuple):
    """Addresses of arrays that say where each row's headers lie, for `decode_headers`.

    Nothing is filled in before the first row that has headers.
    """

    wanted: bool
    offsets: int  # int32[rows + 1]: headers before each row
    addresses: int  # int64[rows]: of the first header; set only where a row has headers
    ends: int  # int64[rows]: behind the last header; set only where a row has headers


class Filled(NamedTuple):
    """How far the columns are filled: where the next kernel call goes on."""

    rows: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    headers: int
    header_bytes: int  # upper bound of the bytes of the headers' names and values


class Outcome(NamedTuple):
    """How far the columns are filled after a call; or a problem, its section and record, and expected and found."""

    rows: int
    key_bytes: int
    value_bytes: int
    null_keys: int
    null_values: int
    headers: int
    header_bytes: int
    problem: int
    section: int
    record: int
    expected: int
    found: int


# Problem of a record -> (what the error says, what was expected); "{}" is the kernel's `expected`.
_PROBLEMS = {
    CUT: ("is cut within a number", "varints of at most 5 and 10 bytes"),
    BAD_LENGTH: ("has an impossible length", "6 to {} bytes"),
    BAD_OFFSET: ("has an offset delta that does not rise or is above the batch's last", "at least {}"),
    BAD_KEY: ("has an impossible key length", "-1 to {}"),
    BAD_VALUE: ("has an impossible value length", "-1 to {}"),
    BAD_HEADER_COUNT: ("has an impossible count of headers", "0 to {}"),
    BAD_HEADER_KEY: ("has a header with an impossible name length", "0 to {}"),
    BAD_HEADER_VALUE: ("has a header with an impossible value length", "-1 to {}"),
    BAD_SIZE: ("ends elsewhere than its length says", "{} bytes of headers"),
    TRAILING: ("is followed by bytes that its batch does not count", "{}"),
}


def corrupt(outcome: Outcome, path: str, position: int) -> CorruptBatchError:
    """The error for a kernel's problem; `position` is the batch's byte position in its file."""
    problem, expected = _PROBLEMS[outcome.problem]
    return CorruptBatchError(
        f"Record {outcome.record} of a batch {problem}",
        path=path,
        position=position,
        expected=expected.format(outcome.expected),
        found="more or cut" if outcome.problem == CUT else outcome.found,
    )


@njit
def _begin(column):
    """Starts a wanted column: no rows yet, and every validity bit set, so that only nulls need to be marked."""
    if column.wanted:
        if column.views == 0:
            store_native_i32(MEMORY, column.offsets, 0)
        for at in range((column.rows + 7) // 8):
            store_i8(MEMORY, column.validity + at, 0xFF)


@njit(forceinline=True)
def _put(column, row, filled, address, size, end):
    """Appends bytes, or a null where `size` is -1, to a column. Returns the bytes that the column then holds."""
    if size > 0:
        copy_short(MEMORY, column.data + filled, MEMORY, address, size, end)
        filled += size
    elif size < 0:
        at = column.validity + (row >> 3)
        store_i8(MEMORY, at, load_u8(MEMORY, at) & ~(1 << (row & 7)))
    store_native_i32(MEMORY, column.offsets + 4 * row + 4, filled)
    return filled


@njit(forceinline=True)
def _put_view(column, row, address, size, buffer, offset):
    """Writes the view of a value, or a null where `size` is -1: its size, then 12 bytes.

    A value of at most 12 bytes stands there. Any other has its first 4 bytes, its buffer and its offset there.
    """
    view = column.views + 16 * row
    store_native_i32(MEMORY, view, max(size, 0))
    if size > _MOST_INLINE_BYTES:
        store_native_i32(MEMORY, view + 4, load_native_i32(MEMORY, address))
        store_native_i32(MEMORY, view + 8, buffer)
        store_native_i32(MEMORY, view + 12, offset)
        return
    store_native_i32(MEMORY, view + 4, 0)
    store_native_i64(MEMORY, view + 8, 0)
    for at in range(size):
        store_i8(MEMORY, view + 4 + at, load_u8(MEMORY, address + at))
    if size < 0:
        at = column.validity + (row >> 3)
        store_i8(MEMORY, at, load_u8(MEMORY, at) & ~(1 << (row & 7)))


@njit(forceinline=True)
def _microseconds(timestamp):
    return min(max(timestamp, _FIRST_MS), _LAST_MS) * 1000


@njit(forceinline=True)
def _failed(problem, section, record, expected, found):
    return 0, 0, 0, 0, 0, 0, 0, problem, section, record, expected, found


@njit
def decode_records(sections, start_offset, end_offset, filled, offsets, timestamps, key, value, headers):
    """Appends the records with offsets in [start_offset, end_offset) to columns. Returns the fields of an Outcome.

    `filled` has the fields of a Filled. `offsets` and `timestamps` (microseconds) are addresses of int64[rows]. Every
    column must have room for all records that the sections count and for all their bytes.
    """
    row, key_bytes, value_bytes, null_keys, null_values, header_rows, header_bytes = filled
    if row == 0:
        _begin(key)
        _begin(value)
    for section in range(len(sections)):
        position = sections[section, ADDRESS]
        end = sections[section, END]
        base_offset = sections[section, BASE_OFFSET]
        last_offset_delta = sections[section, LAST_OFFSET_DELTA]
        base_timestamp = sections[section, BASE_TIMESTAMP]
        timestamp_step = sections[section, TIMESTAMP_STEP]
        previous = np.int64(-1)
        # Checked once per section rather than per record: all of its offsets are wanted, and no timestamp with a short
        # delta (as usual records have) is beyond the range of microseconds.
        inside = base_offset >= start_offset and base_offset + last_offset_delta < end_offset
        calm = base_timestamp > _FIRST_MS // 2 and base_timestamp < _LAST_MS // 2
        for record in range(sections[section, COUNT]):
            read = read_usual(position, end, last_offset_delta, previous)
            usual = calm
            if read.problem == UNUSUAL:
                usual = False
                read = read_any(position, end, last_offset_delta, previous)
                if read.problem != GOOD:
                    return _failed(read.problem, section, record, read.expected, read.found)
            previous = read.offset_delta
            position = read.end
            offset = base_offset + read.offset_delta
            if inside or (offset >= start_offset and offset < end_offset):
                store_native_i64(MEMORY, offsets + 8 * row, offset)
                timestamp = base_timestamp + timestamp_step * read.timestamp_delta
                microseconds = timestamp * 1000 if usual else _microseconds(timestamp)
                store_native_i64(MEMORY, timestamps + 8 * row, microseconds)
                if key.wanted:
                    key_bytes = _put(key, row, key_bytes, read.key_position, read.key_size, end)
                    null_keys += read.key_size < 0
                if value.wanted:
                    if value.views != 0:
                        buffer = value.first_buffer + sections[section, BUFFER]
                        offset = read.value_position - sections[section, BUFFER_ADDRESS]
                        _put_view(value, row, read.value_position, read.value_size, buffer, offset)
                    else:
                        value_bytes = _put(value, row, value_bytes, read.value_position, read.value_size, end)
                    null_values += read.value_size < 0
                if headers.wanted and (header_rows > 0 or read.header_count > 0):
                    if header_rows == 0:
                        for before in range(row + 1):
                            store_native_i32(MEMORY, headers.offsets + 4 * before, 0)
                    store_native_i64(MEMORY, headers.addresses + 8 * row, read.header_position)
                    store_native_i64(MEMORY, headers.ends + 8 * row, read.end)
                    header_rows += read.header_count
                    header_bytes += read.end - read.header_position
                    store_native_i32(MEMORY, headers.offsets + 4 * row + 4, header_rows)
                row += 1
        if position != end:
            return _failed(TRAILING, section, sections[section, COUNT] - 1, 0, end - position)
    return row, key_bytes, value_bytes, null_keys, null_values, header_rows, header_bytes, GOOD, 0, 0, 0, 0


@njit
def decode_offsets(sections, start_offset, end_offset, row, offsets, timestamps):
    """`decode_records` for offsets and timestamps alone. The rest of each record is skipped and not checked."""
    for section in range(len(sections)):
        position = sections[section, ADDRESS]
        end = sections[section, END]
        base_offset = sections[section, BASE_OFFSET]
        last_offset_delta = sections[section, LAST_OFFSET_DELTA]
        base_timestamp = sections[section, BASE_TIMESTAMP]
        timestamp_step = sections[section, TIMESTAMP_STEP]
        previous = np.int64(-1)
        for record in range(sections[section, COUNT]):
            problem, expected, found, timestamp_delta, offset_delta, _, position = read_start(
                position, end, last_offset_delta, previous
            )
            if problem != GOOD:
                return _failed(problem, section, record, expected, found)
            previous = offset_delta
            offset = base_offset + offset_delta
            if offset >= start_offset and offset < end_offset:
                store_native_i64(MEMORY, offsets + 8 * row, offset)
                timestamp = base_timestamp + timestamp_step * timestamp_delta
                store_native_i64(MEMORY, timestamps + 8 * row, _microseconds(timestamp))
                row += 1
        if position != end:
            return _failed(TRAILING, section, sections[section, COUNT] - 1, 0, end - position)
    return row, 0, 0, 0, 0, 0, 0, GOOD, 0, 0, 0, 0


@njit
def decode_headers(first_row, rows, first_header, headers, key, value):
    """Fills two columns with the headers of rows [first_row, rows). Returns the fields of an Outcome.

    `decode_records` has just found the places of these headers. Rows before `first_row` have `first_header` headers.
    """
    filled = 0
    key_bytes = 0
    value_bytes = 0
    null_values = 0
    _begin(key)
    _begin(value)
    for row in range(first_row, rows):
        position = load_native_i64(MEMORY, headers.addresses + 8 * row)
        end = load_native_i64(MEMORY, headers.ends + 8 * row)
        until = load_native_i32(MEMORY, headers.offsets + 4 * row + 4) - first_header
        while filled < until:
            size, position = read_varint(MEMORY, position, end)
            if position < 0 or size < 0 or size > end - position:
                return _failed(BAD_HEADER_KEY, 0, row, 0, size)
            key_bytes = _put(key, filled, key_bytes, position, size, end)
            size, position = read_varint(MEMORY, position + size, end)
            if position < 0 or size < -1 or size > end - position:
                return _failed(BAD_HEADER_VALUE, 0, row, 0, size)
            value_bytes = _put(value, filled, value_bytes, position, size, end)
            null_values += size < 0
            position += max(size, 0)
            filled += 1
    return rows, key_bytes, value_bytes, 0, null_values, filled, 0, GOOD, 0, 0, 0, 0
