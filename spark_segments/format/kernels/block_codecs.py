"""LZ4 and snappy decompression, many batches per call, into existing memory: LZ4 frames as Kafka writes them, raw
snappy, and xerial's framing of snappy. Of gzip and zstd, what the data say of their size.

LZ4 and snappy are kept for their speed: see the benchmark `libraries`. Sources and targets are addresses. Nothing is
read at or beyond `end` nor written at or beyond `limit`, also for damaged bytes. -1 means damaged bytes, or an LZ4
frame of another kind that is left to a library.
"""

from __future__ import annotations

import cython

if not cython.compiled:
    from spark_segments.format.buffers import *
    from spark_segments.format.kernels.framing import *
    from spark_segments.format.kernels.memory import *
    from spark_segments.format.layout import *

Block = cython.struct(start=cython.longlong, end=cython.longlong)
# What the blocks of a snappy stream state: their size, or -1 with an impossible size and the bytes of its block.
Stated = cython.struct(size=cython.longlong, impossible=cython.longlong, stored=cython.longlong)


@cython.cfunc
@cython.inline
@cython.nogil
def _varint(value: i64, at: i64) -> Varint:
    out: Varint = Varint(value, at)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _copy_literals(out: i64, limit: i64, source: i64, size: i64, end: i64) -> cython.void:
    """Copies bytes that lie apart, in whole chunks where there is room for them."""
    done: i64 = CHUNK_BYTES
    if size + CHUNK_BYTES <= limit - out and size + CHUNK_BYTES <= end - source:
        copy_chunk(out, source)  # nearly always all of it, and then no question which
        while done < size:
            copy_chunk(out + done, source + done)
            done += CHUNK_BYTES
    else:
        copy_bytes(out, source, size)


@cython.cfunc
@cython.inline
@cython.nogil
def _copy_match(out: i64, limit: i64, distance: i64, size: i64) -> cython.void:
    """Appends `size` bytes from `distance` before; the source may overlap the bytes that this copy writes."""
    end: i64 = out + size
    if size + CHUNK_BYTES > limit - out or distance < 8:
        while out < end:
            store_i8(out, load_u8(out - distance))
            out += 1
        return
    store_native_i64(out, load_native_i64(out - distance))
    store_native_i64(out + 8, load_native_i64(out + 8 - distance))
    store_native_i64(out + 16, load_native_i64(out + 16 - distance))
    out += 24
    if distance >= CHUNK_BYTES:
        while out < end:
            copy_chunk(out, out - distance)
            out += CHUNK_BYTES
    else:
        while out < end:
            store_native_i64(out, load_native_i64(out - distance))
            out += 8


@cython.cfunc
@cython.inline
@cython.nogil
def _lz4_length(length: i64, source: i64, end: i64) -> Varint:
    """A length with the bytes that continue one of 15, and the position behind it, -1 where they are cut."""
    more: i64
    if length < 15:
        return _varint(length, source)
    while source < end:
        more = load_u8(source)
        source += 1
        length += more
        if more != 255:
            return _varint(length, source)
    return _varint(length, -1)


@cython.cfunc
@cython.nogil
def _lz4_block(source: i64, end: i64, begin: i64, limit: i64) -> i64:
    """The address behind what the block decompresses to."""
    out: i64 = begin
    # Up to these bounds a sequence of the usual sizes is read and written in chunks before its sizes are checked.
    calm_source: i64 = end - 2 * CHUNK_BYTES
    calm_out: i64 = limit - 3 * CHUNK_BYTES
    token: i64
    literals: i64
    size: i64
    at: i64
    distance: i64
    target: i64
    length: Varint
    while True:
        while source < calm_source and out < calm_out:
            token = load_u8(source)
            literals = token >> 4
            size = token & 15
            at = source + 1
            if literals == 15:
                literals += load_u8(at)
                at += 1
                if literals > CHUNK_BYTES:
                    break
            copy_chunk(out, at)
            at += literals
            distance = load_u16_le(at)
            at += 2
            if size == 15:
                size += load_u8(at)
                at += 1
            size += 4
            target = out + literals
            if size > 2 * CHUNK_BYTES or distance < CHUNK_BYTES or distance > target - begin:
                break
            copy_chunk(target, target - distance)
            if size > CHUNK_BYTES:
                copy_chunk(target + CHUNK_BYTES, target + CHUNK_BYTES - distance)
            out = target + size
            source = at
        if source >= end:
            return -1
        token = load_u8(source)
        length = _lz4_length(token >> 4, source + 1, end)
        size = length.value
        source = length.at
        if source < 0 or size > end - source or size > limit - out:
            return -1
        _copy_literals(out, limit, source, size, end)
        out += size
        source += size
        if source == end:
            return out
        if source + 2 > end:
            return -1
        distance = load_u16_le(source)
        length = _lz4_length(token & 15, source + 2, end)
        size = length.value + 4
        source = length.at
        if source < 0 or distance == 0 or distance > out - begin or size > limit - out:
            return -1
        _copy_match(out, limit, distance, size)
        out += size


