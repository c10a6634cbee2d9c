"""Reading records as far as their keys: the cleaner needs no more of a record that it drops.

Values and headers are skipped, so damage inside them is found by those who decode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.decoding.record_sections import RecordSections
from spark_segments.format.kernels.jit import MEMORY, njit, read_varint, read_varlong
from spark_segments.format.kernels.key_hash import key_hash

HAS_KEY = 1
TOMBSTONE = 2


class KeyRows(NamedTuple):
    """What is known of n records, an array each; a tuple, because kernels take those."""

    start: np.ndarray  # int64: address of the record
    offset: np.ndarray  # int64
    low: np.ndarray  # uint64: lower half of the key's hash
    high: np.ndarray  # uint64
    flags: np.ndarray  # uint8: HAS_KEY | TOMBSTONE


def key_rows(rows: int) -> KeyRows:
    """Room for so many records."""
    return KeyRows(*(np.empty(rows, dtype) for dtype in (np.int64, np.int64, np.uint64, np.uint64, np.uint8)))


@njit
def read_keys(position, end, base_offset, count, seed, secret, rows, row):
    """Reads `count` records from address `position` up to `end` into `rows` from `row` on. Returns the row after the
    last.

    The result is -1 - p if the record at address p, or what follows the last record, is not what the batch says.
    """
    for _ in range(count):
        start = position
        length, position = read_varint(MEMORY, start, end)
        if position < 0 or length < 1 or length > end - position:
            return -1 - start
        record_end = position + length
        _, position = read_varlong(MEMORY, position + 1, record_end)
        if position < 0:
            return -1 - start
        offset_delta, position = read_varint(MEMORY, position, record_end)
        if position < 0:
            return -1 - start
        key_size, position = read_varint(MEMORY, position, record_end)
        if position < 0 or key_size < -1 or key_size > record_end - position:
            return -1 - start
        flag = 0
        if key_size >= 0:
            flag = HAS_KEY
            rows.low[row], rows.high[row] = key_hash(MEMORY, position, key_size, seed, secret)
            position += key_size
        value_size, position = read_varint(MEMORY, position, record_end)
        if position < 0 or value_size < -1 or value_size > record_end - position:
            return -1 - start
        if value_size < 0:
            flag |= TOMBSTONE
        rows.start[row] = start
        rows.offset[row] = base_offset + offset_delta
        rows.flags[row] = flag
        row += 1
        position = record_end
    if count > 0 and position != end:
        return -1 - position
    return row


def bad_record(batches: BatchTable, sections: RecordSections, row: int, address: int, path: str) -> CorruptBatchError:
    """The error for the result -1 - `address` of `read_keys` in row `row` of `batches` and their `record_sections`."""
    return CorruptBatchError(
        f"a record is damaged, {address - int(sections.start[row])} bytes into the (uncompressed) records of a batch",
        path=path,
        position=int(batches.position[row]),
        expected=f"{batches.count[row]} whole records",
        found="lengths that do not fit",
    )
