"""Lines of JSON as rows, by Arrow's reader: one object a line."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.records.input_files import line_spans, unreadable
from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.format.record_columns import COLUMNS, WRITER_HINT, is_bytes, no_column
from spark_segments.values.rows import gathered, offsets_of
from spark_segments.values.schema_bounds import MOST_DEPTH
from spark_segments.values.text.base64 import decode
from spark_segments.values.text.json_read import one_value_a_row, read_objects
from spark_segments.values.text.json_write import write_json
from spark_segments.values.undecodable import Undecodable

_TEXT = pa.string()
_NUMBER = pa.int64()
_HEADER = ("key", "value", "value_base64")

RECORD_SCHEMA = pa.schema(
    [
        *((name, _TEXT) for name in ("key", "key_base64", "value", "value_base64")),
        ("timestamp", _NUMBER),
        ("partition", _NUMBER),
        ("headers", pa.list_(pa.struct([(name, _TEXT) for name in _HEADER]))),
        ("topic", _TEXT),
        ("offset", _NUMBER),
        ("timestampType", _NUMBER),
    ]
)
"""The parts of a record in a line of JSON. An append assigns the last three itself."""

_NAMES_A_VALUE = r'^[^{]*\{([^{]*,)?\s*"value(_base64)?"\s*:'
"""Of a line that is an object: with one brace before it, the name is none of an object within. Quotes within text are
escaped, so a name behind a comma or a brace is no text."""

_NUMBER_OF = r'("%s"\s*:\s*)(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(\s*[,}])'
"""A member of this name that is a number, at any level. In JSON a name between quotes and before a colon is no text."""

_LONG_NUMBER = r"[0-9][0-9.]{15}|[eE]\+?[0-9]{3}"
"""In every number that a double may not show again."""

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Lines:
    """The lines of a block that are not blank."""

    def __init__(self, block: pa.Buffer, file: str) -> None:
        """Raises InvalidOptionError where they are not UTF-8, which Arrow's reader takes."""
        self.block = block
        starts, sizes = line_spans(block)
        content = np.frombuffer(block, np.uint8)
        is_filled = sizes > 0
        starts = starts[is_filled]
        sizes = sizes[is_filled]
        self.are_objects = bool((content[starts] == ord("{")).all() and (content[starts + sizes - 1] == ord("}")).all())
        """Whether each begins with { and ends with }. Then no object goes on in the next line, for behind its }
        a comma or an end would have to come: so as many objects as lines are one a line."""
        try:
            if self.are_objects:
                text = [None, pa.py_buffer(np.array([0, len(block)])), block]
                pa.Array.from_buffers(pa.large_binary(), 1, text).cast(pa.large_string())
                self._spans = (starts, sizes)
                self._texts = None
            else:
                lines = gathered(block, starts, sizes).cast(_TEXT)
                self._texts = lines.filter(pc.invert(pc.ascii_is_space(lines)))
        except pa.ArrowInvalid as error:
            raise unreadable(file, error) from None

    def __len__(self) -> int:
        return len(self._spans[0]) if self._texts is None else len(self._texts)

    def texts(self) -> pa.StringArray:
        """The lines as an array, which is made where it is needed."""
        if self._texts is None:
            self._texts = gathered(self.block, *self._spans, _TEXT)
        return self._texts


def are_records(lines: Lines) -> bool:
    """Whether all lines are plainly records with values: to read them once more costs less than to find their types."""
    try:
        return bool(_read_lines(lines, RECORD_SCHEMA, "error").column("value").null_count == 0)
    except (pa.ArrowInvalid, Undecodable):
        return False


def inferred_schema(texts: pa.StringArray, file: str) -> pa.Schema:
    """The columns of objects, as Arrow finds their types. Objects of more levels than a schema may have do not count.

    Raises InvalidOptionError for what is no object, and for a column of several types.
    """
    counted = texts.filter(_is_shallow(texts))
    if not len(counted):
        return pa.schema([])
    try:
        objects = one_value_a_row(counted)
    except (pa.ArrowInvalid, Undecodable) as error:
        raise wrong_object(texts, file, 0, error) from None
    if not pa.types.is_struct(objects.type) or objects.null_count:
        raise wrong_object(texts, file, 0, "it has other values than objects")
    return pa.schema(list(objects.type))


