"""Batches of records with typed columns in place of bytes, and back: a reader's last step and a writer's first.

A null stays null: a tombstone in every format. What cannot be read is an error that says what was found, where, and
what to set, or with errors = null becomes null, its bytes kept in a further column where one was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownSchemaError, ValueFormatError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.values import wire
from spark_segments.values.choice import no_records, reading_codec, writing_codec
from spark_segments.values.codecs import Codec, Registered
from spark_segments.values.column_types import recast
from spark_segments.values.format_options import FORMAT_OF, JSON_SCHEMA, KINDS, NULL, ColumnFormat
from spark_segments.values.registries import open_registry
from spark_segments.values.registries.registry import Registry
from spark_segments.values.undecodable import Undecodable

_CONTEXT = ("topic", "partition", "offset")
OpenRegistry = Callable[[ColumnFormat], "Registry | None"]


def registry_of(chosen: ColumnFormat) -> Registry | None:
    """The registry that the options name: over HTTP or in a directory."""
    if chosen.registry is None:
        return None
    return open_registry(chosen.registry, dict(chosen.registry_options))


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads a column."""

    chosen: ColumnFormat
    codec: Codec
    open_registry: Callable[[], Registry | None] = field(repr=False, compare=False)
    """Opens the registry for an error that names a schema, where the codec has no registry."""

    def decode(self, array: pa.Array, context: pa.RecordBatch | None = None) -> tuple[pa.Array, pa.Array | None]:
        """(the typed column, the bytes of values that could not be read or None unless the options ask for them).

        `context` has the same rows' topic, partition and offset, for errors, and their headers where those are needed.
        Raises ValueFormatError.
        """
        array = array if pa.types.is_binary(array.type) else array.cast(pa.binary())
        rows, valid = _without_nulls(array)
        bad: list[int] = []
        try:
            if isinstance(self.codec, Registered):
                rows = self.codec.framed(rows, _headers(context, valid), self.chosen.column)
            values = self.codec.read(rows)
        except Undecodable as error:
            if self.chosen.errors != NULL:
                raise self._error(rows, valid, error, context) from None
            values = self._isolated(rows, 0, bad)
        if valid is not None:
            values = _spread(values, valid, len(array))
        raw = None
        if self.chosen.raw_column is not None:
            places = np.asarray(bad, np.int64) if valid is None else valid[np.asarray(bad, np.int64)]
            raw = _spread(array.take(pa.array(places)), places, len(array))
        return values, raw

    def _isolated(self, rows: pa.BinaryArray, first: int, bad: list[int]) -> pa.Array:
        """The rows decoded. Undecodable rows are null, and their places go into `bad`. Finds them by halving."""
        try:
            return self.codec.read(rows)
        except Undecodable:
            if len(rows) == 1:
                bad.append(first)
                return pa.nulls(1, self.codec.type)
        half = len(rows) // 2
        return pa.concat_arrays(
            [self._isolated(rows[:half], first, bad), self._isolated(rows[half:], first + half, bad)]
        )

    def _error(
        self, rows: pa.BinaryArray, valid: np.ndarray | None, error: Undecodable, context: pa.RecordBatch | None
    ) -> ValueFormatError:
        """The fault of the first row that cannot be read."""
        low, error = first_undecodable(rows, self.codec.read, error)
        value = rows[low].as_py()
        place = low if valid is None else int(valid[low])
        name, found = self._looks_like(value)
        return ValueFormatError(
            f"A {self.chosen.column} cannot be read as {self.chosen.format} ({error.reason})",
            path=_place(context, place),
            expected=self.chosen.format if name != self.chosen.format else "a value of its type or schema",
            found=found,
            hint=self._hint(name),
        )

    def _looks_like(self, value: bytes) -> tuple[str, str]:
        """(the format's name, what the bytes look like); the registry, where there is one, says what a schema is."""
        name, shown = wire.looks_like(value)
        if name != "confluent":
            return name, shown
        try:
            registry = self.codec.registry if isinstance(self.codec, Registered) else self.open_registry()
            if registry is None:
                return name, shown
            kind = registry.schema(int.from_bytes(value[1 : wire.HEADER_BYTES], "big"), self.chosen.subject).kind
        except UnknownSchemaError:
            return name, f"{shown}, which the registry does not have"
        except (SegmentsError, OSError):  # the value's error matters more than the registry's
            return name, shown
        title = "JSON Schema" if FORMAT_OF[kind] == JSON_SCHEMA else kind.capitalize()
        return FORMAT_OF[kind], shown.replace("Confluent's wire format", f"Confluent {title}")

    def _hint(self, name: str) -> str:
        column = self.chosen.column
        way_out = f"{column}.errors=null reads such {column}s as null"
        if name == "confluent" and not isinstance(self.codec, Registered):
            return f"Set {column}.format=avro, protobuf or jsonschema, and schema.registry; {way_out}"
        if name in ("confluent", "binary") or name == self.chosen.format:
            return f"Check {column}.format and {column}.schema; {way_out}"
        return f"Set {column}.format={name}; {way_out}"


