"""Kernels that read the messages of magic 0 and 1: their fields, their CRC-32, and columns of many messages.

The layout of a message stands in message_sets.py. Every read is bounded by the end of the data, whatever the bytes say.
"""

from __future__ import annotations

import numpy as np

from spark_segments.format.kernels.jit import load_i32, load_i64, load_u8, load_u32, memcpy, njit
from spark_segments.format.layout import (
    CODEC_MASK,
    CREATE_TIME,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    NO_TIMESTAMP,
    NO_TIMESTAMP_TYPE,
    TIMESTAMP_TYPE_MASK,
)

GOOD, BAD_SIZE, BAD_MAGIC, BAD_KEY, BAD_VALUE, NESTED, BAD_OFFSET = range(7)
PROBLEMS = {
    BAD_SIZE: "the size of a message is impossible",
    BAD_MAGIC: "a message inside has a magic byte that is neither 0 nor 1",
    BAD_KEY: "a key reaches over the end of its message",
    BAD_VALUE: "a value reaches over the end of its message",
    NESTED: "a compressed message lies inside a compressed one",
    BAD_OFFSET: "the offsets of messages do not rise",
}


def _crc32_table() -> np.ndarray:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = (crc >> np.uint32(1)) ^ (crc & np.uint32(1)) * np.uint32(0xEDB88320)
    return crc


_CRC32 = _crc32_table()


@njit
def _crc32_range(data, start, end):
    crc = np.uint32(0xFFFFFFFF)
    for position in range(start, end):
        crc = _CRC32[(crc ^ np.uint32(load_u8(data, position))) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return np.int64(crc ^ np.uint32(0xFFFFFFFF))


@njit(_nrt=True)
def crcs_of(data, starts, ends):
    """int64[]: the CRC-32 of each message that begins at `starts` and ends at `ends`, computed from its bytes."""
    found = np.empty(len(starts), np.int64)
    for row in range(len(starts)):
        found[row] = _crc32_range(data, starts[row] + 16, ends[row])
    return found


@njit
def _message(data, position, end, inside):
    """(problem, next position, key start, key size, value start, value size); next position −1 where `end` cuts it."""
    if position + LOG_OVERHEAD > end:
        return GOOD, -1, 0, 0, 0, 0
    size = load_i32(data, position + 8)
    if size < 14:
        return BAD_SIZE, 0, 0, 0, 0, 0
    stop = position + LOG_OVERHEAD + size
    if stop > end:
        return GOOD, -1, 0, 0, 0, 0
    magic = load_u8(data, position + 16)
    if magic > 1:
        return BAD_MAGIC, 0, 0, 0, 0, 0
    if size < 14 + 8 * magic:
        return BAD_SIZE, 0, 0, 0, 0, 0
    if inside and load_u8(data, position + 17) & CODEC_MASK:
        return NESTED, 0, 0, 0, 0, 0
    at = position + 18 + 8 * magic
    key_size = max(load_i32(data, at), -1)
    key_start = at + 4
    if max(key_size, 0) > stop - key_start - 4:
        return BAD_KEY, 0, 0, 0, 0, 0
    value_start = key_start + max(key_size, 0) + 4
    value_size = max(load_i32(data, value_start - 4), -1)
    if max(value_size, 0) > stop - value_start:
        return BAD_VALUE, 0, 0, 0, 0, 0
    return GOOD, stop, key_start, key_size, value_start, value_size


@njit
def survey(data):
    """(messages, first offset, last offset, problem) inside a wrapper. A message that its end cuts does not count."""
    count = np.int64(0)
    first = np.int64(0)
    last = np.int64(-1)
    position = np.int64(0)
    while True:
        problem, following, _, _, _, _ = _message(data, position, len(data), True)
        if problem != GOOD:
            return count, first, last, problem
        if following < 0:
            return count, first, last, GOOD
        offset = load_i64(data, position)
        if offset <= last:
            return count, first, last, BAD_OFFSET
        if count == 0:
            first = offset
        last = offset
        count += 1
        position = following


@njit
def read_columns(
    data, position, end, limit, limit_bytes, inside, previous,
    offsets, timestamps, timestamp_types, magics, key_starts, key_sizes, value_starts, value_sizes, crcs, valid,
):  # fmt: skip
    """(messages read, position after them, problem). Reads at most `limit` messages and about `limit_bytes` of content,
    but at least one message.
    """
    row = 0
    content = np.int64(0)
    while row < limit:
        problem, following, key_start, key_size, value_start, value_size = _message(data, position, end, inside)
        if problem != GOOD:
            return row, position, problem
        if following < 0:
            return row, end, GOOD
        size = max(key_size, 0) + max(value_size, 0)
        if row > 0 and content + size > limit_bytes:
            return row, position, GOOD
        offset = load_i64(data, position)
        if offset <= previous:
            return row, position, BAD_OFFSET
        magic = load_u8(data, position + 16)
        offsets[row] = offset
        timestamps[row] = load_i64(data, position + 18) if magic == 1 else NO_TIMESTAMP
        appended = load_u8(data, position + 17) & TIMESTAMP_TYPE_MASK
        timestamp_types[row] = NO_TIMESTAMP_TYPE if magic == 0 else LOG_APPEND_TIME if appended else CREATE_TIME
        magics[row] = magic
        key_starts[row] = key_start
        key_sizes[row] = key_size
        value_starts[row] = value_start
        value_sizes[row] = value_size
        crcs[row] = load_u32(data, position + 12)
        valid[row] = crcs[row] == _crc32_range(data, position + 16, following)
        previous = offset
        content += size
        row += 1
        position = following
    return row, position, GOOD


@njit
def gather(data, starts, sizes, out):
    """Copies byte strings of `data`, one behind the other, to `out`. A negative size is a null and copies nothing."""
    at = np.int64(0)
    for row in range(len(starts)):
        if sizes[row] > 0:
            memcpy(out, at, data, starts[row], sizes[row])
            at += sizes[row]
