"""Reads lines, JSON, CSV, Parquet and Delta tables as rows for a writer.

A JSON line that is a value as a whole is appended as it stands in the file. In rows that become JSON, fields that are
null are written as null. Columns of JSON have the types that the first block of the first file has; columns of CSV are
text, unless a format encodes them.
"""

from __future__ import annotations

import contextlib
import glob
import io
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.json as pj
import pyarrow.parquet as pq

from spark_segments.cli.records.record_text import Properties
from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.layout import HEADERS_TYPE
from spark_segments.log.appending.caller_rows import is_bytes
from spark_segments.log.reading.ahead import Piece, available_cores, read_ahead
from spark_segments.values.text.base64 import decode
from spark_segments.values.text.json_write import write_json
from spark_segments.values.undecodable import Undecodable

BLOCK_BYTES = 8 << 20
STANDARD_INPUT = "-"
_PARTS = ("key", "value", "timestamp", "partition", "headers")
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HINT = 'What Spark, Polars or DuckDB reads, they write, too: df.write.format("segments")'

_RECORD_FIELDS = [
    *(pa.field(name, pa.string()) for name in ("key", "key_base64", "value", "value_base64")),
    pa.field("timestamp", pa.int64()),
    pa.field("partition", pa.int64()),
    pa.field("headers", pa.list_(pa.struct([(name, pa.string()) for name in ("key", "value", "value_base64")]))),
]
"""The parts of a record as a line of JSON has them."""

