"""What kernels are made of, uncompiled: varints by their rule in Python, loads and stores by `struct`, refusals."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_segments.format.buffers import byte_view
from spark_segments.format.kernels import memory
from tests.format.twin import Bytes, DamageError
from verification.world.kafka_bytes.twin_encode import varint

SETTINGS = settings(deadline=None)
EDGES = [0, 1, -1, 63, 64, -64, -65, 8191, 8192, 2**20, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("number", EDGES)
def test_varlongs_at_the_edges(number):
    out = np.zeros(10, np.uint8)
    with memory.granted():
        start = memory.address_of(out)
        size = memory.write_varlong(start, number) - start
        assert out[:size].tobytes() == varint(number)
        assert memory.varlong_size(number) == size
        assert memory.read_varlong(start, start + size) == (number, start + size)
        for end in range(size):
            assert memory.read_varlong(start, start + end) == (0, -1)
        if -(2**31) <= number < 2**31:
            assert memory.read_varint(start, start + size) == (number, start + size)


@SETTINGS
@given(st.binary(min_size=1, max_size=12), st.integers(0, 12))
@example(b"\xff" * 12, 12)
@example(b"\xff\xff\xff\xff\x7f", 5)
@example(b"\xff" * 9 + b"\x7f", 10)
def test_any_bytes_read_as_the_twin_reads_them(data, end):
    end = min(end, len(data))
    with memory.granted():
        start = memory.address_of(data)
        for read, method in ((memory.read_varint, Bytes.varint), (memory.read_varlong, Bytes.varlong)):
            plain = Bytes(data[:end])
            try:
                expected = method(plain), start + end - len(plain)
            except DamageError:
                expected = 0, -1
            assert read(start, start + end) == expected


@SETTINGS
@given(st.integers(-(2**63), 2**63 - 1))
def test_stores_are_big_endian_and_loads_read_them(number):
    out = np.zeros(20, np.uint8)
    raw = struct.pack(">q", number)
    with memory.granted():
        at = memory.address_of(out)
        memory.store_i16(at + 1, number)
        memory.store_i32(at + 3, number)
        memory.store_i64(at + 7, number)
        memory.copy_bytes(at + 15, memory.address_of(b"abcdefgh") + 2, 5)
        numbers = (
            memory.load_i16(at + 1), memory.load_i32(at + 3), memory.load_u32(at + 3), memory.load_i64(at + 7),
            memory.load_i8(at + 1),
        )  # fmt: skip
    assert out.tobytes() == b"\0" + raw[-2:] + raw[-4:] + raw + b"cdefg"
    assert numbers == (*struct.unpack(">hiIq", raw[-2:] + raw[-4:] * 2 + raw), struct.unpack(">b", raw[-2:-1])[0])


def test_memory_that_was_not_granted_is_refused():
    with memory.granted():
        start = memory.address_of(np.zeros(8, np.uint8))
        for use in (lambda: memory.load_i64(start + 1), lambda: memory.store_i8(start + 8, 0)):
            with pytest.raises(MemoryError, match="were not granted"):
                use()
    with pytest.raises(MemoryError, match="were not granted"):
        memory.load_u8(start)


def test_a_read_only_view_is_made_of_any_buffer():
    for buffer in (b"abc", bytearray(b"abc"), memoryview(b"abc"), np.frombuffer(b"abc", np.uint8)):
        view = byte_view(buffer)
        assert (view.tobytes(), view.flags.writeable) == (b"abc", False)
    source = bytearray(b"abc")
    byte_view(source)
    source[0] = 1  # the source itself stays writable
