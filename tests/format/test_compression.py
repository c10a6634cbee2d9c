"""Compression against Kafka's own files, against other packages' codecs, and against damage."""

from __future__ import annotations

import gzip
import struct
import threading
import tracemalloc

import aiokafka.codec
import kafka.codec
import lz4.block
import lz4.frame
import numpy as np
import pytest
import snappy
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError, InvalidOptionError
from spark_segments.format import compression
from spark_segments.format.compression import (
    LZ4_FRAME_HEADER,
    compress,
    decompress,
    decompressed_limit,
    with_right_lz4_checksum,
    xxh32,
)
from spark_segments.format.layout import CODEC_NAMES, GZIP, HEADER_STRUCT, LZ4, NONE, SNAPPY, ZSTD
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import log_files

CODECS = [GZIP, SNAPPY, LZ4, ZSTD]
SIZES = [0, 1, 100, 32 * 1024, 32 * 1024 + 1, 64 * 1024 - 1, 64 * 1024, 64 * 1024 + 1, 300_000]


def back(codec: int, data) -> bytes:
    return decompress(codec, data, path="x.log", byte_position=7).to_pybytes()


def text(size: int) -> bytes:
    generator = np.random.default_rng(size)
    words = [b"%x" % number for number in generator.integers(0, 2000, size // 2 + 1)]
    return b" ".join(words)[:size]


def noise(size: int) -> bytes:
    return np.random.default_rng(size).bytes(size)


def named(codec: int) -> str:
    return CODEC_NAMES[codec]


@pytest.mark.cases(5)
@pytest.mark.parametrize("kind", [text, noise, bytes], ids=["text", "noise", "zeros"])
@pytest.mark.parametrize("codec", [NONE, *CODECS], ids=named)
def test_what_is_compressed_comes_back_and_other_clients_read_it(codec, kind):
    for size in SIZES:
        data = kind(size)
        compressed = compress(codec, data).to_pybytes()
        assert back(codec, compressed) == data
        if codec == NONE:
            assert compressed == data
        elif size:  # cramjam and python-snappy take no empty streams
            assert bytes(getattr(aiokafka.codec, f"{named(codec)}_decode")(compressed)) == data
            assert bytes(getattr(kafka.codec, f"{named(codec)}_decode")(compressed)) == data


@pytest.mark.cases(2)
@pytest.mark.parametrize("package", [aiokafka.codec, kafka.codec], ids=["aiokafka", "kafka-python"])
@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_what_other_clients_compress_is_read(codec, package):
    for size in SIZES[1:]:
        assert back(codec, bytes(getattr(package, f"{named(codec)}_encode")(text(size)))) == text(size)


@examples(60)
@given(data=st.binary(max_size=400), repeats=st.integers(1, 600), codec=st.sampled_from(CODECS))
def test_any_bytes_come_back(data, repeats, codec):
    assert back(codec, compress(codec, data * repeats)) == data * repeats


@pytest.mark.parametrize("name", ["gzip-0", "snappy-0", "lz4-0", "zstd-0"])
def test_kafkas_batches_of_every_codec_decompress_as_other_clients_say(name):
    batches = 0
    for file in log_files(name):
        data = file.read_bytes()
        position = 0
        while position < len(data):
            fields = HEADER_STRUCT.unpack_from(data, position)
            end = position + fields[1] + 12
            section = data[position + 61 : end]
            codec = fields[5] & 7
            assert back(codec, section) == bytes(getattr(kafka.codec, f"{named(codec)}_decode")(section))
            batches += 1
            position = end
    assert batches > 80


def lz4_blocks(frame: bytes) -> list[tuple[bool, bytes]]:
    """(is compressed, bytes) of the blocks of a frame without block checksums, which must end with its end mark."""
    blocks = []
    position = 7
    while True:
        (word,) = struct.unpack_from("<I", frame, position)
        position += 4
        if word == 0:
            break
        size = word & 0x7FFFFFFF
        blocks.append((word < 0x80000000, frame[position : position + size]))
        position += size
    assert position == len(frame)
    return blocks


@pytest.mark.parametrize("level", [None, 1, 9, 12, 17])
@pytest.mark.parametrize("kind", [text, noise], ids=["text", "noise"])
def test_lz4_frames_are_what_kafkas_java_reader_takes(kind, level):
    # Kafka's Lz4BlockInputStream wants version 1, independent blocks, and a right header checksum, whatever else holds.
    data = kind(200_000)
    frame = compress(LZ4, data, level).to_pybytes()
    magic, flags, descriptor, checksum = struct.unpack_from("<IBBB", frame)
    assert magic == 0x184D2204
    assert flags == 0b0110_0000  # version 01, blocks independent; no block checksum, content size, content checksum
    assert descriptor == 0b0100_0000  # 64 KiB
    assert checksum == 0x82  # (xxh32(60 40) >> 8) & 0xff, as in every LZ4 batch that Kafka wrote
    blocks = lz4_blocks(frame)
    assert len(blocks) == 4
    parts = [lz4.block.decompress(block, 65536) if packed else block for packed, block in blocks]
    assert [len(part) for part in parts] == [65536, 65536, 65536, 200_000 - 3 * 65536]
    assert b"".join(parts) == data
    assert all(packed == (kind is text) for packed, _ in blocks)
    assert all(len(block) <= 65536 for _, block in blocks)


def test_lz4_frames_begin_as_kafkas_own():
    file = next(log_files("lz4-0"))
    assert file.read_bytes()[61 : 61 + 7] == LZ4_FRAME_HEADER == compress(LZ4, b"abc").to_pybytes()[:7]


@pytest.mark.cases(4)
@pytest.mark.parametrize("size", [100, 70_000, 2_000_000])
@pytest.mark.parametrize(
    "options",
    [
        {"block_linked": True},
        {"block_linked": False, "block_size": lz4.frame.BLOCKSIZE_MAX4MB},
        {"content_checksum": True, "block_checksum": True},
        {"store_size": False},
    ],
    ids=str,
)
def test_any_lz4_frame_is_read(size, options):
    assert back(LZ4, lz4.frame.compress(text(size), **options)) == text(size)


def test_lz4_header_checksum_of_old_clients_is_put_right():
    frame = bytearray(compress(LZ4, b"abc" * 100).to_pybytes())
    frame[6] = 0x1A  # as computed over the magic number too
    with pytest.raises(CorruptBatchError):
        back(LZ4, bytes(frame))
    assert back(LZ4, with_right_lz4_checksum(bytes(frame))) == b"abc" * 100
    sized = lz4.frame.compress(b"abc", store_size=True)
    assert with_right_lz4_checksum(sized).to_pybytes() == sized
    for other in (b"", b"\x04\x22\x4d\x18", b"\x04\x22\x4d\x18\x68\x40", b"not lz4 at all"):
        assert with_right_lz4_checksum(other).to_pybytes() == other


def test_xxh32_gives_the_reference_values():
    # From the specification's own sanity checks, and the check byte of every default LZ4 frame.
    assert xxh32(b"") == 0x02CC5D05
    assert xxh32(b"a") == 0x550D7456
    assert xxh32(b"abc") == 0x32D153FF
    assert (xxh32(bytes.fromhex("6040")) >> 8) & 0xFF == 0x82


def test_snappy_is_framed_as_xerial_does_in_blocks_of_32_kib():
    data = text(100_000)
    framed = compress(SNAPPY, data).to_pybytes()
    assert framed[:16] == b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
    position, parts = 16, []
    while position < len(framed):
        (size,) = struct.unpack_from(">i", framed, position)
        parts.append(snappy.uncompress(framed[position + 4 : position + 4 + size]))
        position += 4 + size
    assert [len(part) for part in parts] == [32768, 32768, 32768, 100_000 - 3 * 32768]
    assert b"".join(parts) == data


def test_snappy_is_read_raw_and_with_streams_one_after_another():
    data = text(100_000)
    assert back(SNAPPY, snappy.compress(data)) == data
    framed = compress(SNAPPY, data).to_pybytes()
    assert back(SNAPPY, framed + framed) == data + data
    assert back(SNAPPY, framed[:16]) == b""


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD], ids=named)
def test_frames_one_after_another_are_one(codec):
    first, second = text(1000), text(50_000)
    assert back(codec, compress(codec, first).to_pybytes() + compress(codec, second).to_pybytes()) == first + second


