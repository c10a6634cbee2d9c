"""JSON to typed columns, by Arrow's own JSON reader.

Arrow reads lines of a text, and a row must stay a row, so each value is put into a line of a list of one: `{"v":[…]}`.
A value that is no single JSON value then makes an invalid line, and two values make a list of another length. Types
that JSON lacks are read as text or numbers first, then converted: times, dates, decimals, bytes.

A value decodes to the same, or to none, whatever the other rows of its batch are: an index has the values of batches
that a later scan cuts in another way.
"""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.values.column_types import times_of_text, with_leaves
from spark_segments.values.rows import offsets_of
from spark_segments.values.text import base64 as base64_text
from spark_segments.values.undecodable import Undecodable, refused_by_arrow

_HEAD, _TAIL = b'{"v":[', b"]}\n"
_BYTES = pa.large_binary()  # with what is around them, rows of less than 2 GiB may be more
_MOST_INTEGER_DIGITS = 20
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")
_NO_NUMBER = '"(NaN|-?Infinity)"'
_FRACTION = r"\d(\.\d|[eE])"
_TOKEN = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*"?)(\s*:)?|([^\s"{}\[\],:]+)|[{}\[\],]')
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d{1,3})?")
_JSON_NAMES = {
    dict: "object",
    list: "list",
    str: "text",
    bool: "true or false",
    int: "number",
    float: "number",
    decimal.Decimal: "number",
}


class _Misfit(Exception):
    """A JSON value of another type than is wanted. Its text has no value in it."""


def read_json(
    array: pa.BinaryArray, kind: pa.DataType, *, pairs: bool = False, whole_numbers: bool = False
) -> pa.Array:
    """The values of rows without nulls as `kind`. Fields that `kind` lacks are left out, missing fields are null.

    Text may be an ISO date or time, base64 where bytes are wanted; numbers of a decimal may be text too, and "NaN",
    "Infinity" and "-Infinity" are floating-point numbers. `pairs`: maps whose keys are no text are lists of [key,
    value], as Connect has them. `whole_numbers`: 1.0 is an integer, as JSON Schema has it. Raises Undecodable.
    """
    if not len(array):
        return pa.array([], kind)
    array = read_text(array)  # Arrow's reader takes any bytes for text
    on_the_way = _as_json_has_it(kind, pairs)
    if _has(kind, pa.types.is_map):
        return with_leaves(_one_by_one(array, on_the_way), kind, from_text)
    try:
        values = one_value_a_row(array, on_the_way)
    except pa.ArrowInvalid as error:
        values = _read_corrected(array, on_the_way, whole_numbers, error)
    return with_leaves(values, kind, from_text)


def _read_corrected(array: pa.StringArray, kind: pa.DataType, whole_numbers: bool, error: pa.ArrowInvalid) -> pa.Array:
    """The values of rows that Arrow's reader refused with `error`, with the numbers in some of them rewritten. Arrow
    judges all rows, so that a row is read here exactly where it is read alone. Raises Undecodable.
    """
    patterns = [_NO_NUMBER] if _has(kind, pa.types.is_floating) else []
    if whole_numbers and _has(kind, pa.types.is_integer):
        patterns.append(_FRACTION)
    if patterns:
        may_differ = pc.match_substring_regex(array, "|".join(patterns))
        texts = [_with_numbers(text, kind, whole_numbers) for text in array.filter(may_differ).to_pylist()]
        if texts:
            try:
                return one_value_a_row(pc.replace_with_mask(array, may_differ, pa.array(texts, pa.string())), kind)
            except pa.ArrowInvalid as error_of_corrected:
                error = error_of_corrected
    raise Undecodable(f"not the JSON of its type ({reason_of(error)})") from None


