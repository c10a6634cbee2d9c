"""Lines of text out of columns: a batch of records is joined by Arrow, and written at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import escaped_bytes

PIECE_BYTES = 4 << 20
"""Bytes of records whose lines are made at a time, on average: a record batch may have a thousand times as many."""

_BYTES = pa.large_binary()  # lines of a piece may be longer than offsets of 32 bits say
_NOTHING = pa.scalar(b"", _BYTES)

Shown = Callable[[pa.Array], pa.Array]
"""How a column of a record is shown: as it is, or without what a terminal would obey."""


def for_terminal(column: pa.Array) -> pa.LargeBinaryArray:
    """The column's texts or bytes without what a terminal would obey."""
    return pa.array([None if one is None else escaped_bytes(one) for one in as_bytes(column).to_pylist()], _BYTES)


def as_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """Bytes as they are, text as UTF-8, and numbers as text."""
    return (column.cast(pa.string()) if pa.types.is_integer(column.type) else column).cast(_BYTES)


def timestamps_ms(records: pa.RecordBatch) -> pa.Array:
    return pc.divide(records["timestamp"].cast(pa.int64()), 1000)


def header_texts(headers: pa.ListArray, between: bytes, null: bytes, shown: Shown = as_bytes) -> pa.LargeBinaryArray:
    """The headers of each record, with commas between them."""
    pairs = headers.flatten()
    keys, values = shown(pairs.field("key")), shown(pairs.field("value"))
    return joined_lists(headers, join([keys, between, values], len(pairs), null), b",")


def joined_lists(lists: pa.ListArray, items: pa.LargeBinaryArray, between: bytes) -> pa.LargeBinaryArray:
    """The items of each list as one, with bytes between them. `items`: those of all lists, one behind the other."""
    if not len(items):
        return pa.repeat(_NOTHING, len(lists))
    ends = pc.cumulative_sum(pc.list_value_length(lists).cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(between, _BYTES))


def join(parts: Sequence[pa.Array | bytes], rows: int, null: bytes = b"") -> pa.LargeBinaryArray:
    """The parts of each row as one: a column's value, or the same bytes in all rows. `null` stands for nulls."""
    columns = [pa.scalar(part, _BYTES) if isinstance(part, bytes) else as_bytes(part) for part in parts]
    return pc.binary_join_element_wise(
        *columns, pa.repeat(_NOTHING, rows), null_handling="replace", null_replacement=null
    )


def pieces(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about PIECE_BYTES."""
    rows = max(1, records.num_rows * PIECE_BYTES // max(records.nbytes, 1))
    for first in range(0, records.num_rows, rows):
        yield records.slice(first, rows)


def write_lines(stream: BinaryIO, lines: pa.LargeBinaryArray) -> None:
    """Writes the lines, one behind the other, without a copy."""
    if len(lines):
        first, last = np.frombuffer(lines.buffers()[1], np.int64)[[lines.offset, lines.offset + len(lines)]].tolist()
        stream.write(memoryview(lines.buffers()[2] or b"")[first:last])
