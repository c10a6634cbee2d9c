"""Records as lines of text, both ways, with the properties of Kafka's console producer and consumer."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

import pyarrow as pa
import typer

from spark_segments.cli.records.value_text import textual, unknown_property
from spark_segments.errors import InvalidOptionError, escaped_bytes, escaped_json
from spark_segments.values.options import OPTIONS

Shown = Callable[[bytes], bytes]
"""How bytes of a record are shown: as they are, or without what a terminal would obey."""

PropertyOption = Annotated[
    list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="A property of Kafka's console tools.")
]

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
