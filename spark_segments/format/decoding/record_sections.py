"""Addresses of the uncompressed records of many batches, for kernels that read many batches per call.

A batch without a codec is read in place. Compressed batches are decompressed, a bounded number of bytes at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.buffers import byte_view
from spark_segments.format.compression import decompress
from spark_segments.format.decoding.fields import SMALLEST_RECORD
from spark_segments.format.layout import RECORDS_POSITION
from spark_segments.format.window import Window

# Decompressed bytes that are handed out together; a single batch may be larger.
TARGET_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecordSections:
    """The records of rows first … last - 1 of a table, each from address `start` up to address `end`."""

    first: int
    last: int
    start: np.ndarray  # int64[last - first]
    end: np.ndarray  # int64[last - first]
    buffers: list[Any]  # the memory behind the addresses, kept alive by this object


def damaged_record(batches: BatchTable, row: int, at: int, path: str) -> CorruptBatchError:
    """The error for a bad record `at` so many bytes into the uncompressed records of row `row` of a table."""
    return CorruptBatchError(
        f"a record is damaged, {at} bytes into the (uncompressed) records of a batch",
        path=path,
        byte_position=int(batches.byte_position[row]),
        expected=f"{batches.count[row]} whole records",
        found="lengths that do not fit",
    )


def address_of(buffer: Any) -> int:
    """The address of a buffer's first byte."""
    return int(byte_view(buffer).__array_interface__["data"][0])


def record_sections(window: Window, *, wanted: np.ndarray | None = None) -> Iterator[RecordSections]:
    """The sections of all batches of a window (magic 2), in order.

    A batch that is not `wanted` (bool[n]) is not decompressed; its section is empty. Raises CorruptBatchError where a
    section cannot be decompressed or is too short for the records that its batch counts.
    """
    batches, path = window.batches, window.path
    wanted = np.ones(len(batches), np.bool_) if wanted is None else wanted
    byte_position = window.starts
    end = address_of(window.data) + byte_position + batches.size
    start = np.where(wanted, end - batches.size + RECORDS_POSITION, end)
    codec = np.where(wanted, batches.codec, 0)
    view = byte_view(window.data)
    first = filled = 0
    buffers: list[Any] = [view]
    for row in np.flatnonzero(codec).tolist():
        section = view[byte_position[row] + RECORDS_POSITION : byte_position[row] + batches.size[row]]
        buffers.append(decompress(int(codec[row]), section, path=path, byte_position=int(batches.byte_position[row])))
        start[row] = address_of(buffers[-1])
        end[row] = start[row] + len(buffers[-1])
        filled += len(buffers[-1])
        if filled >= TARGET_BYTES:
            yield _checked(batches, wanted, first, row + 1, start, end, buffers, path)
            first, filled, buffers = row + 1, 0, [view]
    if first < len(batches):
        yield _checked(batches, wanted, first, len(batches), start, end, buffers, path)


def _checked(
    batches: BatchTable,
    wanted: np.ndarray,
    first: int,
    last: int,
    start: np.ndarray,
    end: np.ndarray,
    buffers: list[Any],
    path: str,
) -> RecordSections:
    """The sections. Kernels allocate by the counts: CorruptBatchError for a count that the bytes cannot hold."""
    rows = slice(first, last)
    room = (end[rows] - start[rows]) // SMALLEST_RECORD
    lying = wanted[rows] & (batches.count[rows] > room)
    if lying.any():
        row = int(np.argmax(lying))
        raise CorruptBatchError(
            "a record batch counts more records than its bytes can hold",
            path=path,
            byte_position=int(batches.byte_position[first + row]),
            expected=f"at most {room[row]} records",
            found=int(batches.count[first + row]),
        )
    return RecordSections(first, last, start[rows], end[rows], buffers)
