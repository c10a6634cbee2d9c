"""The hash by which an index knows a key: the low half of XXH3-128, with the index's seed, cut to its highest bits."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_segments.format.cleaner import map_kernels
from spark_segments.format.encoding.arrow_buffers import binary_view
from spark_segments.format.kernels.key_hash import hash_of, seeded_secret

HASH_BITS = 48
"""Among 100 million keys of a run, one look-up in three million finds the entry of another key: it costs a read."""


def hashes_of(keys: pa.Array, seed: int, hash_bits: int = HASH_BITS) -> tuple[np.ndarray, np.ndarray]:
    """(uint64[n], bool[n]): the hash of each of binary[n], and whether there is a key; the hash of null is not set."""
    count = len(keys)
    hashed = np.zeros(3 * count, np.int64)
    map_kernels.hash_rows(*binary_view(keys, "key", count), count, seed, seeded_secret(seed), hashed)
    columns = hashed.reshape(count, 3)
    low = columns[:, 0].view(np.uint64)
    return low >> np.uint64(64 - hash_bits), columns[:, 2] != 0


def seed_of(topic_id: str) -> int:
    """The seed of a topic's index: two builds have the same one, and hashes of two topics cannot be compared."""
    return hash_of(topic_id.encode())[0]