@cython.cfunc
@cython.nogil
def lz4_most_bytes(source: i64, end: i64) -> i64:
    """The most bytes that a frame of Kafka's kind decompresses to: all of its blocks full."""
    total: i64 = 0
    size: i64
    if end - source < 7 + 4 or load_i64(source) >> 8 != LZ4_HEADER:
        return -1
    source += 7
    while source + 4 <= end:
        size = load_u32_le(source)
        source += 4
        if size == 0:
            return total if source == end else -1
        total += LZ4_BLOCK_BYTES
        source += size & ~LZ4_STORED_BIT
    return -1


@cython.cfunc
@cython.nogil
def lz4_decompress(source: i64, end: i64, out: i64, limit: i64) -> i64:
    """The number of bytes written from `out` on. `lz4_most_bytes` must have accepted the frame."""
    begin: i64 = out
    size: i64
    block_limit: i64
    source += 7
    while True:
        size = load_u32_le(source)
        source += 4
        if size == 0:
            return out - begin
        block_limit = min(limit, out + LZ4_BLOCK_BYTES)
        if size & LZ4_STORED_BIT:
            size &= ~LZ4_STORED_BIT
            if size > block_limit - out:
                return -1
            copy_bytes(out, source, size)
            out += size
        else:
            out = _lz4_block(source, source + size, out, block_limit)
            if out < 0:
                return -1
        source += size


@cython.cfunc
@cython.inline
@cython.nogil
def _snappy_stated(source: i64, end: i64) -> Varint:
    """The size that a block states, and the position behind it, -1 where that is cut."""
    size: i64 = 0
    shift: i64 = 0
    byte: i64
    while shift < 35 and source < end:
        byte = load_u8(source)
        source += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return _varint(size, source)
        shift += 7
    return _varint(0, -1)


@cython.cfunc
@cython.inline
@cython.nogil
def _is_xerial(source: i64, end: i64) -> cython.bint:
    return end - source >= 8 and load_i64(source) == XERIAL_START


@cython.cfunc
@cython.inline
@cython.nogil
def _block(start: i64, end: i64) -> Block:
    out: Block = Block(start, end)
    return out


@cython.cfunc
@cython.inline
@cython.nogil
def _snappy_next(source: i64, end: i64, framed: cython.bint) -> Block:
    """The next block of a stream, of no bytes where there is none left; -1 as the start where it is cut."""
    size: i64
    if not framed:
        return _block(source, end)
    while source < end:
        # xerial's reader takes streams that were put one after another.
        if _is_xerial(source, end):
            if end - source < 16:
                return _block(-1, end)
            source += 16
            continue
        if end - source < 4:
            return _block(-1, end)
        size = load_i32(source)
        source += 4
        if size <= 0 or size > end - source:
            return _block(-1, end)
        return _block(source, source + size)
    return _block(end, end)


@cython.cfunc
@cython.inline
@cython.nogil
def _stated(size: i64, impossible: i64, stored: i64) -> Stated:
    out: Stated = Stated(size, impossible, stored)
    return out


