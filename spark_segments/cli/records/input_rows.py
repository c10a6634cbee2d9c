"""Reads lines, JSON, CSV, Parquet and Delta tables as rows for a writer.

A JSON line that is a value as a whole is appended as it stands in the file. In rows that become JSON, fields that are
null are written as null. Columns of JSON have the types that the first block of the first file has; columns of CSV are
text, unless a format encodes them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.parquet as pq

from spark_segments.cli.records.input_files import STANDARD_INPUT, ahead, blocks, files_of, opened, unreadable
from spark_segments.cli.records.json_rows import Lines, as_bytes, count_objects, parsed, read_records, read_rows
from spark_segments.cli.records.record_text import Properties
from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.log.appending.caller_rows import is_bytes
from spark_segments.log.reading.ahead import Piece
from spark_segments.values.rows import gathered, offsets_of
from spark_segments.values.text import lines
from spark_segments.values.text.json_write import quoted, write_json

_PARTS = ("key", "value", "timestamp", "partition", "headers")
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_SEPARATORS = {"headers": "headers.delimiter", "key": "key.separator"}


class Format(StrEnum):
    """The formats of files that can be read."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    DELTA = "delta"


_ENDINGS = {".json": Format.JSON, ".jsonl": Format.JSON, ".ndjson": Format.JSON}
_ENDINGS |= {f".{one.value}": one for one in (Format.CSV, Format.PARQUET)}


