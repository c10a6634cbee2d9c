"""Protobuf messages that ptars cannot read: to Arrow by Google's own library, row by row.

These are messages with groups (proto2's `group`, the DELIMITED encoding of editions), files of editions, and messages
whose fields have the same name in JSON, such as Id and id. Types and values are as in protobuf.py. A message without a
type in Arrow is JSON text: a message within itself, and google.protobuf.Struct, Value, ListValue and Any.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from spark_segments.values.undecodable import Undecodable

_UTC = pa.timestamp("us", tz="UTC")
_MICROSECONDS = 1_000_000


def needs_rows(descriptor: Any, above: tuple[str, ...] = ()) -> bool:
    """Whether ptars reads something of a message as null, or does not take its file."""
    fields = descriptor.fields
    name = descriptor.full_name
    if name in _OPEN:
        return True
    has_twins = len({field.camelcase_name for field in fields}) < len(fields)
    if has_twins or _is_of_edition(descriptor.file) or any(field.type == field.TYPE_GROUP for field in fields):
        return True
    messages = [field.message_type for field in fields if field.message_type is not None]
    path = (*above, name)
    return any(inner.full_name in path or needs_rows(inner, path) for inner in messages)


def _is_of_edition(file: Any) -> bool:
    from google.protobuf import descriptor_pb2

    copied = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copied)
    return bool(copied.syntax == "editions")


def type_of_message(descriptor: Any, above: tuple[str, ...] = ()) -> pa.DataType:
    """The struct of a message. `above`: the names of the messages that it is a part of."""
    path = (*above, descriptor.full_name)
    return pa.struct([pa.field(field.name, _type_of_field(field, path)) for field in descriptor.fields])


def read_messages(array: pa.BinaryArray, descriptor: Any, kind: pa.DataType) -> pa.Array:
    """The messages of rows without nulls. Raises Undecodable."""
    from google.protobuf import json_format, message, message_factory

    message_class = message_factory.GetMessageClass(descriptor)
    rows = []
    for row, value in enumerate(array.to_pylist()):
        try:
            rows.append(_values_of(message_class.FromString(value), ()))
        except (message.DecodeError, json_format.Error, TypeError, ValueError, OverflowError, RecursionError):
            raise Undecodable(f"not a message {descriptor.full_name}", row) from None
    try:
        return pa.array(rows, kind)
    except (pa.ArrowInvalid, OverflowError):  # a time out of range
        raise Undecodable(f"a message {descriptor.full_name} with a value that Arrow has no type for") from None


def _type_of_field(field: Any, path: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return pa.map_(_type_of_one(key, path), pa.field("value", _type_of_one(value, path)))
    kind = _type_of_one(field, path)
    return pa.list_(pa.field("element", kind)) if field.is_repeated else kind


def _type_of_one(field: Any, path: tuple[str, ...]) -> pa.DataType:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name in _KNOWN:
            return _KNOWN[name][0]
        if name in _WRAPPERS:
            return _type_of_one(field.message_type.fields_by_name["value"], path)
        return pa.string() if name in path or name in _OPEN else type_of_message(field.message_type, path)
    if field.enum_type is not None or field.type == field.TYPE_STRING:
        return pa.string()
    return {
        field.CPPTYPE_INT32: pa.int32(),
        field.CPPTYPE_UINT32: pa.int64(),
        field.CPPTYPE_INT64: pa.int64(),
        field.CPPTYPE_UINT64: pa.decimal128(20, 0),
        field.CPPTYPE_DOUBLE: pa.float64(),
        field.CPPTYPE_FLOAT: pa.float32(),
        field.CPPTYPE_BOOL: pa.bool_(),
        field.CPPTYPE_STRING: pa.binary(),
    }[field.cpp_type]


def _values_of(message: Any, above: tuple[str, ...]) -> dict[str, Any]:
    path = (*above, message.DESCRIPTOR.full_name)
    return {field.name: _value_of_field(message, field, path) for field in message.DESCRIPTOR.fields}


def _value_of_field(message: Any, field: Any, path: tuple[str, ...]) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    value = getattr(message, field.name)
    if _is_map(field):
        of = field.message_type.fields_by_name["value"]
        return [(key, _value_of_one(value[key], of, path)) for key in value]
    return (
        [_value_of_one(item, field, path) for item in value] if field.is_repeated else _value_of_one(value, field, path)
    )


def _value_of_one(value: Any, field: Any, path: tuple[str, ...]) -> Any:
    if field.message_type is not None:
        name = field.message_type.full_name
        if name in _KNOWN:
            return _KNOWN[name][1](value)
        if name in _WRAPPERS:
            return value.value
        return _json(value) if name in path or name in _OPEN else _values_of(value, path)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return value


def _is_map(field: Any) -> bool:
    return bool(field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry)


def _json(message: Any) -> str:
    """The message in Protobuf's JSON, with the names of the .proto."""
    from google.protobuf import json_format

    value = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_KNOWN: dict[str, tuple[pa.DataType, Any]] = {
    "google.protobuf.Timestamp": (_UTC, lambda value: int(value.seconds * _MICROSECONDS + value.nanos // 1000)),
    "google.protobuf.Duration": (
        pa.int64(),
        lambda value: int(value.seconds * _MICROSECONDS + int(value.nanos / 1000)),
    ),
}
_OPEN = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any"))
_WRAPPERS = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
)