@cython.cfunc
@cython.nogil
def snappy_size(source: i64, end: i64) -> Stated:
    """What all blocks state; (-1, 0, 0) if a length is cut. A block of three bytes can give at most 64: 32 to 1."""
    framed: cython.bint = _is_xerial(source, end)
    total: i64 = 0
    block: Block
    stated: Varint
    while source < end:
        block = _snappy_next(source, end, framed)
        if block.start < 0:
            return _stated(-1, 0, 0)
        if block.start == block.end:
            break
        stated = _snappy_stated(block.start, block.end)
        if stated.at < 0:
            return _stated(-1, 0, 0)
        if stated.value > 32 * (block.end - block.start):
            return _stated(-1, stated.value, block.end - block.start)
        total += stated.value
        source = block.end
    return _stated(total, 0, 0)


@cython.cfunc
@cython.nogil
def _snappy_elements(source: i64, end: i64, begin: i64, limit: i64, room: i64) -> cython.bint:
    """Whether the elements of a block fill [begin, limit); up to `room` may be written to on the way."""
    out: i64 = begin
    # Up to these, nearly every element can be read and written in chunks before any bound is checked.
    calm_source: i64 = end - 3 * CHUNK_BYTES
    calm_out: i64 = limit - 2 * CHUNK_BYTES
    tag: i64
    kind: i64
    size: i64
    at: i64
    copied: i64
    distance: i64 = 0
    width: i64
    byte: i64
    while True:
        while source < calm_source and out < calm_out:
            tag = load_u8(source)
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
                    distance = (tag >> 5) << 8 | load_u8(at)
                else:
                    distance = load_u16_le(at)
                if kind == 3 or distance < CHUNK_BYTES or distance > out - begin:
                    break
                copied = out - distance
                at += kind
            copy_chunk(out, copied)
            if size > CHUNK_BYTES:
                copy_chunk(out + CHUNK_BYTES, copied + CHUNK_BYTES)
            out += size
            source = at
        if source >= end:
            return out == limit
        tag = load_u8(source)
        source += 1
        size = (tag >> 2) + 1
        kind = tag & 3
        if kind == 0:
            if size > 60:
                width = size - 60
                if width > end - source:
                    return False
                size = 1
                for byte in range(width):
                    size += load_u8(source + byte) << (8 * byte)
                source += width
            if size > end - source or size > limit - out:
                return False
            _copy_literals(out, room, source, size, end)
            source += size
        else:
            width = 4 if kind == 3 else kind
            if width > end - source:
                return False
            if kind == 1:
                size = 4 + ((tag >> 2) & 7)
                distance = (tag >> 5) << 8 | load_u8(source)
            elif kind == 2:
                distance = load_u16_le(source)
            else:
                distance = load_u32_le(source)
            source += width
            if distance == 0 or distance > out - begin or size > limit - out:
                return False
            _copy_match(out, room, distance, size)
        out += size


@cython.cfunc
@cython.nogil
def snappy_decompress(source: i64, end: i64, out: i64, limit: i64) -> i64:
    """Bytes written from `out` on, of data that `snappy_size` has looked at."""
    framed: cython.bint = _is_xerial(source, end)
    begin: i64 = out
    block: Block
    stated: Varint
    while source < end:
        block = _snappy_next(source, end, framed)
        if block.start == block.end:
            break
        stated = _snappy_stated(block.start, block.end)
        if stated.value > limit - out or not _snappy_elements(stated.at, block.end, out, out + stated.value, limit):
            return -1
        out += stated.value
        source = block.end
    return out - begin


