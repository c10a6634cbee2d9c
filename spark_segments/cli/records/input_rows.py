"""Reads lines, JSON, CSV, Parquet and Delta tables as rows for a writer.

A JSON line that is a whole value is appended as written in the file. In rows that become JSON, null fields are written
as null. Columns of JSON have their types from the first block of the first file. A nested column that becomes JSON
again has its types from its own block. Columns of CSV are text, unless a format encodes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments.ahead import Piece
from spark_segments.cli.records.csv_rows import CsvLayout
from spark_segments.cli.records.envelopes import BASE64_PARTS, envelope_rows
from spark_segments.cli.records.input_files import (
    STANDARD_INPUT,
    UTF_8,
    Reached,
    ahead,
    blocks,
    count_lines,
    files_of,
    is_stream,
    reached,
    text_encoding,
    undecodable,
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
from spark_segments.cli.records.part_columns import as_partition, as_timestamp, with_timestamps
from spark_segments.cli.records.record_text import Properties
from spark_segments.cli.records.text_rows import text_rows
from spark_segments.errors import InvalidOptionError
from spark_segments.format.record_columns import COLUMNS, is_bytes, slips
from spark_segments.progress import Progress
from spark_segments.values.text.json_write import write_json

_PARTS = ("key", "value", "timestamp", "partition", "headers")


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
    their types because a format encodes them. `partition`: that of all rows. `encoding`: that of text. `live`: what is
    read in place of the files, where they are a stream that may have no end.
    """

    paths: Sequence[str]
    format: Format
    options: Mapping[str, str]
    columns: Mapping[str, str | None]
    properties: Properties
    typed: Collection[str] = ()
    partition: int | None = None
    encoding: str = UTF_8
    live: LiveInput | None = None
    reached: Reached = lambda file, byte_position: None

    @classmethod
    def of(
        cls,
        paths: Sequence[str] | None,
        chosen: Format | None,
        options: Sequence[str] | None,
        columns: Mapping[str, str | None],
        properties: Properties,
        *,
        typed: Collection[str] = (),
        partition: int | None = None,
        encoding: str = UTF_8,
        linger_seconds: float | None = None,
    ) -> Input:
        """The input of a command: the format that was `chosen`, or that the first path's name says. `options`:
        NAME=VALUE texts, whose values may be white space. With `linger_seconds`, lines of a stream are read live,
        unless their text is in another encoding than UTF-8: then the whole stream is read first.
        """
        paths = paths or [STANDARD_INPUT]
        named = _named(options or ())
        encoding = text_encoding(encoding)
        file_format = chosen or _format_of(paths[0])
        source = cls(paths, file_format, named, columns, properties, typed, partition, encoding)
        source._check_options()
        if linger_seconds is None or not source._is_stream_of_lines():
            return source
        descriptor = LiveInput.opened(None if paths[0] == STANDARD_INPUT else paths[0])
        return source if descriptor is None else replace(source, live=LiveInput(descriptor, linger_seconds))

    def _check_options(self) -> None:
        """Raises InvalidOptionError for options that the format does not have."""
        if self.encoding != UTF_8 and self.format in (Format.PARQUET, Format.DELTA):
            raise InvalidOptionError(
                f"{self.format} has no encoding of text", expected="no --encoding", found=self.encoding
            )
        names = _OPTIONS.get(self.format, ())
        if self.format is not Format.DELTA and not self.options.keys() <= {*names}:
            raise InvalidOptionError(
                f"Unknown option of the format {self.format}",
                expected=" or ".join(names) or "no option",
                found=min(self.options.keys() - {*names}),
            )

    def _is_stream_of_lines(self) -> bool:
        is_lines = self.format in (Format.TEXT, Format.JSON, Format.ENVELOPE) and len(self.paths) == 1
        return is_lines and self.encoding == UTF_8 and is_stream(self.paths[0])

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
        yield with_timestamps(text_rows(block, self.properties, file, before))

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
        yield with_timestamps(envelope_rows(lines.texts(), encoded, file, before))

    def _blocks(
        self, files: Sequence[str], parsed: Callable[[pa.Buffer, str, int], tuple[int, Piece]]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of blocks of lines. `parsed`: (how many lines a block has, its rows), by the file's lines before."""

        def pieces(file: str) -> Iterator[Piece]:
            before = 0
            for block in blocks(file, self.reached, self.live, self.encoding):
                rows, piece = parsed(block, file, before) if len(block) else (0, _nothing)
                before += rows
                yield piece

        for file in files:
            yield from ahead(pieces(file), file)

    def _base64_columns(self) -> list[str]:
        return [name for name in self.options.get("base64", "").split(",") if name]

    def _csv(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        layout = CsvLayout.of(self.options, self._base64_columns())
        for file in files:
            try:
                are_typed = "value" in self.typed
                for batch in layout.batches(file, self._check, self.reached, self.encoding, are_typed=are_typed):
                    yield self._record(batch)
            except UnicodeError as error:
                raise undecodable(file, error, self.encoding) from None
            except pa.ArrowException as error:
                raise unreadable(file, error) from None

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
            for block in blocks(file, self.reached, self.live, self.encoding):
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
        is_line_the_value = "value" in self.typed and not is_record
        texts = self._text_columns(schema)
        has_all_members = is_line_the_value or (is_record and self.columns.get("value") is None)
        rows = read_rows(
            lines,
            schema,
            () if is_line_the_value else texts,
            file,
            before,
            unexpected="error" if has_all_members else "ignore",
        )
        if is_record:
            rows = decoded(rows, lines, file, before)
        keys = None
        if is_line_the_value and texts:  # the value has their types, and a key is text: they are read twice
            key_schema = pa.schema([(name, pa.string()) for name in texts])
            keys = read_rows(lines, key_schema, texts, file, before, unexpected="ignore")
        yield self._record(rows, lines, keys)

    def _check(self, schema: pa.Schema, path: str, record_columns: Collection[str] = COLUMNS) -> None:
        """Raises InvalidOptionError for a chosen column that is not there, and where rows are records already for a
        column that no record has. Who chooses the column of the value leaves others out, but for slips of a name.
        """
        names = schema.names
        for part, column in self.columns.items():
            if column is not None and column not in names:
                raise InvalidOptionError(
                    f"There is no column {column} to be the {part}", expected=f"one of {', '.join(names)}", found=column
                )
        if not self._is_record(schema):
            return
        if self.columns.get("value"):
            wrong = list(slips(names))
        else:
            wrong = [name for name in names if name not in record_columns]
        for name in wrong:
            if name not in self.columns.values():
                raise InvalidOptionError(f"A record has no column {name!r}", path=path, hint=hint_for(name))

    def _schema(self, lines: Lines, file: str) -> pa.Schema:
        """The columns of all blocks, from the columns of the first. Later records may have parts that the first records
        lack. Where the line is the value, no other column is read.
        """
        if not self.typed and not any(self.columns.values()) and are_records(lines):
            return RECORD_SCHEMA
        schema = self._inferred_schema(lines, file)
        self._check_members(schema, lines, file)
        if self._is_record(schema):
            return self._record_schema(schema)
        if "value" in self.typed:
            return schema
        return pa.schema(self._chosen_fields(schema))

    def _inferred_schema(self, lines: Lines, file: str) -> pa.Schema:
        """The columns of a block, as all later blocks are read.

        A column that becomes a key or a value is text, also where it has only numbers or nulls so far, unless it is
        nested or boolean, or a format encodes it: a number as a double would lose digits, and a text could follow. A
        text that Arrow would parse as a time stays text.
        """
        is_line_the_value = "value" in self.typed
        number_columns = [self.columns.get("key") or "key", *filter(None, [self.columns.get("value")])]
        texts = lines.texts() if is_line_the_value else with_numbers_as_text(lines.texts(), number_columns)
        inferred = inferred_schema(texts, file)
        text_columns = [] if is_line_the_value else self._text_columns(inferred)
        fields = []
        for field in inferred:
            is_text = pa.types.is_temporal(field.type) or field.name in text_columns
            fields.append(field.with_type(pa.string()) if is_text else field)
        return pa.schema(fields)

    def _check_members(self, schema: pa.Schema, lines: Lines, file: str) -> None:
        """Raises InvalidOptionError as `_check`, and names the first object with a member that no record has."""
        record_columns = {*RECORD_SCHEMA.names, *filter(None, self.columns.values())}
        is_record = self._is_record(schema) or ("value" not in self.typed and _is_misspelt(schema))
        if is_record and not self.columns.get("value") and not record_columns.issuperset(schema.names):
            raise wrong_object(lines.texts(), file, 0, "a member that no record has", record_columns)
        self._check(schema, file, record_columns)

    def _record_schema(self, schema: pa.Schema) -> pa.Schema:
        """All parts of a record, with the types that the schema has for them, and the chosen columns behind them."""
        typed_fields = {field.name: field for field in schema if not pa.types.is_null(field.type)}
        parts = []
        for part in RECORD_SCHEMA:
            # Headers keep the record's type: inferred from a block, a header of another shape would be an error later.
            is_inferred = part.name in _PARTS and part.name != "headers"
            parts.append(typed_fields.get(part.name, part) if is_inferred else part)
        others = [field for field in self._chosen_fields(schema) if field.name not in RECORD_SCHEMA.names]
        return pa.schema([*parts, *others])

    def _chosen_fields(self, schema: pa.Schema) -> list[pa.Field]:
        return [field for field in schema if field.name in self.columns.values()]

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
        if "value" not in chosen:
            columns["value"] = self._row_as_value(rows, lines)
        for part, column in chosen.items():
            source = keys if keys is not None and column in keys.schema.names else rows
            columns[part] = self._part(part, column, source.column(column))
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))

    def _row_as_value(self, rows: pa.RecordBatch, lines: Lines | None) -> pa.Array:
        """Rows that are values: typed for a format, else the line as it stands, else JSON of the columns."""
        if "value" not in self.typed and lines is not None:
            return lines.texts()
        objects = pa.StructArray.from_arrays(rows.columns, names=rows.schema.names)
        return objects if "value" in self.typed else write_json(objects)

    def _part(self, part: str, column: str, array: pa.Array) -> pa.Array:
        if part in ("key", "value"):
            return array if part in self.typed else as_bytes(array)
        if part == "timestamp":
            return as_timestamp(array, column)
        if part == "partition":
            return as_partition(array, column)
        return array


def _nothing() -> Iterator[pa.RecordBatch]:
    yield NOTHING


def _is_misspelt(schema: pa.Schema) -> bool:
    """Whether rows have a key, and text under a name that is a slip for value."""
    written = {part: name for name, part in slips(schema.names).items()}
    return "key" in schema.names and "value" in written and is_bytes(schema.field(written["value"]).type)


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


def _without_dictionary_types(schema: pa.Schema) -> pa.Schema:
    """The schema of `_without_dictionaries`."""
    return pa.schema(
        [(field.name, field.type.value_type if pa.types.is_dictionary(field.type) else field.type) for field in schema]
    )


def _without_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their values in place, as of a data frame's categories."""
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)
