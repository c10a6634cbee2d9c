"""LZ4 and snappy to memory that is there already: what libraries write is read, and bounds hold for any bytes."""

from typing import Any

import lz4.block
import lz4.frame
import numpy as np
import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.kernels import block_codecs
from spark_segments.format.window import Window
from tests.format.uncompiled import granted, uncompiled
from verification.world.kafka_bytes.guarded import Guarded
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes

FUZZ = settings(deadline=None)
INPUT, OUTPUT = Guarded(1 << 20), Guarded(1 << 20)
HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"

# Runs of bytes that repeat after every short distance, and what does not repeat at all.
pieces = st.one_of(
    st.binary(max_size=80),
    st.tuples(st.binary(min_size=1, max_size=40), st.integers(1, 400)).map(lambda one: one[0] * one[1]),
)
texts = st.lists(pieces, max_size=12).map(b"".join)
flips = st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(0, 255)), max_size=3)


def kafka_lz4(data: bytes) -> bytes:
    frame = lz4.frame.compress(
        data, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB, store_size=False, return_bytearray=False
    )
    assert frame[:7] == HEADER
    return frame


def xerial(data: bytes, block_bytes: int = 32768) -> bytes:
    blocks = [snappy.compress(data[start : start + block_bytes]) for start in range(0, len(data), block_bytes)]
    framed = b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    return b"\x82SNAPPY\0" + (1).to_bytes(4, "big") * 2 + framed


def read(codec: str, compressed: bytes, kernels: Any = block_codecs) -> bytes | None:
    """What a kernel gives from memory that ends with the data to memory that ends with what they state."""
    source = INPUT.end - len(INPUT.hold(compressed))
    if codec == "lz4":
        size, decompress = kernels.lz4_room(source, INPUT.end), kernels.lz4_open
    else:
        size, decompress = kernels.snappy_room(source, INPUT.end)[0], kernels.snappy_open
    if not 0 <= size <= OUTPUT.size:
        return None
    written = decompress(source, INPUT.end, OUTPUT.end - size, OUTPUT.end)
    assert written <= size
    return OUTPUT.tail(size)[:written] if written >= 0 else None


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, byte in changes:
        changed[place % len(changed)] = byte
    return bytes(changed)


@FUZZ
@given(texts)
def test_what_libraries_write_is_read(data):
    assert read("lz4", kafka_lz4(data)) == data
    assert read("snappy", snappy.compress(data)) == data
    assert read("snappy", xerial(data)) == data
    assert read("snappy", xerial(data, 100)) == data


def has_distance_of_zero(block: bytes) -> bool:
    """Whether a match of an LZ4 block goes back by nothing."""
    at = 0

    def length(short: int) -> int:
        nonlocal at
        more = 255 if short == 15 else 0
        while more == 255 and at < len(block):
            more = block[at]
            short += more
            at += 1
        return short

    while at < len(block):
        token = block[at]
        at += 1
        literals = length(token >> 4)
        at += literals
        if block[at : at + 2] == bytes(2):
            return True
        at += 2
        length(token & 15)
    return False


@FUZZ
@given(texts.filter(len), flips)
def test_damaged_blocks_give_what_libraries_give_or_nothing(data, changes):
    changed = damaged(lz4.block.compress(data[: 1 << 16], store_size=False), changes)
    found = read("lz4", HEADER + len(changed).to_bytes(4, "little") + changed + bytes(4))
    try:
        expected = lz4.block.decompress(changed, uncompressed_size=1 << 16)
    except lz4.block.LZ4BlockError:
        expected = found
    # The library takes a distance of 0, which the format forbids.
    assert found == expected or (found is None and has_distance_of_zero(changed))
    changed = damaged(snappy.compress(data), changes)
    found = read("snappy", changed)
    assert found is None or changed[:8] == b"\x82SNAPPY\0" or found == snappy.uncompress(changed)


@pytest.mark.parametrize("size", [4, 5, 18, 19, 24, 25, 31, 32, 33, 63, 64, 65, 200])
def test_copies_of_every_distance_and_size(size):
    for distance in (*range(1, 70), 1000):
        start = np.random.default_rng(distance).bytes(distance)
        data = (start * (size // distance + 2))[: distance + size] + b"-and some bytes at the end"
        assert read("lz4", kafka_lz4(data)) == data
        assert read("snappy", snappy.compress(data)) == data


@FUZZ
@given(texts, flips.filter(len), st.integers(0, 1 << 30))
def test_damaged_and_cut_frames_stay_in_bounds(data, changes, cut):
    for codec, frame in (("lz4", kafka_lz4(data)), ("snappy", xerial(data, 64))):
        changed = damaged(frame, changes)
        read(codec, changed)
        read(codec, frame[: cut % (len(frame) + 1)])
        read(codec, changed[: cut % (len(frame) + 1)])


@FUZZ
@given(st.binary(max_size=200))
def test_arbitrary_bytes_stay_in_bounds(data):
    read("snappy", data)
    read("snappy", b"\x82SNAPPY\0" + data)
    read("lz4", HEADER + data)
    read("lz4", HEADER + len(data).to_bytes(4, "little") + data + bytes(4))


@settings(deadline=None)
@given(texts, flips, st.integers(0, 1 << 30))
def test_the_uncompiled_kernels_give_the_same_and_use_no_other_memory(data, changes, cut):
    plain = uncompiled("format.kernels.block_codecs")
    for codec, frame in (("lz4", kafka_lz4(data[:3000])), ("snappy", xerial(data[:3000], 700))):
        for compressed in (frame, damaged(frame, changes)[: cut % (2 * len(frame))]):
            expected = read(codec, compressed)
            with granted((INPUT.end - len(compressed), INPUT.end), (OUTPUT.end - OUTPUT.size, OUTPUT.end)):
                assert read(codec, compressed, plain) == expected


def test_a_stored_block_of_nothing_is_no_end():
    nothing = (1 << 31).to_bytes(4, "little")
    whole = HEADER + nothing + (3 | 1 << 31).to_bytes(4, "little") + b"abc" + bytes(4)
    assert read("lz4", whole) == lz4.frame.decompress(whole) == b"abc"
    assert read("lz4", HEADER + nothing) is None


def test_a_match_does_not_reach_into_the_batch_before():
    """Batches are decompressed one behind the other."""
    good = batch_bytes([Record(b"secret" * 100)], codec="lz4")
    bad = HEADER + (4).to_bytes(4, "little") + b"\x0f\x01\x00\x50" + bytes(4)  # a match before any literal
    sealed = batch_bytes([Record(b"x")], base_offset=1, codec="lz4")
    stored = scan_batches(good + sealed).batches
    section = stored.byte_position[1] + 61
    data = bytearray((good + sealed)[:section] + bad)
    data[len(good) + 8 : len(good) + 12] = (len(data) - len(good) - 12).to_bytes(4, "big")
    scan = scan_batches(bytes(data), check_crc=False)
    assert len(scan.batches) == 2
    with pytest.raises(CorruptBatchError) as caught:
        list(decode_batches(Window(bytes(data), scan.batches, path="x.log"), topic="t", partition=0))
    assert caught.value.byte_position == len(good)
