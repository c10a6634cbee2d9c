"""`decode` and `encode` as functions of Spark's columns: Arrow UDFs around the same codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, UnsupportedSparkError
from spark_segments.spark.arrow_types import to_arrow_type, without_times
from spark_segments.values.batches import Decoder, Encoder, decoders, encoders
from spark_segments.values.column_types import recast, type_of_ddl
from spark_segments.values.format_options import OPTIONS, ColumnFormat, column_formats

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType


_COLUMN = "value"


def decode_column(col: Column | str, value_format: str, schema: str | None, options: Mapping[str, Any]) -> Column:
    """The column of values that a binary column has."""
    from pyspark.sql.pandas.types import from_arrow_type

    chosen, topic, _ = _chosen(value_format, schema, options)
    if not chosen:
        raise InvalidOptionError("A column of bytes is binary already", found=value_format)
    decoder: Decoder = decoders(chosen, topic)[0]
    spark_type = from_arrow_type(without_times(decoder.codec.type), prefer_timestamp_ntz=True)
    arrow_type = to_arrow_type(spark_type)

    def read(array: pa.Array) -> pa.Array:
        return recast(decoder.decode(array)[0], arrow_type)

    return _function(read, spark_type, col)


def encode_column(col: Column | str, value_format: str, schema: str | None, options: Mapping[str, Any]) -> Column:
    """The binary column of a column's values."""
    from pyspark.sql.types import BinaryType

    chosen, topic, ddl = _chosen(value_format, schema, options)
    if not chosen:
        raise InvalidOptionError("A column needs a format to become bytes", found=value_format)
    encoder: Encoder = encoders(chosen, topic, {_COLUMN: None if ddl is None else type_of_ddl(ddl)})[0]

    def write(array: pa.Array) -> pa.Array:
        return encoder.encode(array)

    return _function(write, BinaryType(), col)


def _function(convert: Callable[[pa.Array], pa.Array], spark_type: DataType, col: Column | str) -> Column:
    """A column made of another column, batch by batch."""
    try:
        from pyspark.sql.pandas.functions import arrow_udf
    except ImportError as error:
        raise UnsupportedSparkError(
            "decode and encode of columns need PySpark 4.1 or newer",
            hint="Read with the option value.format, which needs no more than 4.0",
        ) from error

    # Spark reads the annotations as objects, and this module has them as text.
    convert.__annotations__ = {"array": pa.Array, "return": pa.Array}
    make: Any = arrow_udf
    column: Column = make(convert, spark_type)(col)
    return column


def _chosen(
    value_format: str, schema: str | None, options: Mapping[str, Any]
) -> tuple[list[ColumnFormat], str | None, str | None]:
    """(the format, the topic, the column's type in DDL) of a call's arguments."""
    settings = {f"{_COLUMN}.format": value_format}
    topic = None
    ddl = None
    if schema is not None:
        settings[f"{_COLUMN}.schema"] = schema
    for name, value in options.items():
        dotted = name.replace("_", ".")
        full = next(
            (option for option in (f"{_COLUMN}.{dotted}", f"schema.{dotted}", dotted) if option in OPTIONS), None
        )
        if name == "topic":
            topic = value
        elif name == "type":
            ddl = value
        elif full is None or full.endswith("raw.column"):
            raise InvalidOptionError("Unknown option", found=name, expected="registry, topic, subject, message, errors")
        else:
            settings[full] = str(value).lower() if isinstance(value, bool) else str(value)
    return column_formats(settings), topic, ddl
