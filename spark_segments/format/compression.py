"""Compression of the records section of a batch: the five codecs of Kafka, framed as Kafka's Java classes frame them.

Two framings are written by hand: LZ4 frames of independent 64 KiB blocks (Arrow's `lz4` links its blocks, which Kafka's
Java reader rejects) and xerial's framing of snappy. Reading accepts more than writing produces: any LZ4 frame, several
frames in a row, raw snappy. The choice of a topic's codec is made elsewhere.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import zstandard
from zlib_ng import zlib_ng

from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format.kernels import block_codecs
from spark_segments.format.kernels.framing import LZ4_BLOCK_BYTES, LZ4_STORED_BIT
from spark_segments.format.layout import CODEC_NAMES, GZIP, LZ4, NONE, SNAPPY, ZSTD

# Kafka's defaults of compression.gzip.level (-1 there: zlib's 6), compression.lz4.level and compression.zstd.level.
DEFAULT_LEVELS = {GZIP: 6, LZ4: 9, ZSTD: 3}

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_FLAGS = 0x60  # version 1, blocks independent; no checksum of blocks or content, no content size
LZ4_BLOCK_DESCRIPTOR = 0x40  # blocks of at most 64 KiB
LZ4_END_MARK = b"\x00\x00\x00\x00"

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
XERIAL_BLOCK_BYTES = 32 * 1024

_GZIP_WBITS = 31  # zlib's value for a gzip header and trailer
_GZIP_TRAILER = struct.Struct("<II")  # CRC-32 and size of the uncompressed data

# Only zstd can compress to less than 1/1,100, and a batch of 256 MiB exceeds every sensible max.message.bytes.
MAX_RATIO = 1100
MIN_DECOMPRESSED_LIMIT = 256 * 1024 * 1024
MAX_DECOMPRESSED_LIMIT = 2**31 - 1

# A declared size is allocated before a byte is decoded, so it is trusted only up to ratios that real data reach.
BELIEVED_RATIO = 64
BELIEVED_BYTES = 1024 * 1024

# What data give, about, that state no size, such as zstd's from Kafka's Java writer.
GUESSED_RATIO = 8
GUESSED_BYTES = 64 * 1024

_U32_LITTLE = struct.Struct("<I")
_U32_BIG = struct.Struct(">I")

Compressor = Callable[[Any], bytes]


def decompress(codec: int, data: Any, *, path: str, byte_position: int) -> pa.Buffer:
    """Decompresses `data` (bytes-like, the records section of a batch with `codec`).

    The result has at most max(256 MiB, 1,100 x the compressed size) bytes, and less than 2 GiB. `path` and
    `byte_position` are the batch's and only appear in errors. Raises CorruptBatchError for data that are damaged, cut
    short or beyond that limit.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if codec == NONE:
        return buffer
    if codec not in CODEC_NAMES:
        raise CorruptBatchError(
            "Unknown compression codec",
            path=path,
            byte_position=byte_position,
            expected=f"one of {sorted(CODEC_NAMES)}",
            found=codec,
        )
    limit = decompressed_limit(buffer.size)
    try:
        if codec == SNAPPY:
            return _decompress_snappy(buffer, limit)
        if codec == LZ4:
            opened = _decompress_lz4(buffer, limit)
            return _decompress_stream(codec, buffer, limit) if opened is None else opened
        sections = decompress_at_once(codec, memoryview(buffer), np.zeros(1, np.int64), np.array([buffer.size]))
        return pa.py_buffer(sections[0]) if sections else _decompress_stream(codec, buffer, limit)
    except (OSError, pa.ArrowInvalid, _DamagedError) as error:
        raise CorruptBatchError(
            f"The {CODEC_NAMES[codec]} data of a record batch do not decompress ({error})",
            path=path,
            byte_position=byte_position,
            hint="The file is damaged: restore it, or skip the batch's offsets",
        ) from error