def _with_numbers(text: str, kind: pa.DataType, whole_numbers: bool) -> str:
    """The text of a row with numbers as Arrow's reader takes them: NaN in place of "NaN" where `kind` has a
    floating-point number and, with `whole_numbers`, 1 in place of 1.0 where it has an integer. Nothing else changes,
    whatever the text is.
    """
    t = pa.types
    parts = []
    end = 0  # of the text that is in `parts`
    around: list[pa.DataType | None] = []  # the types of the objects and lists that are open
    inner: pa.DataType | None = None  # the type of the innermost
    expected: pa.DataType | None = kind  # the type of the next value; None: `kind` lacks it
    for token in _TOKEN.finditer(text):
        quoted, colon, bare = token.groups()
        mark = token[0]
        if mark in ("{", "["):
            around.append(inner)
            is_fit = expected is not None and (t.is_struct(expected) if mark == "{" else t.is_list(expected))
            inner = expected if is_fit else None
            expected = _type_of_item(inner)
        elif mark in ("}", "]"):
            inner = around.pop() if around else None
            expected = _type_of_item(inner)
        elif colon:
            expected = _type_of_member(inner, quoted)
        elif expected is not None and (quoted or bare):
            number = None
            if quoted and t.is_floating(expected) and re.fullmatch(_NO_NUMBER, quoted):
                number = f" {quoted[1:-1]}"  # a minus sign before the quotes is no part of it
            elif bare and whole_numbers and t.is_integer(expected):
                number = _integer_text(bare)
            if number is not None:
                parts += [text[end : token.start()], number]
                end = token.end()
    return "".join([*parts, text[end:]])


def _type_of_item(kind: pa.DataType | None) -> pa.DataType | None:
    """The type of the items of a list, None for other types."""
    return kind.value_type if kind is not None and pa.types.is_list(kind) else None


def _type_of_member(kind: pa.DataType | None, name: str) -> pa.DataType | None:
    """The type of an object's member by its name as JSON has it, None where the type has no such field."""
    if kind is None or not pa.types.is_struct(kind):
        return None
    try:
        at = kind.get_field_index(json.loads(name))
    except ValueError:  # an escape that JSON lacks, or half of a surrogate pair
        return None
    return kind.field(at).type if at >= 0 else None


def _integer_text(number: str) -> str | None:
    """The digits of a number that is an integer, None for others."""
    if not _NUMBER.fullmatch(number):
        return None
    value = decimal.Decimal(number)
    return str(int(value)) if _is_whole(value) else None


def read_text(array: pa.BinaryArray) -> pa.StringArray:
    """Text of UTF-8. Raises Undecodable."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        raise Undecodable("not UTF-8") from None


def one_value_a_row(array: pa.Array, kind: pa.DataType | None = None, *, unexpected: str = "ignore") -> pa.Array:
    """The JSON value of each row (text or binary, without nulls, at least one row), as `kind`; None: as the type that
    Arrow finds them to have, which takes a stack and a time that grow with the square of the levels of a value.

    `unexpected`: what becomes of fields that `kind` lacks, as in pyarrow.json.ParseOptions. Raises pa.ArrowInvalid for
    other JSON, Undecodable for a row that is not one value.
    """
    head, tail, nothing = (pa.scalar(text, _BYTES) for text in (_HEAD, _TAIL, b""))
    lines = pc.binary_join_element_wise(head, array.cast(_BYTES), tail, nothing)
    offsets = offsets_of(lines)
    schema = None if kind is None else pa.schema([pa.field("v", pa.list_(kind))])
    text = lines.buffers()[2][offsets[0] : offsets[-1]]
    table = read_objects(text, schema, unexpected)
    if schema is None:
        try:
            table.validate(full=True)
        except pa.ArrowInvalid:  # Arrow's reader loses nulls with which a list begins, while it seeks the list's type
            table = read_objects(
                text, pa.schema([pa.field("v", _with_items(table.schema.field("v").type))]), unexpected
            )
    lists = table.column("v").combine_chunks()
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    lengths = pc.list_value_length(lists)
    if len(lists) != len(array) or lists.null_count or not pc.all(pc.equal(lengths, 1)).as_py():
        raise Undecodable("not one JSON value")
    return lists.flatten()


def _with_items(kind: pa.DataType) -> pa.DataType:
    """The type, with text for the items of a list that are all null: Arrow's reader loses them, too."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_with_items(kind.value_type))
    return (
        pa.struct([pa.field(field.name, _with_items(field.type)) for field in kind])
        if pa.types.is_struct(kind)
        else kind
    )


def read_objects(text: pa.Buffer, schema: pa.Schema | None, unexpected: str) -> pa.Table:
    """The objects of a text, one behind the other, wherever its lines end. Raises pa.ArrowInvalid.

    `schema` and `unexpected` as `one_value_a_row` has them.
    """
    return pa.json.read_json(
        pa.BufferReader(text),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(text) + 1, 1 << 16)),
        parse_options=pa.json.ParseOptions(
            explicit_schema=schema,
            newlines_in_values=True,
            unexpected_field_behavior="infer" if schema is None else unexpected,
        ),
    )


