"""Records as lines of text, both ways, with the properties of Kafka's console producer and consumer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.records.line_template import LineTemplate
from spark_segments.cli.records.lines import (
    Shown,
    as_bytes,
    for_terminal,
    header_texts,
    join,
    joined_lists,
    pieces,
    timestamps_ms,
    write_lines,
)
from spark_segments.cli.records.value_text import textual, unknown_property
from spark_segments.errors import InvalidOptionError
from spark_segments.values.options import OPTIONS

_NO_HEADERS = pa.scalar(b"NO_HEADERS", pa.large_binary())

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
    template: LineTemplate | None = None,
) -> int:
    """Writes records as lines and returns how many; stops after `limit`. `template` stands in for the properties.

    What a terminal would obey is escaped for a terminal; into a file or a pipe the bytes go as they are.
    """
    written = 0
    shown: Shown = for_terminal if stream.isatty() else as_bytes
    try:
        for batch, as_json in textual(batches):
            if limit is not None:
                batch = batch.slice(0, max(0, limit - written))
            for records in pieces(batch):
                if template is not None:
                    parts = template.parts(records, shown)
                elif properties.flag("print.json"):
                    parts = _json_parts(records, as_json)
                else:
                    parts = _text_parts(records, properties, shown)
                write_lines(stream, join(parts, records.num_rows))
            written += batch.num_rows
            if limit is not None and written >= limit:
                break
    finally:  # what was written is out before a reader of a group commits it, also after Ctrl-C
        stream.flush()
    return written


def _text_parts(records: pa.RecordBatch, properties: Properties, shown: Shown) -> list[pa.Array | bytes]:
    null, between = properties.bytes("null.literal"), properties.bytes("key.separator")
    parts: list[pa.Array | bytes] = []
    if properties.flag("print.timestamp"):
        kinds = pc.index_in(records["timestampType"], pa.array([0, 1], pa.int32())).fill_null(2)
        names = pa.array(["CreateTime", "LogAppendTime", "NoTimestampType"])
        parts += [names.take(kinds), b":", timestamps_ms(records), between]
    if properties.flag("print.partition"):
        parts += [b"Partition:", records["partition"], between]
    if properties.flag("print.offset"):
        parts += [b"Offset:", records["offset"], between]
    if properties.flag("print.headers"):
        texts = header_texts(records["headers"], b":", null, shown)
        parts += [pc.if_else(pc.equal(pc.list_value_length(records["headers"]), 0), _NO_HEADERS, texts), between]
    for name in ("key", "value"):
        if properties.flag(f"print.{name}"):
            parts += [shown(records[name]).fill_null(null), between]
    return [*parts[:-1], properties.bytes("line.separator")]


def _json_parts(records: pa.RecordBatch, as_json: frozenset[str]) -> list[pa.Array | bytes]:
    """A record as `json.dumps` writes it, without what a terminal would obey; what is JSON already, as it is."""
    from spark_segments.values.text.json_write import quoted, without_orders

    parts: list[pa.Array | bytes] = [b'{"topic": ', quoted(records["topic"], is_safe=True)]
    parts += [b', "partition": ', records["partition"], b', "offset": ', records["offset"]]
    parts += [b', "timestamp": ', timestamps_ms(records), b', "timestampType": ', records["timestampType"]]
    for name in ("key", "value"):
        if name in as_json:
            parts += [f', "{name}": '.encode(), without_orders(records[name]).fill_null(b"null")]
        else:
            parts += [b", ", *_member(name, records[name])]
    pairs = records["headers"].flatten()
    keys = quoted(pairs.field("key"), is_safe=True)
    shown = join([b'{"key": ', keys, b", ", *_member("value", pairs.field("value")), b"}"], len(pairs))
    return [*parts, b', "headers": [', joined_lists(records["headers"], shown, b", "), b"]}\n"]


def _member(name: str, values: pa.Array) -> list[pa.Array | bytes]:
    """A name and the values: text, null, or the base64 of bytes that are not UTF-8, whose name says so."""
    from spark_segments.values.text.base64 import encode
    from spark_segments.values.text.json_write import quoted

    texts = quoted(values, is_safe=True)
    if texts.null_count == values.null_count:
        return [f'"{name}": '.encode(), texts.fill_null(b"null")]
    other = pc.and_(texts.is_null(), values.is_valid())
    encoded = quoted(encode(pc.if_else(other, values, None)))
    names = pc.if_else(other, pa.scalar(f'"{name}_base64": '), pa.scalar(f'"{name}": '))
    return [names, pc.coalesce(texts, encoded).fill_null(b"null")]
