"""Typed keys and values as text for a terminal, both ways, and a guess of their formats where none is given."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.cli.command_options import option
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.values.format_options import COLUMNS, OPTIONS, REGISTRY

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.values.batches import Encoder

GUESS_PARTITIONS = 8
GUESS_ROWS = 100
_REGISTERED = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "jsonschema"}
_NUMBERS = ("short", "int", "long")


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """The formats of keys and values, and --property with further options of them."""

    key_format: str | None = option("The format of keys: long, string, avro, …", metavar="FORMAT")
    value_format: str | None = option("The format of values: json, avro, …", metavar="FORMAT")
    value_schema: str | None = option("The schema of values: its text, its file, or DDL.", metavar="SCHEMA")
    schema_registry: str | None = option("The schema registry: http://…, a directory, or _schemas.", metavar="WHERE")
    properties: list[str] | None = option(
        "A further option of formats: value.subject, value.errors, …", "--property", metavar="NAME=VALUE"
    )

    def split(self) -> tuple[dict[str, str], list[str]]:
        """(options of the layer values, other properties)."""
        formats: dict[str, str] = {}
        others: list[str] = []
        for text in self.properties or []:
            name, _, value = text.partition("=")
            if name.lower() in OPTIONS:
                formats[name.lower()] = value
            else:
                others.append(text)
        named = {
            "key.format": self.key_format,
            "value.format": self.value_format,
            "value.schema": self.value_schema,
            REGISTRY: self.schema_registry,
        }
        return formats | {name: value for name, value in named.items() if value is not None}, others

    def of_values(self, *further: str) -> dict[str, str]:
        """Options of the layer values, and the `further` ones. Raises InvalidOptionError for any other property."""
        formats, others = self.split()
        for text in others:
            name, _, value = text.partition("=")
            if name.lower() not in further:
                raise unknown_property(text, [*OPTIONS, *further])
            formats[name.lower()] = value
        return formats


@dataclass(frozen=True, slots=True)
class ConsoleOptions(FormatOptions):
    """As FormatOptions, with the properties of Kafka's console tools."""

    properties: list[str] | None = option("A property of Kafka's console tools.", "--property", metavar="NAME=VALUE")


def unknown_property(text: str, names: Iterable[str]) -> InvalidOptionError:
    """The error for a NAME=VALUE of an unknown name. The value may be a password, and is not shown."""
    name, equals, _ = text.partition("=")
    if not equals:
        return InvalidOptionError("A property has no value", expected="NAME=VALUE", found="no =")
    nearest = difflib.get_close_matches(name.lower(), sorted(names), n=1)
    if nearest:
        return InvalidOptionError("Unknown property", found=name, hint=f"Did you mean {nearest[0]}?")
    hint = "`segments consume --help` and `segments append --help` name them"
    return InvalidOptionError("Unknown property", found=name, hint=hint)


def guessed(log: LogDir, topic: str, formats: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(options with guesses for columns without a format, notes about the guesses), from the first records of a topic.

    A wrong guess is no error: values that do not have the guessed format are shown unchanged.
    """
    from spark_segments.values.wire import looks_like

    guesses = dict(formats)
    notes: list[str] = []
    for column in COLUMNS:
        if f"{column}.format" in guesses:
            continue
        values = _first(log, topic, column)
        names = {looks_like(value)[0] for value in values}
        if len(names) != 1:
            continue
        name = names.pop()
        _, shown = looks_like(values[0])
        if name == "confluent":
            name, hint = _registered(log, formats, values[0])
            if hint is not None:
                notes.append(f"{column}s look like {shown}. {hint}")
        if name in (*_NUMBERS, *_REGISTERED.values()):
            guesses |= {f"{column}.format": name, f"{column}.errors": "null", f"{column}.raw.column": f"{column}.raw"}
            if name in _REGISTERED.values():
                guesses.setdefault(REGISTRY, "_schemas")
            notes.append(f"{column}s look like {shown}: read as {name}. --{column}-format says otherwise")
    return guesses, notes


def _first(log: LogDir, topic: str, column: str) -> list[bytes]:
    """Values of the first batch of records that has any, of the first partitions.

    A look at more would read all of a topic without keys, and the rows of all partitions of a wide one.
    """
    filled = [partition for partition, (start, end) in sorted(log.topic(topic).offsets().items()) if start < end]
    for partition in filled[:GUESS_PARTITIONS]:
        with contextlib.suppress(SegmentsError):  # a damaged partition is an error for its own readers alone
            for batch in log.topic(topic).scan(partition=partition, columns=[column]).batches():
                values = batch.column(column).drop_null()
                if len(values):
                    return list(values.slice(0, GUESS_ROWS).to_pylist())
                break
    return []


def _registered(log: LogDir, formats: Mapping[str, str], value: bytes) -> tuple[str, str | None]:
    """(the format of a value in Confluent's wire format or "", a hint or an error's text where it is unknown)."""
    if REGISTRY not in formats and "_schemas" not in log.topics():
        return "", "Set --schema-registry to read them"
    try:
        registry = log.registry({"schema.registry": "_schemas", **formats})
        return _REGISTERED[registry.schema(int.from_bytes(value[1:5], "big")).kind], None
    except SegmentsError as error:
        return "", str(error)


def textual(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, frozenset[str]]]:
    """Pairs of a batch with keys and values as bytes to print, and the names of its columns that are JSON, not text."""
    from spark_segments.values.text.json_write import write_json

    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        as_json = set()
        for name in COLUMNS:
            array = columns[name]
            if not pa.types.is_binary(array.type):
                if not pa.types.is_string(array.type):
                    as_json.add(name)
                    array = pc.if_else(array.is_valid(), write_json(array), pa.scalar(None, pa.string()))
                columns[name] = array.cast(pa.binary())
            raw = columns.pop(f"{name}.raw", None)
            if raw is not None and raw.null_count < len(raw):
                as_json.discard(name)
                columns[name] = pc.coalesce(columns[name], raw)
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)), frozenset(as_json)


def encoded(batches: Iterable[pa.RecordBatch], writers: Sequence[Encoder]) -> Iterator[pa.RecordBatch]:
    """Encodes batches whose keys and values are JSON text to the bytes of their formats."""
    for batch in batches:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for writer in writers:
            name = writer.chosen.column
            columns[name] = writer.encode(_typed(columns[name], writer))
        yield pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _typed(array: pa.BinaryArray, writer: Encoder) -> pa.Array:
    from spark_segments.errors import ValueFormatError
    from spark_segments.values.batches import first_undecodable
    from spark_segments.values.text.json_read import from_text, read_json, read_text
    from spark_segments.values.undecodable import Undecodable

    kind = writer.codec.type
    filled = array.drop_null()

    def read(rows: pa.BinaryArray) -> pa.Array:
        if pa.types.is_nested(kind):
            return read_json(rows, kind)
        return rows if pa.types.is_binary(kind) else from_text(read_text(rows), kind)

    try:
        values = read(filled)
    except Undecodable as error:
        at, error = first_undecodable(filled, read, error)
        place = pc.indices_nonzero(array.is_valid())[at].as_py()
        raise ValueFormatError(
            f"A {writer.chosen.column} to be written as {writer.chosen.format} is not its text",
            path=f"row {place} of its batch",
            found=error.reason,
        ) from None
    # Nulls keep their rows: each text takes the value with its place among the texts, a null takes none.
    places = pc.subtract(pc.cumulative_sum(array.is_valid().cast(pa.int64())), 1)
    return values.take(pc.if_else(array.is_valid(), places, None))