def decompress_at_once(
    codec: int, data: memoryview, starts: np.ndarray, ends: np.ndarray, wanted_bytes: int = 1
) -> list[bytes]:
    """The sections data[start:end] (int64[n] each, gzip or zstd) decompressed, in order, until there are
    `wanted_bytes`.

    No function of Python runs for a section. Ends before the first that must be read as a stream: several members or
    frames, a declared size beyond trust, or damage.
    """
    address = pa.py_buffer(data).address
    stated = np.empty((2, len(starts)), np.int64)
    count = block_codecs.stated_sizes(codec, starts + address, ends + address, wanted_bytes, _bounds(), stated)
    sizes, most = stated[:, :count]
    believed = (sizes > 0) & (sizes <= most)
    count = len(believed) if believed.all() else int(np.argmin(believed))
    cuts = starts[:count].tolist(), ends[:count].tolist(), sizes[:count].tolist()
    if codec == GZIP:
        return _gzip_at_once(data, *cuts)
    return _zstd_at_once(data, *cuts, wanted_bytes)


def _bounds() -> tuple[int, ...]:
    """What bounds the output of a library, for kernels."""
    return (
        BELIEVED_RATIO,
        BELIEVED_BYTES,
        GUESSED_RATIO,
        GUESSED_BYTES,
        MAX_RATIO,
        MIN_DECOMPRESSED_LIMIT,
        MAX_DECOMPRESSED_LIMIT,
    )


def decompressed_limit(compressed_bytes: int) -> int:
    """The most bytes that `decompress` returns for `compressed_bytes`. A writer must keep to the same limit."""
    return min(max(MIN_DECOMPRESSED_LIMIT, MAX_RATIO * compressed_bytes), MAX_DECOMPRESSED_LIMIT)


def compress(codec: int, data: Any, level: int | None = None) -> pa.Buffer:
    """`data` (bytes-like) compressed with `codec` in the framing that Kafka's Java reader takes.

    `level` has the meaning of Kafka's compression.<codec>.level; None is Kafka's default. Raises InvalidOptionError
    for a level that the codec does not have.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if codec == NONE:
        return buffer
    if codec not in CODEC_NAMES:
        raise InvalidOptionError("Unknown compression codec", expected=f"one of {sorted(CODEC_NAMES)}", found=codec)
    compressor = _compressor(codec, level)
    if codec == LZ4:
        return pa.py_buffer(b"".join(_lz4_parts(compressor, buffer)))
    if codec == SNAPPY:
        return pa.py_buffer(b"".join(_snappy_parts(compressor, buffer)))
    return pa.py_buffer(compressor(buffer))


@dataclass(frozen=True, slots=True)
class CompressedBlocks:
    """The compressed blocks of many sections, in order, and what the codec's framing puts around them: a section has a
    block for each `block_bytes` of it.
    """

    blocks: list[bytes]
    block_bytes: int
    frame_header: bytes

    def most_bytes(self, stored_bytes: int, sections: int) -> int:
        """The most bytes that the framed sections take, whose blocks have `stored_bytes` in all."""
        around_sections = (len(self.frame_header) + len(LZ4_END_MARK)) * sections
        return stored_bytes + _U32_LITTLE.size * len(self.blocks) + around_sections


def compress_blocks(
    codec: int, data: memoryview, starts: np.ndarray, ends: np.ndarray, level: int | None
) -> CompressedBlocks:
    """The sections data[start:end] (int64[n] each), compressed block by block: `codec` is one that compresses.

    No function of Python runs for a section.
    """
    block_bytes, frame_header = _FRAMINGS.get(codec, (MAX_DECOMPRESSED_LIMIT, b""))
    counts = -(-(ends - starts) // block_bytes)
    behind = np.cumsum(counts)
    first = np.repeat(behind - counts, counts)
    block_starts = np.repeat(starts, counts) + (np.arange(len(first)) - first) * block_bytes
    block_ends = np.minimum(block_starts + block_bytes, np.repeat(ends, counts))
    compressor = _compressor(codec, level)
    cuts = zip(block_starts.tolist(), block_ends.tolist(), strict=True)
    return CompressedBlocks([compressor(data[start:end]) for start, end in cuts], block_bytes, frame_header)


def with_right_lz4_checksum(data: Any) -> pa.Buffer:
    """An LZ4 frame with the header checksum of the LZ4 specification.

    Kafka's clients before 0.10 (message format 0) computed the checksum over the magic number, too. Old logs still hold
    such frames, and every LZ4 library refuses them. Data that are no LZ4 frame are returned unchanged.
    """
    frame = bytearray(data)
    if frame[:4] == LZ4_MAGIC and len(frame) > 6:
        descriptor_bytes = 2 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)
        if len(frame) > 4 + descriptor_bytes:
            descriptor = bytes(frame[4 : 4 + descriptor_bytes])
            frame[4 + descriptor_bytes] = (xxh32(descriptor) >> 8) & 0xFF
    return pa.py_buffer(frame)


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes: a frame descriptor has no more."""
    assert len(data) < 16
    prime1 = 0x9E3779B1
    prime2 = 0x85EBCA77
    prime3 = 0xC2B2AE3D
    prime4 = 0x27D4EB2F
    prime5 = 0x165667B1
    mask = 0xFFFFFFFF
    value = (prime5 + len(data)) & mask
    lanes_end = len(data) & ~3
    for (lane,) in _U32_LITTLE.iter_unpack(data[:lanes_end]):
        value = (value + lane * prime3) & mask
        value = (((value << 17) | (value >> 15)) & mask) * prime4 & mask
    for byte in data[lanes_end:]:
        value = (value + byte * prime5) & mask
        value = (((value << 11) | (value >> 21)) & mask) * prime1 & mask
    value = (value ^ (value >> 15)) * prime2 & mask
    value = (value ^ (value >> 13)) * prime3 & mask
    return value ^ (value >> 16)