@cython.cfunc
@cython.nogil
def _zstd_size(source: i64, end: i64) -> i64:
    """The size that a zstd frame states (RFC 8878, 3.1.1): ZSTD_UNSTATED where it states none, -1 where the bytes are
    no single whole frame, or need a dictionary.
    """
    if end - source < 5 or load_u32_le(source) != ZSTD_MAGIC:
        return -1
    descriptor: i64 = load_u8(source + 4)
    is_single_segment: i64 = descriptor >> 5 & 1
    size_code: i64 = descriptor >> 6
    size_bytes: i64 = (1 << size_code) if size_code > 0 else is_single_segment
    size: i64 = 0 if size_bytes > 0 else ZSTD_UNSTATED
    byte: i64
    header: i64
    is_last: cython.bint = False
    # A reserved bit, or the number of a dictionary.
    if descriptor & 0x0B:
        return -1
    source += 5 + (1 - is_single_segment)
    if size_bytes > end - source:
        return -1
    for byte in range(size_bytes):
        size |= load_u8(source + byte) << (8 * byte)
    if size_code == 1:
        size += 256
    source += size_bytes
    while not is_last:
        if end - source < 3:
            return -1
        header = load_u8(source) | load_u16_le(source + 1) << 8
        is_last = header & 1
        # A block of one repeated byte has that byte alone.
        source += 3 + (1 if (header >> 1 & 3) == 1 else header >> 3)
    if source + (descriptor & 4) != end:
        return -1
    size = wrap_i64(size)
    # A stated size of 2**63 or more is beyond every limit.
    return size if size >= 0 or size_bytes == 0 else -1


@cython.cfunc
@cython.inline
@cython.nogil
def _gzip_size(source: i64, end: i64) -> i64:
    """The size in the last trailer of gzip data (RFC 1952), -1 where the bytes are too few for one member."""
    return load_u32_le(end - 4) if end - source >= GZIP_OVERHEAD else -1


def stated_sizes(codec: i64, starts, ends, wanted_bytes: i64, bounds, stated) -> int:
    """Sets `stated` (int64[2, n]) of the data of gzip or zstd in leading ranges of addresses (int64[n] each): the size
    that they state (see `_gzip_size`, `_zstd_size`), or a guess where they state none, and the largest that is believed
    (-1: none is). How many it has looked at: until they state `wanted_bytes`.

    `bounds`: the sizes that are believed and that are guessed, each as a ratio and at least so many bytes; then the
    ratio, the least and the most of the limit of all.
    """
    believed_ratio: i64 = bounds[0]
    believed_bytes: i64 = bounds[1]
    guessed_ratio: i64 = bounds[2]
    guessed_bytes: i64 = bounds[3]
    limit_ratio: i64 = bounds[4]
    least_limit: i64 = bounds[5]
    most_limit: i64 = bounds[6]
    start_at: i64 = address_of(starts)
    end_at: i64 = address_of(ends)
    size_at: i64 = address_of(stated)
    row: i64 = 0
    rows: i64 = len(starts)
    most_at: i64 = size_at + 8 * rows
    source: i64
    end: i64
    stored: i64
    limit: i64
    size: i64
    most: i64
    with cython.nogil:
        while row < rows and wanted_bytes > 0:
            source = load_native_i64(start_at + 8 * row)
            end = load_native_i64(end_at + 8 * row)
            stored = end - source
            limit = min(max(limit_ratio * stored, least_limit), most_limit)
            most = min(max(believed_ratio * stored, believed_bytes), limit)
            if codec == GZIP:
                size = _gzip_size(source, end)
                # The library takes no limit, and the size in the trailer may be wrong.
                if limit_ratio * stored > limit:
                    most = -1
            else:
                size = _zstd_size(source, end)
            # Too large a guess would end this early.
            wanted_bytes -= max(size, stored)
            if size == ZSTD_UNSTATED:
                size = min(max(guessed_ratio * stored, guessed_bytes), limit)
            store_native_i64(size_at + 8 * row, size)
            store_native_i64(most_at + 8 * row, most)
            row += 1
    return row


def lz4_room(source: i64, end: i64) -> int:
    """See `lz4_most_bytes`."""
    return lz4_most_bytes(source, end)


def lz4_open(source: i64, end: i64, out: i64, limit: i64) -> int:
    """See `lz4_decompress`."""
    written: i64
    with cython.nogil:
        written = lz4_decompress(source, end, out, limit)
    return written


def snappy_room(source: i64, end: i64) -> tuple:
    """See `snappy_size`."""
    stated: Stated = snappy_size(source, end)
    return stated.size, stated.impossible, stated.stored


def snappy_open(source: i64, end: i64, out: i64, limit: i64) -> int:
    """See `snappy_decompress`."""
    written: i64
    with cython.nogil:
        written = snappy_decompress(source, end, out, limit)
    return written