@dataclass(frozen=True, slots=True)
class Encoder:
    """Writes a column."""

    chosen: ColumnFormat
    codec: Codec

    def encode(self, array: pa.Array) -> pa.Array:
        """The bytes of each row, as binary or text; null stays null. Raises ValueFormatError, InvalidOptionError."""
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), pa.binary())
        rows, valid = _without_nulls(array)
        try:
            written = self.codec.write(rows).cast(pa.binary())
        except Undecodable as error:
            at, error = first_undecodable(rows, self.codec.write, error)
            raise ValueFormatError(
                f"A {self.chosen.column} cannot be written as {self.chosen.format} ({error.reason})",
                path=_place(None, at if valid is None else int(valid[at])),
                hint="Change the rows, or the schema",
            ) from None
        return written if valid is None else _spread(written, valid, len(array))


class FormatDecoders(tuple[Decoder, ...]):
    """The decoders of a topic's columns."""

    __slots__ = ()

    def columns(self, names: Sequence[str]) -> FormatColumns:
        """How a read of these columns decodes them."""
        return FormatColumns(names, self)

    def stored(self, names: Iterable[str]) -> tuple[str, ...]:
        """The columns of records to which the columns `names` belong, at least one. A column of undecodable bytes
        belongs to the column that they are from.
        """
        raw = {decoder.chosen.raw_column: decoder.chosen.column for decoder in self}
        return tuple(dict.fromkeys(raw.get(name, name) for name in names)) or ("offset",)


class FormatEncoders(tuple[Encoder, ...]):
    """The encoders of the columns of rows to be appended."""

    __slots__ = ()

    @property
    def names(self) -> frozenset[str]:
        """The columns that are encoded."""
        return frozenset(encoder.chosen.column for encoder in self)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with bytes in place of typed columns."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for encoder in self:
            name = encoder.chosen.column
            if name in columns:
                columns[name] = encoder.encode(columns[name])
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def first_undecodable(
    rows: pa.Array, convert: Callable[[pa.Array], pa.Array], error: Undecodable
) -> tuple[int, Undecodable]:
    """(the first row that `convert` refuses, its error there), by halving. `error` is that of all rows."""
    low = 0
    high = len(rows)  # rows[low:high] holds the row
    while high - low > 1:
        half = (low + high) // 2
        try:
            convert(rows[low:half])
            low = half
        except Undecodable:
            high = half
    try:
        convert(rows[low:high])
    except Undecodable as error_of_row:
        error = error_of_row
    return low, error


def decoders(
    formats: Sequence[ColumnFormat],
    topic: str | None,
    sample: Callable[[str], Iterator[pa.RecordBatch]] = lambda column: no_records(),
    open_one: OpenRegistry = registry_of,
) -> FormatDecoders:
    """The decoders of a topic's columns. `sample` gives the first records with a value of a column, where only a value
    shows its type.
    """
    readers = []
    for chosen in formats:
        registry = open_one(chosen) if chosen.format in KINDS else None
        codec = reading_codec(chosen, topic, registry, partial(sample, chosen.column))
        readers.append(Decoder(chosen, codec, partial(open_one, chosen)))
    return FormatDecoders(readers)


def encoders(
    formats: Sequence[ColumnFormat],
    topic: str | None,
    types: Mapping[str, pa.DataType | None],
    open_one: OpenRegistry = registry_of,
) -> FormatEncoders:
    """The encoders of columns of these types; a column that is absent needs no encoder."""
    writers = []
    for chosen in formats:
        if chosen.column in types:
            registry = open_one(chosen) if chosen.format in KINDS else None
            writers.append(Encoder(chosen, writing_codec(chosen, topic, registry, types[chosen.column])))
    return FormatEncoders(writers)


