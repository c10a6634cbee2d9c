"""Decoders of the records of Kafka's internal topics, by the names of kafka-dump-log.

A record that cannot be decoded says so in place of its key or payload, in the tool's words, and the dump goes on.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import struct
import uuid
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any

from spark_segments.dump.entry import Entry
from spark_segments.errors import MissingExtraError

DELETED = "<DELETE>"

_KINDS = {"offsets": "OFFSETS", "transaction-log": "TRANSACTIONS", "share-group-state": "SHARE_STATE"}
_FRAMED = {"cluster-metadata": "METADATA", "remote-log-metadata": "REMOTE_LOG"}

DECODERS = (*_KINDS, *_FRAMED)
"""The names of the decoders, from kafka-dump-log's options, without -decoder."""

_FRAME_VERSION = 1
_NO_UUID = uuid.UUID(int=0)
_EMBEDDED = {"subscription": "ConsumerProtocolSubscription", "assignment": "ConsumerProtocolAssignment"}
_CONTROL = {3: "SnapshotHeader", 4: "SnapshotFooter", 5: "KRaftVersion", 6: "KRaftVoters"}
_CONTROL_MESSAGES = {3: "SnapshotHeaderRecord", 4: "SnapshotFooterRecord", 5: "KRaftVersionRecord", 6: "VotersRecord"}

Decode = Callable[[Entry], Entry]


def decoder(name: str) -> Decode:
    """Adds the decoded key and value to a record's entry, as `decoded`. Other entries do not change."""
    try:
        from spark_segments.dump import layouts
    except ModuleNotFoundError as error:
        raise MissingExtraError("kafka", "Decoders of a dump", "kio") from error
    if name in _KINDS:
        return partial(_with_key_and_value, getattr(layouts, _KINDS[name]))
    return partial(_with_framed, getattr(layouts, _FRAMED[name]), "" if name == "cluster-metadata" else "offset ")


def _with_key_and_value(kinds: Mapping[int, tuple[str, Any]], entry: Entry) -> Entry:
    """A record whose key begins with its type, and whose value begins with its version."""
    if entry["kind"] != "record" or "controlType" in entry:
        return entry
    at = f"offset {entry['offset']}"
    try:
        if entry["key"] is None:
            raise ValueError("the key is null")
        kind = _version_of(entry["key"])
        if kind not in kinds:
            return entry | {"decoded": {"key": f"Unknown record type {kind} at {at}, skipping.", "payload": None}}
        decoded: dict[str, Any] = {"key": {"type": str(kind), "data": _key(kinds[kind][0], entry["key"])}}
        decoded["payload"] = DELETED if entry["value"] is None else _value(kinds[kind][1], entry["value"])
    except ValueError as error:
        decoded = {"key": f"Error at {at}, skipping. {error}", "payload": None}
    return entry | {"decoded": decoded}


def _version_of(data: bytes) -> int:
    try:
        (version,) = struct.unpack_from(">h", data)
    except struct.error:
        raise ValueError("no version") from None
    return int(version)


def _key(fields: str, data: bytes) -> dict[str, Any]:
    from spark_segments.dump.layouts import NEVER, MessageLayout

    return _json(_whole(MessageLayout(fields, flexible=NEVER).entity(0), data, 2))


def _value(candidates: tuple[Any, ...], data: bytes) -> dict[str, Any]:
    version = _version_of(data)
    for number, layout in enumerate(candidates, 1):
        try:
            value = _json(_whole(layout.entity(version), data, 2))
            break
        except ValueError:
            if number == len(candidates):
                raise
    if value.get("protocolType") == "consumer":
        for member in value["members"]:
            for name, message in _EMBEDDED.items():
                member[name] = _embedded(message, member[name])
    return {"version": str(version), "data": value}


def _embedded(message: str, text: str) -> Any:
    """A message of the consumer's own protocol; the text where the bytes are none."""
    data = base64.b64decode(text)
    try:
        return _json(_whole(_kios(message, _version_of(data)), data, 2))
    except ValueError:
        return text


def _with_framed(kinds: Mapping[int, tuple[str, Any]], at: str, entry: Entry) -> Entry:
    """A record whose value is a frame: its version, the message's API key and version, and the message."""
    if entry["kind"] != "record":
        return entry
    if "controlType" in entry:
        return _with_control(entry) if kinds[0][0] == "REGISTER_BROKER_RECORD" else entry
    payload: Any
    try:
        if entry["value"] is None:
            raise ValueError("the value is null")
        payload = _framed(kinds, entry["value"])
    except ValueError as error:
        payload = f"Error at {at}{entry['offset']}, skipping. {error}"
    return entry | {"decoded": {"key": None, "payload": payload}}


def _framed(kinds: Mapping[int, tuple[str, Any]], data: bytes) -> dict[str, Any]:
    from spark_segments.kafka_protocol.serving.messages import unsigned_varint

    frame, at = unsigned_varint(data, 0)
    if frame != _FRAME_VERSION:
        raise ValueError(f"frame version {frame}, of which nothing is known")
    key, at = unsigned_varint(data, at)
    version, at = unsigned_varint(data, at)
    if key not in kinds:
        raise ValueError(f"record type {key}, of which nothing is known")
    name, layout = kinds[key]
    return {"type": name, "version": version, "data": _json(_whole(layout.entity(version), data, at))}


def _with_control(entry: Entry) -> Entry:
    kind = entry["controlTypeId"]
    if kind not in _CONTROL or entry["value"] is None:
        return entry
    try:
        message = _json(_whole(_kios(_CONTROL_MESSAGES[kind], 0), entry["value"], 0))
    except ValueError:  # shown as a record of its type, then
        return entry
    return entry | {"decoded": {_CONTROL[kind]: message}}


def _kios(message: str, version: int) -> Any:
    """kio's own class of a message. Raises ValueError for a version that kio does not know."""
    module = re.sub(r"(?<!^)(?=[A-Z])", "_", message).lower()
    try:
        return getattr(import_module(f"kio.schema.{module}.v{version}.data"), message)
    except ModuleNotFoundError:
        raise ValueError(f"version {version}, of which nothing is known") from None


def _whole(entity: Any, data: bytes, at: int) -> Any:
    """The message that fills the bytes from a position on. Raises ValueError."""
    from spark_segments.kafka_protocol.serving.messages import read_message

    message, end = read_message(entity, data, at, len(data))
    if end < len(data):
        raise ValueError(f"{len(data) - end} bytes behind the message")
    return message


def _json(message: Any) -> dict[str, Any]:
    """A message as Kafka's own JSON: names as Kafka has them, tagged fields where they are not the default."""
    fields = {}
    for field in dataclasses.fields(message):
        value = getattr(message, field.name)
        if "tag" in field.metadata and value == field.default:
            continue
        fields[_camel_case(field.name)] = _json_value(value, field.metadata.get("kafka_type"))
    return fields


@cache
def _camel_case(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def _json_value(value: Any, kind: str | None) -> Any:
    if isinstance(value, tuple):
        return [_json_value(item, kind) for item in value]
    if kind == "uuid":
        return base64.urlsafe_b64encode((value or _NO_UUID).bytes).decode().rstrip("=")
    if dataclasses.is_dataclass(value):
        return _json(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
