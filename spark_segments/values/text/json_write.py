"""Typed columns to JSON text, by Arrow's string kernels: each field's text is made as a column, and joined.

Without white space, fields in the order of their column, nulls written as null, as Jackson does for Kafka's Java
clients. Text is UTF-8 with only what must be escaped escaped. Bytes are base64, times ISO 8601. JSON has no NaN and no
infinities: they are the text "NaN", "Infinity" and "-Infinity", as Jackson writes them, too.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError
from spark_segments.values.rows import offsets_of
from spark_segments.values.text import base64 as base64_text
from spark_segments.values.text.text_kernels import json_strings
from spark_segments.values.undecodable import Undecodable

_NULL = pa.scalar("null")
_FIRST_DAY, _LAST_DAY = -719162, 2932896  # of the years 1 and 9999, in days since 1970


def _table(escapes: dict[int, str], delete_bytes: int) -> np.ndarray:
    """How many bytes of JSON each byte takes, as json_strings writes it; `delete_bytes`: the bytes of DEL."""
    table = np.zeros(384, np.uint8)
    table[:128] = 1
    table[127] = delete_bytes
    if escapes:
        table[:32] = 6
    for code, letter in escapes.items():
        table[code] = 2
        table[256 + code] = ord(letter)
    return table


_ESCAPES = {ord(letter): letter for letter in '"\\'} | dict(zip(b"\b\t\n\f\r", "btnfr", strict=True))
_STRING, _SAFE_STRING, _SAFE_JSON = _table(_ESCAPES, 1), _table(_ESCAPES, 6), _table({}, 6)


def write_json(array: pa.Array) -> pa.StringArray:
    """The JSON text of each row; a null row is the text null."""
    return pc.coalesce(_text(array), _NULL)


def quoted(text: pa.Array, *, is_safe: bool = False) -> pa.LargeBinaryArray:
    """Text (text or bytes, with offsets of either width) as JSON strings; null stays null, and so do bytes that are not
    UTF-8. `is_safe`: with \\u in place of what `errors.escaped` escapes.
    """
    return _json_strings(text, _SAFE_STRING if is_safe else _STRING, is_string=True, is_safe=is_safe)


def without_orders(text: pa.Array) -> pa.LargeBinaryArray:
    """JSON text with \\u in place of what `errors.escaped` escapes: the same JSON; null stays null."""
    return _json_strings(text, _SAFE_JSON, is_string=False, is_safe=True)


def _json_strings(text: pa.Array, table: np.ndarray, *, is_string: bool, is_safe: bool) -> pa.LargeBinaryArray:
    offsets = offsets_of(text)
    sizes = np.empty(len(text), np.int64)
    data = (text.buffers()[2] or b"") if len(text) else b""
    json_strings(data, offsets, sizes, None, table, is_string, is_safe)
    if text.null_count:
        sizes[text.is_null().to_numpy(zero_copy_only=False)] = -1
    starts = np.concatenate([[0], np.cumsum(np.maximum(sizes, 0))])
    out = np.empty(int(starts[-1]), np.uint8)
    json_strings(data, offsets, sizes, out, table, is_string, is_safe)
    valid = pa.py_buffer(np.packbits(sizes >= 0, bitorder="little")) if (sizes < 0).any() else None
    return pa.Array.from_buffers(pa.large_binary(), len(text), [valid, pa.py_buffer(starts), pa.py_buffer(out)])


def plain_text(array: pa.Array) -> pa.StringArray:
    """A column of plain values as text without quotes: what JSON and CSV write. Null stays null."""
    t = pa.types
    kind = array.type
    if t.is_floating(kind):
        text = array.cast(pa.string())
        if _is_finite(array):
            return text
        named = pc.if_else(pc.is_nan(array), "NaN", pc.if_else(pc.greater(array, 0), "Infinity", "-Infinity"))
        return pc.if_else(pc.is_finite(array), text, named)
    if t.is_date(kind) or t.is_timestamp(kind):
        _check_years(array)
    if t.is_timestamp(kind):
        shown = pc.binary_replace_slice(array.cast(pa.timestamp(kind.unit)).cast(pa.string()), 10, 11, "T")
        return pc.binary_join_element_wise(shown, "Z", "") if kind.tz else shown
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return base64_text.encode(array.cast(pa.binary())).cast(pa.string())
    if t.is_decimal(kind):
        return _decimal_text(array)
    try:
        return array.cast(pa.string())
    except pa.ArrowNotImplementedError as error:
        raise InvalidOptionError("JSON has no such type", found=kind, hint="Cast the column first") from error


def _is_finite(array: pa.Array) -> bool:
    """Whether JSON has all these floating-point numbers."""
    return bool(pc.all(pc.is_finite(array), min_count=0).as_py())


def _check_years(array: pa.Array) -> None:
    """Raises Undecodable unless all years have four digits: Arrow writes other years in another form."""
    days = array.cast(pa.date32(), safe=False).cast(pa.int32())
    least, most = (day.as_py() for day in pc.min_max(days).values())
    if least is not None and not (least >= _FIRST_DAY and most <= _LAST_DAY):
        raise Undecodable("a date outside of the years 1 to 9999")


def _decimal_text(array: pa.Array) -> pa.StringArray:
    text = array.cast(pa.string())
    if pc.any(pc.match_substring(text, "E")).as_py():  # Arrow writes some numbers with an exponent
        return pa.array([None if number is None else f"{number:f}" for number in array.to_pylist()], pa.string())
    return text


def _text(array: pa.Array) -> pa.StringArray:
    t = pa.types
    kind = array.type
    if isinstance(array, pa.DictionaryArray):
        return _text(array.dictionary_decode())
    if t.is_null(kind):
        return pa.nulls(len(array), pa.string())
    if t.is_struct(kind):
        return _object(array)
    if t.is_list(kind) or t.is_large_list(kind):
        unsliced = _unsliced(array.cast(pa.list_(kind.value_type)))
        return _bracketed("[", _joined(unsliced, write_json(unsliced.values)), "]")
    if t.is_map(kind):
        unsliced = _unsliced(array)
        pairs = pc.binary_join_element_wise(
            quoted(plain_text(unsliced.keys)).cast(pa.string()), write_json(unsliced.items), ":"
        )
        return _bracketed("{", _joined(unsliced, pairs), "}")
    text = plain_text(array)
    if t.is_floating(kind) and not _is_finite(array):
        return pc.if_else(pc.is_finite(array), text, quoted(text).cast(pa.string()))
    bare = t.is_integer(kind) or t.is_floating(kind) or t.is_boolean(kind) or t.is_decimal(kind)
    return text if bare else quoted(text).cast(pa.string())


def _object(array: pa.StructArray) -> pa.StringArray:
    parts: list[pa.Array | pa.Scalar] = []
    for at, (field, child) in enumerate(zip(array.type, array.flatten(), strict=True)):
        name = json.dumps(field.name, ensure_ascii=False)
        parts += [pa.scalar(("," if at else "{") + name + ":"), write_json(child)]
    if not parts:
        objects = pa.repeat(pa.scalar("{}"), len(array))
    else:
        objects = pc.binary_join_element_wise(*parts, pa.scalar("}"), "")
    return pc.if_else(array.is_valid(), objects, pa.scalar(None, pa.string())) if array.null_count else objects


def _unsliced(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array]) if array.offset == 0 else pa.concat_arrays([array.slice(0, 0), array])


def _joined(array: pa.Array, items: pa.StringArray) -> pa.StringArray:
    """The items' text of each list with commas between; null where the list is."""
    offsets = array.buffers()[1]
    if offsets is None or not len(array):
        return pa.array([], pa.string())
    content = [array.buffers()[0], offsets]
    texts = pa.Array.from_buffers(pa.list_(pa.string()), len(array), content, offset=array.offset, children=[items])
    return pc.binary_join(texts, ",")


def _bracketed(opening: str, text: pa.StringArray, closing: str) -> pa.StringArray:
    return pc.binary_join_element_wise(opening, text, closing, "")
