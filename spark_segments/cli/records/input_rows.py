"""Reads lines, JSON, CSV, Parquet and Delta tables as rows for a writer.

A JSON line that is a whole value is appended as written in the file. In rows that become JSON, null fields are written
as null. Columns of JSON have their types from the first block of the first file. A nested column that becomes JSON
again has its types from its own block. Columns of CSV are text, unless a format encodes them.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from spark_segments.ahead import Piece
from spark_segments.cli.records.envelopes import BASE64_PARTS, envelope_rows
from spark_segments.cli.records.input_files import (
    STANDARD_INPUT,
    Reached,
    ahead,
    blocks,
    count_lines,
    files_of,
    is_stream,
    opened,
    reached,
    unreadable,
)
from spark_segments.cli.records.json_rows import (
    RECORD_SCHEMA,
    Lines,
    are_records,
    as_bytes,
    decoded,
    hint_for,
    inferred_schema,
    read_rows,
    with_numbers_as_text,
    wrong_object,
)
from spark_segments.cli.records.live_input import NOTHING, LiveInput
from spark_segments.cli.records.record_text import Properties, unescaped
from spark_segments.cli.records.text_rows import text_rows
from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.record_columns import COLUMNS, is_bytes, slips
from spark_segments.progress import Progress
from spark_segments.values.text.base64 import decode
from spark_segments.values.text.json_write import write_json
from spark_segments.values.undecodable import Undecodable

_PARTS = ("key", "value", "timestamp", "partition", "headers")
_TIMESTAMP = pa.timestamp("us", tz="UTC")
CSV_HEAD_BYTES = 1 << 20  # the names of a CSV file's columns are in its first bytes


class Format(StrEnum):
    """The formats of files that can be read."""

    TEXT = "text"
    JSON = "json"
    ENVELOPE = "envelope"
    CSV = "csv"
    PARQUET = "parquet"
    DELTA = "delta"


_ENDINGS = {".json": Format.JSON, ".jsonl": Format.JSON, ".ndjson": Format.JSON}
_ENDINGS |= {".csv": Format.CSV, ".tsv": Format.CSV, ".parquet": Format.PARQUET}
_OPTIONS = {Format.CSV: ("header", "sep", "quote", "base64"), Format.ENVELOPE: ("base64",)}


def _named(options: Sequence[str]) -> dict[str, str]:
    """{name: value} of texts NAME=VALUE, of which the last of a name counts."""
    named: dict[str, str] = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidOptionError("An option has no value", expected="NAME=VALUE", found=name or "no name")
        named[name] = value
    return named


@dataclass(frozen=True, slots=True)
class Input:
    """Files, their format and its options, the columns that become parts of a record, and which of key and value keep
    their types because a format encodes them. `partition`: that of all rows. `live`: what is read in place of the
    files, where they are a stream that may have no end.
    """

    paths: Sequence[str]
    format: Format
    options: Mapping[str, str]
    columns: Mapping[str, str | None]
    properties: Properties
    typed: Collection[str] = ()
    partition: int | None = None
    live: LiveInput | None = None
    reached: Reached = lambda file, byte_position: None

    @classmethod
    def of(
        cls,
        paths: Sequence[str] | None,
        chosen: Format | None,
        options: Sequence[str] | None,
        *rest: Any,
        linger_seconds: float | None = None,
        **more: Any,
    ) -> Input:
        """The input of a command: the format that was `chosen`, or that the first path's name says. `options`:
        NAME=VALUE texts, whose values may be white space. With `linger_seconds`, lines of a stream are read live.
        """
        paths = paths or [STANDARD_INPUT]
        named = _named(options or ())
        source = cls(paths, chosen or _format_of(paths[0]), named, *rest, **more)
        names = _OPTIONS.get(source.format, ())
        if source.format is not Format.DELTA and not named.keys() <= {*names}:
            raise InvalidOptionError(
                f"Unknown option of the format {source.format}",
                expected=" or ".join(names) or "no option",
                found=min(named.keys() - {*names}),
            )
        is_lines = source.format in (Format.TEXT, Format.JSON, Format.ENVELOPE) and len(paths) == 1
        if linger_seconds is None or not is_lines or not is_stream(paths[0]):
            return source
        descriptor = LiveInput.opened(None if paths[0] == STANDARD_INPUT else paths[0])
        return source if descriptor is None else replace(source, live=LiveInput(descriptor, linger_seconds))

    def batches(self, progress: Progress) -> Iterator[pa.RecordBatch]:
        """The rows of all files in the order of their names, with a writer's columns. `progress`: of files' bytes."""
        is_delta = self.format is Format.DELTA
        files = self.paths if is_delta else [file for path in self.paths for file in files_of(path)]
        source = self if is_delta else replace(self, reached=reached(files, progress))
        for rows in getattr(source, f"_{self.format}")(files):
            if self.partition is not None:
                number = pa.repeat(pa.scalar(self.partition, pa.int32()), rows.num_rows)
                names = [name for name in rows.schema.names if name != "partition"]
                rows = rows.select(names).add_column(0, "partition", number)
            yield rows

    def _text(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._check(pa.schema([("value", pa.binary())]), "")

        def parsed(block: pa.Buffer, file: str, before: int) -> tuple[int, Piece]:
            return count_lines(block), partial(self._text_records, block, file, before)

        return self._blocks(files, parsed)

    def _text_records(self, block: pa.Buffer, file: str, before: int) -> Iterator[pa.RecordBatch]:
        yield _timed(text_rows(block, self.properties, file, before))

    def _envelope(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        encoded = self._base64_columns()
        if any(self.columns.values()) or not {*encoded} <= {*BASE64_PARTS}:
            raise InvalidOptionError("An envelope names its parts", expected=f"base64={','.join(BASE64_PARTS)} at most")

        def parsed(block: pa.Buffer, file: str, before: int) -> tuple[int, Piece]:
            lines = Lines(block, file)
            return len(lines), partial(self._envelope_records, lines, encoded, file, before)

        return self._blocks(files, parsed)

    def _envelope_records(
        self, lines: Lines, encoded: Collection[str], file: str, before: int
    ) -> Iterator[pa.RecordBatch]:
        yield _timed(envelope_rows(lines.texts(), encoded, file, before))

    def _blocks(
        self, files: Sequence[str], parsed: Callable[[pa.Buffer, str, int], tuple[int, Piece]]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of blocks of lines. `parsed`: (how many lines a block has, its rows), by the file's lines before."""

        def pieces(file: str) -> Iterator[Piece]:
            before = 0
            for block in blocks(file, self.reached, self.live):
                rows, piece = parsed(block, file, before) if len(block) else (0, _nothing)
                before += rows
                yield piece

        for file in files:
            yield from ahead(pieces(file), file)

    def _base64_columns(self) -> list[str]:
        return [name for name in self.options.get("base64", "").split(",") if name]

    def _csv(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        has_header = self.options.get("header", "true").lower() == "true"
        quote = self._csv_character("quote", '"')
        reading = pv.ReadOptions(autogenerate_column_names=not has_header)
        for file in files:
            sep = self._csv_character("sep", "\t" if ".tsv" in Path(file).suffixes[-2:] else ",")
            if not sep:
                raise InvalidOptionError("Option sep of CSV is empty", expected="one character, such as ; or \\t")
            parsing = pv.ParseOptions(delimiter=sep, quote_char=quote or False, newlines_in_values=True)
            with opened(file) as (stream, byte_position):
                try:
                    head = stream.read(CSV_HEAD_BYTES)
                    names = _csv_names(head, parsing, file, has_header=has_header)
                    if not names:  # nothing but empty lines
                        continue
                    if len(set(names)) < len(names):
                        twice = ", ".join(sorted({name for name in names if names.count(name) > 1}))
                        raise InvalidOptionError(
                            "Columns of the file have the same name", path=file, found=twice, hint="Rename them"
                        )
                    encoded = self._base64_columns()
                    if unknown := {*encoded} - {*names}:
                        raise InvalidOptionError(
                            "Option base64 of CSV names no column",
                            expected=f"of {', '.join(names)}",
                            found=min(unknown),
                        )
                    types = dict.fromkeys(encoded if "value" in self.typed else names, pa.string())
                    converting = pv.ConvertOptions(
                        column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
                    )
                    self._check(pa.schema([(name, pa.string()) for name in names]), file)
                    whole = pa.PythonFile(_Rejoined(head, stream), mode="r")
                    for batch in pv.open_csv(whole, reading, parsing, converting):
                        self.reached(file, byte_position())
                        yield self._record(_without_base64(batch, encoded, file))
                except pa.ArrowException as error:
                    raise unreadable(file, error) from None

    def _csv_character(self, name: str, default: str) -> str:
        """The character that an option of CSV says, which may be an escape such as \\t; "" for none."""
        text = unescaped(f"Option {name} of CSV", self.options.get(name, default))
        if len(text) > 1 or not text.isascii() or text in ("\n", "\r"):
            hint = "Spark's CSV reader takes others: df = spark.read.csv(…), then df.write.format('segments')"
            raise InvalidOptionError(
                f"Option {name} of CSV is no single character", expected="such as ; or \\t", found=text, hint=hint
            )
        return text

    def _delta(self, paths: Sequence[str]) -> Iterator[pa.RecordBatch]:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        storage = dict(self.options)
        text = storage.pop("versionAsOf", None)
        if text is not None and not (text.isascii() and text.isdigit()):
            raise InvalidOptionError(
                "The text is no version of a Delta table", expected="a number from 0 on", found=text
            )
        for path in paths:
            try:
                table = DeltaTable(path, version=None if text is None else int(text), storage_options=storage or None)
                rows = table.to_pyarrow_dataset()
            except (DeltaError, OSError, ValueError) as error:
                raise unreadable(path, " ".join(str(error).split())) from None
            self._check(_without_dictionary_types(rows.schema), path)
            for batch in rows.to_batches():
                yield self._record(_without_dictionaries(batch))

    def _parquet(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            try:
                with pa.OSFile(file) as stream, pq.ParquetFile(stream) as parquet:
                    self._check(_without_dictionary_types(parquet.schema_arrow), file)
                    for batch in parquet.iter_batches():
                        self.reached(file, stream.tell())
                        yield self._record(_without_dictionaries(batch))
            except pa.ArrowException as error:
                raise unreadable(file, error) from None

    def _json(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None

        def pieces(file: str) -> Iterator[Piece]:
            nonlocal schema
            before = 0
            for block in blocks(file, self.reached, self.live):
                if not len(block):
                    yield _nothing
                    continue
                lines = Lines(block, file)
                if len(lines) and (schema is None or self._has_json_value(schema)):
                    schema = self._schema(lines, file)
                if schema is not None and len(lines):
                    yield partial(self._parsed_json, lines, schema, file, before)
                before += len(lines)

        for file in files:
            yield from ahead(pieces(file), file)

    def _parsed_json(self, lines: Lines, schema: pa.Schema, file: str, before: int) -> Iterator[pa.RecordBatch]:
        """The objects of lines as records. `before`: the file's objects before them."""
        is_record = self._is_record(schema)
        is_whole = "value" in self.typed and not is_record
        texts = self._text_columns(schema)
        others = "error" if is_whole or (is_record and self.columns.get("value") is None) else "ignore"
        rows = read_rows(lines, schema, () if is_whole else texts, file, before, unexpected=others)
        if is_record:
            rows = decoded(rows, lines, file, before)
        keys = None
        if is_whole and texts:  # the whole has their types
            keys = pa.schema([(name, pa.string()) for name in texts])
            keys = read_rows(lines, keys, texts, file, before, unexpected="ignore")
        yield self._record(rows, lines, keys)

    def _check(self, schema: pa.Schema, path: str, known: Collection[str] = COLUMNS) -> None:
        """Raises InvalidOptionError for a chosen column that is not there, and where rows are records already for a
        column that no record has. Who chooses the column of the value leaves others out, but for slips of a name.
        """
        names, chosen = schema.names, {column for column in self.columns.values() if column is not None}
        for part, column in self.columns.items():
            if column is not None and column not in names:
                raise InvalidOptionError(
                    f"There is no column {column} to be the {part}", expected=f"one of {', '.join(names)}", found=column
                )
        if self._is_record(schema):
            wrong = slips(names) if self.columns.get("value") else [name for name in names if name not in known]
            for name in wrong:
                if name not in chosen:
                    raise InvalidOptionError(f"A record has no column {name!r}", path=path, hint=hint_for(name))

    def _schema(self, lines: Lines, file: str) -> pa.Schema:
        """The columns of all blocks, from the columns of the first.

        Later records may have parts that the first records lack. A column that becomes a key or a value is text, also
        where it has only numbers or nulls so far, unless it is nested or boolean, or a format encodes it. A text that
        Arrow would parse as a time stays text. Where the line is the value, no other column is read.
        """
        if not self.typed and not any(self.columns.values()) and are_records(lines):
            return RECORD_SCHEMA
        is_whole = "value" in self.typed
        names = [] if is_whole else [self.columns.get("key") or "key", *filter(None, [self.columns.get("value")])]
        inferred = inferred_schema(with_numbers_as_text(lines.texts(), names), file)
        texts = self._text_columns(inferred)
        fields = []
        for field in inferred:
            is_text = pa.types.is_temporal(field.type) or (field.name in texts and not is_whole)
            fields.append(field.with_type(pa.string()) if is_text else field)
        found = pa.schema(fields)
        known = {*RECORD_SCHEMA.names, *filter(None, self.columns.values())}
        is_record = self._is_record(found) or (not is_whole and _is_misspelt(found))
        if is_record and not self.columns.get("value") and not known.issuperset(found.names):
            raise wrong_object(lines.texts(), file, 0, "a member that no record has", known)
        self._check(found, file, known)
        if not self._is_record(found):
            return found if is_whole else pa.schema([field for field in found if field.name in self.columns.values()])
        own = {field.name: field for field in found if not pa.types.is_null(field.type)}
        kept = [own.get(part.name, part) if part.name in _PARTS[:-1] else part for part in RECORD_SCHEMA]
        chosen = [field for field in found if field.name in self.columns.values()]
        return pa.schema([*kept, *(field for field in chosen if field.name not in RECORD_SCHEMA.names)])

    def _text_columns(self, schema: pa.Schema) -> list[str]:
        """The columns that become keys and values as text."""
        names = [self.columns.get(part) or part for part in ("key", "value") if part not in self.typed]
        return [name for name in names if name in schema.names and _is_text_or_number(schema.field(name).type)]

    def _has_json_value(self, schema: pa.Schema) -> bool:
        """Whether a member becomes JSON. Each block has its own type then: a later one may have further members."""
        name = self.columns.get("value") or "value"
        is_there = name in schema.names and "value" not in self.typed
        return is_there and pa.types.is_nested(schema.field(name).type)

    def _is_record(self, schema: pa.Schema) -> bool:
        """Whether rows are records already, with their parts as columns. A row that has a key beside a nested value is
        one: its value is written as JSON.
        """
        if "value" not in schema.names:
            return "value_base64" in schema.names
        kind = schema.field("value").type
        has_key = "key" in schema.names and {*schema.names} <= {*COLUMNS, *RECORD_SCHEMA.names}
        return is_bytes(kind) or self.columns.get("value") == "value" or (has_key and pa.types.is_nested(kind))

    def _record(
        self, rows: pa.RecordBatch, lines: Lines | None = None, keys: pa.RecordBatch | None = None
    ) -> pa.RecordBatch:
        """Rows as records. `lines`: the rows as text, if they were read from text. `keys`: columns that keys and values
        take in place of the columns of `rows`.
        """
        names = rows.schema.names
        chosen = {part: column for part, column in self.columns.items() if column is not None}
        if self._is_record(rows.schema):
            for part in _PARTS:
                if part in names:
                    chosen.setdefault(part, part)
        columns: dict[str, pa.Array] = {}
        if "value" not in chosen and "value" not in self.typed and lines is not None:
            columns["value"] = lines.texts()
        elif "value" not in chosen:
            whole = pa.StructArray.from_arrays(rows.columns, names=names)
            columns["value"] = whole if "value" in self.typed else write_json(whole)
        for part, column in chosen.items():
            array = (rows if keys is None or column not in keys.schema.names else keys).column(column)
            if part in ("key", "value"):
                columns[part] = array if part in self.typed else as_bytes(array)
            elif part == "timestamp":
                columns[part] = _as_timestamp(array, column)
            elif part == "partition":
                columns[part] = _as_partition(array, column)
            else:
                columns[part] = array
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _nothing() -> Iterator[pa.RecordBatch]:
    yield NOTHING


def _is_misspelt(schema: pa.Schema) -> bool:
    """Whether rows have a key, and text under a name that is a slip for value."""
    meant = {meant: name for name, meant in slips(schema.names).items()}
    return "key" in schema.names and "value" in meant and is_bytes(schema.field(meant["value"]).type)


def _csv_names(head: bytes, parsing: pv.ParseOptions, file: str, *, has_header: bool) -> list[str]:
    """The names of a file's columns, by its first bytes; without a header the names that Arrow gives. Raises
    InvalidOptionError for names that are not UTF-8, which Arrow accepts.
    """
    text = head.decode("utf-8-sig", errors="surrogateescape")
    lines, quote = io.StringIO(text, newline=""), parsing.quote_char or None
    rows = csv.reader(
        lines, delimiter=parsing.delimiter, quotechar=quote, quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
    )
    row = next((row for row in rows if row), [])
    if has_header and any("\udc80" <= letter <= "\udcff" for letter in "".join(row)):
        raise unreadable(file, "the names of its columns are not UTF-8")
    return row if has_header else [f"f{number}" for number in range(len(row))]


class _Rejoined:
    """A stream whose first bytes have been read: a pipe gives them once."""

    closed = False

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int) -> bytes:
        """At most `size` bytes, none at the end."""
        if not self._head:
            return bytes(self._rest.read(size))
        first, self._head = self._head[:size], self._head[size:]
        return first


def _is_text_or_number(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind) and not pa.types.is_boolean(kind)


def _format_of(path: str) -> Format:
    """What a file's name says, or that of the first file in a directory."""
    if os.path.isdir(os.path.join(path, "_delta_log")):
        return Format.DELTA
    if os.path.isdir(path):
        path = files_of(path)[0]
    endings = [suffix.lower() for suffix in Path(path).suffixes]
    return next((_ENDINGS[ending] for ending in reversed(endings[-2:]) if ending in _ENDINGS), Format.TEXT)


def _without_base64(rows: pa.RecordBatch, names: Sequence[str], file: str) -> pa.RecordBatch:
    """The rows with the bytes that texts of these columns stand for."""
    for name in names:
        try:
            content = decode(rows.column(name))
        except Undecodable as error:
            raise unreadable(file, f"column {name} has text that is {error.reason}") from None
        rows = rows.set_column(rows.schema.get_field_index(name), name, content)
    return rows


def _timed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their timestamps, where they have any, as a writer takes them."""
    at = rows.schema.get_field_index("timestamp")
    return rows if at < 0 else rows.set_column(at, "timestamp", _as_timestamp(rows.column(at), "timestamp"))


def _without_dictionary_types(schema: pa.Schema) -> pa.Schema:
    """The schema of `_without_dictionaries`."""
    return pa.schema(
        [(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    )


def _without_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their values in place, as of a data frame's categories."""
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _as_partition(array: pa.Array, name: str) -> pa.Array:
    try:
        return array.cast(pa.int32())
    except pa.ArrowException as error:
        raise InvalidOptionError(
            f"Column {name} cannot be a partition: {reason_of(error)}", expected="whole numbers"
        ) from None


def _as_timestamp(array: pa.Array, name: str) -> pa.Array:
    try:
        if pa.types.is_integer(array.type):
            return array.cast(pa.timestamp("ms", tz="UTC")).cast(_TIMESTAMP)
        if pa.types.is_string(array.type):
            with contextlib.suppress(pa.ArrowInvalid):
                return array.cast(pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(_TIMESTAMP)
            try:
                return array.cast(_TIMESTAMP)
            except pa.ArrowInvalid:  # a time without a zone is in UTC
                return pc.assume_timezone(array.cast(pa.timestamp("us")), "UTC")
        if pa.types.is_timestamp(array.type) and array.type.tz is None:
            return pc.assume_timezone(array.cast(pa.timestamp("us"), safe=False), "UTC")
        return array.cast(_TIMESTAMP, safe=False)
    except pa.ArrowException as error:
        raise InvalidOptionError(
            f"Column {name} cannot be a timestamp: {reason_of(error)}",
            expected="a timestamp, a date, text or milliseconds",
        ) from None