@dataclass(frozen=True, slots=True)
class Input:
    """Files, their format and its options, the columns that become parts of a record, and which of key and value keep
    their types because a format encodes them. `partition`: that of all rows.
    """

    paths: Sequence[str]
    format: Format
    options: Mapping[str, str]
    columns: Mapping[str, str | None]
    properties: Properties
    typed: Collection[str] = ()
    partition: int | None = None

    @classmethod
    def of(
        cls, paths: Sequence[str] | None, chosen: Format | None, options: Mapping[str, str], *rest: Any, **more: Any
    ) -> Input:
        """The input of a command: the format that was `chosen`, or that the first path's name says."""
        paths = paths or [STANDARD_INPUT]
        made = cls(paths, chosen or _format_of(paths[0]), options, *rest, **more)
        if options and made.format not in (Format.CSV, Format.DELTA):
            raise InvalidOptionError(
                f"The format {made.format} has no options", expected="csv or delta", found=min(options)
            )
        return made

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of all files in the order of their names, with a writer's columns."""
        read = getattr(self, f"_{self.format}")
        for rows in read(
            self.paths if self.format is Format.DELTA else [one for path in self.paths for one in files_of(path)]
        ):
            if self.partition is not None:
                number = pa.repeat(pa.scalar(self.partition, pa.int32()), rows.num_rows)
                names = [name for name in rows.schema.names if name != "partition"]
                rows = rows.select(names).add_column(0, "partition", number)
            yield rows

    def _text(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._check(["value"])
        number = 1

        def pieces(file: str) -> Iterator[Piece]:
            nonlocal number
            for block in blocks(file):
                yield partial(self._parsed_text, block, number)
                number += lines.count_lines(block)[0]

        for file in files:
            yield from ahead(pieces(file), file)

    def _parsed_text(self, block: pa.Buffer, number: int) -> Iterator[pa.RecordBatch]:
        """Lines as records by the properties of Kafka's console producer. `number`: that of the first line."""
        names = [name for name in ("headers", "key") if self.properties.flag(f"parse.{name}")]
        properties = [_SEPARATORS[name] for name in names]
        try:
            parts = lines.split(block, [self._separator(one) for one in properties])
        except lines.Unseparated as error:
            name, separator = names[error.separator], properties[error.separator]
            raise InvalidOptionError(
                f"Line {number + error.row} has no {name}",
                expected=f"{name}, {self.properties.values[separator]!r} and the rest",
                found=f"{error.size} bytes without the separator",
                hint=f"Set --property {separator}=…, or leave parse.{name} out",
            ) from None
        columns = dict(zip([*names, "value"], parts, strict=True))
        if "headers" in columns:
            columns["headers"] = self._headers(columns["headers"], number)
        if marker := self.properties.bytes("null.marker"):
            for name in columns.keys() & {"key", "value"}:
                is_null = pc.equal(columns[name], pa.scalar(marker, pa.binary()))
                columns[name] = pc.if_else(is_null, pa.scalar(None, pa.binary()), columns[name])
        yield pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    def _separator(self, name: str) -> bytes:
        found = self.properties.bytes(name)
        if not found:
            raise InvalidOptionError(f"Property {name} is empty", expected="a character or more")
        return found

    def _headers(self, texts: pa.BinaryArray, number: int) -> pa.ListArray:
        """The headers of each line, of which the first has this number. A header without a separator is a key."""
        separator = self._separator("headers.key.separator")
        listed = pc.split_pattern(texts, self._separator("headers.separator"))
        filled = pc.greater(pc.binary_length(listed.flatten()), 0)
        pairs, rows = listed.flatten().filter(filled), pc.list_parent_indices(listed).filter(filled).to_numpy()
        starts, ends = offsets_of(pairs)[:-1], offsets_of(pairs)[1:]
        found = pc.find_substring(pairs, separator).to_numpy().astype(np.int64)
        key_ends = np.where(found < 0, ends, starts + found)
        value_starts = np.minimum(key_ends + len(separator), ends)
        data = pairs.buffers()[2]
        keys, values = gathered(data, starts, key_ends - starts), gathered(data, value_starts, ends - value_starts)
        wrong = pc.index(quoted(keys).is_null(), True).as_py()
        if wrong >= 0:
            raise InvalidOptionError(f"Line {number + int(rows[wrong])} has a header whose key is not UTF-8")
        made = pa.StructArray.from_arrays([keys.cast(pa.string()), values], fields=[*HEADERS_TYPE.value_type])
        row_ends = np.cumsum(np.bincount(rows, minlength=len(texts)), dtype=np.int32)
        return pa.ListArray.from_arrays(np.append(np.int32(0), row_ends), made, HEADERS_TYPE)

    def _csv(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        unknown = self.options.keys() - {"header", "sep", "quote"}
        if unknown:
            raise InvalidOptionError("Unknown option of CSV", expected="header, sep or quote", found=min(unknown))
        has_header = self.options.get("header", "true").lower() == "true"
        parsing = pv.ParseOptions(
            delimiter=self.options.get("sep", ","), quote_char=self.options.get("quote", '"'), newlines_in_values=True
        )
        reading = pv.ReadOptions(autogenerate_column_names=not has_header)
        for file in files:
            try:
                with opened(file) as stream:
                    names = pv.open_csv(stream, reading, parsing).schema.names
                types = None if "value" in self.typed else dict.fromkeys(names, pa.string())
                converting = pv.ConvertOptions(
                    column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
                )
                self._check(names)
                with opened(file) as stream:
                    for batch in pv.open_csv(stream, reading, parsing, converting):
                        yield self._record(batch)
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
            self._check(rows.schema.names)
            for batch in rows.to_batches():
                yield self._record(_without_dictionaries(batch))

    def _parquet(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for file in files:
            try:
                with pq.ParquetFile(file) as opened:
                    self._check(opened.schema_arrow.names)
                    for batch in opened.iter_batches():
                        yield self._record(_without_dictionaries(batch))
            except pa.ArrowException as error:
                raise unreadable(file, error) from None

    def _json(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None

        def pieces(file: str) -> Iterator[Piece]:
            nonlocal schema
            before = 0
            for block in blocks(file):
                try:
                    count = count_objects(block, file, before)
                    if schema is None and count:
                        schema = self._schema(block, count)
                except pa.ArrowException as error:
                    raise unreadable(file, error) from None
                if schema is not None and count:
                    yield partial(self._parsed_json, block, count, schema, file, before)
                before += count

        for file in files:
            yield from ahead(pieces(file), file)

    def _parsed_json(
        self, block: pa.Buffer, count: int, schema: pa.Schema, file: str, before: int
    ) -> Iterator[pa.RecordBatch]:
        """The objects of a block, `count` of them, as records. `before`: the file's objects before them."""
        if self._is_record(schema):
            yield self._record(read_records(block, count, schema, file, before))
        else:
            yield self._record(*read_rows(block, count, schema, file, whole="value" in self.typed))

    def _check(self, names: Collection[str]) -> None:
        for part, column in self.columns.items():
            if column is not None and column not in names:
                raise InvalidOptionError(
                    f"There is no column {column} to be the {part}", expected=f"one of {', '.join(names)}", found=column
                )

    def _schema(self, block: pa.Buffer, count: int) -> pa.Schema:
        """The columns of all blocks, by those that the first has, with `count` objects. Raises ArrowInvalid.

        Records may have parts later that the first have not. Text is text where Arrow takes it for times, and so is a
        key or value that is null so far. Any other column that is null so far may have any type later: it is left out
        unless a record is made from it. So is a column of records that none of their parts is made from.
        """
        if not self.typed and not any(self.columns.values()) and lines.records(block, count) is not None:
            return lines.RECORD_SCHEMA
        inferred = parsed(block).schema
        self._check(inferred.names)
        used = {*_PARTS, *filter(None, self.columns.values())}
        bytes_columns = {self.columns.get(part) or part for part in ("key", "value")}
        fields = []
        for field in inferred:
            is_null = pa.types.is_null(field.type)
            if pa.types.is_temporal(field.type) or (is_null and field.name in {*bytes_columns, "value_base64"}):
                fields.append(field.with_type(pa.string()))
            elif not is_null or field.name in used or "value" in self.typed:
                fields.append(field)
        found = pa.schema(fields)
        if not self._is_record(found):
            return found
        own = {one.name: one for one in found if one.name in used}
        kept = [
            own.pop(one.name) if one.name in own and self._keeps_type(own[one.name]) else one
            for one in lines.RECORD_SCHEMA
        ]
        return pa.schema([*kept, *(one for name, one in own.items() if name not in lines.RECORD_SCHEMA.names)])

    @staticmethod
    def _keeps_type(field: pa.Field) -> bool:
        """Whether a part of a record may have another type than _RECORD_FIELDS says: numbers as keys, times as text."""
        return field.name in ("key", "value", "timestamp", "partition") and not pa.types.is_null(field.type)

    def _is_record(self, schema: pa.Schema) -> bool:
        """Whether rows are records already, with their parts as columns."""
        if "value" not in schema.names:
            return "value_base64" in schema.names
        return is_bytes(schema.field("value").type) or self.columns.get("value") == "value"

    def _record(self, rows: pa.RecordBatch, lines: Lines | None = None) -> pa.RecordBatch:
        """Rows as records. `lines`: makes the rows as text, where they have been text."""
        names = rows.schema.names
        chosen = {part: column for part, column in self.columns.items() if column is not None}
        if self._is_record(rows.schema):
            for part in _PARTS:
                if part in names:
                    chosen.setdefault(part, part)
        columns: dict[str, pa.Array] = {}
        if "value" not in chosen:
            whole = pa.StructArray.from_arrays(rows.columns, names=names)
            columns["value"] = whole if "value" in self.typed else write_json(whole) if lines is None else lines()
        for part, column in chosen.items():
            array = rows.column(column)
            if part in ("key", "value"):
                columns[part] = array if part in self.typed else as_bytes(array)
            elif part == "timestamp":
                columns[part] = _as_timestamp(array, column)
            elif part == "partition":
                columns[part] = _as_partition(array, column)
            else:
                columns[part] = array
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _format_of(path: str) -> Format:
    """What a file's name says, or that of the first file in a directory."""
    if os.path.isdir(os.path.join(path, "_delta_log")):
        return Format.DELTA
    if os.path.isdir(path):
        path = files_of(path)[0]
    endings = [one.lower() for one in Path(path).suffixes]
    return next((_ENDINGS[one] for one in reversed(endings[-2:]) if one in _ENDINGS), Format.TEXT)


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
