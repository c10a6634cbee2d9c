"""JSON as Kafka Connect's JsonConverter writes it, with the schema's envelope (schemas.enable=true) or without.

An envelope is {"schema": …, "payload": …}. Nearly all rows of a topic carry the same schema, to the byte, so rows are
taken by what stands before their payload. Connect's logical types are Decimal (base64 of its unscaled bytes), Date
(days), Time and Timestamp (milliseconds). Rules: org.apache.kafka.connect.json.JsonConverter.
"""

from __future__ import annotations

import contextlib
import json
import re
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError
from spark_segments.values.avro import write as avro_write
from spark_segments.values.avro.read import reader_of
from spark_segments.values.avro.schema import MOST_DIGITS, TIME, UTC, Node
from spark_segments.values.column_types import map_entries, struct_of, valid_bits, with_leaves
from spark_segments.values.rows import offsets_of, without
from spark_segments.values.schema_bounds import check_bounds, compact
from spark_segments.values.text.json_read import read_json
from spark_segments.values.text.json_write import write_json
from spark_segments.values.undecodable import Undecodable, refused_by_arrow
from spark_segments.values.widening import widened

_DATA = "org.apache.kafka.connect.data."
_PLAIN = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "float32": pa.float32(),
    "double": pa.float64(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL = {f"{_DATA}Date": pa.date32(), f"{_DATA}Time": TIME, f"{_DATA}Timestamp": UTC}
_SPACE, _COLON, _COMMA = re.compile(r"\s*"), re.compile(r"\s*:\s*"), re.compile(r"\s*(?:,\s*(?=\")|(?=\}))")
_HEAD, _MIDDLE = '{"schema":', ',"payload":'


def type_of_schema(schema: Any, columns: pa.DataType | None = None) -> pa.DataType:
    """The Arrow type of a Connect schema (as JSON values); of the fields of structs those that `wanted` has, too.
    Raises InvalidOptionError.
    """
    try:
        return _type_of(schema, columns, 0)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError, pa.ArrowException) as error:
        if isinstance(error, InvalidOptionError):
            raise
        raise InvalidOptionError("The text is no schema of Connect: a part is missing, or has another type") from None


def _type_of(schema: Any, columns: pa.DataType | None, depth: int) -> pa.DataType:
    check_bounds("a part of a schema of Connect", 0, depth)
    if not isinstance(schema, dict) or "type" not in schema:
        raise InvalidOptionError(
            "The text is no schema of Connect", expected='{"type": "struct", …}', found=type(schema).__name__
        )
    kind = schema["type"]
    name = schema.get("name")
    if name == f"{_DATA}Decimal":
        return _type_of_decimal(schema)
    if name in _LOGICAL:
        return _LOGICAL[name]
    if kind in _PLAIN:
        return _PLAIN[kind]
    t = pa.types
    if kind == "array":
        item = columns.value_type if columns is not None and t.is_list(columns) else None
        return pa.list_(pa.field("element", _type_of(schema["items"], item, depth + 1)))
    if kind == "map":
        item = columns.item_type if columns is not None and t.is_map(columns) else None
        key = _type_of(schema["keys"], None, depth + 1)
        return pa.map_(key, pa.field("value", _type_of(schema["values"], item, depth + 1)))
    if kind == "struct":
        types = {} if columns is None or not t.is_struct(columns) else {field.name: field.type for field in columns}
        fields = [
            pa.field(field["field"], _type_of(field, types.get(field["field"]), depth + 1))
            for field in schema["fields"]
            if not types or field["field"] in types
        ]
        return struct_of(fields, "A struct of the schema of Connect")
    raise InvalidOptionError(
        "Unknown type of a Connect schema", expected=", ".join((*_PLAIN, "array", "map", "struct"))
    )


def _type_of_decimal(schema: Any) -> pa.DataType:
    scale = int((schema.get("parameters") or {}).get("scale", 0))
    if not 0 <= scale <= MOST_DIGITS:
        # Oracle's NUMBER without a scale has 127 in Connect's JDBC source
        raise InvalidOptionError(
            f"A Decimal of Connect has the scale {scale}, and decimals of Spark have 0 to {MOST_DIGITS}: "
            "leave the field out, by value.schema"
        )
    return pa.decimal128(MOST_DIGITS, scale)


