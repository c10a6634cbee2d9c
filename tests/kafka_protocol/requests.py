"""Requests of Kafka's protocol as bytes, and answers to them, by kio."""

from __future__ import annotations

import dataclasses
import datetime
import socket
import struct
import typing
import uuid
from collections.abc import Mapping
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

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


def answered(port: int, key: int, version: int, values: Mapping[str, Any]) -> Any:
    """The answer of a server of this machine to a request."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request(key, version, values))
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        frame = connection.recv(size, socket.MSG_WAITALL)
    schema: Any = load_response_schema(key, version)
    _, header_bytes = entity_reader(schema.__header_schema__)(frame, 0)
    answer, body_bytes = entity_reader(schema)(frame, header_bytes)
    assert header_bytes + body_bytes == len(frame)
    return answer


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
