"""Compression of the records section of a batch: the five codecs of Kafka, framed as Kafka's Java classes frame them.

Two framings are written here by hand: LZ4 frames of independent 64 KiB blocks (Arrow's own `lz4` links its blocks,
which Kafka's Java reader rejects) and xerial's framing of snappy. What is read is wider than what is written: any LZ4
frame, several frames in a row, raw snappy. Which codec a topic's config asks for is not decided here.
"""

from __future__ import annotations

import struct
import threading

import pyarrow as pa

from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format.layout import CODEC_NAMES, CODECS

NONE, GZIP, SNAPPY, LZ4, ZSTD = (CODECS[name] for name in ("none", "gzip", "snappy", "lz4", "zstd"))

# Kafka's defaults of compression.gzip.level (-1 there: zlib's 6), compression.lz4.level and compression.zstd.level.
DEFAULT_LEVELS = {GZIP: 6, LZ4: 9, ZSTD: 3}

LZ4_MAGIC = b"\x04\x22\x4d\x18"
LZ4_FLAGS = 0x60  # version 1, blocks independent; no checksum of blocks or content, no content size
LZ4_BLOCK_DESCRIPTOR = 0x40  # blocks of at most 64 KiB
LZ4_BLOCK_BYTES = 64 * 1024
LZ4_STORED_BIT = 0x80000000  # set in a block's length when the block is not compressed
LZ4_END_MARK = b"\x00\x00\x00\x00"

XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest version that can read it
XERIAL_BLOCK_BYTES = 32 * 1024

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

# No codec but zstd reaches 1,100 times, and a batch of 256 MiB is beyond every sensible max.message.bytes.
MAX_RATIO = 1100
MIN_DECOMPRESSED_LIMIT = 256 * 1024 * 1024
MAX_DECOMPRESSED_LIMIT = 2**31 - 1

# A declared size is allocated before a byte is decoded, so it is believed only up to what data commonly reach.
BELIEVED_RATIO = 64
BELIEVED_BYTES = 1024 * 1024
SNAPPY_MAX_RATIO = 32  # a three-byte copy gives at most 64 bytes

_U32_LITTLE = struct.Struct("<I")
_U32_BIG = struct.Struct(">I")


def decompress(codec: int, data, *, path: str, position: int) -> pa.Buffer:
    """The bytes that `data` (bytes-like, the records section of a batch with `codec`) decompresses to.

    Never gives more than max(256 MiB, 1,100 x the compressed size) nor 2 GiB. `path` and `position` are those of the
    batch and only go into errors. Raises CorruptBatchError when the data are damaged, cut short or over that limit.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if codec == NONE:
        return buffer
    if codec not in CODEC_NAMES:
        raise CorruptBatchError(
            "Unknown compression codec",
            path=path,
            position=position,
            expected=f"one of {sorted(CODEC_NAMES)}",
            found=codec,
        )
    limit = decompressed_limit(buffer.size)
    try:
        if codec == SNAPPY:
            return _decompress_snappy(memoryview(buffer).cast("B"), limit)
        if codec == ZSTD:
            size = _zstd_content_size(buffer)
            if size is not None and size <= min(limit, max(BELIEVED_RATIO * buffer.size, BELIEVED_BYTES)):
                try:
                    return _codec(ZSTD).decompress(buffer, size)
                except OSError:
                    pass  # several frames in a row, or damage: reading it as a stream tells them apart
        return _decompress_stream(codec, buffer, limit)
    except (OSError, pa.ArrowInvalid, _DamagedError) as error:
        raise CorruptBatchError(
            f"The {CODEC_NAMES[codec]} data of a record batch do not decompress ({error})",
            path=path,
            position=position,
            hint="The file is damaged: restore it, or skip the batch's offsets",
        ) from error


def decompressed_limit(compressed_bytes: int) -> int:
    """The most bytes that `decompress` gives for this many: what is larger must not be written either."""
    return min(max(MIN_DECOMPRESSED_LIMIT, MAX_RATIO * compressed_bytes), MAX_DECOMPRESSED_LIMIT)


def compress(codec: int, data, level: int | None = None) -> pa.Buffer:
    """`data` (bytes-like) compressed with `codec` in the framing that Kafka's Java reader takes.

    `level` has the meaning of Kafka's compression.<codec>.level; None is Kafka's default. Raises InvalidOptionError
    for a level that the codec does not have.
    """
    if codec == NONE:
        return data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    return pa.py_buffer(b"".join(compressed_parts(codec, data, level)))


def compressed_parts(codec: int, data, level: int | None = None) -> list[bytes | pa.Buffer]:
    """What `compress` gives in parts, for a caller that copies them to their place anyway; `codec` is not 0."""
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if codec == NONE or codec not in CODEC_NAMES:
        raise InvalidOptionError("Unknown compression codec", expected=f"one of {sorted(CODEC_NAMES)}", found=codec)
    compressor = _codec(codec, level)
    if codec == LZ4:
        return _lz4_parts(compressor, buffer)
    if codec == SNAPPY:
        return _snappy_parts(compressor, buffer)
    return [compressor.compress(buffer)]  # in Arrow's pool, whose pages are there already, unlike those of new bytes


def with_right_lz4_checksum(data) -> pa.Buffer:
    """An LZ4 frame with its header checksum put right.

    Kafka's clients before 0.10 (message format 0) computed it over the magic number too, and their frames are still in
    such logs; every LZ4 library refuses them. Data that are no LZ4 frame are given back as they are.
    """
    frame = bytearray(data)
    if frame[:4] == LZ4_MAGIC and len(frame) > 6:
        descriptor_bytes = 2 + (8 if frame[4] & 0x08 else 0) + (4 if frame[4] & 0x01 else 0)
        if len(frame) > 4 + descriptor_bytes:
            descriptor = bytes(frame[4 : 4 + descriptor_bytes])
            frame[4 + descriptor_bytes] = (xxh32(descriptor) >> 8) & 0xFF
    return pa.py_buffer(frame)


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0 of fewer than 16 bytes, which is all that a frame descriptor has."""
    assert len(data) < 16
    prime1, prime2, prime3, prime4, prime5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF
    value = (prime5 + len(data)) & mask
    whole = len(data) & ~3
    for (lane,) in _U32_LITTLE.iter_unpack(data[:whole]):
        value = (value + lane * prime3) & mask
        value = (((value << 17) | (value >> 15)) & mask) * prime4 & mask
    for byte in data[whole:]:
        value = (value + byte * prime5) & mask
        value = (((value << 11) | (value >> 21)) & mask) * prime1 & mask
    value = (value ^ (value >> 15)) * prime2 & mask
    value = (value ^ (value >> 13)) * prime3 & mask
    return value ^ (value >> 16)


