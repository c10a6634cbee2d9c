"""CSV lines (RFC 4180, without a header line), by Arrow's CSV reader and string kernels.

A row must stay a row, so each line is read with a number before it that nobody can guess, and the numbers must come
out in their order. An empty field is null; text that is empty is written as "".
"""

from __future__ import annotations

import re
import secrets

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.encoding.arrow_buffers import one_array
from spark_segments.values.text.json_read import from_text
from spark_segments.values.text.json_write import plain_text
from spark_segments.values.undecodable import Undecodable

_NUMBER = "\0row"
_COUNTS = re.compile(r"Expected (\d+) columns, got (\d+)")
_MAY_BE_EMPTY = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)


def check_type(kind: pa.DataType) -> None:
    """Raises InvalidOptionError unless `kind` is a struct of plain fields."""
    if not pa.types.is_struct(kind) or any(pa.types.is_nested(field.type) for field in kind):
        raise InvalidOptionError("CSV needs columns of plain types", expected="a bigint, b string", found=kind)


def read_csv(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """The fields of each line as a struct. Raises Undecodable."""
    check_type(kind)
    if not len(array):
        return pa.array([], kind)
    start = secrets.randbits(40)
    numbers = pa.array(range(start, start + len(array)), pa.int64())
    lines = pc.binary_join_element_wise(
        numbers.cast(pa.string()).cast(pa.binary()), pc.binary_join_element_wise(array, pa.scalar(b"\n"), b""), b","
    )
    text = b"".join(lines.to_pylist()) if lines.offset else lines.buffers()[2]
    types = {field.name: pa.string() if _by_text(field.type) else field.type for field in kind}
    try:
        table = pa.csv.read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(
                column_names=[_NUMBER, *types], use_threads=False, block_size=max(len(text) + 1, 1 << 16)
            ),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa.csv.ConvertOptions(
                column_types={_NUMBER: pa.int64(), **types},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        ).combine_chunks()
    except pa.ArrowInvalid as error:
        counts = _COUNTS.search(str(error))  # with that of the number before each line
        why = f"Expected {int(counts[1]) - 1} columns, got {int(counts[2]) - 1}" if counts else reason_of(error)
        raise Undecodable(f"not the CSV of its columns ({why})") from None
    if not table.column(_NUMBER).equals(pa.chunked_array([numbers])):
        raise Undecodable("not one line of CSV")
    columns = (one_array(table.column(field.name)) for field in kind)
    children = [from_text(column, field.type) for column, field in zip(columns, kind, strict=True)]
    return pa.StructArray.from_arrays(children, fields=list(kind))


def write_csv(array: pa.StructArray) -> pa.StringArray:
    """Each row as a line without its end. Text with a comma, a quote or a line's end is quoted."""
    check_type(array.type)
    parts = []
    for at, field in enumerate(array.type):
        text = plain_text(array.field(at))
        if any(check(field.type) for check in _MAY_BE_EMPTY):
            risky = pc.match_substring_regex(text, '^$|[",\r\n]')
            escaped = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
            text = pc.if_else(risky, escaped, text)
        parts.append(pc.fill_null(text, ""))
    return pc.binary_join_element_wise(*parts, ",")


def _by_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_temporal(kind))
