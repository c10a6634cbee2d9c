"""Records as lines of text, both ways, with the properties of Kafka's console producer and consumer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.records.value_text import textual, unknown_property
from spark_segments.errors import InvalidOptionError, escaped_bytes
from spark_segments.values.format_options import OPTIONS

_NO_HEADERS = pa.scalar(b"NO_HEADERS", pa.large_binary())

_DEFAULTS = {
    "parse.key": "false",
    "parse.headers": "false",
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
    "ignore.error": "false",
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
    """The supported properties of Kafka's console tools, with Kafka's defaults. `chosen`: the names that were set."""

    values: dict[str, str]
    chosen: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Sequence[str] | None, more: Sequence[str] = ()) -> Properties:
        """Reads NAME=VALUE texts; an unknown name raises InvalidOptionError."""
        values = dict(_DEFAULTS)
        chosen = set()
        for text in [*(texts or []), *more]:
            name, equals, value = text.partition("=")
            if name not in values or not equals:
                raise unknown_property(text, [*values, *OPTIONS])
            values[name] = unescaped(f"Property {name}", value)
            chosen.add(name)
        return cls(values, frozenset(chosen))

    def flag(self, name: str) -> bool:
        return self.values[name].lower() == "true"

    @property
    def null_markers(self) -> list[bytes]:
        """What stands for null in a producer's lines: nothing, unless it is set. It may be the empty text."""
        return [self.bytes("null.marker")] if "null.marker" in self.chosen else []

    def bytes(self, name: str) -> bytes:
        return self.values[name].encode()


def unescaped(what: str, value: str) -> str:
    """The value with the escapes of Python's strings, such as \\t, as the characters that they stand for. `what`: whose
    value it is, for the error.
    """
    if "\\" not in value:
        return value
    try:
        return value.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise InvalidOptionError(
            f"{what} has a \\ that begins no escape", expected="such as \\t, \\x1f or \\\\", found=value
        ) from error


def write_records(
    stream: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    properties: Properties,
    limit: int | None,
    template: LineTemplate | None = None,
) -> int:
    """Writes records as lines and returns how many; stops after `limit`. `template` stands in for the properties.

    Control characters are escaped for a terminal. A file or a pipe gets the bytes unchanged.
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
    null = properties.bytes("null.literal")
    between = properties.bytes("key.separator")
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
    """A record as `json.dumps` writes it, with control characters escaped. Parts that are JSON stay unchanged."""
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


PIECE_BYTES = 4 << 20
"""Bytes of records whose lines are made at a time, on average: a record batch may have a thousand times as many."""

_BYTES = pa.large_binary()  # lines of a piece may be longer than offsets of 32 bits say
_NOTHING = pa.scalar(b"", _BYTES)

Shown = Callable[[pa.Array], pa.Array]
"""How a column of a record is shown: unchanged, or with control characters escaped."""


def for_terminal(column: pa.Array) -> pa.LargeBinaryArray:
    """The column's texts or bytes without what a terminal would obey."""
    return pa.array([None if text is None else escaped_bytes(text) for text in as_bytes(column).to_pylist()], _BYTES)


def as_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    """Bytes unchanged, text as UTF-8, and numbers as text."""
    return (column.cast(pa.string()) if pa.types.is_integer(column.type) else column).cast(_BYTES)


def timestamps_ms(records: pa.RecordBatch) -> pa.Array:
    return pc.divide(records["timestamp"].cast(pa.int64()), 1000)


def header_texts(headers: pa.ListArray, between: bytes, null: bytes, shown: Shown = as_bytes) -> pa.LargeBinaryArray:
    """The headers of each record, with commas between them."""
    pairs = headers.flatten()
    keys = shown(pairs.field("key"))
    values = shown(pairs.field("value"))
    return joined_lists(headers, join([keys, between, values], len(pairs), null), b",")


def joined_lists(lists: pa.ListArray, items: pa.LargeBinaryArray, between: bytes) -> pa.LargeBinaryArray:
    """The items of each list joined, with bytes between them. `items`: the items of all lists, one after the other."""
    if not len(items):
        return pa.repeat(_NOTHING, len(lists))
    ends = pc.cumulative_sum(pc.list_value_length(lists).cast(pa.int64()))
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), pa.scalar(between, _BYTES))


