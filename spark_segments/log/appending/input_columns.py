"""The columns that a writer accepts, their types, the values that replace nulls, and the cast to WRITER_SCHEMA."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import InvalidOptionError, reason_of
from spark_segments.format.layout import HEADERS_TYPE

# Every other column is ignored, as by Spark's Kafka sink: a frame read from a topic can be written to another topic as
# it is.
WRITER_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", HEADERS_TYPE),
    ]
)

WRITER_HINT = (
    "A writer takes value (string or binary, required), key (string or binary), topic (string), partition (integer), "
    "timestamp and headers (array of struct key string, value binary)"
)


def check_columns(schema: pa.Schema, *, topic_given: bool) -> None:
    """Raises InvalidOptionError unless rows of `schema` can be written: before a job starts, not in its tasks."""
    if "value" not in schema.names:
        raise InvalidOptionError(
            "The data has no column to write", expected="a column named value", found=schema.names, hint=WRITER_HINT
        )
    twice = [name for name in WRITER_SCHEMA.names if schema.names.count(name) > 1]
    if twice:
        raise InvalidOptionError("The data has two columns of the same name", found=", ".join(twice))
    if not topic_given and "topic" not in schema.names:
        raise InvalidOptionError("The write names no topic", hint="Give the option topic, or a column of that name")
    for field in schema:
        if field.name in WRITER_SCHEMA.names and not _accepted(field):
            raise InvalidOptionError(
                f"Column {field.name} has a type that cannot be written",
                expected=WRITER_SCHEMA.field(field.name).type,
                found=field.type,
                hint=WRITER_HINT,
            )


def normalize(batch: pa.RecordBatch, *, now_ms: int) -> pa.RecordBatch:
    """The writer's columns of `batch` in WRITER_SCHEMA's types: key and value binary, timestamps in UTC.

    A null timestamp becomes `now_ms`.

    Columns that are absent come out as nulls. Types must have passed `check_columns`; a value that does not fit its
    type (a partition above int32, say) raises InvalidOptionError.
    """
    columns = []
    for field in WRITER_SCHEMA:
        if field.name in batch.schema.names:
            columns.append(_cast(batch.column(field.name), field))
        else:
            columns.append(pa.nulls(batch.num_rows, field.type))
    timestamp = columns[WRITER_SCHEMA.get_field_index("timestamp")]
    if timestamp.null_count:
        now = pa.scalar(now_ms * 1000, pa.timestamp("us", tz="UTC"))
        columns[WRITER_SCHEMA.get_field_index("timestamp")] = pc.fill_null(timestamp, now)
    return pa.RecordBatch.from_arrays(columns, schema=WRITER_SCHEMA)


def _accepted(field: pa.Field) -> bool:
    kind = field.type
    if pa.types.is_dictionary(kind):  # pandas' and Polars' categories
        kind = kind.value_type
    if pa.types.is_null(kind):
        return True
    if field.name in ("key", "value"):
        return is_bytes(kind)
    if field.name == "topic":
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
    if field.name == "partition":
        return bool(pa.types.is_integer(kind))
    if field.name == "timestamp":
        return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    if pa.types.is_null(kind.value_type):  # lists that are empty, as JSON has them
        return True
    if not pa.types.is_struct(kind.value_type):
        return False
    names = [kind.value_type.field(i).name for i in range(kind.value_type.num_fields)]
    return names == ["key", "value"] and all(is_bytes(kind.value_type.field(name).type) for name in names)


def is_bytes(kind: pa.DataType) -> bool:
    """Whether this is text or bytes, in whatever of Arrow's layouts."""
    return any(
        check(kind)
        for check in (
            pa.types.is_binary,
            pa.types.is_string,
            pa.types.is_large_binary,
            pa.types.is_large_string,
            pa.types.is_binary_view,
            pa.types.is_string_view,
            pa.types.is_fixed_size_binary,
        )
    )


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    if pa.types.is_timestamp(column.type) and column.type.unit == "us":
        return column.cast(field.type)  # a time zone changes how a timestamp is shown, not its value
    try:
        if pa.types.is_dictionary(column.type):  # Arrow cannot take from a dictionary of views
            return column.dictionary.cast(field.type).take(column.indices)
        # Parts of a microsecond are cut. A time that 64 bits of microseconds do not hold is an error.
        return column.cast(field.type, safe=not (pa.types.is_timestamp(column.type) and column.type.unit == "ns"))
    except pa.ArrowInvalid as error:
        raise InvalidOptionError(
            f"Column {field.name} cannot be written as {field.type}: {reason_of(error)}", hint=WRITER_HINT
        ) from None
