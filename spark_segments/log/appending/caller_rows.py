"""The rows that a caller appends: Arrow, a data frame, or dicts."""

from __future__ import annotations

import datetime
import itertools
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, InvalidRecordError, reason_of
from spark_segments.format.record_columns import COLUMNS, WRITER_HINT, WRITER_SCHEMA, is_bytes, no_column


def check_columns(schema: pa.Schema, *, topic_given: bool) -> None:
    """Raises InvalidOptionError unless rows of `schema` can be written, and all columns of it are a record's."""
    if "value" not in schema.names:
        raise InvalidOptionError(
            "The data has no column to write", expected="a column named value", found=schema.names, hint=WRITER_HINT
        )
    twice = [name for name in WRITER_SCHEMA.names if schema.names.count(name) > 1]
    if twice:
        raise InvalidOptionError("The data has two columns of the same name", found=", ".join(twice))
    if not topic_given and "topic" not in schema.names:
        raise InvalidOptionError("The write names no topic", hint="Give the option topic, or a column of that name")
    for field in schema:
        if field.name in WRITER_SCHEMA.names and not _is_accepted(field):
            raise InvalidOptionError(
                f"Column {field.name} has a type that cannot be written",
                expected=WRITER_SCHEMA.field(field.name).type,
                found=field.type,
                hint=WRITER_HINT,
            )
    for name in schema.names:
        if name not in COLUMNS:
            message, hint = no_column(name)
            raise InvalidOptionError(message, hint=hint)


