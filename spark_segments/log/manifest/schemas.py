"""What the files of the manifest hold, by kind and format version, and how their rows read in memory.

In memory rows have the columns of the newest version. A file of a topic of version 1 has those of version 1, byte for
byte as older packages write it; its rows read with the defaults of the further columns.
"""

from __future__ import annotations

import functools

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.manifest.rows import DELETING, PARTITION_SCHEMA, REMOVED, SEGMENT_SCHEMA, STATES, with_column
from spark_segments.log.manifest.topic_row import (
    FIRST_FORMAT_VERSION,
    OLD_TOPIC_COLUMNS,
    TOPIC_SCHEMA,
    NewerFormatError,
)
from spark_segments.log.manifest.transaction import TRANSACTION_SCHEMA

# The values of the table's partition column.
KIND = "kind"
TOPIC_KIND = "topic"
PARTITION_KIND = "partition"
SEGMENT_KIND = "segment"
TRANSACTION_KIND = "transaction"

SCHEMAS = {
    TOPIC_KIND: TOPIC_SCHEMA,
    PARTITION_KIND: PARTITION_SCHEMA,
    SEGMENT_KIND: SEGMENT_SCHEMA,
    TRANSACTION_KIND: TRANSACTION_SCHEMA,
}

_OLD_SEGMENT_SCHEMA = pa.schema([field for field in SEGMENT_SCHEMA if field.name not in ("position", "index_position")])
_OLD_TOPIC_SCHEMA = pa.schema(list(TOPIC_SCHEMA)[:OLD_TOPIC_COLUMNS])
_OLD_DELETING_MS = -1  # the removed_ms by which version 1 marks a row whose file vacuum has begun to delete


@functools.cache
def table_schema(format_version: int) -> pa.Schema:
    """The columns of the whole Delta table. A file holds the columns of its kind only; the others read as null."""
    kinds = [_OLD_TOPIC_SCHEMA, _OLD_SEGMENT_SCHEMA, PARTITION_SCHEMA]
    if format_version > FIRST_FORMAT_VERSION:
        kinds += [SEGMENT_SCHEMA, TOPIC_SCHEMA, TRANSACTION_SCHEMA]
    return pa.schema([pa.field(KIND, pa.string()), *{field.name: field for kind in kinds for field in kind}.values()])


def file_rows(rows: pa.Table, kind: str, format_version: int) -> pa.Table:
    """Rows in the columns that a file of this format version has. `SegmentRows` of version 1 must be in files alone."""
    if kind != SEGMENT_KIND or format_version > FIRST_FORMAT_VERSION:
        return rows
    deleting = pc.equal(rows.column("state"), DELETING)
    if pc.any(deleting).as_py():
        rows = with_column(rows, "state", pc.if_else(deleting, REMOVED, rows.column("state")))
        rows = with_column(rows, "removed_ms", pc.if_else(deleting, _OLD_DELETING_MS, rows.column("removed_ms")))
    return rows.select(_OLD_SEGMENT_SCHEMA.names)


def rows_in_file(rows: pa.Table, kind: str) -> pa.Table:
    """The rows of a Parquet file, in the columns of their kind that this package knows.

    Raises KeyError for a column that is missing, an ArrowException for a column of another type, NewerFormatError for a
    state that is unknown.
    """
    schema = SCHEMAS[kind]
    if kind == TOPIC_KIND:
        there = [field for field in list(schema)[OLD_TOPIC_COLUMNS:] if field.name in rows.column_names]
        schema = pa.schema([*list(schema)[:OLD_TOPIC_COLUMNS], *there])
    if kind == SEGMENT_KIND:
        rows = _of_any_version(rows)
    rows = rows if rows.schema.equals(schema) else rows.select(schema.names).cast(schema)
    if kind == SEGMENT_KIND:
        _check_states(rows)
    return rows


def _check_states(rows: pa.Table) -> None:
    """Raises NewerFormatError for an unknown state: nobody can tell whether its row is in the log."""
    unknown = sorted(state or "null" for state in set(pc.unique(rows.column("state")).to_pylist()) - set(STATES))
    if unknown:
        raise NewerFormatError(
            "A row of the manifest has a state that this package does not know",
            expected=f"any of {', '.join(STATES)}",
            found=unknown[0],
            hint="Use a newer spark-segments",
        )


def _of_any_version(rows: pa.Table) -> pa.Table:
    if "position" not in rows.column_names:
        rows = rows.append_column(SEGMENT_SCHEMA.field("position"), pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows))
        rows = rows.append_column(SEGMENT_SCHEMA.field("index_position"), pa.nulls(rows.num_rows, pa.int64()))
    deleting = pc.fill_null(pc.equal(rows.column("removed_ms"), _OLD_DELETING_MS), False)
    if pc.any(deleting).as_py():
        rows = with_column(rows, "state", pc.if_else(deleting, DELETING, rows.column("state")))
    return rows