class _DamagedError(Exception):
    """Compressed data are damaged. The text goes into the message of the CorruptBatchError."""


_kept = threading.local()  # a context holds the state of its current call, so threads cannot share it


def _zstd_reader() -> zstandard.ZstdDecompressor:
    if not hasattr(_kept, "zstd_reader"):
        _kept.zstd_reader = zstandard.ZstdDecompressor()
    reader: zstandard.ZstdDecompressor = _kept.zstd_reader
    return reader


def _compressor(codec: int, level: int | None) -> Compressor:
    """The thread's compressor, made once: a new context of zstd takes as long as compressing a small batch."""
    name = f"{codec} {level}"
    compressor = getattr(_kept, name, None)
    if compressor is None:
        compressor = _new_compressor(codec, level)
        setattr(_kept, name, compressor)
    return compressor


def _new_compressor(codec: int, level: int | None) -> Compressor:
    if codec == SNAPPY:
        return partial(pa.Codec("snappy").compress, asbytes=True)
    chosen = DEFAULT_LEVELS[codec] if level is None else level
    low, high = {GZIP: (1, 9), LZ4: (1, 17), ZSTD: (-131072, 22)}[codec]
    if not (low <= chosen <= high or (codec == GZIP and chosen == -1)):
        raise InvalidOptionError(f"No such level of {CODEC_NAMES[codec]}", expected=f"{low} to {high}", found=chosen)
    if codec == ZSTD:
        return zstandard.ZstdCompressor(level=chosen).compress
    if codec == GZIP:
        # zlib-ng's level 1 saves a fifth less than zlib's level 1. Its level 2 is smaller and faster than zlib's 1.
        gzip_level = DEFAULT_LEVELS[GZIP] if chosen == -1 else max(chosen, 2)
        return partial(zlib_ng.compress, level=gzip_level, wbits=_GZIP_WBITS)
    # lz4-java: the default level means the fast compressor, any other level the high compressor.
    lz4_level = None if chosen == DEFAULT_LEVELS[LZ4] else min(max(chosen, 3), 12)
    # A small block is bytes, not a buffer of Arrow's pool: many of them lie closer together, and so stay in a cache.
    return partial(pa.Codec("lz4_raw", compression_level=lz4_level).compress, asbytes=True)


def _decompress_stream(codec: int, buffer: pa.Buffer, limit: int) -> pa.Buffer:
    # The codec's end mark ends the stream; a stream that is cut raises. The first read mostly takes the whole stream. A
    # good guess saves a copy, because memory that shrinks by less than half stays in place.
    stream = pa.CompressedInputStream(pa.BufferReader(buffer), CODEC_NAMES[codec])
    guess = _expected_bytes(buffer, limit) + 1
    parts = [stream.read_buffer(guess)]
    total = parts[0].size
    while parts[-1].size == guess:
        if total > limit:
            raise _DamagedError(f"more than {limit} bytes from {buffer.size}")
        guess = min(total, limit + 1 - total)
        parts.append(stream.read_buffer(guess))
        total += parts[-1].size
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _gzip_at_once(data: memoryview, starts: list[int], ends: list[int], sizes: list[int]) -> list[bytes]:
    trailer = _GZIP_TRAILER.unpack_from
    decompress_member = zlib_ng.decompress
    checksum = zlib_ng.crc32
    sections: list[bytes] = []
    for start, end, size in zip(starts, ends, sizes, strict=True):
        try:
            section = decompress_member(data[start:end], _GZIP_WBITS, size)
        except zlib_ng.error:  # type: ignore[misc]  # its stub says that this is an instance
            break
        # The library stops at the end of a member and does not say where that is. Where the trailer at the end of the
        # data has this member's size and CRC, the member was the only one: the same bytes twice are no records of a
        # batch.
        if (checksum(section), len(section)) != trailer(data, end - _GZIP_TRAILER.size):
            break
        sections.append(section)
    return sections


