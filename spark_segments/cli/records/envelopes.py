"""Records in envelopes: an object of JSON a line, with all parts of a record, as other tools write them.

kcat -J has partition, offset, tstype, ts, broker, headers, key and payload. Lenses' S3 sink has key, value, headers and
metadata, and says by keyIsArray and valueIsArray that a text is base64. Aiven's has key, value, headers, offset and
timestamp. Lines are read one by one: a value that is an object, a list or a number is the text that the file has.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from spark_segments.cli.records.input_files import unreadable
from spark_segments.errors import reason_of
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.values.undecodable import Undecodable

BASE64_PARTS = ("key", "value", "headers")

_METADATA = {"topic", "partition", "offset", "timestamp"}
_MEMBERS = _METADATA | {"key", "value", "payload", "headers", "metadata", "ts", "tstype", "broker"}
_MEMBERS |= {"keyIsArray", "valueIsArray", "key_schema_id", "value_schema_id"}
_UNDECODED = ("key_error", "payload_error")
"""kcat writes them beside a null that is none: its reader of Avro has failed."""

_MOST_PARTITION = 2**31 - 1
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def envelope_rows(texts: pa.StringArray, encoded: Collection[str], file: str, before: int) -> pa.RecordBatch:
    """The objects of lines as records; their timestamps are text, ms or ISO 8601. Parts in `encoded` are base64.

    `before`: the file's objects before these. Raises InvalidOptionError with the object.
    """
    records = []
    for number, line in enumerate(texts.to_pylist(), before + 1):
        try:
            records.append(_record(line, encoded))
        except (Undecodable, ValueError, RecursionError) as error:
            why = error.reason if isinstance(error, Undecodable) else reason_of(error)
            raise unreadable(file, f"object {number} is no envelope ({why})") from None
    columns = zip(*records, strict=True) if records else [()] * 5
    kinds = {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.string(), "partition": pa.int32()}
    kinds["headers"] = HEADERS_TYPE
    arrays = [pa.array(column, kind) for column, kind in zip(columns, kinds.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[*kinds])


def _record(line: str, encoded: Collection[str]) -> tuple[Any, ...]:
    """(key, value, timestamp, partition, headers) of an envelope."""
    members = json.loads(line)
    if not isinstance(members, dict):
        raise Undecodable("no object")
    for name in _UNDECODED:
        if name in members:
            raise Undecodable(f"kcat could not decode its {name.removesuffix('_error')}")
    metadata = members.get("metadata") or {}
    if not isinstance(metadata, dict) or not members.keys() <= _MEMBERS or not metadata.keys() <= _METADATA:
        raise Undecodable("it has a member that no envelope has")
    names = [name for name in ("value", "payload") if name in members]
    if len(names) != 1:
        raise Undecodable("it has no value, or two; that of a tombstone is null")
    parts = members | metadata
    timestamp = _timestamp(parts)
    partition = _partition(parts)
    return (
        _content(members, "key", line, "key" in encoded or members.get("keyIsArray") is True),
        _content(members, names[0], line, "value" in encoded or members.get("valueIsArray") is True),
        timestamp,
        partition,
        _headers(members.get("headers"), "headers" in encoded),
    )


def _timestamp(parts: dict[str, Any]) -> str | None:
    if parts.get("tstype") == "unknown":  # kcat then writes a ts that is no time
        return None
    timestamp = parts.get("ts", parts.get("timestamp"))
    if timestamp is None:
        return None
    if type(timestamp) not in (int, str):
        raise Undecodable("a timestamp is neither text nor whole milliseconds")
    return str(timestamp)


def _partition(parts: dict[str, Any]) -> int | None:
    partition = parts.get("partition")
    is_number = type(partition) is int  # a bool is an int for isinstance
    if partition is not None and not (is_number and 0 <= partition <= _MOST_PARTITION):
        raise Undecodable("a partition is no number of one")
    return partition


def _content(members: dict[str, Any], name: str, line: str, is_base64: bool) -> bytes | None:
    """A member as bytes: a text's UTF-8, or JSON as written in the line."""
    content = members.get(name)
    if content is None or isinstance(content, str):
        return _bytes_of(content, is_base64)
    if is_base64:
        raise Undecodable("JSON that is no text is no base64")
    return _written(line, name).encode()


def _bytes_of(text: str | None, is_base64: bool) -> bytes | None:
    if text is None:
        return None
    return base64.b64decode(text, validate=True) if is_base64 else text.encode()


def _written(line: str, member: str) -> str:
    """What the line of an object has for a member, letter for letter; of two of one name the last, as json has it."""
    found = ""
    at = _behind_space(line, line.index("{") + 1)
    while line[at] != "}":
        name, at = _DECODER.raw_decode(line, at)
        start = _behind_space(line, _behind_space(line, at) + 1)  # behind the colon
        _, at = _DECODER.raw_decode(line, start)
        found = line[start:at] if name == member else found
        at = _behind_space(line, at)
        if line[at] == ",":
            at = _behind_space(line, at + 1)
    return found


def _behind_space(line: str, at: int) -> int:
    match = _SPACE.match(line, at)
    return at if match is None else match.end()


def _headers(headers: Any, is_base64: bool) -> list[tuple[str, bytes | None]]:
    """Headers as kcat lists them ([key, value, …]), as its map of lists, as Lenses' map, or as objects."""
    if headers is None:
        return []
    if isinstance(headers, dict):
        listed = ((key, value if isinstance(value, list) else [value]) for key, value in headers.items())
        pairs = [(key, value) for key, values in listed for value in values]
    elif isinstance(headers, list) and all(isinstance(header, dict) for header in headers):
        pairs = [(header["key"], header["value"]) for header in headers if header.keys() == {"key", "value"}]
        if len(pairs) < len(headers):
            raise Undecodable("a header has other members than key and value")
    elif isinstance(headers, list) and len(headers) % 2 == 0:
        pairs = list(zip(headers[::2], headers[1::2], strict=True))
    else:
        raise Undecodable("headers are neither a map nor pairs")
    return [(_header_key(key), _header_value(value, is_base64)) for key, value in pairs]


def _header_key(key: Any) -> str:
    if not isinstance(key, str):
        raise Undecodable("a header's key is no text")
    key.encode()  # a half of a surrogate pair is no text of Kafka's
    return key


def _header_value(value: Any, is_base64: bool) -> bytes | None:
    if isinstance(value, (dict, list)):
        raise Undecodable("a header's value is an object or a list")
    return _bytes_of(value if value is None or isinstance(value, str) else json.dumps(value), is_base64)
