"""Rebuilt batches with their compressed blocks: headers, framings and CRCs, for many batches a call."""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.kernels.crc32c import *
    from spark_segments.format.kernels.framing import *
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *


@cython.cfunc
@cython.inline
@cython.nogil
def _store_u32_le(out: i64, number: i64) -> cython.void:
    store_i8(out, number)
    store_i8(out + 1, number >> 8)
    store_i8(out + 2, number >> 16)
    store_i8(out + 3, number >> 24)


def find_blocks(blocks, places) -> None:
    """Sets `places` (int64[n, 2]: address, size) of the buffers `blocks`."""
    place: i64 = address_of(places)
    number: i64
    count: i64 = len(blocks)
    for number in range(count):
        store_native_i64(place, address_of(blocks[number]))
        store_native_i64(place + 8, size_of(blocks[number]))
        place += 16


def pack_batches(spans, rows, codec: i64, block_bytes: i64, frame_header, places, out) -> int:
    """Writes the batches of `rows` (int64[n]) of `spans` (int64[m, 3]: address, size, …) with compressed records to
    `out`, one behind the other, and points their spans there. How many bytes are written.

    `places`: see `find_blocks`, of the blocks of all of them: of the records of a batch, one for each `block_bytes`.
    `out` has room for all that is written.
    """
    spans_at: i64 = address_of(spans)
    rows_at: i64 = address_of(rows)
    count: i64 = len(rows)
    header_at: i64 = address_of(frame_header) if len(frame_header) > 0 else 0
    header_bytes: i64 = len(frame_header)
    place: i64 = address_of(places)
    begin: i64 = address_of(out)
    to: i64 = begin
    number: i64
    span: i64
    source: i64
    end: i64
    at: i64
    plain: i64
    size: i64
    with cython.nogil:
        for number in range(count):
            span = spans_at + 24 * load_native_i64(rows_at + 8 * number)
            source = load_native_i64(span)
            end = source + load_native_i64(span + 8)
            copy_bytes(to, source, RECORDS_POSITION)
            at = to + RECORDS_POSITION
            if header_bytes > 0:
                copy_bytes(at, header_at, header_bytes)
                at += header_bytes
            source += RECORDS_POSITION
            while source < end:
                plain = min(block_bytes, end - source)
                size = load_native_i64(place + 8)
                if codec == SNAPPY:
                    store_i32(at, size)
                    at += 4
                elif codec == LZ4 and size >= plain:
                    # A block that does not become smaller is stored as it was.
                    _store_u32_le(at, plain | LZ4_STORED_BIT)
                    copy_bytes(at + 4, source, plain)
                    at += 4 + plain
                elif codec == LZ4:
                    _store_u32_le(at, size)
                    at += 4
                if codec != LZ4 or size < plain:
                    copy_bytes(at, load_native_i64(place), size)
                    at += size
                place += 16
                source += plain
            if codec == LZ4:
                _store_u32_le(at, 0)
                at += 4
            store_i32(to + BATCH_LENGTH_POSITION, at - to - LOG_OVERHEAD)
            store_i8(to + ATTRIBUTES_POSITION + 1, load_u8(to + ATTRIBUTES_POSITION + 1) | codec)
            store_i32(to + CRC_POSITION, crc32c_range(to + ATTRIBUTES_POSITION, at))
            store_native_i64(span, to)
            store_native_i64(span + 8, at - to)
            to = at
    return to - begin