def schema_of(kind: pa.DataType) -> dict[str, Any]:
    """The Connect schema of a column, all of it optional, with its entries in JsonConverter's order."""
    t = pa.types
    if t.is_struct(kind):
        fields = [schema_of(field.type) | {"field": field.name} for field in kind]
        return {"type": "struct", "fields": fields, "optional": True}
    if t.is_list(kind):
        return {"type": "array", "items": schema_of(kind.value_type), "optional": True}
    if t.is_map(kind):
        key = {"type": "string", "optional": False}
        return {"type": "map", "keys": key, "values": schema_of(kind.item_type), "optional": True}
    if t.is_decimal(kind):
        logical: dict[str, Any] = {"name": f"{_DATA}Decimal", "version": 1, "parameters": {"scale": str(kind.scale)}}
        return {"type": "bytes", "optional": True} | logical
    logical_name = _logical_name(kind)
    if logical_name is not None:
        name = {"Timestamp": "int64"}.get(logical_name, "int32")
        return {"type": name, "optional": True, "name": f"{_DATA}{logical_name}", "version": 1}
    names = {plain: name for name, plain in _PLAIN.items() if name not in ("float32", "float64")}
    if kind not in names:
        raise InvalidOptionError("Connect has no such type", found=kind, hint="Cast the column before it is written")
    return {"type": names[kind], "optional": True}


