"""Formats of keys and values: the serializers and converters that Kafka's users know, on whole Arrow columns.

Bytes become typed columns last when records are read, and typed columns bytes first when they are written
(`batches.py`), so that all engines share it. Nothing here knows of logs, partitions or Spark, save for `decode` and
`encode`, which make functions of Spark's columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["decode", "encode"]


def decode(col: Column | str, value_format: str, schema: str | None = None, **options: Any) -> Column:
    """A binary column of Spark as the typed values of `value_format`, as value.format of a reader.

    `schema` is value.schema. `options` are the others, with _ for a dot: registry and registry_basic_auth_user_info
    (schema.registry…), topic or subject, message, errors, schemas_enable. Raises InvalidOptionError where the type is
    not known before the query runs.
    """
    from spark_segments.values.spark_columns import decode_column

    return decode_column(col, value_format, schema, options)


def encode(col: Column | str, value_format: str, schema: str | None = None, **options: Any) -> Column:
    """A column of Spark as the bytes of `value_format`, as value.format of a writer.

    Options as in `decode`. For Avro, JSON Schema and CSV without a schema, a DataFrame's column is needed whose type
    Spark knows: give `type` as its DDL (df.schema["c"].dataType.simpleString()).
    """
    from spark_segments.values.spark_columns import encode_column

    return encode_column(col, value_format, schema, options)
