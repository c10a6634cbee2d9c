"""Types of Spark's columns as types of the Arrow batches that pass between Spark and a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the batches."""
    return pa.schema([pa.field(field.name, to_arrow_type(field.dataType), field.nullable) for field in schema.fields])


def to_arrow_type(kind: DataType) -> pa.DataType:
    """The type of a column in the batches, its times in UTC."""
    from pyspark.sql.pandas import types

    make: Any = types.to_arrow_type
    try:
        arrow_type: pa.DataType = make(kind, timezone="UTC")
    except TypeError as error:
        if "timezone" not in str(error):
            raise
        arrow_type = make(kind)  # PySpark 4.0 and 4.1, whose times are in UTC and nothing else
    return arrow_type


def without_times(kind: pa.DataType) -> pa.DataType:
    """`kind` with a number of microseconds for each time of day: Spark 4.2 has TIME, and refuses it in most queries."""
    t = pa.types
    if t.is_struct(kind):
        return pa.struct([pa.field(member.name, without_times(member.type)) for member in kind])
    if t.is_list(kind):
        return pa.list_(pa.field("element", without_times(kind.value_type)))
    if t.is_map(kind):
        return pa.map_(without_times(kind.key_type), pa.field("value", without_times(kind.item_type)))
    return pa.int64() if t.is_time(kind) else kind
