"""Lines of JSON as rows: records by a kernel where they are as most records are, everything else by Arrow's reader."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from spark_segments.cli.records.input_files import unreadable
from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.log.appending.caller_rows import is_bytes
from spark_segments.values.text import lines
from spark_segments.values.text.base64 import decode
from spark_segments.values.text.json_write import write_json
from spark_segments.values.undecodable import Undecodable

Lines = Callable[[], pa.Array]
"""The lines that rows were, as binary[]: made where they are needed."""

_NAMES_A_VALUE = r'^[^{]*\{([^{]*,)?\s*"value(_base64)?"\s*:'
"""Of a line that is an object: with one brace before it, the name is none of an object within. Quotes within text are
escaped, so a name behind a comma or a brace is no text."""

_OBJECT_BEGINS = r"^\x{FEFF}?\s*\{"  # the first line may have a byte order mark


def count_objects(block: pa.Buffer, file: str, before: int) -> int:
    """How many lines are not blank, quickly where all begin with a brace. `before`: the file's objects before them.

    Raises ArrowInvalid for what is no text, and InvalidOptionError where anything but an object begins a line: Arrow's
    reader would crash at a null that comes first.
    """
    count, braces = lines.count_lines(block)
    if count == braces:
        return int(count)
    begins = pc.match_substring_regex(_filled_lines(block).cast(pa.string()), _OBJECT_BEGINS)
    row: int = pc.index(begins, False).as_py()
    if row >= 0:
        raise unreadable(file, f"value {before + row + 1} is no object")
    return len(begins)


def parsed(block: pa.Buffer, schema: pa.Schema | None = None, *, whole: bool = False) -> pa.Table:
    """The objects of a block. Columns that the schema lacks are left out; where rows are `whole`, they are an error.

    Raises ArrowInvalid for what is no JSON, and for what is not UTF-8, which Arrow's reader takes.
    """
    text = [None, pa.py_buffer(np.array([0, len(block)])), block]
    pa.Array.from_buffers(pa.large_binary(), 1, text).cast(pa.large_string())
    others = "infer" if schema is None else "error" if whole else "ignore"
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    reading = pj.ReadOptions(use_threads=False, block_size=max(len(block) + 1, 1 << 20))  # blocks have threads
    return pj.read_json(pa.BufferReader(block), read_options=reading, parse_options=options)


def read_rows(
    block: pa.Buffer, count: int, schema: pa.Schema, file: str, *, whole: bool
) -> tuple[pa.RecordBatch, Lines]:
    """(the `count` objects of a block, their lines)"""
    try:
        rows = parsed(block, schema, whole=whole)
    except pa.ArrowException as error:
        raise unreadable(file, error) from None
    if rows.num_rows != count:
        raise unreadable(file, f"{rows.num_rows} objects on {count} lines")
    return rows.combine_chunks().to_batches()[0], partial(_filled_lines, block)


def read_records(block: pa.Buffer, count: int, schema: pa.Schema, file: str, before: int) -> pa.RecordBatch:
    """The `count` objects of a block as records, with the bytes that base64 stands for.

    `before`: the file's objects before them. Raises InvalidOptionError for a line without a value: a misspelt name
    must not make a tombstone.
    """
    rows = lines.records(block, count) if schema.equals(lines.RECORD_SCHEMA) else None
    if rows is not None:
        return _decoded(rows, file)
    rows, texts = read_rows(block, count, schema, file, whole=False)
    decoded = _decoded(rows, file)
    _check_values(decoded, texts, file, before)
    return decoded


def _decoded(rows: pa.RecordBatch, file: str) -> pa.RecordBatch:
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    try:
        for name in ("key", "value"):
            columns[name] = _bytes_of(columns[name], columns.pop(f"{name}_base64"))
        headers = columns["headers"]
        pairs = headers.flatten()
        if pairs.field("key").null_count:
            raise ValueError("a header without a key")
        values = [pairs.field("key"), _bytes_of(pairs.field("value"), pairs.field("value_base64")).cast(pa.binary())]
        made = pa.StructArray.from_arrays(values, fields=[*HEADERS_TYPE.value_type])
        columns["headers"] = pa.ListArray.from_arrays(headers.offsets, made, HEADERS_TYPE, mask=headers.is_null())
    except ValueError as error:
        raise unreadable(file, error) from None
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _check_values(rows: pa.RecordBatch, texts: Lines, file: str, before: int) -> None:
    """Raises InvalidOptionError for the first row whose value is null because its line has none."""
    doubtful = pc.indices_nonzero(rows.column("value").is_null())
    if not len(doubtful):
        return
    found = texts().take(doubtful).cast(pa.string())
    unclear = pc.invert(pc.match_substring_regex(found, _NAMES_A_VALUE))
    for row, line in zip(doubtful.filter(unclear).to_pylist(), found.filter(unclear).to_pylist(), strict=True):
        if not {"value", "value_base64"} & json.loads(line).keys():
            raise InvalidOptionError(
                f"Object {before + row + 1} of the file is not a record: no value",
                path=file,
                expected='an object such as {"key": "a", "value": "b"}',
                hint="A tombstone says so: its value is null",
            )


def _bytes_of(array: pa.Array, encoded: pa.Array) -> pa.Array:
    """An array of text, with the bytes of its base64 in the rows that have that. binary[] then."""
    if encoded.null_count == len(encoded):
        return array
    try:
        found = decode(encoded)
    except Undecodable as error:
        raise ValueError(error.reason) from None
    return found if array.null_count == len(array) else pc.coalesce(found, as_bytes(array).cast(pa.binary()))


def _filled_lines(block: pa.Buffer) -> pa.Array:
    """binary[]: the lines of a block that are not blank. Raises ArrowInvalid where they are not UTF-8."""
    [found] = lines.split(block, [])
    text = pc.utf8_trim_whitespace(found.cast(pa.string()))
    return found.filter(pc.greater(pc.binary_length(text), 0))


def as_bytes(array: pa.Array) -> pa.Array:
    """A column as keys or values: text and bytes as they are, what is nested as JSON, anything else as text."""
    if is_bytes(array.type):
        return array
    if pa.types.is_nested(array.type):
        return pc.if_else(array.is_valid(), write_json(array), pa.scalar(None, pa.string()))
    return array.cast(pa.string())