def _zstd_at_once(
    data: memoryview, starts: list[int], ends: list[int], sizes: list[int], wanted_bytes: int
) -> list[bytes]:
    decompress_frame = _zstd_reader().decompress
    sections: list[bytes] = []
    try:
        for start, end, size in zip(starts, ends, sizes, strict=True):
            # A frame that states no size may have given more than was guessed.
            if wanted_bytes <= 0:
                break
            # By position: read_across_frames, allow_extra_data. Names would cost as much as a tenth of a small batch.
            section = decompress_frame(data[start:end], size, False, False)
            sections.append(section)
            wanted_bytes -= len(section)
    except zstandard.ZstdError:
        pass  # a stream says what is wrong, or takes more bytes than were guessed
    return sections


def _expected_bytes(buffer: pa.Buffer, limit: int) -> int:
    return int(min(max(GUESSED_RATIO * buffer.size, GUESSED_BYTES), limit))


def _decompress_lz4(buffer: pa.Buffer, limit: int) -> pa.Buffer | None:
    """None where the data must be read as a stream: a frame of another kind, a size beyond trust, or damage."""
    start, end = buffer.address, buffer.address + buffer.size
    most_bytes = block_codecs.lz4_room(start, end)
    if not 0 <= most_bytes <= min(limit, max(BELIEVED_RATIO * buffer.size, BELIEVED_BYTES)):
        return None
    out = pa.allocate_buffer(most_bytes, resizable=True)
    size = block_codecs.lz4_open(start, end, out.address, out.address + most_bytes)
    if size < 0:
        return None
    out.resize(size, shrink_to_fit=False)
    return out


def _decompress_snappy(buffer: pa.Buffer, limit: int) -> pa.Buffer:
    start, end = buffer.address, buffer.address + buffer.size
    size, stated, stored = block_codecs.snappy_room(start, end)
    if size < 0:
        raise _DamagedError(f"a block states {stated} bytes from {stored}" if stored else "cut in a block's length")
    if size > limit:
        raise _DamagedError(f"more than {limit} bytes from {buffer.size}")
    out = pa.allocate_buffer(size)
    if block_codecs.snappy_open(start, end, out.address, out.address + size) != size:
        raise _DamagedError("a block does not give what it states")
    return out


def _lz4_parts(compressor: Compressor, buffer: pa.Buffer) -> Iterator[bytes | pa.Buffer]:
    yield LZ4_FRAME_HEADER
    for start in range(0, buffer.size, LZ4_BLOCK_BYTES):
        block = buffer[start : start + LZ4_BLOCK_BYTES]
        compressed = compressor(block)
        if len(compressed) < block.size:
            yield _U32_LITTLE.pack(len(compressed))
            yield compressed
        else:
            yield _U32_LITTLE.pack(block.size | LZ4_STORED_BIT)
            yield block
    yield LZ4_END_MARK


def _snappy_parts(compressor: Compressor, buffer: pa.Buffer) -> Iterator[bytes | pa.Buffer]:
    yield XERIAL_HEADER
    for start in range(0, buffer.size, XERIAL_BLOCK_BYTES):
        compressed = compressor(buffer[start : start + XERIAL_BLOCK_BYTES])
        yield _U32_BIG.pack(len(compressed))
        yield compressed


_DESCRIPTOR = bytes((LZ4_FLAGS, LZ4_BLOCK_DESCRIPTOR))
LZ4_FRAME_HEADER = LZ4_MAGIC + _DESCRIPTOR + bytes(((xxh32(_DESCRIPTOR) >> 8) & 0xFF,))
# Codecs that compress a section in blocks: the bytes of a block, and what a section begins with.
_FRAMINGS = {LZ4: (LZ4_BLOCK_BYTES, LZ4_FRAME_HEADER), SNAPPY: (XERIAL_BLOCK_BYTES, XERIAL_HEADER)}
