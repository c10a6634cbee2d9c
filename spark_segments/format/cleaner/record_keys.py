"""Room for records that are read as far as their keys, and the error for one that is damaged.

The cleaner needs no more of a record that it drops. Values and headers are skipped, so damage inside them is found by
those who decode.
"""

from __future__ import annotations

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.cleaner.layout import GROUP, KEY_ROW_BYTES
from spark_segments.format.decoding.record_sections import RecordSections


def key_rows(largest_batch: int) -> np.ndarray:
    """uint8[]: the `rows` of kernels, room for GROUP records and for a batch of so many."""
    return np.empty(KEY_ROW_BYTES * max(GROUP, largest_batch), np.uint8)


def bad_record(batches: BatchTable, sections: RecordSections, row: int, address: int, path: str) -> CorruptBatchError:
    """The error for a bad record at an address in row `row` of `batches` and their `record_sections`."""
    return CorruptBatchError(
        f"a record is damaged, {address - int(sections.start[row])} bytes into the (uncompressed) records of a batch",
        path=path,
        byte_position=int(batches.byte_position[row]),
        expected=f"{batches.count[row]} whole records",
        found="lengths that do not fit",
    )
