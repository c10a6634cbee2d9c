"""XXH3-128 of keys, compiled and not, against the package xxhash."""

from __future__ import annotations

import random

import pytest
import xxhash

from spark_segments.format.kernels import key_hash
from tests.format.uncompiled import granted, uncompiled

SEEDS = [0, 1, 0x9E3779B185EBCA8D, 2**64 - 1]
# All ways to hash: up to 3, 8, 16, 128, 240 bytes; above, stripes of 64 and blocks of 1024.
EDGES = [*range(20), 127, 128, 129, 159, 160, 239, 240, 241, 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049]


def number(halves: tuple[int, int]) -> int:
    return halves[1] << 64 | halves[0]


def test_published_value_of_no_bytes():
    assert number(key_hash.hash_of(b"")) == 0x99AA06D3014798D86001C324468D497F


@pytest.mark.parametrize("seed", SEEDS)
def test_every_length_equals_the_reference_implementation(seed):
    random_bytes = random.Random(seed).randbytes
    for size in [*range(520), *EDGES, 10_000]:
        key = random_bytes(size)
        assert number(key_hash.hash_of(key, seed)) == xxhash.xxh3_128_intdigest(key, seed=seed), size


@pytest.mark.parametrize("seed", SEEDS)
def test_the_uncompiled_kernel_reads_the_key_and_nothing_else(seed):
    kernel = uncompiled("format.kernels.key_hash")
    for size in EDGES:
        key = random.Random(size).randbytes(size)
        with granted():
            assert number(kernel.hash_of(key, seed)) == xxhash.xxh3_128_intdigest(key, seed=seed), size


def test_any_buffer_is_a_key():
    assert (
        key_hash.hash_of(memoryview(b"-key-")[1:4]) == key_hash.hash_of(bytearray(b"key")) == key_hash.hash_of(b"key")
    )
