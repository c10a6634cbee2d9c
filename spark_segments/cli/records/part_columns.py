"""Columns of rows as parts of a record: timestamps and partitions, of the types that a writer takes."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, reason_of

_TIMESTAMP = pa.timestamp("us", tz="UTC")


def with_timestamps(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with their timestamps, where they have any, as a writer takes them."""
    at = rows.schema.get_field_index("timestamp")
    return rows if at < 0 else rows.set_column(at, "timestamp", as_timestamp(rows.column(at), "timestamp"))


def as_partition(array: pa.Array, name: str) -> pa.Array:
    """Numbers of partitions, int32[]. `name`: the column's, for the error."""
    try:
        return array.cast(pa.int32())
    except pa.ArrowException as error:
        raise InvalidOptionError(
            f"Column {name} cannot be a partition: {reason_of(error)}", expected="whole numbers"
        ) from None


def as_timestamp(array: pa.Array, name: str) -> pa.Array:
    """Times in UTC: of numbers and texts that are numbers as ms since 1970, of texts as ISO 8601. `name`: the
    column's, for the error.
    """
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
