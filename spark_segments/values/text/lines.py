"""Lines of text: how many there are, their parts, and the records that they are as objects of JSON.

A block has whole lines, of less than 2 GiB together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_segments.values.rows import gathered
from spark_segments.values.text.fields import HEADERS, KEY, MEMBERS, TEXTS, VALUE, VALUE_BASE64
from spark_segments.values.text.line_kernels import count_lines as count_lines
from spark_segments.values.text.line_kernels import record_spans, split_lines

_HEADER = {"key": KEY, "value": VALUE, "value_base64": VALUE_BASE64}

_TEXT, _NUMBER = pa.string(), pa.int64()
_HEADERS_TYPE = pa.list_(pa.struct([(name, _TEXT) for name in _HEADER]))

RECORD_SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in ("key", "key_base64", "value", "value_base64")),
        ("timestamp", _NUMBER),
        ("partition", _NUMBER),
        ("headers", _HEADERS_TYPE),
    ]
)
"""The parts of a record as a line of JSON has them."""

_NAMES = "".join(RECORD_SCHEMA.names).encode()
_NAME_ENDS = np.cumsum([len(name) for name in RECORD_SCHEMA.names])


class Unseparated(Exception):
    """A line lacks a separator: which line, which of the separators, and the bytes in which it was sought."""

    def __init__(self, row: int, separator: int, size: int) -> None:
        super().__init__(row, separator, size)
        self.row, self.separator, self.size = row, separator, size


def split(block: pa.Buffer, separators: Sequence[bytes]) -> list[pa.BinaryArray]:
    """What is before, between and behind the separators of each line, each separator at its first place.

    A line ends with \\n or \\r\\n. Raises Unseparated.
    """
    rows, _ = count_lines(block)
    spans = np.empty((len(separators) + 1, 2, rows), np.int64)
    ends = np.cumsum([len(one) for one in separators], dtype=np.int64)
    row, part = split_lines(block, b"".join(separators), ends, spans, rows)
    if row < rows:
        raise Unseparated(row, part, int(spans[part, 1, row]))
    return [gathered(block, starts, sizes) for starts, sizes in spans]


def records(block: pa.Buffer, rows: int) -> pa.RecordBatch | None:
    """The `rows` lines that are not blank as records of RECORD_SCHEMA: what Arrow's reader of JSON makes of them.

    None for what is left to that reader: what is no JSON, and JSON that records seldom have. Where there is a batch,
    each line has a value, be it null.
    """
    text = np.empty(len(block), np.uint8)
    spans, numbers = np.empty((TEXTS, 2, rows), np.int64), np.zeros((2, rows), np.int64)
    valid, header_ends = np.empty((MEMBERS - TEXTS, rows), np.uint8), np.empty(rows + 1, np.int32)
    room, headers = -1, 2 * rows
    while room < headers:
        room = headers
        header_spans = np.empty((TEXTS, 2, room), np.int64)
        found, headers = record_spans(
            block, _NAMES, _NAME_ENDS, text, spans, numbers, valid, header_ends, header_spans
        )  # fmt: skip
    if found != rows:
        return None
    columns = [gathered(text, starts, sizes, _TEXT) for starts, sizes in spans]
    bits = [pa.py_buffer(np.packbits(one, bitorder="little")) for one in valid]
    for is_valid, ticks in zip(bits, numbers, strict=False):
        columns.append(pa.Array.from_buffers(_NUMBER, rows, [is_valid, pa.py_buffer(ticks)]))
    starts, sizes = header_spans[:, 0, :headers], header_spans[:, 1, :headers]
    texts = [gathered(text, starts[part], sizes[part], _TEXT) for part in _HEADER.values()]
    pairs = pa.StructArray.from_arrays(texts, names=list(_HEADER))
    content = [bits[HEADERS - TEXTS], pa.py_buffer(header_ends)]
    columns.append(pa.Array.from_buffers(_HEADERS_TYPE, rows, content, children=[pairs]))
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)
