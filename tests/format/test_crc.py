"""CRC-32C: kernels with and without the processor's instruction, against published values and the crc32c package."""

from __future__ import annotations

import os
import subprocess
import sys

import crc32c as package
import numpy as np
import pytest

from spark_segments.format.kernels import crc
from spark_segments.format.kernels.jit import byte_view

KERNELS = {"instructions": crc.crc32c_range, "table": crc.table_crc32c_range}
RANDOM = np.random.default_rng(7).integers(0, 256, 70_000, dtype=np.uint8).tobytes()


def test_check_value_of_the_polynomial():
    assert crc.crc32c(b"123456789") == 0xE3069283
    assert crc.crc32c(b"") == 0
    assert crc.crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_every_short_length_and_alignment_equals_the_package(kernel):
    view = byte_view(RANDOM)
    for start in range(8):
        for size in range(80):
            assert kernel(view, start, start + size) == package.crc32c(RANDOM[start : start + size]), (start, size)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("around", [3 * 256, 6 * 256, 3 * 8192, 3 * 8192 + 3 * 256, 6 * 8192, 65_536])
def test_lengths_around_the_interleaved_blocks_equal_the_package(kernel, around):
    view = byte_view(RANDOM)
    for size in (around - 9, around - 1, around, around + 1, around + 7, around + 8, around + 9):
        assert kernel(view, 3, 3 + size) == package.crc32c(RANDOM[3 : 3 + size])


WITHOUT_INSTRUCTION = """
import crc32c, numpy
from spark_segments.format.kernels import crc
from spark_segments.format.kernels.jit import byte_view
assert crc.crc32c_range is crc.table_crc32c_range
data = numpy.random.default_rng(1).bytes(10_000)
assert crc.crc32c_range(byte_view(data), 7, 9_999) == crc32c.crc32c(data[7:9_999])
"""


@pytest.mark.slow
def test_a_processor_without_the_instruction_takes_the_table():
    """numba compiles for the oldest processor of its architecture when it is told to."""
    environment = {**os.environ, "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    done = subprocess.run([sys.executable, "-c", WITHOUT_INSTRUCTION], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_any_buffer_is_taken_without_a_copy_of_it_being_asked_for():
    expected = package.crc32c(RANDOM)
    assert crc.crc32c(bytearray(RANDOM)) == expected
    assert crc.crc32c(memoryview(RANDOM)) == expected
    assert crc.crc32c(np.frombuffer(RANDOM, np.uint8)) == expected
