"""What the library of a codec takes by itself for the records sections of batches: what reading and writing them cannot
do without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import zstandard
from zlib_ng import zlib_ng

from spark_segments.format.batches import scan_batches
from spark_segments.format.compression import LZ4_BLOCK_BYTES, XERIAL_BLOCK_BYTES, decompress
from spark_segments.format.layout import CODECS, RECORDS_POSITION

_GZIP_WBITS = 31


def each(call: Callable, arguments: Iterable[tuple]) -> None:
    """Calls with each tuple of arguments. A result is thrown away before the next call."""
    for one in arguments:
        call(*one)


def decompression(codec: str, stored: pa.Buffer) -> Callable[[], None]:
    """What the codec's library does when batches are read, told the sizes."""
    if codec == "zstd":
        compressed = [(section,) for section, _ in sections(codec, stored)]
        return lambda: each(zstandard.ZstdDecompressor().decompress, compressed)
    if codec == "gzip":
        stated = [(section, _GZIP_WBITS, plain.size) for section, plain in sections(codec, stored)]
        return lambda: each(zlib_ng.decompress, stated)
    library = pa.Codec(codec)
    pieces = [(section, plain.size) for section, plain in sections(codec, stored)]
    if codec == "snappy":
        blocks = [block for _, plain in sections(codec, stored) for block in _blocks(plain, XERIAL_BLOCK_BYTES)]
        pieces = [(library.compress(block), block.size) for block in blocks]
    return lambda: each(library.decompress, pieces)


def compression(codec: str, stored: pa.Buffer, level: int, batch_bytes: int) -> Callable[[], None]:
    """What the codec's library does when these batches are written. `level`: of gzip and zstd."""
    name, block_bytes = {"lz4": ("lz4_raw", LZ4_BLOCK_BYTES), "snappy": ("snappy", XERIAL_BLOCK_BYTES)}.get(
        codec, (codec, batch_bytes)
    )
    blocks = [(block,) for _, plain in sections(codec, stored) for block in _blocks(plain, block_bytes)]
    if codec == "zstd":
        return lambda: each(zstandard.ZstdCompressor(level=level).compress, blocks)
    if codec == "gzip":
        return lambda: each(zlib_ng.compress, [(block, level, _GZIP_WBITS) for (block,) in blocks])
    return lambda: each(pa.Codec(name).compress, blocks)


def sections(codec: str, stored: pa.Buffer) -> Iterator[tuple[pa.Buffer, pa.Buffer]]:
    """(compressed, uncompressed) records section of each batch."""
    batches = scan_batches(stored).batches
    columns = batches.byte_position.tolist(), batches.size.tolist(), batches.codec.tolist()
    for position, size, number in zip(*columns, strict=True):
        section = stored.slice(position + RECORDS_POSITION, size - RECORDS_POSITION)
        if number == CODECS[codec]:
            yield section, decompress(number, section, path="", byte_position=position)


def _blocks(buffer: pa.Buffer, block_bytes: int) -> Iterator[pa.Buffer]:
    for start in range(0, buffer.size, block_bytes):
        yield buffer.slice(start, min(block_bytes, buffer.size - start))
