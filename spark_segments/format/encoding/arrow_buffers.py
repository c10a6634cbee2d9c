"""The columns of records to be written, as typed views of Arrow's buffers for kernels. No bytes are copied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.buffers import byte_view


class BinaryView(NamedTuple):
    """Byte strings. Row i is data[offsets[i]:offsets[i + 1]], or null where it has a validity bit that is not set."""

    offsets: np.ndarray  # int32[n + 1]
    data: np.ndarray  # uint8
    validity: np.ndarray  # uint8, one bit a row; empty when no row is null
    first_bit: int  # the bit of row 0


class TimestampView(NamedTuple):
    ticks: np.ndarray  # int64[n]
    validity: np.ndarray
    first_bit: int
    ticks_per_ms: int  # 1, 1,000 or 1,000,000


class ListView(NamedTuple):
    """Lists. Row i has elements offsets[i] to offsets[i + 1]. Where no row has any, `offsets` may be empty."""

    offsets: np.ndarray  # int32[n + 1]
    validity: np.ndarray
    first_bit: int


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns that records are made from. A missing column reads as all null."""

    count: int
    key: BinaryView
    value: BinaryView
    timestamp: TimestampView
    headers: ListView
    header_key: BinaryView
    header_value: BinaryView

    @classmethod
    def of(cls, records: pa.RecordBatch | pa.Table | Mapping[str, Any]) -> RecordColumns:
        """Views of the columns key, value, timestamp and headers, of which only the last and the first may be missing.

        Strings count as their UTF-8 bytes, int64 timestamps as milliseconds. Raises InvalidOptionError for other types.
        """
        names = records.keys() if isinstance(records, Mapping) else records.schema.names
        columns = {name: one_array(records[name]) for name in ("key", "value", "timestamp", "headers") if name in names}
        for name in ("value", "timestamp"):
            if name not in columns:
                raise InvalidOptionError(f"Records need a column {name}", found=", ".join(names))
        count = len(columns["value"])
        if any(len(column) != count for column in columns.values()):
            raise InvalidOptionError("The columns of records differ in length", expected=count)
        return cls(
            count,
            binary_view(columns.get("key"), "key", count),
            binary_view(columns["value"], "value", count),
            _timestamp(columns["timestamp"]),
            *_headers(columns.get("headers")),
        )


def one_array(column: Any) -> pa.Array:
    """A column in one piece."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _cast(array: pa.Array, column_type: pa.DataType, name: str, right: str) -> pa.Array:
    if array.type.equals(column_type):
        return array
    try:
        return array.cast(column_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidOptionError(
            f"The column {name} cannot be written ({reason_of(error)})", expected=right, found=array.type
        ) from None


def binary_view(array: pa.Array | None, name: str, count: int) -> BinaryView:
    """The view of a column of any binary or string type; None gives `count` nulls. `name` is for errors."""
    if array is None:
        array = pa.nulls(count, pa.binary())
    array = _cast(array, pa.binary(), name, "binary or string")
    _, offsets, data = array.buffers()
    return BinaryView(
        _numbers(offsets, np.int32, array.offset, len(array) + 1), _bytes(data), _validity(array), array.offset
    )


def _timestamp(array: pa.Array) -> TimestampView:
    right = "a timestamp or int64 ms"
    ticks_per_ms = 1
    if pa.types.is_timestamp(array.type):
        if array.type.unit == "s":
            array = _cast(array, pa.timestamp("ms", array.type.tz), "timestamp", right)
        ticks_per_ms = {"ms": 1, "us": 1_000, "ns": 1_000_000}[array.type.unit]
    elif not pa.types.is_int64(array.type):
        raise InvalidOptionError("The column timestamp cannot be written", expected=right, found=array.type)
    ticks = _numbers(array.buffers()[1], np.int64, array.offset, len(array))
    return TimestampView(ticks, _validity(array), array.offset, ticks_per_ms)


def _headers(array: pa.Array | None) -> tuple[ListView, BinaryView, BinaryView]:
    if array is None or pa.types.is_null(array.type):
        return _NO_HEADERS
    element = getattr(array.type, "value_type", None)
    right = "list<struct<key: string, value: binary>>"
    if element is None or not pa.types.is_struct(element) or {field.name for field in element} != {"key", "value"}:
        raise InvalidOptionError("The column headers cannot be written", expected=right, found=array.type)
    # Field by field: pyarrow before 21 casts no struct to one with its fields in another order.
    array = _cast(array, pa.list_(element), "headers", right)
    fields = dict(zip((field.name for field in element), array.values.flatten(), strict=True))
    offsets = _numbers(array.buffers()[1], np.int32, array.offset, len(array) + 1)
    return (
        ListView(offsets, _validity(array), array.offset),
        binary_view(_cast(fields["key"], pa.string(), "headers", right), "headers", 0),  # null: a header without a key
        binary_view(fields["value"], "headers", 0),
    )


def _validity(array: pa.Array) -> np.ndarray:
    return _bytes(array.buffers()[0]) if array.null_count else _EMPTY_BYTES


def _bytes(buffer: pa.Buffer | None) -> np.ndarray:
    return _EMPTY_BYTES if buffer is None else byte_view(buffer)


def _numbers(buffer: pa.Buffer | None, dtype: type, start: int, count: int) -> np.ndarray:
    # An empty Arrow array may have no buffer, not even for the single offset that it should have.
    if buffer is None or buffer.size == 0:
        return np.zeros(count, dtype)
    numbers: np.ndarray = np.frombuffer(buffer, dtype, count, start * np.dtype(dtype).itemsize)
    return numbers if numbers.flags.aligned else numbers.copy()


_EMPTY_BYTES = np.empty(0, np.uint8)
_NO_OFFSETS = np.empty(0, np.int32)
_NO_STRINGS = BinaryView(np.zeros(1, np.int32), _EMPTY_BYTES, _EMPTY_BYTES, 0)
_NO_HEADERS = ListView(_NO_OFFSETS, _EMPTY_BYTES, 0), _NO_STRINGS, _NO_STRINGS
