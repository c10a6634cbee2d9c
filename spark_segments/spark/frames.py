"""Any DataFrame as records: which columns become key, value and the rest."""

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
# What a frame of records has, or may have.
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
    """The columns that a writer takes, out of any frame.

    A frame with a column `value` of text or bytes is one of records: its key, timestamp, partition and headers are
    theirs. Any other becomes records whose value is the whole row as JSON. The arguments name columns to use instead:
    text and bytes are taken as they are, arrays, maps and structs as JSON, everything else as the text Spark casts it
    to; a timestamp may be a number of milliseconds, or text. Those of key and value that are `typed` keep their types,
    a whole row as a struct: the writer has a format for them. Raises InvalidOptionError for a column that is not there.
    """
    types = {field.name: field.dataType for field in frame.schema.fields}
    chosen = {"key": key_column, "value": value_column, "timestamp": timestamp_column, "partition": partition_column}
    for name, column in chosen.items():
        if column is not None and column not in types:
            raise InvalidOptionError(
                f"There is no column {column} to be the {name}", expected=f"one of {', '.join(types)}", found=column
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