Lines = Callable[[], pa.Array]
"""The lines that rows were, as binary[]: made where they are needed."""


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
            self.paths if self.format is Format.DELTA else [one for path in self.paths for one in _files(path)]
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
            for block in _blocks(file):
                yield partial(self._parsed_text, block, number)
                number += block.count(b"\n") + (not block.endswith(b"\n"))

        for file in files:
            yield from read_ahead(pieces(file), _threads(file))

    def _parsed_text(self, block: bytes, number: int) -> Iterator[pa.RecordBatch]:
        """Lines as records by the properties of Kafka's console producer. `number`: that of the first line."""
        lines = _lines(block)
        columns: dict[str, pa.Array] = {}
        rest = lines
        if self.properties.flag("parse.headers"):
            headers, rest = self._split(rest, "headers", "headers.delimiter", number)
            columns["headers"] = pa.array(
                [self._headers(one, number + row) for row, one in enumerate(headers.to_pylist())], HEADERS_TYPE
            )
        if self.properties.flag("parse.key"):
            columns["key"], rest = self._split(rest, "key", "key.separator", number)
        columns["value"] = rest
        if marker := self.properties.bytes("null.marker"):
            for name in columns.keys() & {"key", "value"}:
                is_null = pc.equal(columns[name], pa.scalar(marker, pa.binary()))
                columns[name] = pc.if_else(is_null, pa.scalar(None, pa.binary()), columns[name])
        yield pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])

    def _split(self, lines: pa.Array, what: str, separator: str, number: int) -> tuple[pa.Array, pa.Array]:
        """(what is before the separator, what is after it) of each line."""
        parts = pc.split_pattern(lines, self.properties.bytes(separator), max_splits=1)
        lacking = pc.indices_nonzero(pc.less(pc.list_value_length(parts), 2))
        if len(lacking):
            row = lacking[0].as_py()
            raise InvalidOptionError(
                f"Line {number + row} has no {what}",
                expected=f"{what}, {self.properties.values[separator]!r} and the rest",
                found=f"{len(lines[row].as_py())} bytes without the separator",
                hint=f"Set --property {separator}=…, or leave parse.{what} out",
            )
        return pc.list_element(parts, 0), pc.list_element(parts, 1)

    def _headers(self, text: bytes, number: int) -> list[dict[str, Any]]:
        pairs = [
            pair.partition(self.properties.bytes("headers.key.separator"))
            for pair in text.split(self.properties.bytes("headers.separator"))
            if pair
        ]
        try:
            return [{"key": name.decode(), "value": value} for name, _, value in pairs]
        except UnicodeDecodeError:
            raise InvalidOptionError(f"Line {number} has a header whose key is not UTF-8") from None

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
                with _opened(file) as stream:
                    names = pv.open_csv(stream, reading, parsing).schema.names
                types = None if "value" in self.typed else dict.fromkeys(names, pa.string())
                converting = pv.ConvertOptions(
                    column_types=types, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
                )
                self._check(names)
                with _opened(file) as stream:
                    for batch in pv.open_csv(stream, reading, parsing, converting):
                        yield self._record(batch)
            except pa.ArrowException as error:
                raise _unreadable(file, error) from None

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
                raise _unreadable(path, " ".join(str(error).split())) from None
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
                raise _unreadable(file, error) from None

    def _json(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None

        def pieces(file: str) -> Iterator[Piece]:
            nonlocal schema
            before = 0
            for block in _blocks(file):
                try:
                    count = _objects(block)
                    if schema is None and count:
                        inferred = _parsed(block, None).schema
                        self._check(inferred.names)
                        schema = self._schema(inferred)
                except pa.ArrowException as error:
                    raise _unreadable(file, error) from None
                if schema is not None and count:
                    yield partial(self._parsed_json, block, count, schema, file, before)
                before += count

        for file in files:
            yield from read_ahead(pieces(file), _threads(file))

    def _parsed_json(
        self, block: bytes, count: int, schema: pa.Schema, file: str, before: int
    ) -> Iterator[pa.RecordBatch]:
        """The objects of a block, `count` of them, as records. `before`: the file's objects before them."""
        try:
            pa.Array.from_buffers(
                pa.large_binary(), 1, [None, pa.py_buffer(np.array([0, len(block)])), pa.py_buffer(block)]
            ).cast(pa.large_string())  # raises for what is not UTF-8, which Arrow's reader takes
            rows = _parsed(block, schema, whole="value" in self.typed)
        except pa.ArrowException as error:
            raise _unreadable(file, error) from None
        if rows.num_rows != count:
            raise _unreadable(file, f"{rows.num_rows} objects on {count} lines")
        batch, lines = rows.combine_chunks().to_batches()[0], partial(_filled_lines, block)
        yield self._record(_decoded(batch, lines, file, before) if self._is_record(schema) else batch, lines)

    def _check(self, names: Collection[str]) -> None:
        for part, column in self.columns.items():
            if column is not None and column not in names:
                raise InvalidOptionError(
                    f"There is no column {column} to be the {part}", expected=f"one of {', '.join(names)}", found=column
                )

    def _schema(self, inferred: pa.Schema) -> pa.Schema:
        """The columns of all blocks, by the schema that Arrow took from the first.

        Records may have parts later that the first have not. Text is text where Arrow took it for times, and so is a
        key or value that is null so far. Any other column that is null so far may have any type later: it is left out
        unless a record is made from it.
        """
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
        fixed = {one.name: one for one in _RECORD_FIELDS}
        own = [one for one in found if one.name not in fixed or self._keeps_type(one)]
        return pa.schema([*own, *(one for name, one in fixed.items() if name not in {field.name for field in own})])

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
                columns[part] = array if part in self.typed else _as_bytes(array)
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
        path = _files(path)[0]
    endings = [one.lower() for one in Path(path).suffixes]
    return next((_ENDINGS[one] for one in reversed(endings[-2:]) if one in _ENDINGS), Format.TEXT)


def _files(path: str) -> list[str]:
    """The files of a path, a directory or a pattern, as Spark takes them: no name begins with _ or a dot."""
    if path == STANDARD_INPUT:
        return [path]
    if "://" in path:
        raise InvalidOptionError("Files are read here", expected="files of this machine", found=path, hint=_HINT)
    files = []
    for name in sorted(glob.glob(path)):
        inside = sorted(Path(name).rglob("*")) if os.path.isdir(name) else [Path(name)]
        within = [one for one in inside if one.is_file()]
        files += [str(one) for one in within if not _is_hidden(one.relative_to(Path(name).parent))]
    if not files:
        raise InvalidOptionError("There is nothing to append", expected="a file, a directory or a pattern", found=path)
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _blocks(file: str) -> Iterator[bytes]:
    """The content of a file, compressed or not, in blocks of whole lines. A line may be longer than a block."""
    rest = b""
    for piece in _pieces(file):
        end = piece.rfind(b"\n") + 1
        if not end:
            rest += piece
            continue
        yield rest + piece[:end]
        rest = piece[end:]
    if rest:
        yield rest


def _opened(file: str) -> Any:
    """The bytes of a file, decompressed, or of standard input."""
    if file == STANDARD_INPUT:
        return pa.PythonFile(sys.stdin.buffer, mode="r")
    return pa.input_stream(file, compression="detect")


def _pieces(file: str) -> Iterator[bytes]:
    with _opened(file) as stream:
        while True:
            try:
                piece = stream.read(BLOCK_BYTES)
            except OSError as error:  # of a codec, which does not name the file
                raise _unreadable(file, error) from None
            if not piece:
                return
            yield piece


def _lines(block: bytes) -> pa.Array:
    """binary[]: the lines of a block, without their ends."""
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    text = pa.array([block.removesuffix(b"\n")], pa.large_binary())
    return pc.split_pattern(text, "\n").flatten().cast(pa.binary())


def _filled_lines(block: bytes) -> pa.Array:
    """binary[]: the lines of a block that are not blank. Raises ArrowInvalid where they are not UTF-8."""
    lines = _lines(block)
    text = pc.utf8_trim_whitespace(lines.cast(pa.string()))
    return lines.filter(pc.greater(pc.binary_length(text), 0))


def _objects(block: bytes) -> int:
    """How many lines are not blank, quickly where all begin with a brace."""
    content = np.frombuffer(block, np.uint8)
    starts = np.flatnonzero(content[:-1] == ord("\n")) + 1
    if block[:1] == b"{" and (content[starts] == ord("{")).all():
        return len(starts) + 1
    return len(_filled_lines(block))


def _threads(file: str) -> int:
    """A pipe is read by the thread that Ctrl-C reaches."""
    return available_cores() if os.path.isfile(file) else 1


def _parsed(block: bytes, schema: pa.Schema | None, *, whole: bool = False) -> pa.Table:
    """The objects of a block. Columns that the schema lacks are left out; where rows are `whole`, they are an error."""
    others = "infer" if schema is None else "error" if whole else "ignore"
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    reading = pj.ReadOptions(use_threads=False, block_size=max(len(block) + 1, 1 << 20))  # blocks have threads
    return pj.read_json(io.BytesIO(block), read_options=reading, parse_options=options)


def _decoded(rows: pa.RecordBatch, lines: Lines, file: str, before: int) -> pa.RecordBatch:
    """Lines of records with the bytes that base64 stands for. `before`: the file's objects before them. Raises
    InvalidOptionError for a line without a value: a misspelt name must not make a tombstone.
    """
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    try:
        for name in ("key", "value"):
            columns[name] = _bytes_of(columns[name], columns.pop(f"{name}_base64"))
        headers = columns["headers"]
        pairs = headers.flatten()
        if pairs.field("key").null_count:
            raise ValueError("a header without a key")
        values = [pairs.field("key"), _bytes_of(pairs.field("value"), pairs.field("value_base64")).cast(pa.binary())]
        made = pa.StructArray.from_arrays(values, fields=[*HEADERS_TYPE.value_type])
        columns["headers"] = pa.ListArray.from_arrays(headers.offsets, made, HEADERS_TYPE, mask=headers.is_null())
    except ValueError as error:
        raise _unreadable(file, error) from None
    nulls = pc.indices_nonzero(columns["value"].is_null())
    for row, line in zip(nulls.to_pylist(), lines().take(nulls).to_pylist() if len(nulls) else [], strict=True):
        if not {"value", "value_base64"} & json.loads(line).keys():
            raise InvalidOptionError(
                f"Object {before + row + 1} of the file is not a record: no value",
                path=file,
                expected='an object such as {"key": "a", "value": "b"}',
                hint="A tombstone says so: its value is null",
            )
    return pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])


def _bytes_of(array: pa.Array, encoded: pa.Array) -> pa.Array:
    """An array of text, with the bytes of its base64 in the rows that have that. binary[] then."""
    if encoded.null_count == len(encoded):
        return array
    try:
        found = decode(encoded)
    except Undecodable as error:
        raise ValueError(error.reason) from None
    return pc.coalesce(found, _as_bytes(array).cast(pa.binary()))


def _without_dictionaries(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their values in place, as of a data frame's categories."""
    columns = [column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def _as_bytes(array: pa.Array) -> pa.Array:
    if is_bytes(array.type):
        return array
    if pa.types.is_nested(array.type):
        return pc.if_else(array.is_valid(), write_json(array), pa.scalar(None, pa.string()))
    return array.cast(pa.string())


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


def _unreadable(file: str, why: object) -> InvalidOptionError:
    if isinstance(why, pa.ArrowInvalid):
        why = reason_of(why)
    return InvalidOptionError(f"The file cannot be read: {why}", path=file, hint=_HINT)