def join(parts: Sequence[pa.Array | bytes], rows: int, null: bytes = b"") -> pa.LargeBinaryArray:
    """The parts of each row as one: a column's value, or the same bytes in all rows. `null` stands for nulls."""
    columns = [pa.scalar(part, _BYTES) if isinstance(part, bytes) else as_bytes(part) for part in parts]
    return pc.binary_join_element_wise(
        *columns, pa.repeat(_NOTHING, rows), null_handling="replace", null_replacement=null
    )


def pieces(records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about PIECE_BYTES."""
    rows = max(1, records.num_rows * PIECE_BYTES // max(records.nbytes, 1))
    for first in range(0, records.num_rows, rows):
        yield records.slice(first, rows)


def write_lines(stream: BinaryIO, lines: pa.LargeBinaryArray) -> None:
    """Writes the lines, one behind the other, without a copy."""
    if len(lines):
        first, last = np.frombuffer(lines.buffers()[1], np.int64)[[lines.offset, lines.offset + len(lines)]].tolist()
        stream.write(memoryview(lines.buffers()[2] or b"")[first:last])


_PIECE = re.compile(r"%(?P<letter>.)|\\(?P<escape>x[0-9a-fA-F]{2}|.)|(?P<text>[^%\\]+)|(?P<rest>.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _lengths(column: pa.Array) -> pa.Array:
    return pc.binary_length(column).fill_null(-1)


def _size_bytes(records: pa.RecordBatch) -> pa.Array:
    """The values' lengths as four bytes each, the highest first."""
    sizes = _lengths(records["value"]).to_numpy().astype(">i4")
    return pa.Array.from_buffers(pa.binary(4), len(sizes), [None, pa.py_buffer(sizes)])


# What kcat has, and %v and %V, which people expect for the value. Nulls are empty, of length -1.
_LETTERS: dict[str, Callable[[pa.RecordBatch], pa.Array | bytes]] = {
    "t": lambda records: records["topic"],
    "p": lambda records: records["partition"],
    "o": lambda records: records["offset"],
    "T": timestamps_ms,
    "k": lambda records: records["key"],
    "K": lambda records: _lengths(records["key"]),
    "s": lambda records: records["value"],
    "S": lambda records: _lengths(records["value"]),
    "v": lambda records: records["value"],
    "V": lambda records: _lengths(records["value"]),
    "R": _size_bytes,
    "h": lambda records: header_texts(records["headers"], b"=", b"NULL"),
    "%": lambda records: b"%",
}


@dataclass(frozen=True, slots=True)
class LineTemplate:
    """The pieces of a template: literal bytes, and what is written of each record."""

    pieces: tuple[bytes | Callable[[pa.RecordBatch], pa.Array | bytes], ...]

    @classmethod
    def of(cls, text: str) -> LineTemplate:
        """Raises InvalidOptionError for a letter or an escape that does not exist."""
        pieces: list[bytes | Callable[[pa.RecordBatch], pa.Array | bytes]] = []
        for match in _PIECE.finditer(text):
            letter = match["letter"]
            escape = match["escape"]
            if letter in _LETTERS:
                pieces.append(_LETTERS[letter])
            elif escape is not None and escape[0] == "x" and len(escape) == 3:
                pieces.append(bytes.fromhex(escape[1:]))
            elif escape in _ESCAPES:
                pieces.append(_ESCAPES[escape])
            elif match["text"] is not None:
                pieces.append(match["text"].encode())
            else:
                raise InvalidOptionError(
                    f"The template has {match[0]!r}",
                    expected=f"% and a letter of {', '.join(_LETTERS)}, or an escape: \\n \\r \\t \\0 \\\\ \\xFF",
                    found=text,
                )
        return cls(tuple(pieces))

    def parts(self, records: pa.RecordBatch, shown: Shown) -> list[pa.Array | bytes]:
        """What a line consists of, as the template says; what is of the record as `shown` has it."""
        parts: list[pa.Array | bytes] = []
        for piece in self.pieces:
            part = piece if isinstance(piece, bytes) else piece(records)
            parts.append(part if isinstance(part, bytes) else shown(part))
        return parts
