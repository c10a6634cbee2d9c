"""Reads lines, JSON lines and Parquet as rows for a writer, in this process: what `append` does without Spark.

Rows become records by the rules of spark/frames.py, with three differences. A JSON line that is a value as a whole is
appended as it stands in the file, where Spark parses it and writes it anew. Fields that are null are written as null,
where Spark leaves them out. And columns of JSON have the types that the first block of the first file has.
"""

from __future__ import annotations

import glob
import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq

from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.log.appending.input_columns import is_bytes
from spark_segments.values.text.json_write import write_json

BLOCK_BYTES = 8 << 20
_PARTS = ("key", "value", "timestamp", "partition", "headers")
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HINT = "Spark reads it with other rules: --master 'local[*]'"


@dataclass(frozen=True, slots=True)
class Input:
    """Files, their format (text, json or parquet), the columns that become parts of a record, and which of key and
    value keep their types because a format encodes them.
    """

    paths: Sequence[str]
    format: str
    columns: Mapping[str, str | None]
    typed: Collection[str] = ()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of all files in the order of their names, with a writer's columns."""
        files = [file for path in self.paths for file in _files(path)]
        if self.format == "parquet":
            return self._parquet(files)
        return self._json(files) if self.format == "json" else self._text(files)

    def _text(self, files: Sequence[str]) -> Iterator[pa.RecordBatch]:
        self._check(["value"])
        for file in files:
            for block in _blocks(file):
                yield self._record(pa.record_batch({"value": _lines(block)}))

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
        for file in files:
            for block in _blocks(file):
                lines = _lines(block)
                try:
                    text = pc.utf8_trim_whitespace(lines.cast(pa.string()))
                    lines = lines.filter(pc.greater(pc.binary_length(text), 0))
                    if not len(lines):
                        continue
                    if schema is None:
                        inferred = _parsed(block, None).schema
                        self._check(inferred.names)
                        schema = self._schema(inferred)
                    rows = _parsed(block, schema, whole="value" in self.typed)
                except pa.ArrowException as error:
                    raise _unreadable(file, error) from None
                if self._is_record(schema):
                    self._refuse_late_parts(file, block, schema)
                if rows.num_rows != len(lines):
                    raise _unreadable(file, f"{rows.num_rows} objects on {len(lines)} lines")
                yield self._record(rows.combine_chunks().to_batches()[0], lines)

    def _check(self, names: Collection[str]) -> None:
        for part, column in self.columns.items():
            if column is not None and column not in names:
                raise InvalidOptionError(
                    f"There is no column {column} to be the {part}", expected=f"one of {', '.join(names)}", found=column
                )

    def _schema(self, inferred: pa.Schema) -> pa.Schema:
        """The columns of all blocks, by the schema that Arrow took from the first.

        Text is text where Arrow took it for times, and a key or value that is null so far, as Spark has it. Any other
        column that is null so far may have any type later: it is left out unless a record is made from it.
        """
        used = {*_PARTS, *filter(None, self.columns.values())}
        bytes_columns = {self.columns.get(part) or part for part in ("key", "value")}
        fields = []
        for field in inferred:
            is_null = pa.types.is_null(field.type)
            if pa.types.is_temporal(field.type) or (is_null and field.name in bytes_columns):
                fields.append(field.with_type(pa.string()))
            elif not is_null or field.name in used or "value" in self.typed:
                fields.append(field)
        return pa.schema(fields)

    @staticmethod
    def _is_record(schema: pa.Schema) -> bool:
        """Whether rows are records already, with their parts as columns."""
        return "value" in schema.names and is_bytes(schema.field("value").type)

    def _refuse_late_parts(self, file: str, block: bytes, schema: pa.Schema) -> None:
        """Raises InvalidOptionError for a part of a record that the lines before had none of: it would be left out."""
        for part in _PARTS:
            if part in schema.names or self.columns.get(part) is not None or b'"%s"' % part.encode() not in block:
                continue
            try:
                _parsed(block, pa.schema([(part, pa.null())]))
            except pa.ArrowException:
                raise InvalidOptionError(
                    f"A line has a {part}, and none of the first lines of the input has one",
                    path=file,
                    expected=f"lines with {', '.join(name for name in _PARTS if name in schema.names)} alone",
                    found=f"lines with {part}",
                    hint=f"Append files of different columns one by one. {_HINT}",
                ) from None

    def _record(self, rows: pa.RecordBatch, lines: pa.Array | None = None) -> pa.RecordBatch:
        """Rows as records. `lines`: the rows as text, where they have been text."""
        names = rows.schema.names
        chosen = {part: column for part, column in self.columns.items() if column is not None}
        if self._is_record(rows.schema):
            for part in _PARTS:
                if part in names:
                    chosen.setdefault(part, part)
        columns: dict[str, pa.Array] = {}
        if "value" not in chosen:
            whole = pa.StructArray.from_arrays(rows.columns, names=names)
            columns["value"] = whole if "value" in self.typed else write_json(whole) if lines is None else lines
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


def _files(path: str) -> list[str]:
    """The files of a path, a directory or a pattern, as Spark takes them: no name begins with _ or a dot."""
    if "://" in path:
        raise InvalidOptionError(
            "Only Spark reads from there", expected="files of this machine", found=path, hint=_HINT
        )
    found = []
    for name in sorted(glob.glob(path)):
        inside = sorted(Path(name).rglob("*")) if os.path.isdir(name) else [Path(name)]
        within = [one for one in inside if one.is_file()]
        found += [str(one) for one in within if not _is_hidden(one.relative_to(Path(name).parent))]
    if not found:
        raise InvalidOptionError("There is nothing to append", expected="a file, a directory or a pattern", found=path)
    return found


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


def _pieces(file: str) -> Iterator[bytes]:
    with pa.input_stream(file, compression="detect") as stream:
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


def _parsed(block: bytes, schema: pa.Schema | None, *, whole: bool = False) -> pa.Table:
    """The objects of a block. Columns that the schema lacks are left out; where rows are `whole`, they are an error."""
    others = "infer" if schema is None else "error" if whole else "ignore"
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others)
    reading = pj.ReadOptions(block_size=max(len(block) + 1, 1 << 20))
    return pj.read_json(io.BytesIO(block), read_options=reading, parse_options=options)


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
