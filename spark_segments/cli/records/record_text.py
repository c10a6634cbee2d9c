"""Records as lines of text, both ways, with the properties of Kafka's console producer and consumer."""

from __future__ import annotations

import base64
import enum
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

import pyarrow as pa
import typer

from spark_segments.cli.records.value_text import textual, unknown_property
from spark_segments.errors import InvalidOptionError, escaped_bytes, escaped_json, reason_of
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.values.options import OPTIONS

LINES_A_BATCH = 10_000

Shown = Callable[[bytes], bytes]
"""How bytes of a record are shown: as they are, or without what a terminal would obey."""

PropertyOption = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property of Kafka's console tools.")
]

_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("partition", pa.int32()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)

_LIMITS = {"partition": 2**31 - 1, "timestamp": (2**63 - 1) // 1000}  # int32; microseconds in int64

_DEFAULTS = {
    "parse.key": "false",
    "parse.headers": "false",
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "null.marker": "",
    "null.literal": "null",
    "line.separator": "\n",
    "print.key": "false",
    "print.value": "true",
    "print.offset": "false",
    "print.partition": "false",
    "print.timestamp": "false",
    "print.headers": "false",
    "print.json": "false",
}


class LineFormat(enum.StrEnum):
    """The format of the lines of a producer's input."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Properties:
    """The supported properties of Kafka's console tools, with Kafka's defaults."""

    values: dict[str, str]

    @classmethod
    def of(cls, texts: Sequence[str] | None, more: Sequence[str] = ()) -> Properties:
        """Reads NAME=VALUE texts; an unknown name raises InvalidOptionError."""
        values = dict(_DEFAULTS)
        for text in [*(texts or []), *more]:
            name, equals, value = text.partition("=")
            if name not in values or not equals:
                raise unknown_property(text, [*values, *OPTIONS])
            values[name] = _unescaped(name, value) if "\\" in value else value
        return cls(values)

    def flag(self, name: str) -> bool:
        return self.values[name].lower() == "true"

    def bytes(self, name: str) -> bytes:
        return self.values[name].encode()


def _unescaped(name: str, value: str) -> str:
    """The value with the escapes of Python's strings, such as \\t, as the characters that they stand for."""
    try:
        return value.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise InvalidOptionError(
            f"Property {name} has a \\ that begins no escape", expected="such as \\t, \\x1f or \\\\", found=value
        ) from error


def read_lines(
    stream: BinaryIO, line_format: LineFormat, properties: Properties, partition: int | None
) -> Iterator[pa.RecordBatch]:
    """The lines of a stream as rows for a writer, LINES_A_BATCH at a time."""
    parse = _parse_json if line_format is LineFormat.JSON else _parse_text
    lines = enumerate(stream, start=1)
    while piece := list(itertools.islice(lines, LINES_A_BATCH)):
        rows = [parse(line.rstrip(b"\r\n"), number, properties) for number, line in piece]
        if partition is not None:
            rows = [row | {"partition": partition} for row in rows]
        yield pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def write_records(
    stream: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    properties: Properties,
    limit: int | None,
    line: Callable[[dict[str, Any], Shown], bytes] | None = None,
) -> int:
    """Writes records as lines and returns how many; stops after `limit`. `line` stands in for the properties.

    What a terminal would obey is escaped for a terminal; into a file or a pipe the bytes go as they are.
    """
    written = 0
    shown: Shown = escaped_bytes if stream.isatty() else bytes
    show = _show_json if properties.flag("print.json") else _show_text
    try:
        for batch, as_json in textual(batches):
            if limit is not None:
                batch = batch.slice(0, max(0, limit - written))
            columns = [batch.column(name).to_pylist() for name in batch.schema.names if name != "timestamp"]
            names = [name for name in batch.schema.names if name != "timestamp"]
            timestamps = batch.column("timestamp").cast(pa.int64()).to_pylist()
            for *values, timestamp_us in zip(*columns, timestamps, strict=True):
                row = dict(zip(names, values, strict=True)) | {"timestamp": timestamp_us // 1000}
                stream.write(show(row, properties, as_json, shown) if line is None else line(row, shown))
            written += batch.num_rows
            if limit is not None and written >= limit:
                break
    finally:  # what was written is out before a reader of a group commits it, also after Ctrl-C
        stream.flush()
    return written


def _parse_text(line: bytes, number: int, properties: Properties) -> dict[str, Any]:
    row: dict[str, Any] = {}
    rest = line
    if properties.flag("parse.headers"):
        text, separator, rest = rest.partition(properties.bytes("headers.delimiter"))
        if not separator:
            raise InvalidOptionError(
                f"Line {number} has no headers",
                expected="headers, a tab, the rest",
                found=f"{len(line)} bytes without it",
            )
        pairs = [
            pair.partition(properties.bytes("headers.key.separator"))
            for pair in text.split(properties.bytes("headers.separator"))
            if pair
        ]
        try:
            row["headers"] = [{"key": name.decode(), "value": value} for name, _, value in pairs]
        except UnicodeDecodeError:
            raise InvalidOptionError(f"Line {number} has a header whose key is not UTF-8") from None
    if properties.flag("parse.key"):
        key, separator, rest = rest.partition(properties.bytes("key.separator"))
        if not separator:
            raise InvalidOptionError(
                f"Line {number} has no key",
                expected=f"a key, {properties.values['key.separator']!r} and a value",
                found=f"{len(line)} bytes without the separator",
                hint="Set --property key.separator=…, or leave parse.key out",
            )
        row["key"] = _unless_null(key, properties)
    row["value"] = _unless_null(rest, properties)
    return row


def _unless_null(text: bytes, properties: Properties) -> bytes | None:
    marker = properties.bytes("null.marker")
    return None if marker and text == marker else text


def _parse_json(line: bytes, number: int, properties: Properties) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if "value" not in row and "value_base64" not in row:  # a misspelt name must not make a tombstone
            raise KeyError("value")
        timestamp_ms = _integer(row, "timestamp")
        return {
            "key": _bytes(row, "key"),
            "value": _bytes(row, "value"),
            "headers": [{"key": _name(one), "value": _bytes(one, "value")} for one in row.get("headers") or []],
            "partition": _integer(row, "partition"),
            "timestamp": None if timestamp_ms is None else timestamp_ms * 1000,
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidOptionError(
            f"Line {number} is not a record",
            expected='a JSON object such as {"key": "a", "value": "b", "headers": [{"key": "h", "value": "1"}]}',
            found=f"{len(line)} bytes: {_why(error)}",
            hint="A tombstone says so: its value is null" if error.args == ("value",) else None,
        ) from None


def _why(error: Exception) -> str:
    """What is wrong with a line, without its content."""
    if isinstance(error, _NoRecord):
        return str(error)
    if isinstance(error, KeyError):
        return f"no {error.args[0]}"
    return (
        reason_of(error) if isinstance(error, (json.JSONDecodeError, UnicodeError, RecursionError)) else "another form"
    )


class _NoRecord(ValueError):
    """A part of a record has another type. Its text has no value in it."""


def _integer(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    if value is not None and (type(value) is not int or abs(value) > _LIMITS[name]):
        raise _NoRecord(f"{name} is no integer of its type")
    return value


def _name(header: dict[str, Any]) -> str:
    if not isinstance(header["key"], str):
        raise _NoRecord("a header's key must be text")
    return header["key"]


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in row:
        return base64.b64decode(row[f"{name}_base64"], validate=True)
    value = row.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _show_text(row: dict[str, Any], properties: Properties, as_json: frozenset[str], shown: Shown) -> bytes:
    null = properties.bytes("null.literal")
    parts = []
    if properties.flag("print.timestamp"):
        kind = {0: "CreateTime", 1: "LogAppendTime"}.get(row["timestampType"], "NoTimestampType")
        parts.append(f"{kind}:{row['timestamp']}".encode())
    if properties.flag("print.partition"):
        parts.append(f"Partition:{row['partition']}".encode())
    if properties.flag("print.offset"):
        parts.append(f"Offset:{row['offset']}".encode())
    if properties.flag("print.headers"):
        headers = [
            shown(h["key"].encode()) + b":" + (null if h["value"] is None else shown(h["value"]))
            for h in row["headers"]
        ]
        parts.append(b",".join(headers) or b"NO_HEADERS")
    if properties.flag("print.key"):
        parts.append(null if row["key"] is None else shown(row["key"]))
    if properties.flag("print.value"):
        parts.append(null if row["value"] is None else shown(row["value"]))
    return properties.bytes("key.separator").join(parts) + properties.bytes("line.separator")


def _show_json(row: dict[str, Any], properties: Properties, as_json: frozenset[str], shown: Shown) -> bytes:
    found = {name: row[name] for name in ("topic", "partition", "offset", "timestamp", "timestampType")}
    for name in ("key", "value"):
        found |= {name: json.loads(row[name])} if name in as_json and row[name] is not None else _shown(name, row[name])
    found["headers"] = [{"key": header["key"]} | _shown("value", header["value"]) for header in row["headers"]]
    return escaped_json(json.dumps(found, ensure_ascii=False)).encode() + b"\n"


def _shown(name: str, value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
