"""The columns of a DataFrame of records: the schema of a read, and the checks of a schema that the user gives."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.spark.arrow_types import to_arrow_schema, without_times

if TYPE_CHECKING:
    from spark_segments.log.typed import Decoders

HEADERS = "headers"
_FULL_SCHEMA: StructType = from_arrow_schema(RECORD_SCHEMA, prefer_timestamp_ntz=True)
_NULLABLE = frozenset(("key", "value"))


def as_struct(schema: StructType | pa.Schema) -> StructType:
    """The schema that a data source is given. Sail gives an Arrow schema, where Spark gives its own type."""
    if isinstance(schema, StructType):
        return schema
    struct: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return struct


def as_given(schema: StructType) -> StructType | pa.Schema:
    """The schema as the server that asks for it takes it.

    Sail (0.7), which runs this code in its own process, makes Arrow types of Spark's without a time zone, and pyspark
    refuses that for timestamps. Spark takes no Arrow schema.
    """
    return to_arrow_schema(schema) if is_on_sail() else schema


def is_on_sail() -> bool:
    """Whether this process is a server of Sail's, or one of its workers."""
    return "pysail" in sys.modules


def record_schema(include_headers: bool, columns: pa.Schema = RECORD_SCHEMA) -> StructType:
    """The schema of Spark's Kafka source. `columns`: the Arrow schema where key or value are typed."""
    full = _full_schema(columns)
    return StructType([field for field in full.fields if include_headers or field.name != HEADERS])


def typed_schema(readers: Mapping[str, Decoders]) -> pa.Schema:
    """The Arrow schema of records decoded by `readers`, by topic. Raises InvalidOptionError where topics differ."""
    if not any(readers.values()):
        return RECORD_SCHEMA
    schemas: dict[str, pa.Schema] = {
        topic: _for_spark(decoders.columns(RECORD_SCHEMA.names).schema) for topic, decoders in readers.items()
    }
    (first, schema), *others = schemas.items()
    for topic, other in others:
        if other != schema:
            raise InvalidOptionError(
                f"The values of {topic} have another type than those of {first}",
                hint="Read the topics apart, or give value.schema",
            )
    return schema


def _for_spark(schema: pa.Schema) -> pa.Schema:
    return pa.schema(
        [pa.field(field.name, without_times(field.type)) if field.name in _NULLABLE else field for field in schema]
    )


def _full_schema(columns: pa.Schema) -> StructType:
    return _FULL_SCHEMA if columns is RECORD_SCHEMA else from_arrow_schema(columns, prefer_timestamp_ntz=True)


def projection(schema: StructType, columns: pa.Schema = RECORD_SCHEMA) -> pa.Schema:
    """The Arrow schema that a read's batches must have.

    `schema`: the user's schema or that of `record_schema`, with any columns of records in any order. `columns`: the
    Arrow schema of records, where key or value are typed. Raises InvalidOptionError.
    """
    full = _full_schema(columns)
    types = {field.name: field.dataType for field in full.fields}
    for field in schema.fields:
        if field.name not in types:
            raise InvalidOptionError(
                f"A topic has no column {field.name}",
                expected=f"some of {_described(full)}",
                hint="A schema picks columns of a record; the option value.format gives its value fields",
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
        raise InvalidOptionError("The schema has no columns", expected=f"some of {_described(full)}")
    return to_arrow_schema(schema)


def _described(schema: StructType) -> str:
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema.fields)


def conformed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The array in exactly this type: with its time zone, and its names of items, which Arrow's comparisons ignore."""
    if str(array.type) == str(kind):
        return array
    if not pa.types.is_nested(kind):
        return array.cast(kind)
    unsliced = pa.concat_arrays([array]) if array.offset else array
    if pa.types.is_struct(kind):
        children = [conformed(unsliced.field(number), kind.field(number).type) for number in range(kind.num_fields)]
    elif pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        pairs = pa.StructArray.from_arrays(
            [unsliced.keys, unsliced.items], fields=[unsliced.type.key_field, unsliced.type.item_field]
        )
        children = [conformed(pairs, entries)]
    else:
        children = [conformed(unsliced.values, kind.value_type)]
    buffers = unsliced.buffers()[: 1 if pa.types.is_struct(kind) else 2]
    return pa.Array.from_buffers(kind, len(unsliced), buffers, unsliced.null_count, children=children)
