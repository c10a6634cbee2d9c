"""What a kernel reads of zstd frames: their size, and whether a frame is all that there is."""

from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.format.kernels import block_codecs
from spark_segments.format.kernels.framing import ZSTD_UNSTATED
from tests.format.uncompiled import granted, uncompiled
from verification.world.kafka_bytes.guarded import Guarded

INPUT = Guarded(1 << 18)
texts = st.lists(st.tuples(st.binary(max_size=40), st.integers(1, 400)).map(lambda pair: pair[0] * pair[1])).map(
    b"".join
)
flips = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=3)


def stated(frame: bytes, kernels: Any = block_codecs) -> int:
    """What a kernel says of a frame that ends with the memory."""
    start = INPUT.end - len(INPUT.hold(frame))
    sizes = np.empty(1, np.int64)
    with granted((start, INPUT.end)):
        kernels.zstd_sizes(np.array([start]), np.array([INPUT.end]), sizes)
    return int(sizes[0])


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_791, 65_792, 200_000])
@pytest.mark.parametrize("checksum", [False, True])
def test_the_size_of_a_frame_is_what_it_states(size, checksum):
    data = bytes(range(256)) * (size // 256 + 1)
    for content in (data[:size], bytes(size)):
        frame = zstandard.ZstdCompressor(write_checksum=checksum).compress(content)
        assert stated(frame) == size
        unsized = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=False).compress(content)
        assert stated(unsized) == ZSTD_UNSTATED
        for two in (frame + frame, unsized + frame, frame + b"x", frame[:-1], unsized[:-1]):
            assert stated(two) == -1


@settings(deadline=None)
@given(texts, flips, st.integers(0, 1 << 30), st.booleans())
def test_any_bytes_give_the_same_uncompiled_and_stay_in_bounds(data, changes, cut, sized):
    frame = bytearray(zstandard.ZstdCompressor(write_content_size=sized).compress(data[:3000]))
    for place, byte in changes:
        frame[place % len(frame)] = byte
    for compressed in (bytes(frame), bytes(frame[: cut % (len(frame) + 1)]), data[:100]):
        assert stated(compressed, uncompiled("format.kernels.block_codecs")) == stated(compressed)