def check_json(text: pa.StringArray) -> pa.StringArray:
    """The same text, each checked to be a JSON value. Raises Undecodable."""
    if not len(text):
        return text
    try:
        one_value_a_row(text, pa.struct([]))
    except (pa.ArrowInvalid, Undecodable):  # of rows that are no objects, or no JSON
        _check_one_by_one(text)
    return text


def _check_one_by_one(text: pa.StringArray) -> None:
    for row, value in enumerate(text.to_pylist()):
        try:
            json.loads(value)
        except (ValueError, RecursionError) as error:
            raise Undecodable(f"not JSON ({reason_of(error)})", row) from None


def _has(kind: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one within it, is one of those."""
    return is_wanted(kind) or any(_has(kind.field(at).type, is_wanted) for at in range(kind.num_fields))


def _one_by_one(array: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """For objects of any keys, which Arrow's reader does not make maps of."""
    rows = []
    for row, value in enumerate(array.to_pylist()):
        try:
            rows.append(_as_arrow_takes_it(json.loads(value, parse_float=decimal.Decimal), kind))
            pa.scalar(rows[-1], kind)
        except (_Misfit, ValueError, TypeError, ArithmeticError, RecursionError, pa.ArrowException) as error:
            why = str(error) if isinstance(error, _Misfit) else reason_of(error)
            raise Undecodable(f"not the JSON of its type ({why})", row) from None
    return pa.array(rows, kind)


def _as_arrow_takes_it(value: Any, kind: pa.DataType) -> Any:
    t = pa.types
    if value is None:
        return None
    if t.is_struct(kind) and isinstance(value, dict):
        return {field.name: _as_arrow_takes_it(value.get(field.name), field.type) for field in kind}
    if t.is_map(kind) and isinstance(value, dict if t.is_string(kind.key_type) else list):
        items = value.items() if isinstance(value, dict) else value
        return [
            (_as_arrow_takes_it(key, kind.key_type), _as_arrow_takes_it(item, kind.item_type)) for key, item in items
        ]
    if t.is_list(kind) and isinstance(value, list):
        return [_as_arrow_takes_it(item, kind.value_type) for item in value]
    if t.is_floating(kind) and (type(value) in (int, decimal.Decimal) or value in _NO_NUMBERS):
        return float(value)
    if t.is_decimal(kind) and type(value) in (int, str):
        number = decimal.Decimal(value)
        if not number.is_finite():  # Arrow would make a null of it
            raise _Misfit(f"text that is no number where {kind} is wanted")
        return number
    if t.is_integer(kind) and type(value) is decimal.Decimal and _is_whole(value):
        return int(value)
    wrong_number = t.is_integer(kind) and type(value) is not int
    is_nested = t.is_nested(kind) or isinstance(value, (dict, list))  # Arrow takes "" for a struct
    if wrong_number or isinstance(value, bool) != t.is_boolean(kind) or is_nested:
        raise _Misfit(f"a {_JSON_NAMES[type(value)]} where {kind} is wanted")
    return value


def _is_whole(number: decimal.Decimal) -> bool:
    """Whether a number is an integer, of a size that a type has."""
    return number.adjusted() < _MOST_INTEGER_DIGITS and number == number.to_integral_value()


def _as_json_has_it(kind: pa.DataType, pairs: bool) -> pa.DataType:
    """The type that Arrow's reader is asked for."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([pa.field(field.name, _as_json_has_it(field.type, pairs)) for field in kind])
    if t.is_list(kind):
        return pa.list_(pa.field("element", _as_json_has_it(kind.value_type, pairs)))
    if t.is_map(kind):
        if not (pairs or t.is_string(kind.key_type)):
            raise InvalidOptionError("The keys of a map in JSON must be text", found=kind.key_type)
        return pa.map_(kind.key_type, pa.field("value", _as_json_has_it(kind.item_type, pairs)))
    if t.is_binary(kind) or t.is_temporal(kind):
        return pa.string()
    return kind


def from_text(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Text as bytes (base64), a date, a time of day or a timestamp (ISO 8601; UTC where no zone is named)."""
    t = pa.types
    if array.type == kind:
        return array
    with refused_by_arrow():
        if t.is_binary(kind):
            return base64_text.decode(array)
        return times_of_text(array, kind) if t.is_time(kind) or t.is_timestamp(kind) else array.cast(kind)
