"""A record of magic 2 at an address: kernels that read its fields, each bounded by the end of its section.

A kernel calls `read_usual` first, which is quick and refuses all but the usual record, then `read_any`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_segments.format.kernels.jit import MEMORY, load_u8, njit, read_varint, read_varlong

# length, attributes, timestampDelta, offsetDelta, keyLength, valueLength, headersCount: at least a byte each.
SMALLEST_RECORD = 7

# Problems of a record.
GOOD = 0
CUT = 1
BAD_LENGTH = 2
BAD_OFFSET = 3
BAD_KEY = 4
BAD_VALUE = 5
BAD_HEADER_COUNT = 6
BAD_HEADER_KEY = 7
BAD_HEADER_VALUE = 8
BAD_SIZE = 9
TRAILING = 10
UNUSUAL = 11

# Bytes that `_short` reads at most, and bytes up to the key at most: four short varints and the attributes.
_MOST_SHORT_BYTES = 3
_MOST_HEAD_BYTES = 4 * _MOST_SHORT_BYTES + 1


@njit(forceinline=True)
def _short(position):
    """(raw bits, next position) of a varint of at most three bytes, (0, -1) for a longer varint.

    The caller has checked that three bytes can be read.
    """
    raw = load_u8(MEMORY, position)
    if raw < 0x80:
        return raw, np.int64(position + 1)
    byte = load_u8(MEMORY, position + 1)
    raw += (byte << 7) - 0x80
    if byte < 0x80:
        return raw, np.int64(position + 2)
    byte = load_u8(MEMORY, position + 2)
    raw += (byte << 14) - 0x4000
    if byte < 0x80:
        return raw, np.int64(position + 3)
    return np.int64(0), np.int64(-1)


_ZERO = np.int64(0)


class Record(NamedTuple):
    """The addresses and numbers of one record, or its problem."""

    problem: np.int64
    expected: np.int64
    found: np.int64
    timestamp_delta: np.int64
    offset_delta: np.int64
    key_position: np.int64
    key_size: np.int64
    value_position: np.int64
    value_size: np.int64
    header_position: np.int64
    header_count: np.int64
    end: np.int64


@njit(forceinline=True)
def _bad(problem, expected, found):
    return Record(
        np.int64(problem),
        np.int64(expected),
        np.int64(found),
        _ZERO,
        _ZERO,
        _ZERO,
        _ZERO,
        _ZERO,
        _ZERO,
        _ZERO,
        _ZERO,
        _ZERO,
    )


@njit(forceinline=True)
def read_start(position, end, last_offset_delta, previous):
    """(problem, expected, found, timestampDelta, offsetDelta, position of keyLength, record's end) of a record."""
    length, position = read_varint(MEMORY, position, end)
    if position < 0:
        return CUT, 0, 0, 0, 0, 0, 0
    if length < SMALLEST_RECORD - 1 or length > end - position:
        return BAD_LENGTH, end - position, length, 0, 0, 0, 0
    record_end = position + length
    timestamp_delta, position = read_varlong(MEMORY, position + 1, record_end)
    if position < 0:
        return CUT, 0, 0, 0, 0, 0, 0
    offset_delta, position = read_varint(MEMORY, position, record_end)
    if position < 0:
        return CUT, 0, 0, 0, 0, 0, 0
    if offset_delta <= previous or offset_delta > last_offset_delta:
        return BAD_OFFSET, previous + 1, offset_delta, 0, 0, 0, 0
    return GOOD, 0, 0, timestamp_delta, offset_delta, position, record_end


@njit
def read_any(position, end, last_offset_delta, previous):
    """The record at `position` of a section that ends at `end`, with every field checked."""
    problem, expected, found, timestamp_delta, offset_delta, position, end = read_start(
        position, end, last_offset_delta, previous
    )
    if problem != GOOD:
        return _bad(problem, expected, found)
    key_size, key_position = read_varint(MEMORY, position, end)
    if key_position < 0:
        return _bad(CUT, 0, 0)
    if key_size < -1 or key_size > end - key_position:
        return _bad(BAD_KEY, end - key_position, key_size)
    value_size, value_position = read_varint(MEMORY, key_position + max(key_size, 0), end)
    if value_position < 0:
        return _bad(CUT, 0, 0)
    if value_size < -1 or value_size > end - value_position:
        return _bad(BAD_VALUE, end - value_position, value_size)
    problem, expected, found, header_count, position = _walk_headers(value_position + max(value_size, 0), end)
    if problem != GOOD:
        return _bad(problem, expected, found)
    return Record(
        _ZERO,
        _ZERO,
        _ZERO,
        timestamp_delta,
        offset_delta,
        key_position,
        key_size,
        value_position,
        value_size,
        position,
        np.int64(header_count),
        end,
    )


@njit(forceinline=True)
def read_usual(position, end, last_offset_delta, previous):
    """`read_any` for the usual record, which has short varints and no headers; any other gives the problem UNUSUAL.

    Sizes are not compared with the bytes that are left. One check at the end suffices: where the byte behind the value
    is the record's last, no field before it can have been outside of the record.
    """
    if position + _MOST_HEAD_BYTES > end:
        return _bad(UNUSUAL, 0, 0)
    length, start = _short(position)
    if start < 0 or length & 1 != 0:
        return _bad(UNUSUAL, 0, 0)
    record_end = start + (length >> 1)
    timestamp_delta, at = _short(start + 1)
    if at < 0:
        return _bad(UNUSUAL, 0, 0)
    offset_delta, at = _short(at)
    if at < 0 or offset_delta & 1 != 0:
        return _bad(UNUSUAL, 0, 0)
    offset_delta >>= 1
    key_size, key_position = _short(at)
    if key_position < 0:
        return _bad(UNUSUAL, 0, 0)
    at = key_position
    if key_size & 1:
        key_size = -((key_size + 1) >> 1)
    else:
        key_size >>= 1
        at += key_size
    if key_size < -1 or at + _MOST_SHORT_BYTES > end:
        return _bad(UNUSUAL, 0, 0)
    value_size, value_position = _short(at)
    if value_position < 0:
        return _bad(UNUSUAL, 0, 0)
    at = value_position
    if value_size & 1:
        value_size = -((value_size + 1) >> 1)
    else:
        value_size >>= 1
        at += value_size
    if value_size < -1 or at + 1 != record_end or record_end > end or load_u8(MEMORY, at) != 0:
        return _bad(UNUSUAL, 0, 0)
    if offset_delta <= previous or offset_delta > last_offset_delta:
        return _bad(UNUSUAL, 0, 0)
    return Record(
        _ZERO,
        _ZERO,
        _ZERO,
        (timestamp_delta >> 1) ^ -(timestamp_delta & 1),
        offset_delta,
        key_position,
        key_size,
        value_position,
        value_size,
        np.int64(record_end),
        _ZERO,
        np.int64(record_end),
    )


@njit(forceinline=True)
def _walk_headers(position, end):
    """(problem, expected, found, number of headers, position of the first header)"""
    count, position = read_varint(MEMORY, position, end)
    if position < 0:
        return CUT, 0, 0, 0, 0
    if count == 0 and position == end:
        return GOOD, 0, 0, 0, position
    if count < 0 or count > (end - position) // 2:
        return BAD_HEADER_COUNT, (end - position) // 2, count, 0, 0
    first = position
    for _ in range(count):
        size, position = read_varint(MEMORY, position, end)
        if position < 0:
            return CUT, 0, 0, 0, 0
        if size < 0 or size > end - position:
            return BAD_HEADER_KEY, end - position, size, 0, 0
        position += size
        size, position = read_varint(MEMORY, position, end)
        if position < 0:
            return CUT, 0, 0, 0, 0
        if size < -1 or size > end - position:
            return BAD_HEADER_VALUE, end - position, size, 0, 0
        position += max(size, 0)
    if position != end:
        return BAD_SIZE, end - first, position - first, 0, 0
    return GOOD, 0, 0, count, first
