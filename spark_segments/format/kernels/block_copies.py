"""Copies within decompressed blocks, by whole chunks where there is room: the hot loops of LZ4 and snappy.

Sources and targets are addresses. Nothing is read at or beyond `end` nor written at or beyond `limit`.
"""

from __future__ import annotations

from spark_segments.format.kernels.jit import (
    CHUNK_BYTES,
    MEMORY,
    copy_chunk,
    load_native_i64,
    load_u8,
    memcpy,
    njit,
    store_i8,
    store_native_i64,
)

WORD_BYTES = 8


@njit(forceinline=True)
def copy_literals(out, limit, source, size, end):
    """Copies bytes that lie apart, in whole chunks where there is room for them."""
    if size + CHUNK_BYTES <= limit - out and size + CHUNK_BYTES <= end - source:
        copy_chunk(MEMORY, out, MEMORY, source)  # nearly always all of it, and then no question which
        done = CHUNK_BYTES
        while done < size:
            copy_chunk(MEMORY, out + done, MEMORY, source + done)
            done += CHUNK_BYTES
    else:
        memcpy(MEMORY, out, MEMORY, source, size)


@njit(forceinline=True)
def copy_match(out, limit, distance, size):
    """Appends `size` bytes from `distance` before; the source may overlap the bytes that this copy writes."""
    end = out + size
    if size + CHUNK_BYTES > limit - out or distance < WORD_BYTES:
        while out < end:
            store_i8(MEMORY, out, load_u8(MEMORY, out - distance))
            out += 1
        return
    for word in range(3):
        at = out + word * WORD_BYTES
        store_native_i64(MEMORY, at, load_native_i64(MEMORY, at - distance))
    out += 3 * WORD_BYTES
    if distance >= CHUNK_BYTES:
        while out < end:
            copy_chunk(MEMORY, out, MEMORY, out - distance)
            out += CHUNK_BYTES
    else:
        while out < end:
            store_native_i64(MEMORY, out, load_native_i64(MEMORY, out - distance))
            out += WORD_BYTES
