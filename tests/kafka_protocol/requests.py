"""Requests of Kafka's protocol as bytes, by kio."""

from __future__ import annotations

import dataclasses
import datetime
import typing
import uuid
from collections.abc import Mapping
from typing import Any

from kio.index import load_request_schema
from kio.serial import entity_writer

from spark_segments.kafka_protocol import messages

_SAMPLES: Mapping[str, Any] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint16": 0,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": uuid.UUID(int=1),
    "timedelta_i32": datetime.timedelta(milliseconds=10),
    "timedelta_i64": datetime.timedelta(milliseconds=10),
    "error_code": 0,
}


class _Frame:
    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data


def request(key: int, version: int, values: Mapping[str, Any], correlation_id: int = 1) -> bytes:
    """The frame of a request, with its size. `values`: by Kafka's names in snake_case; the others are sampled."""
    schema: Any = load_request_schema(key, version)
    header = schema.__header_schema__
    fields = {"request_api_key": key, "request_api_version": version, "correlation_id": correlation_id}
    if "client_id" in {one.name for one in dataclasses.fields(header)}:
        fields["client_id"] = "tests"
    frame = _Frame()
    entity_writer(header)(frame, header(**fields))  # type: ignore[arg-type]
    entity_writer(schema)(frame, _sample(schema, values))  # type: ignore[arg-type]
    return messages.SIZE.pack(len(frame.data)) + bytes(frame.data)


def _sample(schema: Any, values: Mapping[str, Any]) -> Any:
    """A message with `values` wherever their names are, in nested messages as well, and samples elsewhere."""
    hints = typing.get_type_hints(schema)
    fields = {}
    for field in dataclasses.fields(schema):
        nested = messages.nested(hints[field.name])
        is_many = "tuple" in str(hints[field.name])
        if field.name in values and values[field.name] is None:
            fields[field.name] = None
            continue
        if nested is not None:
            value = _sample(nested, values)
        else:
            value = values.get(field.name, _SAMPLES[field.metadata["kafka_type"]])
        fields[field.name] = (value,) if is_many and not isinstance(value, tuple) else value
    return schema(**fields)
