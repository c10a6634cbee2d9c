from __future__ import annotations

import random

import pytest
import xxhash

from spark_segments.format.kernels.key_hash import hash_of

SEEDS = [0, 1, 0x9E3779B185EBCA8D, 2**64 - 1]


def test_published_value_of_no_bytes():
    assert hash_of(b"") == 0x99AA06D3014798D86001C324468D497F


@pytest.mark.parametrize("seed", SEEDS)
def test_every_length_equals_the_reference_implementation(seed):
    random_bytes = random.Random(seed).randbytes
    # All ways to hash: up to 3, 8, 16, 128, 240 bytes; above, stripes of 64 and blocks of 1024.
    for size in [*range(520), 1023, 1024, 1025, 1087, 1088, 1089, 2048, 2049, 10_000]:
        key = random_bytes(size)
        assert hash_of(key, seed) == xxhash.xxh3_128_intdigest(key, seed=seed), size


def test_any_buffer_is_a_key():
    assert hash_of(memoryview(b"-key-")[1:4]) == hash_of(bytearray(b"key")) == hash_of(b"key")
