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
from spark_segments.format.decoding.fields import ADDRESS, CODEC, END, POSITION, SECTION_FIELDS, SMALLEST_RECORD
from spark_segments.format.decoding.section_opener import OPENED_BYTES, SectionOpener
from spark_segments.format.layout import RECORDS_POSITION
from spark_segments.format.window import Window

# Decompressed bytes that are handed out together; a single batch may be larger.
TARGET_BYTES = OPENED_BYTES


@dataclass(frozen=True, slots=True)
class RecordSections:
    """The records of rows first … last - 1 of a table, each from address `start` up to address `end`. Valid until the
    next sections are taken.
    """

    first: int
    last: int
    start: np.ndarray  # int64[last - first]
    end: np.ndarray  # int64[last - first]


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


def record_sections(window: Window, *, mask: np.ndarray | None = None) -> Iterator[RecordSections]:
    """The sections of all batches of a window (magic 2), in order.

    `mask` (bool[n]; None: all) selects the batches that are read: another batch is not decompressed, and its section is
    empty. Raises CorruptBatchError where a section cannot be decompressed or is too short for the records that its
    batch counts.
    """
    batches = window.batches
    path = window.path
    mask = np.ones(len(batches), np.bool_) if mask is None else mask
    byte_position = window.starts
    end = address_of(window.data) + byte_position + batches.size
    start = np.where(mask, end - batches.size + RECORDS_POSITION, end)
    rows = np.flatnonzero(mask & (batches.codec != 0))
    sections = np.empty((len(rows), SECTION_FIELDS), np.int64)
    sections[:, ADDRESS] = start[rows]
    sections[:, END] = end[rows]
    sections[:, POSITION] = batches.byte_position[rows]
    sections[:, CODEC] = batches.codec[rows]
    opener = SectionOpener(window, sections)
    first = opened = 0
    while opened < len(rows):
        count = opener.open(opened, TARGET_BYTES)
        of_call = slice(opened, opened + count)
        start[rows[of_call]] = sections[of_call, ADDRESS]
        end[rows[of_call]] = sections[of_call, END]
        opened += count
        # What lies behind them and needs no memory comes with them.
        last = int(rows[opened]) if opened < len(rows) else len(batches)
        yield _checked(batches, mask, first, last, start, end, path)
        first = last
    if first < len(batches):
        yield _checked(batches, mask, first, len(batches), start, end, path)


def _checked(
    batches: BatchTable,
    mask: np.ndarray,
    first: int,
    last: int,
    start: np.ndarray,
    end: np.ndarray,
    path: str,
) -> RecordSections:
    """The sections. Kernels allocate by the counts: CorruptBatchError for a count that the bytes cannot hold."""
    rows = slice(first, last)
    room = (end[rows] - start[rows]) // SMALLEST_RECORD
    lying = mask[rows] & (batches.count[rows] > room)
    if lying.any():
        row = int(np.argmax(lying))
        raise CorruptBatchError(
            "a record batch counts more records than its bytes can hold",
            path=path,
            byte_position=int(batches.byte_position[first + row]),
            expected=f"at most {room[row]} records",
            found=int(batches.count[first + row]),
        )
    return RecordSections(first, last, start[rows], end[rows])