def test_zstd_is_read_with_and_without_its_size():
    data = text(300_000)
    sized = zstandard.ZstdCompressor().compress(data)
    stream = zstandard.ZstdCompressor().compressobj()
    unsized = stream.compress(data) + stream.flush()
    assert zstandard.frame_content_size(sized) == len(data)
    assert zstandard.frame_content_size(unsized) == -1
    assert back(ZSTD, sized) == back(ZSTD, unsized) == data
    for size in (0, 10, 255, 256, 257, 65_791, 65_792):  # each width of the size's field
        assert back(ZSTD, zstandard.ZstdCompressor().compress(bytes(size))) == bytes(size)


def test_zstd_frames_without_a_size_are_read_to_the_end():
    data = text(300_000)
    for checksum in (False, True):
        unsized = zstandard.ZstdCompressor(write_content_size=False, write_checksum=checksum)
        sized, repeats = zstandard.ZstdCompressor().compress(data), unsized.compress(data)
        runs = unsized.compress(bytes(200_000))  # blocks of one byte repeated
        assert back(ZSTD, repeats) == data and back(ZSTD, runs) == bytes(200_000)
        assert back(ZSTD, repeats + sized) == back(ZSTD, repeats * 2) == data * 2
        assert back(ZSTD, runs + repeats) == bytes(200_000) + data
        with pytest.raises(CorruptBatchError):
            back(ZSTD, repeats + b"x")


