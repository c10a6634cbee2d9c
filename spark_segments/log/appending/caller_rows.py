"""The rows that a caller appends, in whatever form they come: Arrow, a data frame, or dicts."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa

from spark_segments.errors import InvalidRecordError, reason_of
from spark_segments.log.appending.input_columns import WRITER_HINT, WRITER_SCHEMA


class SupportsArrow(Protocol):
    """A data frame or a result that gives a stream of Arrow batches: pandas, Polars, DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Rows = pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch] | Sequence[Mapping[str, Any]] | SupportsArrow


def record_batches(data: Any, formats: Mapping[str, str]) -> Iterable[pa.RecordBatch]:
    """A caller's rows as record batches: Arrow's tables, batches and iterables of batches; anything that gives a stream
    of Arrow (Polars, DuckDB); a pandas DataFrame; or a list of dicts with a writer's columns as keys.

    A column, key or value, that `formats` will encode may hold anything.
    """
    if isinstance(data, pa.RecordBatch):
        return [data]
    if isinstance(data, pa.Table):
        return _batches(data)
    if isinstance(data, Sequence) and data and isinstance(data[0], Mapping):
        given = {name.lower() for name in formats}
        return [rows_of(data, [name for name in ("key", "value") if f"{name}.format" in given])]
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "itertuples"):
        try:
            return _batches(pa.Table.from_pandas(data, preserve_index=False))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidRecordError(f"The rows are no records: {reason_of(error)}", hint=WRITER_HINT) from None
    if hasattr(data, "__arrow_c_stream__"):
        data = pa.RecordBatchReader.from_stream(data)
    if isinstance(data, Mapping | str | bytes) or not hasattr(data, "__iter__"):
        raise _no_rows(data)
    return _checked(data)


def _checked(batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise _no_rows(batch)
        yield batch


def _no_rows(found: Any) -> InvalidRecordError:
    return InvalidRecordError(
        "Rows come as Arrow, as a data frame, or as a list of dicts",
        found=type(found).__name__,
        hint="A list of dicts has a dict for each record; list(…) makes a list of an iterator",
    )


def _batches(table: pa.Table) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = table.to_batches()
    return batches


def rows_of(rows: Sequence[Mapping[str, Any]], typed: Collection[str] = ()) -> pa.RecordBatch:
    """Dicts as rows for a writer. Every row has a value, None for a tombstone. Text is encoded as UTF-8; a timestamp is
    a datetime or milliseconds since 1970; headers are pairs, a dict, or dicts of key and value.

    Raises InvalidRecordError for a row that is none.
    """
    columns: dict[str, list[Any]] = {name: [] for name in WRITER_SCHEMA.names}
    for number, row in enumerate(rows):
        try:
            if "value" not in row:
                raise ValueError("it has no value")
            for name, values in columns.items():
                values.append(row.get(name) if name in typed else _READ.get(name, _unchanged)(row.get(name)))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            why = reason_of(error) if isinstance(error, UnicodeError) else error
            raise InvalidRecordError(
                f"Row {number} is no record: {why}",
                expected='such as {"key": "a", "value": b"1", "timestamp": 1700000000000, "headers": {"h": b"1"}}',
                found=_types_of(row),
            ) from None
    try:
        arrays = [
            pa.array(values) if field.name in typed else pa.array(values, field.type)
            for field, values in zip(WRITER_SCHEMA, columns.values(), strict=True)
        ]
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRecordError(f"The rows are no records: {reason_of(error)}", hint=WRITER_HINT) from None
    present = {name for row in rows for name in row}
    kept = [number for number, name in enumerate(WRITER_SCHEMA.names) if name in present]
    return pa.RecordBatch.from_arrays(
        [arrays[number] for number in kept], names=[WRITER_SCHEMA.names[number] for number in kept]
    )


def _types_of(row: Any) -> str:
    """The names and types of a row's columns."""
    if not isinstance(row, Mapping):
        return type(row).__name__
    named = (f"{name}: {type(row[name]).__name__}" for name in WRITER_SCHEMA.names if name in row)
    return f"{{{', '.join(named)}}}"


def _unchanged(value: Any) -> Any:
    return value


def _bytes_of(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{type(value).__name__} is neither text nor bytes; formats={{'value.format': 'json'}} writes it")


def _microseconds(value: Any) -> Any:
    # Arrow would take numpy's integers and floats for microseconds.
    return value if value is None or isinstance(value, datetime.datetime) else _whole(value) * 1000


def _whole(value: Any) -> int:
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    raise TypeError(f"{type(value).__name__} is no whole number")


def _partition_of(value: Any) -> int | None:
    return None if value is None else _whole(value)


def _headers_of(value: Any) -> Any:
    pairs = value.items() if isinstance(value, Mapping) else (value or [])
    pairs = ((one["key"], one["value"]) if isinstance(one, Mapping) else one for one in pairs)
    return [{"key": key, "value": _bytes_of(header)} for key, header in pairs]


_READ: dict[str, Callable[[Any], Any]] = {
    "key": _bytes_of,
    "value": _bytes_of,
    "timestamp": _microseconds,
    "partition": _partition_of,
    "headers": _headers_of,
}