class _DamagedError(Exception):
    """What is wrong with compressed data, for the message of the CorruptBatchError."""


_codecs = threading.local()  # a gzip codec of Arrow holds zlib's state, so no codec is shared between threads


def _codec(codec: int, level: int | None = None) -> pa.Codec:
    name = f"{codec} {level}"
    found = getattr(_codecs, name, None)
    if found is None:
        found = _new_codec(codec, level)
        setattr(_codecs, name, found)
    return found


def _new_codec(codec: int, level: int | None) -> pa.Codec:
    name = "lz4_raw" if codec == LZ4 else CODEC_NAMES[codec]
    if codec == SNAPPY:
        return pa.Codec(name)
    wanted = DEFAULT_LEVELS[codec] if level is None else level
    if codec == LZ4:
        # lz4-java: the default level means the fast compressor, any other one the high compressor.
        arrow_level = None if wanted == DEFAULT_LEVELS[LZ4] else min(max(wanted, 3), 12)
    else:
        arrow_level = DEFAULT_LEVELS[GZIP] if codec == GZIP and wanted == -1 else wanted
    low, high = {GZIP: (1, 9), LZ4: (1, 17), ZSTD: (-131072, 22)}[codec]
    if not (low <= wanted <= high or (codec == GZIP and wanted == -1)):
        raise InvalidOptionError(f"No such level of {CODEC_NAMES[codec]}", expected=f"{low} to {high}", found=wanted)
    return pa.Codec(name, compression_level=arrow_level)


def _decompress_stream(codec: int, buffer: pa.Buffer, limit: int) -> pa.Buffer:
    # The codec's own end mark ends the stream; a stream that is cut raises. The first read mostly takes all of it, and
    # a good guess saves a copy, as memory that shrinks by less than half stays where it is.
    stream = pa.CompressedInputStream(pa.BufferReader(buffer), CODEC_NAMES[codec])
    guess = 8 * buffer.size
    if codec == LZ4:
        guess = min(_lz4_size_bound(buffer), max(BELIEVED_RATIO * buffer.size, BELIEVED_BYTES))
    elif codec == GZIP and buffer.size >= 18:  # gzip's last four bytes are the size
        guess = min(_U32_LITTLE.unpack_from(buffer, buffer.size - 4)[0], guess)
    guess = min(max(guess, 64 * 1024), limit) + 1
    parts = [stream.read_buffer(guess)]
    total = parts[0].size
    while parts[-1].size == guess:
        if total > limit:
            raise _DamagedError(f"more than {limit} bytes from {buffer.size}")
        guess = min(total, limit + 1 - total)
        parts.append(stream.read_buffer(guess))
        total += parts[-1].size
    return parts[0] if len(parts) == 1 else pa.py_buffer(b"".join(parts))