def normalize(batch: pa.RecordBatch, *, now_ms: int) -> pa.RecordBatch:
    """The writer's columns that `batch` has, and timestamp, in WRITER_SCHEMA's types and order: key and value binary,
    timestamps in UTC. A null timestamp becomes `now_ms`.

    Types must have passed `check_columns`; a value that does not fit its type (a partition above int32, say) raises
    InvalidOptionError.
    """
    names = batch.schema.names
    fields = []
    columns = []
    for field in WRITER_SCHEMA:
        if field.name in names:
            column = _cast(batch.column(field.name), field)
        elif field.name == "timestamp":
            column = pa.nulls(batch.num_rows, field.type)
        else:
            continue
        if field.name == "timestamp" and column.null_count:
            column = pc.fill_null(column, pa.scalar(now_ms * 1000, field.type))
        fields.append(field)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def combine(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The rows of normalized batches, in their order, in one batch with all columns of WRITER_SCHEMA (in several where
    a column has more than 2 GiB). Columns that are absent come out as nulls.
    """
    alike = [list(run) for _, run in itertools.groupby(batches, key=lambda batch: batch.schema)]
    rows = [
        _with_absent_columns(batch)
        for run in alike
        for batch in pa.Table.from_batches(run).combine_chunks().to_batches()
    ]
    if len(rows) == 1:
        return rows
    combined: list[pa.RecordBatch] = pa.Table.from_batches(rows).combine_chunks().to_batches()
    return combined


def _with_absent_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    names = batch.schema.names
    columns = [
        batch.column(field.name) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in WRITER_SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=WRITER_SCHEMA)


def _is_accepted(field: pa.Field) -> bool:
    """Whether a column of this name may have this type."""
    kind = field.type
    if pa.types.is_dictionary(kind):  # pandas' and Polars' categories
        kind = kind.value_type
    return pa.types.is_null(kind) or _ACCEPTS[field.name](kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _is_headers(kind: pa.DataType) -> bool:
    """Whether a type is a list of structs of key and value."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    header = kind.value_type
    if pa.types.is_null(header):  # lists that are empty, as JSON has them
        return True
    if not pa.types.is_struct(header):
        return False
    fields = [header.field(number) for number in range(header.num_fields)]
    return [field.name for field in fields] == ["key", "value"] and all(is_bytes(field.type) for field in fields)


_ACCEPTS: dict[str, Callable[[pa.DataType], bool]] = {
    "key": is_bytes,
    "value": is_bytes,
    "timestamp": _is_time,
    "topic": _is_text,
    "partition": _is_integer,
    "headers": _is_headers,
}
"""By column, whether it may have a type."""


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        return column.cast(field.type)  # a time zone changes how a timestamp is shown, not its value
    try:
        if pa.types.is_dictionary(column.type):  # Arrow cannot take from a dictionary of views
            return column.dictionary.cast(field.type).take(column.indices)
        # Parts of a microsecond are cut. A time that 64 bits of microseconds do not hold is an error.
        return column.cast(field.type, safe=not (pa.types.is_timestamp(column.type) and column.type.unit == "ns"))
    except pa.ArrowInvalid as error:
        raise InvalidOptionError(
            f"Column {field.name} cannot be written as {field.type}: {reason_of(error)}", hint=WRITER_HINT
        ) from None


class SupportsArrow(Protocol):
    """A data frame or a result that gives a stream of Arrow batches: pandas, Polars, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Rows = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | Iterable[Mapping[str, Any]] | SupportsArrow

MOST_DICTS = 10_000
"""Rows of a generator of dicts that become a record batch together."""


def record_batches(data: Any, formats: Mapping[str, str]) -> Iterable[pa.RecordBatch]:
    """A caller's rows as record batches: Arrow's tables, batches and iterables of batches; anything that gives a stream
    of Arrow (Polars, DuckDB); a pandas DataFrame; or a list or a generator of dicts with a writer's columns as keys.

    A column, key or value, that `formats` will encode may hold anything: it has one type, that of all rows, so that the
    rows of a generator are all in memory then.
    """
    typed = _typed_columns(formats)
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return _batches(data)
    if isinstance(data, Sequence) and data and isinstance(data[0], Mapping):
        return [rows_of(data, typed)]
    if _is_pandas(data):
        return _batches(_table_of_pandas(data))
    return _batches_of(_items(data), typed)


def _typed_columns(formats: Mapping[str, str]) -> list[str]:
    """Of key and value the columns that a format encodes."""
    names = {name.lower() for name in formats}
    return [name for name in ("key", "value") if f"{name}.format" in names]


def _is_pandas(data: Any) -> bool:
    """Whether this is a DataFrame of pandas, which need not be installed."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "itertuples")


def _table_of_pandas(frame: Any) -> pa.Table:
    try:
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise InvalidRecordError(f"The rows are no records: {reason_of(error)}", hint=WRITER_HINT) from None


def _items(data: Any) -> Iterable[Any]:
    """What gives record batches, or dicts, one after the other. Raises InvalidRecordError for data that gives none."""
    items: Iterable[Any] = data
    if hasattr(data, "__arrow_c_stream__"):
        items = pa.RecordBatchReader.from_stream(data)
    elif isinstance(data, Mapping | str | bytes) or not hasattr(data, "__iter__"):
        raise _no_rows(data)
    return items


def _batches_of(rows: Iterable[Any], typed: Collection[str]) -> Iterator[pa.RecordBatch]:
    """Record batches, or dicts, of an iterable, which may be read once only."""
    left = iter(rows)
    first = next(left, None)
    if isinstance(first, Mapping):
        yield from _batches_of_dicts(itertools.chain([first], left), typed)
        return
    for batch in itertools.chain([] if first is None else [first], left):
        if not isinstance(batch, pa.RecordBatch):
            raise _no_rows(batch)
        yield batch


def _batches_of_dicts(rows: Iterator[Any], typed: Collection[str]) -> Iterator[pa.RecordBatch]:
    number = 0
    most_dicts = None if typed else MOST_DICTS
    part = list(itertools.islice(rows, most_dicts))
    while part:
        yield rows_of(part, typed, number)
        number += len(part)
        part = list(itertools.islice(rows, most_dicts))


def _no_rows(found: Any) -> InvalidRecordError:
    return InvalidRecordError(
        "Rows come as Arrow, as a data frame, or as a list or a generator of dicts",
        found=type(found).__name__,
        hint="A list of dicts has a dict for each record",
    )


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def rows_of(rows: Sequence[Mapping[str, Any]], typed: Collection[str] = (), first: int = 0) -> pa.RecordBatch:
    """Dicts as rows for a writer. Every row has a value, None for a tombstone. Text is encoded as UTF-8; a timestamp is
    a datetime, milliseconds since 1970 or ISO text; headers are pairs, a dict, or dicts of key and value.

    `first`: the number of the first row. Raises InvalidRecordError for a row that is none.
    """
    columns: dict[str, list[Any]] = {name: [] for name in WRITER_SCHEMA.names}
    for number, row in enumerate(rows, first):
        if isinstance(row, Mapping) and not row.keys() <= COLUMNS:
            message, hint = no_column(next(str(name) for name in row if name not in COLUMNS))
            raise InvalidRecordError(f"Row {number} is no record: {message[0].lower()}{message[1:]}", hint=hint)
        try:
            _add_row(columns, row, typed)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = reason_of(error) if isinstance(error, UnicodeError) else error
            raise InvalidRecordError(
                f"Row {number} is no record: {why}",
                expected='such as {"key": "a", "value": b"1", "timestamp": 1700000000000, "headers": {"h": b"1"}}',
                found=_types_of(row),
            ) from None
    names = {name for row in rows for name in row}
    return _batch_of({name: values for name, values in columns.items() if name in names}, typed)


def _add_row(columns: Mapping[str, list[Any]], row: Mapping[str, Any], typed: Collection[str]) -> None:
    if "value" not in row:
        raise ValueError("it has no value")
    for name, values in columns.items():
        value = row.get(name)
        values.append(value if name in typed else _READ[name](value))


def _batch_of(columns: Mapping[str, list[Any]], typed: Collection[str]) -> pa.RecordBatch:
    """The columns as Arrow has them: of a writer's types, but for the `typed` ones."""
    try:
        arrays = [
            pa.array(values) if name in typed else pa.array(values, WRITER_SCHEMA.field(name).type)
            for name, values in columns.items()
        ]
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRecordError(f"The rows are no records: {reason_of(error)}", hint=WRITER_HINT) from None
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _types_of(row: Any) -> str:
    """The names and types of a row's columns."""
    if not isinstance(row, Mapping):
        return type(row).__name__
    named = (f"{name}: {type(row[name]).__name__}" for name in WRITER_SCHEMA.names if name in row)
    return f"{{{', '.join(named)}}}"


def _bytes_of(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is neither text nor bytes; formats={{'value.format': 'json'}} writes it")


def _microseconds(value: Any) -> Any:
    if isinstance(value, str):
        return _microseconds_of_text(value)
    # Arrow would take numpy's integers and floats for microseconds.
    return value if value is None or isinstance(value, datetime.datetime) else _whole(value) * 1000


def _microseconds_of_text(text: str) -> int:
    """ISO 8601, in UTC where no zone is named, as the command `append` reads it."""
    try:
        time = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("the text of its timestamp is no ISO time, such as 2026-01-31T12:00:00Z") from None
    in_utc = time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time
    return (in_utc - _EPOCH) // datetime.timedelta(microseconds=1)


def _whole(value: Any) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError(f"{type(value).__name__} is no whole number")


def _headers_of(value: Any) -> Any:
    pairs = value.items() if isinstance(value, Mapping) else (value or [])
    pairs = ((pair["key"], pair["value"]) if isinstance(pair, Mapping) else pair for pair in pairs)
    return [{"key": key, "value": _bytes_of(header)} for key, header in pairs]


_READ: dict[str, Callable[[Any], Any]] = {
    "key": _bytes_of,
    "value": _bytes_of,
    "timestamp": _microseconds,
    "topic": lambda value: value,
    "partition": lambda value: None if value is None else _whole(value),
    "headers": _headers_of,
}