def test_levels_are_kafkas():
    data = text(200_000)

    def size(codec, level):
        return len(compress(codec, data, level))

    assert size(GZIP, None) == size(GZIP, -1) == size(GZIP, 6) < size(GZIP, 1)
    assert size(ZSTD, None) == size(ZSTD, 3) < size(ZSTD, -5)
    assert size(LZ4, None) == size(LZ4, 9) > size(LZ4, 8)  # lz4-java: level 9 is the fast compressor
    assert size(LZ4, 17) <= size(LZ4, 1) < size(LZ4, 9)
    assert size(SNAPPY, 5) == size(SNAPPY, None)


@pytest.mark.parametrize(("codec", "level"), [(GZIP, 0), (GZIP, 10), (LZ4, 0), (LZ4, 18), (ZSTD, 23)])
def test_a_level_that_kafka_does_not_have_is_refused(codec, level):
    with pytest.raises(InvalidOptionError, match=f"level of {named(codec)}.*found {level}"):
        compress(codec, b"abc", level)


def test_an_unknown_codec_is_damage_when_read_and_a_wrong_option_when_written():
    with pytest.raises(CorruptBatchError, match=r"codec in x\.log at position 7.*found 5"):
        back(5, b"abc")
    with pytest.raises(InvalidOptionError):
        compress(5, b"abc")


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_cut_data_are_one_clear_error(codec):
    compressed = compress(codec, text(70_000)).to_pybytes()
    ends = [*range(1, 40), *range(40, len(compressed) - 40, 997), *range(len(compressed) - 40, len(compressed))]
    whole_blocks = {16, *(20 + struct.unpack_from(">i", compressed, 16)[0] for _ in range(codec == SNAPPY))}
    second = 20 + struct.unpack_from(">i", compressed, 16)[0]
    if codec == SNAPPY:  # a stream of fewer blocks is no less whole: the batch's CRC is what protects it
        whole_blocks.add(second + 4 + struct.unpack_from(">i", compressed, second)[0])
    for end in ends:
        if codec == SNAPPY and end in whole_blocks:
            continue
        with pytest.raises(CorruptBatchError) as caught:
            back(codec, compressed[:end])
        assert (caught.value.path, caught.value.byte_position) == ("x.log", 7)
        assert named(codec) in str(caught.value)


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_changed_bytes_give_bytes_or_one_clear_error(codec):
    compressed = compress(codec, text(3000)).to_pybytes()
    generator = np.random.default_rng(codec)
    errors = 0
    for _ in range(1500):
        damaged = bytearray(compressed)
        for _ in range(generator.integers(1, 4)):
            # Headers are short, so half of the damage goes there.
            place = generator.integers(0, len(damaged) if generator.random() < 0.5 else 24)
            damaged[place] = generator.integers(0, 256)
        try:
            back(codec, bytes(damaged))
        except CorruptBatchError:
            errors += 1
    assert errors > 500


