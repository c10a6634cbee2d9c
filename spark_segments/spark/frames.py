"""Turns any DataFrame into records: selects the columns that become key, value, timestamp, partition and headers."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from spark_segments.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_BYTES = (StringType, BinaryType)
_NESTED = (ArrayType, MapType, StructType, VariantType)
# The columns of a DataFrame of records; all but `value` are optional.
_RECORD_COLUMNS = ("key", "value", "timestamp", "partition", "headers")


def as_records(
    frame: DataFrame,
    *,
    key_column: str | None = None,
    value_column: str | None = None,
    timestamp_column: str | None = None,
    partition_column: str | None = None,
    typed: Collection[str] = (),
) -> DataFrame:
    """A DataFrame with the columns that a writer takes, made from any DataFrame.

    Each row of a frame with a column `value` of text or bytes is a record, with its columns key, timestamp, partition
    and headers. A row of any other frame becomes a record whose value is the whole row as JSON. The arguments name
    columns to use instead. Text and bytes are used unchanged; arrays, maps and structs become JSON; any other type
    becomes the text to which Spark casts it. A timestamp may be a number of milliseconds, or text.

    `typed` has "key" or "value" where the writer has a format for that column: the column keeps its type, and a whole
    row becomes a struct. Raises InvalidOptionError for a column that does not exist.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    chosen = {"key": key_column, "value": value_column, "timestamp": timestamp_column, "partition": partition_column}
    for name, column in chosen.items():
        if column is not None and column not in types:
            raise InvalidOptionError(
                f"The data has no column {column} for the {name}", expected=f"one of {', '.join(types)}", found=column
            )
    if isinstance(types.get("value"), _BYTES):
        for name in _RECORD_COLUMNS:
            if name in types:
                chosen[name] = chosen.get(name) or name
    columns = {"value": F.struct("*") if "value" in typed else F.to_json(F.struct("*"))}
    for name in ("value", "key"):
        column = chosen[name]
        if column is not None:
            columns[name] = _column(column) if name in typed else _as_bytes(column, types)
    if chosen["timestamp"] is not None:
        columns["timestamp"] = _as_timestamp(chosen["timestamp"], types)
    if chosen["partition"] is not None:
        columns["partition"] = _column(chosen["partition"]).cast("int")
    if "headers" in chosen:
        columns["headers"] = F.col("headers")
    return frame.select([column.alias(name) for name, column in columns.items()])


def _as_bytes(name: str, types: dict[str, DataType]) -> Column:
    if isinstance(types[name], _BYTES):
        return _column(name)
    return F.to_json(_column(name)) if isinstance(types[name], _NESTED) else _column(name).cast("string")


def _as_timestamp(name: str, types: dict[str, DataType]) -> Column:
    if isinstance(types[name], IntegralType):
        return F.timestamp_millis(_column(name))
    if isinstance(types[name], (TimestampType, TimestampNTZType, DateType, StringType)):
        return _column(name).cast("timestamp")
    raise InvalidOptionError(
        f"Column {name} cannot be a timestamp",
        expected="a timestamp, a date, text or milliseconds",
        found=types[name].simpleString(),
    )


def _column(name: str) -> Column:
    return F.col("`" + name.replace("`", "``") + "`")