def _lz4_size_bound(buffer: pa.Buffer) -> int:
    """What the blocks of an LZ4 frame hold when all are full: a guess, as nothing of the frame is checked."""
    if buffer.size < 7:
        return 0
    flags, descriptor = buffer[4:6].to_pybytes()
    block_bytes = 1 << (8 + 2 * (descriptor >> 4 & 7))
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    between = 8 if flags & 0x10 else 4
    total = 0
    while at + 4 <= buffer.size:
        (size,) = _U32_LITTLE.unpack_from(buffer, at)
        if size == 0:
            break
        total += block_bytes
        at += (size & ~LZ4_STORED_BIT) + between
    return total


def _zstd_content_size(buffer: pa.Buffer) -> int | None:
    """The size that a zstd frame's header states, or None where it states none (as Kafka's Java writer does)."""
    header = buffer[:18].to_pybytes()
    if len(header) < 6 or header[:4] != ZSTD_MAGIC:
        return None
    flags = header[4]
    single_segment = (flags >> 5) & 1
    size_bytes = (single_segment, 2, 4, 8)[flags >> 6]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[flags & 3]
    if size_bytes == 0 or len(header) < start + size_bytes:
        return None
    size = int.from_bytes(header[start : start + size_bytes], "little")
    return size + 256 if size_bytes == 2 else size


def _decompress_snappy(data: memoryview, limit: int) -> pa.Buffer:
    if len(data) == 0:
        return pa.py_buffer(b"")
    blocks = _xerial_blocks(data) if data[:8] == XERIAL_MAGIC else [data]
    # A snappy block is its size and then elements that refer back in the output only. So the elements of all blocks,
    # one after another, are a block too, and one call decodes it to where it stays.
    parts: list = [b""]
    total = 0
    for block in blocks:
        size, start = _snappy_size(block)
        if size > SNAPPY_MAX_RATIO * len(block):
            raise _DamagedError(f"a block states {size} bytes from {len(block)}")
        total += size
        parts.append(block[start:])
    if total > limit:
        raise _DamagedError(f"more than {limit} bytes from {len(data)}")
    if len(parts) == 2:
        return _codec(SNAPPY).decompress(blocks[0], total)
    parts[0] = _snappy_size_bytes(total)
    return _codec(SNAPPY).decompress(b"".join(parts), total)


def _xerial_blocks(data: memoryview) -> list[memoryview]:
    blocks = []
    at = 0
    while at < len(data):
        if data[at : at + 8] == XERIAL_MAGIC:  # xerial's reader takes streams that were put one after another
            at += len(XERIAL_HEADER)
            continue
        if at + 4 > len(data):
            raise _DamagedError("cut in a block's length")
        (size,) = _U32_BIG.unpack_from(data, at)
        at += 4
        if size == 0 or size > len(data) - at:
            raise _DamagedError(f"a block of {size} bytes where {len(data) - at} are left")
        blocks.append(data[at : at + size])
        at += size
    if at > len(data):
        raise _DamagedError("cut in its header")
    return blocks


def _snappy_size(block: memoryview) -> tuple[int, int]:
    """The size that a snappy block states, and where its elements start."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return size, index + 1
    raise _DamagedError("cut in its size")


def _snappy_size_bytes(size: int) -> bytes:
    stated = bytearray()
    while size >= 0x80:
        stated.append(size & 0x7F | 0x80)
        size >>= 7
    stated.append(size)
    return bytes(stated)


def _lz4_parts(compressor: pa.Codec, buffer: pa.Buffer) -> list[bytes]:
    parts = [LZ4_FRAME_HEADER]
    for start in range(0, buffer.size, LZ4_BLOCK_BYTES):
        block = buffer[start : start + LZ4_BLOCK_BYTES]
        compressed = compressor.compress(block, asbytes=True)
        if len(compressed) < block.size:
            parts += (_U32_LITTLE.pack(len(compressed)), compressed)
        else:
            parts += (_U32_LITTLE.pack(block.size | LZ4_STORED_BIT), block.to_pybytes())
    parts.append(LZ4_END_MARK)
    return parts


def _snappy_parts(compressor: pa.Codec, buffer: pa.Buffer) -> list[bytes]:
    parts = [XERIAL_HEADER]
    for start in range(0, buffer.size, XERIAL_BLOCK_BYTES):
        compressed = compressor.compress(buffer[start : start + XERIAL_BLOCK_BYTES], asbytes=True)
        parts += (_U32_BIG.pack(len(compressed)), compressed)
    return parts


_DESCRIPTOR = bytes((LZ4_FLAGS, LZ4_BLOCK_DESCRIPTOR))
LZ4_FRAME_HEADER = LZ4_MAGIC + _DESCRIPTOR + bytes(((xxh32(_DESCRIPTOR) >> 8) & 0xFF,))
