"""LZ4 decompression in a kernel, many batches per call, into existing memory: frames as Kafka writes them.

It is kept for its speed: see the benchmark `libraries`. Sources and targets are addresses. Nothing is read at or beyond
`end` nor written at or beyond `limit`, whatever the bytes say. -1 means damaged bytes, or a frame of another kind that
is left to a library.
"""

from __future__ import annotations

import numpy as np

from spark_segments.format.kernels.block_copies import copy_literals, copy_match
from spark_segments.format.kernels.jit import (
    CHUNK_BYTES,
    MEMORY,
    copy_chunk,
    load_i64,
    load_u8,
    load_u16_le,
    load_u32_le,
    memcpy,
    njit,
)

# Magic, flags, block descriptor and its checksum: the beginning of Kafka's frames, with blocks of at most 64 KiB.
_LZ4_HEADER = 0x0422_4D18_6040_82
_LZ4_HEADER_BYTES = 7
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED_BIT = 1 << 31
_LZ4_SHORTEST_MATCH = 4

_DAMAGED = np.int64(-1)


@njit(forceinline=True)
def _lz4_length(length, source, end):
    """(length, next position) with the bytes that continue a length of 15. The position is -1 where they are cut."""
    if length < 15:
        return length, np.int64(source)
    while source < end:
        more = load_u8(MEMORY, source)
        source += 1
        length += more
        if more != 255:
            return length, np.int64(source)
    return length, _DAMAGED


@njit
def _lz4_block(source, end, begin, limit):
    """The address behind what the block decompresses to."""
    out = np.int64(begin)
    # Up to these bounds a sequence of the usual sizes is read and written in chunks before its sizes are checked.
    calm_source = end - 2 * CHUNK_BYTES
    calm_out = limit - 3 * CHUNK_BYTES
    while True:
        while source < calm_source and out < calm_out:
            token = load_u8(MEMORY, source)
            literals = token >> 4
            size = token & 15
            at = source + 1
            if literals == 15:
                literals += load_u8(MEMORY, at)
                at += 1
                if literals > CHUNK_BYTES:
                    break
            copy_chunk(MEMORY, out, MEMORY, at)
            at += literals
            distance = load_u16_le(MEMORY, at)
            at += 2
            if size == 15:
                size += load_u8(MEMORY, at)
                at += 1
            size += _LZ4_SHORTEST_MATCH
            target = out + literals
            if size > 2 * CHUNK_BYTES or distance < CHUNK_BYTES or distance > target - begin:
                break
            copy_chunk(MEMORY, target, MEMORY, target - distance)
            if size > CHUNK_BYTES:
                copy_chunk(MEMORY, target + CHUNK_BYTES, MEMORY, target + CHUNK_BYTES - distance)
            out = target + size
            source = at
        if source >= end:
            return _DAMAGED
        token = load_u8(MEMORY, source)
        size, source = _lz4_length(token >> 4, source + 1, end)
        if source < 0 or size > end - source or size > limit - out:
            return _DAMAGED
        copy_literals(out, limit, source, size, end)
        out += size
        source += size
        if source == end:
            return out
        if source + 2 > end:
            return _DAMAGED
        distance = load_u16_le(MEMORY, source)
        size, source = _lz4_length(token & 15, source + 2, end)
        size += _LZ4_SHORTEST_MATCH
        if source < 0 or distance == 0 or distance > out - begin or size > limit - out:
            return _DAMAGED
        copy_match(out, limit, distance, size)
        out += size


@njit
def lz4_most_bytes(source, end):
    """The most bytes that a frame of Kafka's kind decompresses to: all of its blocks full."""
    if end - source < _LZ4_HEADER_BYTES + 4 or load_i64(MEMORY, source) >> 8 != _LZ4_HEADER:
        return _DAMAGED
    source += _LZ4_HEADER_BYTES
    total = np.int64(0)
    while source + 4 <= end:
        size = load_u32_le(MEMORY, source)
        source += 4
        if size == 0:
            return total if source == end else _DAMAGED
        total += _LZ4_BLOCK_BYTES
        source += size & ~_LZ4_STORED_BIT
    return _DAMAGED


@njit
def lz4_decompress(source, end, out, limit):
    """The number of bytes written from `out` on. `lz4_most_bytes` must have accepted the frame."""
    begin = out
    source += _LZ4_HEADER_BYTES
    while True:
        size = load_u32_le(MEMORY, source)
        source += 4
        if size == 0:
            return np.int64(out - begin)
        stored = size & _LZ4_STORED_BIT
        size &= ~_LZ4_STORED_BIT
        block_limit = min(limit, out + _LZ4_BLOCK_BYTES)
        if stored:
            if size > block_limit - out:
                return _DAMAGED
            memcpy(MEMORY, out, MEMORY, source, size)
            out += size
        else:
            out = _lz4_block(source, source + size, out, block_limit)
            if out < 0:
                return _DAMAGED
        source += size
