"""The columns of a DataFrame of records: what a read gives, and what a user's own schema may ask of it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import RECORD_SCHEMA

HEADERS = "headers"
_FULL_SCHEMA: StructType = from_arrow_schema(RECORD_SCHEMA, prefer_timestamp_ntz=True)
_NULLABLE = frozenset(("key", "value"))


def record_schema(include_headers: bool) -> StructType:
    """The schema of Spark's Kafka source."""
    return StructType([field for field in _FULL_SCHEMA.fields if include_headers or field.name != HEADERS])


def projection(schema: StructType) -> pa.Schema:
    """The Arrow schema that batches of these columns must have.

    `schema` is a user's own, or the one of `record_schema`: any of its columns in any order. Raises InvalidOptionError.
    """
    types = {field.name: field.dataType for field in _FULL_SCHEMA.fields}
    for field in schema.fields:
        if field.name not in types:
            raise InvalidOptionError(
                f"There is no column {field.name} in a topic",
                expected=f"some of {_described(_FULL_SCHEMA)}",
                hint="A schema picks columns of a record; fields of its value are parsed in the query, as by from_json",
            )
        if field.dataType != types[field.name]:
            raise InvalidOptionError(
                f"Column {field.name} has another type in a topic",
                expected=types[field.name].simpleString(),
                found=field.dataType.simpleString(),
                hint=f"Read it as it is and cast it in the query: col('{field.name}').cast('…')",
            )
        if field.name in _NULLABLE and not field.nullable:
            raise InvalidOptionError(f"Column {field.name} can be null", hint="Leave NOT NULL out of the schema")
    if not schema.fields:
        raise InvalidOptionError("A schema without columns", expected=f"some of {_described(_FULL_SCHEMA)}")
    return to_arrow_schema(schema, timezone="UTC")


def _described(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)
