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

from spark_segments.kafka_protocol.serving import messages

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


class Frame:
    """What a writer of frames writes to."""

    def __init__(self) -> None:
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        self.data += data


def request(key: int, version: int, values: Mapping[str, Any], correlation_id: int = 1, times: int = 1) -> bytes:
    """The frame of a request, with its size. `values`: by Kafka's names in snake_case; the others are sampled. Lists
    have the same entry so many times.
    """
    schema: Any = load_request_schema(key, version)
    header = schema.__header_schema__
    fields = {"request_api_key": key, "request_api_version": version, "correlation_id": correlation_id}
    if "client_id" in {one.name for one in dataclasses.fields(header)}:
        fields["client_id"] = "tests"
    frame = Frame()
    entity_writer(header)(frame, header(**fields))  # type: ignore[arg-type]
    entity_writer(schema)(frame, _sample(schema, values, times))  # type: ignore[arg-type]
    return messages.SIZE.pack(len(frame.data)) + bytes(frame.data)


def fetch_of(
    topic: str, offset: int, most_bytes: int, *, partition: int = 0, wait_seconds: float = 0.0
) -> Mapping[str, Any]:
    """The values of a Fetch of a partition from an offset on."""
    return {
        "topic": topic,
        "partition": partition,
        "fetch_offset": offset,
        "max_wait": datetime.timedelta(seconds=wait_seconds),
        "min_bytes": 1,
        "max_bytes": most_bytes,
        "partition_max_bytes": most_bytes,
        "replica_id": -1,
        "current_leader_epoch": -1,
    }


def answered(
    port: int, key: int, version: int, values: Mapping[str, Any], *, times: int = 1, address: str = "127.0.0.1"
) -> Any:
    """The answer of a server of this machine to a request from an address of it."""
    with socket.create_connection(("127.0.0.1", port), 20, source_address=(address, 0)) as connection:
        connection.sendall(request(key, version, values, times=times))
        return answer_of(connection, key, version)


def answer_of(connection: socket.socket, key: int, version: int) -> Any:
    """The answer that a connection brings."""
    (size,) = struct.unpack(">i", received(connection, 4))
    frame = received(connection, size)
    schema: Any = load_response_schema(key, version)
    _, header_bytes = entity_reader(schema.__header_schema__)(frame, 0)
    answer, body_bytes = entity_reader(schema)(frame, header_bytes)
    assert header_bytes + body_bytes == len(frame)
    return answer


def received(connection: socket.socket, size: int) -> bytes:
    """So many bytes that a connection brings."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, "the connection ended"
        data += piece
    return data


def _sample(schema: Any, values: Mapping[str, Any], times: int) -> Any:
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
            value = _sample(nested, values, times)
        else:
            value = values.get(field.name, _SAMPLES[field.metadata["kafka_type"]])
        fields[field.name] = (value,) * times if is_many and not isinstance(value, tuple) else value
    return schema(**fields)