def read(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Rows without an envelope as `kind`. The decimals of a row are base64, or JSON numbers (decimal.format=NUMERIC):
    text is base64 alone. Raises Undecodable.
    """
    try:
        return _read_base64(array, kind)
    except Undecodable as error:
        if not _has_decimals(kind):
            raise
        with contextlib.suppress(Undecodable):
            return _read_numeric(array, kind)
        is_numeric = np.array([_has_numbers(row, kind) for row in array.to_pylist()])
        if is_numeric.all() or not is_numeric.any():
            raise error from None
    parts = [(_read_numeric, np.flatnonzero(is_numeric)), (_read_base64, np.flatnonzero(~is_numeric))]
    values = pa.concat_arrays([read_rows(array.take(pa.array(rows)), kind) for read_rows, rows in parts])
    order = np.argsort(np.concatenate([rows for _, rows in parts]), kind="stable")
    return values.take(pa.array(order))


def _read_base64(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Rows whose decimals are base64 of their unscaled bytes. Raises Undecodable."""
    return _typed(read_json(array, _carried(kind, pa.binary()), pairs=True), kind)


def _read_numeric(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Rows whose decimals are numbers. Raises Undecodable, also for a decimal that is text."""
    values = _typed(read_json(array, _carried(kind, None), pairs=True), kind)
    # Arrow's reader makes decimals of text, too, but no floating-point numbers.
    read_json(array, _carried(kind, pa.float64()), pairs=True)
    return values


def _has_decimals(kind: pa.DataType) -> bool:
    return pa.types.is_decimal(kind) or any(_has_decimals(kind.field(at).type) for at in range(kind.num_fields))


def _has_numbers(row: bytes, kind: pa.DataType) -> bool:
    """Whether any decimal of a row is a JSON number."""
    try:
        return _is_number_within(json.loads(row), kind)
    except (ValueError, RecursionError):
        return False


def _is_number_within(value: Any, kind: pa.DataType) -> bool:
    t = pa.types
    if t.is_struct(kind) and isinstance(value, dict):
        return any(field.name in value and _is_number_within(value[field.name], field.type) for field in kind)
    if t.is_list(kind) and isinstance(value, list):
        return any(_is_number_within(item, kind.value_type) for item in value)
    if t.is_map(kind) and isinstance(value, dict):
        return any(_is_number_within(item, kind.item_type) for item in value.values())
    if t.is_map(kind) and isinstance(value, list):
        return any(
            isinstance(pair, list) and len(pair) == 2 and _is_number_within(pair[1], kind.item_type) for pair in value
        )
    return t.is_decimal(kind) and type(value) in (int, float)


def type_of_envelope(row: bytes) -> pa.DataType:
    """The type that a row's schema says. Raises Undecodable, also for an envelope without a schema."""
    head = _head(row) or _head(_usual(0, row))
    if head is None:
        raise Undecodable("not the envelope of a schema and a payload")
    kind = _type_of_text(head[1], None)
    if kind is None:
        raise Undecodable("an envelope without a schema: give value.schema")
    return kind


def read_envelopes(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Rows with their envelopes, as `kind`.

    Fields are found by name, and a field that a row's schema lacks is null. A null, or no value, in a field that has a
    default in the row's schema is that default, and in a field that is required an error, as JsonConverter reads them.
    Raises Undecodable.
    """
    parts, places = [], []
    rest = pa.array(range(len(array)), pa.int64())
    while len(rest):
        rows = array.take(rest)
        first = _head(rows[0].as_py())
        if first is None:  # members in another order, or white space
            array = pa.array([_usual(row, text) for row, text in enumerate(array.to_pylist())], pa.binary())
            rows = array.take(rest)
            first = _head(rows[0].as_py())
        if first is None:
            raise Undecodable("not the envelope of a schema and a payload")
        head, schema = first
        own = _type_of_text(schema, kind)
        alike = pc.and_(pc.starts_with(rows, head), pc.ends_with(rows, b"}"))
        here = rows.filter(alike)
        if not len(here) or pc.min(pc.binary_length(here)).as_py() <= len(head):
            raise Undecodable("not the envelope of a schema and a payload")
        values = read(without(here, len(head), 1), kind if own is None else own)
        if own is not None:
            values = _without_missing(values, json.loads(schema))
        parts.append(widened(values, kind))
        places.append(rest.filter(alike))
        rest = rest.filter(pc.invert(alike))
    if not parts:
        return pa.array([], kind)
    return pa.concat_arrays(parts).take(pc.sort_indices(pa.concat_arrays(places)))


def write(array: pa.Array) -> pa.StringArray:
    """Rows without an envelope."""
    return write_json(_untyped(array))


def write_envelopes(array: pa.Array) -> pa.StringArray:
    """Rows with the schema of their type."""
    head = _HEAD + compact(schema_of(array.type)) + _MIDDLE
    return pc.binary_join_element_wise(head, write(array), "}", "")


def _head(row: bytes) -> tuple[bytes, str] | None:
    """(the bytes before a row's payload, its schema); None for an envelope that is written in another way."""
    try:
        text = row.decode()
        opening = text.index(":") + 1
        if text[:opening].replace(" ", "") != _HEAD:
            return None
        at = opening + len(text[opening:]) - len(text[opening:].lstrip())
        _, end = json.JSONDecoder().raw_decode(text, at)
        payload = text.index(":", end) + 1
        if text[end:payload].replace(" ", "") != _MIDDLE or not text.endswith("}"):
            return None
    except (ValueError, RecursionError):
        return None
    return text[:payload].encode(), text[at:end]


def _usual(row: int, content: bytes) -> bytes:
    """An envelope as JsonConverter writes it. Raises Undecodable."""
    try:
        text = content.decode()
        decoder = json.JSONDecoder()
        members = dict[str, str]()
        at = _SPACE.match(text, text.index("{") + 1).end()  # type: ignore[union-attr]
        while text[at] != "}":
            name, at = decoder.raw_decode(text, at)
            begin = _COLON.match(text, at).end()  # type: ignore[union-attr]
            _, at = decoder.raw_decode(text, begin)
            members[name] = text[begin:at]
            at = _COMMA.match(text, at).end()  # type: ignore[union-attr]
        if members.keys() != {"schema", "payload"} or text[: text.index("{")].strip() or text[at + 1 :].strip():
            raise ValueError
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError):
        raise Undecodable("not the envelope of a schema and a payload", row) from None
    return f"{_HEAD}{members['schema']}{_MIDDLE}{members['payload']}}}".encode()


def _without_missing(array: pa.Array, schema: Any) -> pa.Array:
    """Rows with the defaults of their schema's fields in place of nulls, and so within them. Raises Undecodable for a
    null in a part that is required.
    """
    t = pa.types
    kind = array.type
    if t.is_struct(kind):
        schemas = {field["field"]: field for field in schema["fields"]}
        valid = array.is_valid()
        children = [
            _present(child, schemas[field.name], f"the field {field.name}", valid)
            for child, field in zip(array.flatten(), kind, strict=True)
        ]
        return pa.Array.from_buffers(kind, len(array), [valid_bits(array)], children=children)
    if not (t.is_list(kind) or t.is_map(kind)):
        return array
    unsliced = pa.concat_arrays([array]) if array.offset else array
    if t.is_map(kind):
        child = map_entries(unsliced.keys, _present(unsliced.items, schema["values"], "a value of a map"))
    else:
        child = _present(unsliced.values, schema["items"], "an item of an array")
    return pa.Array.from_buffers(kind, len(unsliced), unsliced.buffers()[:2], children=[child])


def _present(array: pa.Array, schema: Any, name: str, within: pa.BooleanArray | None = None) -> pa.Array:
    """A part of rows without what is missing. `within`: the rows that have the struct around it."""
    if array.null_count and schema.get("default") is not None:
        [default] = read(pa.array([json.dumps(schema["default"]).encode()], pa.binary()), array.type)
        array = pc.if_else(array.is_valid(), array, default)
    elif array.null_count and schema.get("optional") is not True:
        missing = array.is_null() if within is None else pc.and_(array.is_null(), within)
        if pc.any(missing).as_py():
            raise Undecodable(f"{name} is required by the schema of the row, and has no value")
    return _without_missing(array, schema)


@lru_cache(maxsize=64)
def _type_of_text(schema: str, columns: pa.DataType | None) -> pa.DataType | None:
    if schema == "null":
        return None
    try:
        return type_of_schema(json.loads(schema), columns)
    except InvalidOptionError as error:
        raise Undecodable(f"an envelope whose schema cannot be read here ({error.message})") from None


def _logical_name(kind: pa.DataType) -> str | None:
    if pa.types.is_date(kind):
        return "Date"
    if pa.types.is_time(kind):
        return "Time"
    return "Timestamp" if pa.types.is_timestamp(kind) else None


def _carried(kind: pa.DataType, kind_of_decimals: pa.DataType | None) -> pa.DataType:
    """The type that stands for `kind` in JSON. `kind_of_decimals`: that of all decimals, None: their types."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([pa.field(field.name, _carried(field.type, kind_of_decimals)) for field in kind])
    if t.is_list(kind):
        return pa.list_(pa.field("element", _carried(kind.value_type, kind_of_decimals)))
    if t.is_map(kind):
        return pa.map_(kind.key_type, pa.field("value", _carried(kind.item_type, kind_of_decimals)))
    if t.is_decimal(kind):
        return kind if kind_of_decimals is None else kind_of_decimals
    name = _logical_name(kind)
    if name is None:
        return kind
    return pa.int64() if name == "Timestamp" else pa.int32()


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    def leaf(column: pa.Array, target: pa.DataType) -> pa.Array:
        if pa.types.is_decimal(target):
            return column if pa.types.is_decimal(column.type) else _decimals(column, target)
        name = _logical_name(target)
        if name is None:
            return column
        if name == "Date":
            return column.cast(target)
        return pc.multiply_checked(column.cast(pa.int64()), 1000).cast(target)

    with refused_by_arrow():
        return with_leaves(array, kind, leaf)


def _untyped(array: pa.Array) -> pa.Array:
    def leaf(column: pa.Array, _: pa.DataType) -> pa.Array:
        if pa.types.is_decimal(column.type):
            node = _decimal_node(column.type)
            written = avro_write.write(column.fill_null(0), node)
            return pc.if_else(column.is_valid(), without(written, 1), pa.scalar(None, pa.binary()))
        name = _logical_name(column.type)
        if name is None:
            return column
        if name == "Date":
            return column.cast(pa.int32())
        if name == "Time":
            return column.cast(pa.time32("ms")).cast(pa.int32())
        return column.cast(pa.timestamp("ms")).cast(pa.int64())

    with refused_by_arrow():  # a fraction of a millisecond
        return with_leaves(array, _carried(array.type, pa.binary()), leaf)


def _decimal_node(kind: pa.DataType) -> Node:
    return Node("bytes", logical="decimal", precision=kind.precision, scale=kind.scale, type=kind)


def _decimals(array: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Decimal numbers from their unscaled big-endian bytes, as in Avro."""
    filled = array.fill_null(b"\0")
    framed = avro_write.write(filled, Node("bytes", type=pa.binary()))
    ends = offsets_of(framed)
    decimals = reader_of(_decimal_node(kind)).read(framed.buffers()[2], ends[:-1], ends[1:])
    return pc.if_else(array.is_valid(), decimals, pa.scalar(None, kind))