def _is_shallow(lines: pa.StringArray) -> Any:
    """bool[lines]: which have no more than MOST_DEPTH levels."""
    offsets = offsets_of(lines)
    content = np.frombuffer(lines.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    brackets = np.flatnonzero(_opens(content))
    is_shallow = np.diff(np.searchsorted(brackets, offsets - offsets[0])) <= MOST_DEPTH
    for row in np.flatnonzero(~is_shallow):
        text = np.frombuffer(
            _STRINGS.sub(b"", content[slice(*(offsets[row : row + 2] - offsets[0]))].tobytes()), np.uint8
        )
        steps = _opens(text).astype(np.int64) - (text | 0x20 == ord("}"))
        is_shallow[row] = steps.cumsum().max(initial=0) <= MOST_DEPTH
    return is_shallow


def _opens(content: np.ndarray) -> Any:
    return content | 0x20 == ord("{")  # or [, which differs in that bit


def read_rows(
    lines: Lines, schema: pa.Schema, texts: Collection[str], file: str, before: int, *, unexpected: str
) -> pa.RecordBatch:
    """The objects of lines as rows. Columns of `texts` are text; a number in them keeps its digits as written.

    `unexpected`: whether a member that the schema lacks is an "error", or left out ("ignore"). `before`: the number
    of objects that precede these in the file. Raises InvalidOptionError.
    """
    try:
        try:
            rows = _read_lines(lines, schema, unexpected)
        except (pa.ArrowInvalid, Undecodable):
            if not texts:
                raise
            rest = _read_lines(lines, pa.schema([field for field in schema if field.name not in texts]), "ignore")
            rows = _read(with_numbers_as_text(lines.texts(), texts), schema, unexpected)
            for name in rest.schema.names:  # the same names lower down have their own types
                rows = rows.set_column(rows.schema.get_field_index(name), rest.schema.field(name), rest.column(name))
    except (pa.ArrowInvalid, Undecodable) as error:
        members = {*schema.names} if unexpected == "error" else None
        raise wrong_object(lines.texts(), file, before, error, members) from None
    if any(_has_double(field.type) for field in schema):
        _check_numbers(lines.texts(), rows, file, before)
    return rows


def _read_lines(lines: Lines, schema: pa.Schema, unexpected: str) -> pa.RecordBatch:
    if not lines.are_objects or not len(schema):
        return _read(lines.texts(), schema, unexpected)
    rows = read_objects(lines.block, schema, unexpected).combine_chunks()
    if rows.num_rows != len(lines):
        raise Undecodable(f"{rows.num_rows} objects on {len(lines)} lines")
    return rows.to_batches()[0]


def _read(texts: pa.StringArray, schema: pa.Schema, unexpected: str) -> pa.RecordBatch:
    objects = one_value_a_row(texts, pa.struct(list(schema)), unexpected=unexpected)
    if objects.null_count:
        raise Undecodable("no object")
    return pa.RecordBatch.from_arrays(objects.flatten(), schema=schema)


def with_numbers_as_text(lines: pa.StringArray, names: Collection[str]) -> pa.StringArray:
    """The lines, with members of these names, at any level, that are numbers as text of the same digits."""
    for name in names:
        spelled = "".join(rf"\x{{{ord(letter):x}}}" for letter in json.dumps(name, ensure_ascii=False)[1:-1])
        lines = pc.replace_substring_regex(lines, pattern=_NUMBER_OF % spelled, replacement=r'\1"\2"\3')
    return lines


def _check_numbers(lines: pa.StringArray, rows: pa.RecordBatch, file: str, before: int) -> None:
    """Raises InvalidOptionError for a number that a double would change: two keys could become one."""
    for row in pc.indices_nonzero(pc.match_substring_regex(lines, _LONG_NUMBER)).to_pylist():
        try:
            written = json.loads(lines[row].as_py(), parse_int=Decimal, parse_float=Decimal)
        except RecursionError as error:
            raise wrong_object(lines, file, before, error) from None
        if not _is_kept({name: rows.column(name)[row].as_py() for name in rows.schema.names}, written):
            raise unreadable(file, f"object {before + row + 1} has a number that a double does not hold")


def _has_double(kind: pa.DataType) -> bool:
    return pa.types.is_floating(kind) or any(_has_double(kind.field(at).type) for at in range(kind.num_fields))


def _is_kept(found: Any, written: Any) -> bool:
    """Whether all numbers of a value that was read equal the numbers in its JSON."""
    if isinstance(found, dict) and isinstance(written, dict):
        return all(_is_kept(found[name], value) for name, value in written.items() if name in found)
    if isinstance(found, list) and isinstance(written, list):
        return all(map(_is_kept, found, written))
    return not isinstance(found, float) or Decimal(repr(found)) == written


def wrong_object(
    lines: pa.StringArray, file: str, before: int, why: object, members: Collection[str] | None = None
) -> InvalidOptionError:
    """The error for lines that Arrow's reader refuses, with the place of the first that is no object, or no record of
    these members; with `why` where there is none.
    """
    for number, line in enumerate(lines.to_pylist(), before + 1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            return unreadable(file, f"object {number} is no JSON ({reason_of(error)})")
        if not isinstance(found, dict):
            return unreadable(file, f"value {number} is no object")
        wrong = None if members is None else no_record(found, members, file, number)
        if wrong is not None:
            return wrong
    reason = why
    if isinstance(why, Undecodable):
        reason = why.reason
    elif isinstance(why, Exception):
        reason = reason_of(why)
    return unreadable(file, str(reason).replace("(/v/[]/", "(/"))  # where one_value_a_row has put the member


def no_record(found: dict[str, Any], members: Collection[str], file: str, number: int) -> InvalidOptionError | None:
    """The error for an object that lacks a value, or has a member that no record has: neither a tombstone nor a record
    without a key may come of a misspelt name.
    """
    place = f"Object {number} of the file is not a record: "
    unknown = next((name for name in found if name not in members), None)
    hint = "A tombstone says so: its value is null" if unknown is None else hint_for(unknown)
    if not {"value", "value_base64"} & found.keys():
        expected = 'an object such as {"key": "a", "value": "b"}'
        return InvalidOptionError(f"{place}no value", path=file, expected=expected, hint=hint)
    if unknown is not None:
        # A name that is like none of a record's may be what somebody's record holds.
        named = "a member that no record has" if hint.startswith(WRITER_HINT) else repr(unknown)
        return InvalidOptionError(f"{place}it has {named}", path=file, hint=hint)
    headers = found["headers"] if isinstance(found.get("headers"), list) else []
    if any(isinstance(header, dict) and not header.keys() <= {*_HEADER} for header in headers):
        return InvalidOptionError(f"{place}a header has other members", path=file, expected=", ".join(_HEADER))
    return None


def decoded(rows: pa.RecordBatch, lines: Lines, file: str, before: int) -> pa.RecordBatch:
    """Objects as records, with the bytes that base64 stands for. Raises InvalidOptionError for a line without a value:
    a misspelt name must not make a tombstone.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    try:
        for name in ("key", "value"):
            columns[name] = _bytes_of(columns[name], columns.pop(f"{name}_base64"))
        headers = columns["headers"]
        pairs = headers.flatten()
        if pairs.field("key").null_count:
            raise ValueError("a header without a key")
        values = [pairs.field("key"), _bytes_of(pairs.field("value"), pairs.field("value_base64")).cast(pa.binary())]
        structs = pa.StructArray.from_arrays(values, fields=[*HEADERS_TYPE.value_type])
        columns["headers"] = pa.ListArray.from_arrays(headers.offsets, structs, HEADERS_TYPE, mask=headers.is_null())
    except ValueError as error:
        raise unreadable(file, error) from None
    _check_values(columns["value"], lines, file, before)
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def hint_for(name: str) -> str:
    """What to do about a column that no record has."""
    _, hint = no_column(name)
    return f"{hint.rstrip('.')}{'' if hint.endswith('?') else '.'} --value-column value leaves all others out"


def _check_values(values: pa.Array, lines: Lines, file: str, before: int) -> None:
    """Raises InvalidOptionError for the first row whose value is null because its line has none."""
    doubtful = pc.indices_nonzero(values.is_null())
    if not len(doubtful):
        return
    found = lines.texts().take(doubtful)
    unclear = pc.invert(pc.match_substring_regex(found, _NAMES_A_VALUE))
    for row, line in zip(doubtful.filter(unclear).to_pylist(), found.filter(unclear).to_pylist(), strict=True):
        members = json.loads(line)
        if not {"value", "value_base64"} & members.keys():
            raise no_record(members, COLUMNS, file, before + row + 1) or AssertionError(line)


def _bytes_of(array: pa.Array, encoded: pa.Array) -> pa.Array:
    """An array of text, with the bytes of its base64 in the rows that have that. binary[] then."""
    if encoded.null_count == len(encoded):
        return array
    try:
        found = decode(encoded)
    except Undecodable as error:
        raise ValueError(error.reason) from None
    return found if array.null_count == len(array) else pc.coalesce(found, as_bytes(array).cast(pa.binary()))


def as_bytes(array: pa.Array) -> pa.Array:
    """A column as keys or values: text and bytes unchanged, nested values as JSON, anything else as text."""
    if is_bytes(array.type):
        return array
    if pa.types.is_nested(array.type):
        return pc.if_else(array.is_valid(), write_json(array), pa.scalar(None, pa.string()))
    return array.cast(pa.string())
