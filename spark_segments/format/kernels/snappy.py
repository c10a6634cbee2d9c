"""Snappy decompression in a kernel, many batches per call, into existing memory: raw snappy and xerial's framing.

It is kept for its speed: see the benchmark `libraries`. Sources and targets are addresses. Nothing is read at or beyond
`end` nor written at or beyond `limit`, whatever the bytes say. -1 means damaged bytes.
"""

from __future__ import annotations

import numpy as np

from spark_segments.format.kernels.block_copies import WORD_BYTES, copy_literals, copy_match
from spark_segments.format.kernels.jit import (
    CHUNK_BYTES,
    MEMORY,
    copy_chunk,
    load_i32,
    load_i64,
    load_u8,
    load_u16_le,
    load_u32_le,
    njit,
)

_XERIAL_MAGIC = np.int64(np.uint64(0x82_53_4E_41_50_50_59_00).view(np.int64))  # \x82SNAPPY\0
_XERIAL_HEADER_BYTES = 16
SNAPPY_MAX_RATIO = 32  # a three-byte copy gives at most 64 bytes

_DAMAGED = np.int64(-1)


@njit(forceinline=True)
def _snappy_stated(source, end):
    """(the size that a block states, position behind it), -1 as the position where that is cut."""
    size = np.int64(0)
    for shift in range(0, 35, 7):
        if source >= end:
            break
        byte = load_u8(MEMORY, source)
        source += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, np.int64(source)
    return np.int64(0), _DAMAGED


@njit(forceinline=True)
def _snappy_next(source, end, framed):
    """(start, end) of the next block of a stream, equal where there is none left; -1 as the start where it is cut."""
    if not framed:
        return np.int64(source), np.int64(end)
    while source < end:
        # xerial's reader takes streams that were put one after another.
        if end - source >= WORD_BYTES and load_i64(MEMORY, source) == _XERIAL_MAGIC:
            if end - source < _XERIAL_HEADER_BYTES:
                return _DAMAGED, np.int64(end)
            source += _XERIAL_HEADER_BYTES
            continue
        if end - source < 4:
            return _DAMAGED, np.int64(end)
        size = load_i32(MEMORY, source)
        source += 4
        if size <= 0 or size > end - source:
            return _DAMAGED, np.int64(end)
        return np.int64(source), np.int64(source + size)
    return np.int64(end), np.int64(end)


@njit(forceinline=True)
def _is_xerial(source, end):
    return end - source >= WORD_BYTES and load_i64(MEMORY, source) == _XERIAL_MAGIC


@njit
def snappy_size(source, end):
    """(size that all blocks state, 0, 0), or (-1, impossible size stated, its block's bytes); (-1, 0, 0) if cut."""
    framed = _is_xerial(source, end)
    total = np.int64(0)
    while source < end:
        start, source = _snappy_next(source, end, framed)
        if start < 0:
            return _DAMAGED, np.int64(0), np.int64(0)
        if start == source:
            break
        size, elements = _snappy_stated(start, source)
        if elements < 0:
            return _DAMAGED, np.int64(0), np.int64(0)
        if size > SNAPPY_MAX_RATIO * (source - start):
            return _DAMAGED, size, np.int64(source - start)
        total += size
    return total, np.int64(0), np.int64(0)


@njit
def _snappy_elements(source, end, begin, limit, room):
    """Whether the elements of a block fill [begin, limit); up to `room` may be written to on the way."""
    out = np.int64(begin)
    # Up to these, nearly every element can be read and written in chunks before any bound is checked.
    calm_source = end - 3 * CHUNK_BYTES
    calm_out = limit - 2 * CHUNK_BYTES
    while True:
        while source < calm_source and out < calm_out:
            tag = load_u8(MEMORY, source)
            kind = tag & 3
            size = (tag >> 2) + 1
            at = source + 1
            if kind == 0:
                if size > 60:
                    break
                copied = at
                at += size
            else:
                if kind == 1:
                    size = 4 + ((tag >> 2) & 7)
                    distance = (tag >> 5) << 8 | load_u8(MEMORY, at)
                else:
                    distance = load_u16_le(MEMORY, at)
                if kind == 3 or distance < CHUNK_BYTES or distance > out - begin:
                    break
                copied = out - distance
                at += kind
            copy_chunk(MEMORY, out, MEMORY, copied)
            if size > CHUNK_BYTES:
                copy_chunk(MEMORY, out + CHUNK_BYTES, MEMORY, copied + CHUNK_BYTES)
            out += size
            source = at
        if source >= end:
            return out == limit
        tag = load_u8(MEMORY, source)
        source += 1
        size = (tag >> 2) + 1
        kind = tag & 3
        if kind == 0:
            if size > 60:
                width = size - 60
                if width > end - source:
                    return False
                size = np.int64(1)
                for byte in range(width):
                    size += load_u8(MEMORY, source + byte) << (8 * byte)
                source += width
            if size > end - source or size > limit - out:
                return False
            copy_literals(out, room, source, size, end)
            source += size
        else:
            width = np.int64(4) if kind == 3 else kind
            if width > end - source:
                return False
            if kind == 1:
                size = 4 + ((tag >> 2) & 7)
                distance = (tag >> 5) << 8 | load_u8(MEMORY, source)
            elif kind == 2:
                distance = load_u16_le(MEMORY, source)
            else:
                distance = load_u32_le(MEMORY, source)
            source += width
            if distance == 0 or distance > out - begin or size > limit - out:
                return False
            copy_match(out, room, distance, size)
        out += size


@njit
def snappy_decompress(source, end, out, limit):
    """Bytes written from `out` on, of data that `snappy_size` has looked at."""
    framed = _is_xerial(source, end)
    begin = out
    while source < end:
        start, source = _snappy_next(source, end, framed)
        if start == source:
            break
        size, elements = _snappy_stated(start, source)
        if size > limit - out or not _snappy_elements(elements, source, out, out + size, limit):
            return _DAMAGED
        out += size
    return np.int64(out - begin)
