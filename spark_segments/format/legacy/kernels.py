"""Kernels that read the messages of magic 0 and 1, and write their records as those of magic 2.

The layout of a message stands in message_sets.py. Every read is bounded by the end of the data, whatever the bytes say.
Arguments that are arrays have their types in the descriptions; positions count from the first byte of `data`.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *
    from spark_segments.format.legacy.problems import *

# The addresses and sizes of a message's parts, or its problem; `end` is 0 where the data end before the message does.
Message = cython.struct(
    problem=cython.longlong,
    end=cython.longlong,
    key=cython.longlong,
    key_size=cython.longlong,
    value=cython.longlong,
    value_size=cython.longlong,
)

_ALL_BITS = cython.declare(cython.longlong, 0xFFFFFFFF)
_CRC32 = cython.declare(cython.uint[256])
if not cython.compiled:
    _CRC32 = [0] * 256


def _fill_table() -> None:
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0xEDB88320 if crc & 1 else 0)
        _CRC32[byte] = crc


_fill_table()


@cython.cfunc
@cython.nogil
def _crc32_range(at: i64, end: i64) -> i64:
    crc: i64 = _ALL_BITS
    while at < end:
        crc = _CRC32[(crc ^ load_u8(at)) & 0xFF] ^ (crc >> 8)
        at += 1
    return crc ^ _ALL_BITS


def crcs_of(data, starts, ends, found) -> None:
    """Sets `found` (int64[n]) to the CRC-32 of each message that begins at `starts` and ends at `ends` (int64[n])."""
    begin: i64 = address_of(data)
    start: i64 = address_of(starts)
    end: i64 = address_of(ends)
    out: i64 = address_of(found)
    rows: i64 = len(found)
    row: i64
    with cython.nogil:
        for row in range(rows):
            store_native_i64(
                out + 8 * row,
                _crc32_range(begin + load_native_i64(start + 8 * row) + 16, begin + load_native_i64(end + 8 * row)),
            )


@cython.cfunc
@cython.inline
@cython.nogil
def _found(problem: i64, end: i64) -> Message:
    out: Message = Message(problem, end, 0, 0, 0, 0)
    return out


@cython.cfunc
@cython.nogil
def _message(at: i64, end: i64, inside: cython.bint) -> Message:
    if at + LOG_OVERHEAD > end:
        return _found(GOOD, 0)
    size: i64 = load_i32(at + 8)
    if size < 14:
        return _found(BAD_SIZE, 0)
    stop: i64 = at + LOG_OVERHEAD + size
    if stop > end:
        return _found(GOOD, 0)
    magic: i64 = load_u8(at + 16)
    if magic > 1:
        return _found(BAD_MAGIC, 0)
    if size < 14 + 8 * magic:
        return _found(BAD_SIZE, 0)
    if inside and load_u8(at + 17) & CODEC_MASK:
        return _found(NESTED, 0)
    key: i64 = at + 22 + 8 * magic
    key_size: i64 = max(load_i32(key - 4), -1)
    if max(key_size, 0) > stop - key - 4:
        return _found(BAD_KEY, 0)
    value: i64 = key + max(key_size, 0) + 4
    value_size: i64 = max(load_i32(value - 4), -1)
    if max(value_size, 0) > stop - value:
        return _found(BAD_VALUE, 0)
    out: Message = Message(GOOD, stop, key, key_size, value, value_size)
    return out


def survey(data) -> tuple:
    """(messages, first offset, last offset, problem) inside a wrapper. A message that its end cuts does not count."""
    at: i64 = address_of(data)
    end: i64 = at + size_of(data)
    count: i64 = 0
    first: i64 = 0
    last: i64 = -1
    problem: i64 = GOOD
    offset: i64
    one: Message
    with cython.nogil:
        while True:
            one = _message(at, end, True)
            problem = one.problem
            if problem != GOOD or one.end == 0:
                break
            offset = load_i64(at)
            if offset <= last:
                problem = BAD_OFFSET
                break
            if count == 0:
                first = offset
            last = offset
            count += 1
            at = one.end
    return count, first, last, problem


def read_columns(
    data,
    position: i64,
    end_position: i64,
    limit_bytes: i64,
    inside: cython.bint,
    previous: i64,
    offsets,
    timestamps,
    timestamp_types,
    magics,
    key_starts,
    key_sizes,
    value_starts,
    value_sizes,
    crcs,
    valid,
) -> tuple:
    """(messages read, position after them, problem) of the data up to a position: what the columns have room for, and
    about `limit_bytes` of content, but at least one message. Offsets rise from `previous` on.

    Columns: int64[n], but for timestamp types (int32[n]), magics (int8[n]) and valid (bool[n]): whether the CRC holds.
    """
    begin: i64 = address_of(data)
    at: i64 = begin + position
    end: i64 = begin + end_position
    offset_at: i64 = address_of(offsets)
    timestamp_at: i64 = address_of(timestamps)
    type_at: i64 = address_of(timestamp_types)
    magic_at: i64 = address_of(magics)
    key_at: i64 = address_of(key_starts)
    key_size_at: i64 = address_of(key_sizes)
    value_at: i64 = address_of(value_starts)
    value_size_at: i64 = address_of(value_sizes)
    crc_at: i64 = address_of(crcs)
    valid_at: i64 = address_of(valid)
    limit: i64 = len(offsets)
    row: i64 = 0
    content: i64 = 0
    problem: i64 = GOOD
    offset: i64
    magic: i64
    kind: i64
    size: i64
    one: Message
    with cython.nogil:
        while row < limit:
            one = _message(at, end, inside)
            problem = one.problem
            if problem != GOOD:
                break
            if one.end == 0:
                at = end
                break
            size = max(one.key_size, 0) + max(one.value_size, 0)
            if row > 0 and content + size > limit_bytes:
                break
            offset = load_i64(at)
            if offset <= previous:
                problem = BAD_OFFSET
                break
            magic = load_u8(at + 16)
            kind = LOG_APPEND_TIME if load_u8(at + 17) & TIMESTAMP_TYPE_MASK else CREATE_TIME
            store_native_i64(offset_at + 8 * row, offset)
            store_native_i64(timestamp_at + 8 * row, load_i64(at + 18) if magic == 1 else NO_TIMESTAMP)
            store_native_i32(type_at + 4 * row, kind if magic == 1 else NO_TIMESTAMP_TYPE)
            store_i8(magic_at + row, magic)
            store_native_i64(key_at + 8 * row, one.key - begin)
            store_native_i64(key_size_at + 8 * row, one.key_size)
            store_native_i64(value_at + 8 * row, one.value - begin)
            store_native_i64(value_size_at + 8 * row, one.value_size)
            store_native_i64(crc_at + 8 * row, load_u32(at + 12))
            store_i8(valid_at + row, load_u32(at + 12) == _crc32_range(at + 16, one.end))
            previous = offset
            content += size
            row += 1
            at = one.end
    return row, at - begin, problem


def write_records(data, offset_deltas, timestamp_deltas, key_starts, key_sizes, value_starts, value_sizes, out) -> int:
    """Writes records of magic 2 without headers (int64[n] each, negative sizes: null) to `out`. The number of bytes."""
    begin: i64 = address_of(data)
    offset_at: i64 = address_of(offset_deltas)
    timestamp_at: i64 = address_of(timestamp_deltas)
    key_at: i64 = address_of(key_starts)
    key_size_at: i64 = address_of(key_sizes)
    value_at: i64 = address_of(value_starts)
    value_size_at: i64 = address_of(value_sizes)
    first: i64 = address_of(out)
    to: i64 = first
    rows: i64 = len(offset_deltas)
    row: i64
    offset: i64
    timestamp: i64
    key_size: i64
    value_size: i64
    length: i64
    with cython.nogil:
        for row in range(rows):
            offset = load_native_i64(offset_at + 8 * row)
            timestamp = load_native_i64(timestamp_at + 8 * row)
            key_size = load_native_i64(key_size_at + 8 * row)
            value_size = load_native_i64(value_size_at + 8 * row)
            length = 2 + varlong_size(timestamp) + varlong_size(offset)
            length += varlong_size(key_size) + max(key_size, 0) + varlong_size(value_size) + max(value_size, 0)
            to = write_varlong(to, length)
            store_i8(to, 0)
            to = write_varlong(to + 1, timestamp)
            to = write_varlong(to, offset)
            to = write_varlong(to, key_size)
            if key_size > 0:
                copy_bytes(to, begin + load_native_i64(key_at + 8 * row), key_size)
                to += key_size
            to = write_varlong(to, value_size)
            if value_size > 0:
                copy_bytes(to, begin + load_native_i64(value_at + 8 * row), value_size)
                to += value_size
            store_i8(to, 0)
            to += 1
    return to - first
