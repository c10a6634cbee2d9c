"""What a kernel reads of the data of gzip and zstd: their size, and whether a frame of zstd is all that there is."""

import gzip
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.format.kernels import block_codecs
from spark_segments.format.layout import GZIP, ZSTD
from tests.format.uncompiled import granted, uncompiled
from verification.world.kafka_bytes.guarded import Guarded

INPUT = Guarded(1 << 18)
GUESS = 77
BOUNDS = (64, 1 << 20, 0, GUESS, 1100, 1 << 28, 2**31 - 1)
texts = st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 400)).map(lambda pair: pair[0] * pair[1])).map(
    b"".join
)
flips = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=3)


def stated(frame: bytes, kernels: Any = block_codecs, codec: int = ZSTD) -> int:
    """What a kernel says of a frame that ends with the memory."""
    start = INPUT.end - len(INPUT.hold(frame))
    sizes = np.empty((2, 1), np.int64)
    with granted((start, INPUT.end)):
        assert kernels.stated_sizes(codec, np.array([start]), np.array([INPUT.end]), 1, BOUNDS, sizes) == 1
    return int(sizes[0, 0])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 200_000])
@pytest.mark.parametrize("checksum", [False, True])
def test_the_size_of_a_frame_is_what_it_states(size, checksum):
    data = bytes(range(256)) * (size // 256 + 1)
    for content in (data[:size], bytes(size)):
        frame = zstandard.ZstdCompressor(write_checksum=checksum).compress(content)
        assert stated(frame) == size
        unsized = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=False).compress(content)
        assert stated(unsized) == GUESS
        for two in (frame + frame, unsized + frame, frame + b"x", frame[:-1], unsized[:-1]):
            assert stated(two) == -1


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_the_size_in_the_trailer_of_gzip_is_read(size):
    data = gzip.compress(bytes(size))
    for kernels in (block_codecs, uncompiled("format.kernels.block_codecs")):
        assert stated(data, kernels, GZIP) == stated(data[-18:], kernels, GZIP) == size
        assert stated(data[-17:], kernels, GZIP) == -1


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_no_more_is_read_than_states_what_is_wanted(codec):
    """Of damaged data the kernel takes the size that they have."""
    compressor = gzip.compress if codec == GZIP else zstandard.ZstdCompressor().compress
    parts = [compressor(bytes(1000)), b"x" * 500, compressor(bytes(1000)), compressor(bytes(1000))]
    if codec == GZIP:
        parts[1] = b"x"
    data = np.frombuffer(b"".join(parts), np.uint8)
    ends = np.cumsum(list(map(len, parts))) + data.__array_interface__["data"][0]
    starts = ends - list(map(len, parts))
    second = len(parts[1])
    for kernels in (block_codecs, uncompiled("format.kernels.block_codecs")):
        with granted((starts[0], ends[-1])):
            counts = [
                kernels.stated_sizes(codec, starts, ends, wanted, BOUNDS, np.empty((2, 4), np.int64))
                for wanted in (1, 1000, 1001, 1000 + second, 1001 + second, 5000)
            ]
        assert counts == [1, 1, 2, 2, 3, 4]


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
@pytest.mark.parametrize(
    ("bounds", "most"),
    [
        ((64, 10, 8, 9, 1100, 1 << 20, 1 << 31), 64 * 200),
        ((1, 999, 8, 9, 1100, 1 << 20, 1 << 31), 999),
        ((64, 10, 8, 9, 5, 7, 1 << 31), 1000),
        ((64, 10, 8, 9, 5, 7, 900), 900),
    ],
)
def test_what_is_believed_is_within_its_bounds(codec, bounds, most):
    """Where gzip's data may give more than the limit, no size is believed: the library takes none."""
    data = np.zeros(200, np.uint8)
    start = data.__array_interface__["data"][0]
    for kernels in (block_codecs, uncompiled("format.kernels.block_codecs")):
        stated_bytes = np.empty((2, 1), np.int64)
        with granted((start, start + 200)):
            kernels.stated_sizes(codec, np.array([start]), np.array([start + 200]), 1, bounds, stated_bytes)
        assert stated_bytes[1, 0] == (-1 if codec == GZIP and most == 900 else most)


@settings(deadline=None)
@given(texts, flips, st.integers(0, 1 << 30), st.booleans())
def test_any_bytes_give_the_same_uncompiled_and_stay_in_bounds(data, changes, cut, sized):
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=sized).compress(data[:3000]))
    for place, byte in changes:
        frame[place % len(frame)] = byte
    for compressed in (bytes(frame), bytes(frame[: cut % (len(frame) + 1)]), data[:100]):
        assert stated(compressed, uncompiled("format.kernels.block_codecs")) == stated(compressed)
