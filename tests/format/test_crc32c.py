"""CRC-32C: the instruction, the table and the uncompiled kernel against published values and the package crc32c."""

from __future__ import annotations

import crc32c as package
import numpy as np
import pytest

from spark_segments.format.kernels import crc32c
from tests.format.uncompiled import granted, uncompiled

RANDOM = np.random.default_rng(7).integers(0, 256, 70_000, dtype=np.uint8).tobytes()
KERNELS = {"instruction": crc32c.crc32c, "table": crc32c.table_crc32c}


def test_check_value_of_the_polynomial():
    assert crc32c.crc32c(b"123456789") == 0xE3069283
    assert crc32c.crc32c(b"") == 0
    assert crc32c.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_short_length_and_alignment_equals_the_package(kernel):
    for start in range(8):
        for size in range(80):
            part = memoryview(RANDOM)[start : start + size]
            assert kernel(part) == package.crc32c(part), (start, size)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("around", [3 * 128, 3 * 1024, 3 * 8192, 3 * 8192 + 3 * 1024, 6 * 8192, 65_536])
def test_lengths_around_the_interleaved_blocks_equal_the_package(kernel, around):
    for size in (around - 9, around - 1, around, around + 1, around + 7, around + 8, around + 9):
        part = memoryview(RANDOM)[3 : 3 + size]
        assert kernel(part) == package.crc32c(part)


def test_the_uncompiled_kernel_equals_the_package_and_reads_nothing_else():
    kernel = uncompiled("format.kernels.crc32c")
    view = np.frombuffer(RANDOM, np.uint8)
    with granted():
        assert kernel.crc32c(view[:100]) == package.crc32c(RANDOM[:100])
        start = view.__array_interface__["data"][0]
    with granted((start, start + 10)):
        assert kernel.crc32c_range(start + 1, start + 10) == package.crc32c(RANDOM[1:10])
        with pytest.raises(MemoryError, match="1 bytes at"):
            kernel.crc32c_range(start + 1, start + 11)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_crc_goes_on_from_the_bytes_before(kernel):
    for cut in (0, 1, 7, 8, 1000, 50_000, len(RANDOM)):
        assert kernel(RANDOM[cut:], kernel(RANDOM[:cut])) == package.crc32c(RANDOM)


def test_any_buffer_is_taken():
    expected = package.crc32c(RANDOM)
    assert crc32c.crc32c(bytearray(RANDOM)) == expected
    assert crc32c.crc32c(memoryview(RANDOM)) == expected
    assert crc32c.crc32c(np.frombuffer(RANDOM, np.uint8)) == expected