@pytest.mark.parametrize("codec", CODECS, ids=named)
def test_arbitrary_bytes_are_one_clear_error(codec):
    generator = np.random.default_rng(codec)
    for size in [*range(1, 40), 1000, 100_000]:
        with pytest.raises(CorruptBatchError):
            back(codec, b"\xff" + generator.bytes(size))


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD], ids=named)
def test_no_more_is_decompressed_than_the_limit(codec, limits):
    limits(MIN_DECOMPRESSED_LIMIT=1_000_000, MAX_RATIO=2)
    assert len(back(codec, compress(codec, bytes(1_000_000)))) == 1_000_000
    for size in (1_000_001, 20_000_000):
        with pytest.raises(CorruptBatchError, match="more than 1000000 bytes"):
            back(codec, compress(codec, bytes(size)))


def test_a_gzip_trailer_that_lies_takes_no_more_than_the_limit(limits):
    limits(MAX_DECOMPRESSED_LIMIT=1_000_000)
    bomb = compress(GZIP, bytes(50_000_000)).to_pybytes()
    tracemalloc.start()
    try:
        with pytest.raises(CorruptBatchError):
            back(GZIP, bomb[:-4] + struct.pack("<I", 1000))
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


def test_a_size_that_snappy_cannot_reach_is_not_believed():
    with pytest.raises(CorruptBatchError, match="states 2147483647 bytes from 8"):
        back(SNAPPY, b"\xff\xff\xff\xff\x07abc")
    block = snappy.compress(bytes(30_000))
    framed = compression.XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * 3
    assert back(SNAPPY, framed) == bytes(90_000)


def test_a_size_that_zstd_states_wrongly_is_found_out():
    frame = bytearray(zstandard.ZstdCompressor().compress(text(1000)))
    assert frame[4] == 0x60  # single segment, size in two bytes, less 256
    for stated in (0, 743, 745, 65_535):
        frame[5:7] = struct.pack("<H", stated)
        with pytest.raises(CorruptBatchError):
            back(ZSTD, bytes(frame))


def test_the_limit_lets_large_batches_through_and_stays_below_two_gib():
    assert decompressed_limit(0) == decompressed_limit(100_000) == 256 * 1024 * 1024
    assert decompressed_limit(1_000_000) == 1_100_000_000
    assert decompressed_limit(10_000_000) == 2**31 - 1


def test_many_threads_compress_and_decompress_at_once():
    data = [text(60_000 + number) for number in range(4)]
    failures = []

    def work(number: int) -> None:
        for _ in range(5):
            for codec in CODECS:
                if back(codec, compress(codec, data[number])) != data[number]:
                    failures.append((number, codec))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_gzip_is_a_plain_gzip_file():
    assert gzip.decompress(compress(GZIP, b"abc" * 1000).to_pybytes()) == b"abc" * 1000
