"""The hash by which an index knows a key, or the value of a field: the low half of XXH3-128 with its seed, cut to its
highest bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_segments.format.cleaner import map_kernels
from spark_segments.format.encoding.arrow_buffers import binary_view
from spark_segments.format.kernels.key_hash import hash_of, seeded_secret
from spark_segments.log import RecordField

HASH_BITS = 48
"""Among 100 million keys of a run, one look-up in three million finds the entry of another key: it costs a read."""


UNDECODABLE = b"\xffundecodable"
"""Stands for the value of a record that cannot be decoded, in the index of a field: no text in UTF-8."""


def hashed_entries(
    field: RecordField, batch: pa.RecordBatch, seed: int, hash_bits: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """(hashes uint64[n], rows int64[n], how many rows cannot be decoded) of a batch's entries, by row. A row has a hash
    once, whatever its values. Of a row that may be decoded later that is the hash of UNDECODABLE.
    """
    rows, values, undecodable = field.entries(batch)
    hashes, _ = hashes_of(values, seed, hash_bits)
    if len(undecodable) and field.may_decode_later:
        rows = np.concatenate([rows, undecodable])
        hashes = np.concatenate([hashes, np.repeat(hashes_to_find([UNDECODABLE], seed, hash_bits), len(undecodable))])
    if (np.diff(rows) <= 0).any():
        order = np.lexsort((hashes, rows))
        rows, hashes = rows[order], hashes[order]
        is_first = np.append(True, (np.diff(rows) != 0) | (hashes[1:] != hashes[:-1]))
        rows, hashes = rows[is_first], hashes[is_first]
    return hashes, rows, len(undecodable)


def hashes_to_find(values: Sequence[bytes], seed: int, hash_bits: int) -> np.ndarray:
    """uint64[n], sorted, each once: the hashes of values to look for."""
    hashes, _ = hashes_of(pa.array(values, pa.binary()), seed, hash_bits)
    return np.unique(hashes)


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