def decode_batch(batch: pa.RecordBatch, readers: Sequence[Decoder]) -> pa.RecordBatch:
    """The batch with typed columns in place of bytes, then the columns of undecodable bytes."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for reader in readers:
        if reader.chosen.column not in columns:
            continue
        values, raw = reader.decode(columns[reader.chosen.column], batch)
        columns[reader.chosen.column] = values
        if reader.chosen.raw_column is not None:
            columns[reader.chosen.raw_column] = raw
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def decoded_schema(schema: pa.Schema, readers: Sequence[Decoder]) -> pa.Schema:
    """The schema of `decode_batch`'s results for batches of `schema`."""
    fields = {field.name: field for field in schema}
    for reader in readers:
        if reader.chosen.column in fields:
            fields[reader.chosen.column] = pa.field(reader.chosen.column, reader.codec.type)
            if reader.chosen.raw_column is not None:
                if reader.chosen.raw_column in fields:
                    raise InvalidOptionError("A column of this name already exists", found=reader.chosen.raw_column)
                fields[reader.chosen.raw_column] = pa.field(reader.chosen.raw_column, pa.binary())
    return pa.schema(list(fields.values()))


def _without_nulls(array: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """(the rows that are not null, their places; None where that is all rows)."""
    if not array.null_count:
        return array, None
    valid = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    return array.take(pa.array(valid)), valid


def _headers(context: pa.RecordBatch | None, valid: np.ndarray | None) -> pa.ListArray | None:
    """The headers of the rows that are not null, where the batch has them."""
    if context is None or "headers" not in context.schema.names:
        return None
    headers = context.column("headers")
    return headers if valid is None else headers.take(pa.array(valid))


def _spread(values: pa.Array, places: np.ndarray, rows: int) -> pa.Array:
    """The values at their places among `rows`, nulls between."""
    indexes = np.full(rows, -1, np.int64)
    indexes[places] = np.arange(len(places))
    return values.take(pa.array(indexes, mask=indexes < 0))


def _place(context: pa.RecordBatch | None, row: int) -> str:
    """A row's place, such as `orders-3, offset 17`, as far as the batch has these columns."""
    if context is None:
        return f"row {row} of its batch"
    names = context.schema.names
    topic, partition, offset = (context.column(name)[row].as_py() if name in names else None for name in _CONTEXT)
    if offset is None:
        return f"row {row} of its batch"
    where = f"partition {partition}, offset {offset}"
    return where if topic is None else f"topic {topic}, {where}"


@dataclass(frozen=True, slots=True)
class FormatColumns:
    """The columns of a read; some of them are typed."""

    names: Sequence[str]
    readers: Sequence[Decoder]

    @property
    def _used(self) -> list[Decoder]:
        return [reader for reader in self.readers if reader.chosen.column in self.names]

    @property
    def _decoded_names(self) -> list[str]:
        """The names of the columns, then of the columns of undecodable bytes."""
        return [*self.names, *(reader.chosen.raw_column for reader in self._used if reader.chosen.raw_column)]

    def types(self, column: str) -> bool:
        """Whether a reader decodes this column."""
        return any(reader.chosen.column == column for reader in self._used)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches that `conformed` gives."""
        full = decoded_schema(RECORD_SCHEMA, self._used)
        return pa.schema([full.field(name) for name in self._decoded_names])

    def conformed(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema | None = None) -> Iterator[pa.RecordBatch]:
        """Batches that `decoded` gave, each in exactly the schema, or in another. Columns that they lack are null."""
        schema = self.schema if schema is None else schema
        for batch in batches:
            arrays = [
                recast(batch.column(field.name), field.type)
                if field.name in batch.schema.names
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @property
    def wanted(self) -> list[str]:
        """The columns of records to read, with the columns of a record's place, which an error names."""
        further = [*_CONTEXT] if self._used else []
        if any(isinstance(reader.codec, Registered) for reader in self._used):
            further.append("headers")  # they may have the ids of schemas
        return [*self.names, *(name for name in further if name not in self.names)]

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the `wanted` columns as the columns `names`, followed by columns of undecodable bytes."""
        names = self._decoded_names
        for batch in batches:
            yield decode_batch(batch, self.readers).select(names)
