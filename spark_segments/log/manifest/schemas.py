"""What the files of the manifest hold, by kind."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import FormatVersionError
from spark_segments.log.manifest.rows import PARTITION_SCHEMA, SEGMENT_SCHEMA, STATES
from spark_segments.log.manifest.topic_row import FORMAT_KEY, FORMAT_VERSION, TOPIC_SCHEMA
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

# In the order of existing tables: columns that were added later are behind the others.
_FIELDS = [*TOPIC_SCHEMA][:2] + [*SEGMENT_SCHEMA][:-3] + [*PARTITION_SCHEMA, *[*SEGMENT_SCHEMA][:-1], *TOPIC_SCHEMA]
_ADDED = SEGMENT_SCHEMA.field("min_timestamp_ms")  # files of rows of earlier packages do not have it
_BY_NAME = {field.name: field for field in [*_FIELDS, *TRANSACTION_SCHEMA, _ADDED]}

TABLE_SCHEMA = pa.schema([pa.field(KIND, pa.string()), *_BY_NAME.values()])
"""The columns of the whole Delta table. A file holds the columns of its kind only; the others read as null."""


def rows_in_file(rows: pa.Table, kind: str) -> pa.Table:
    """The rows of a Parquet file, in the columns of their kind that this package knows.

    Raises KeyError for a column that is missing, ValueError for a topic row without a version, an ArrowException for a
    column of another type, FormatVersionError for rows of another format version, and for a state that is unknown.
    """
    _check_version(rows, kind)
    schema = SCHEMAS[kind]
    if kind == SEGMENT_KIND and _ADDED.name not in rows.column_names:
        rows = rows.append_column(_ADDED, pa.nulls(rows.num_rows, _ADDED.type))
    rows = rows if rows.schema.equals(schema) else rows.select(schema.names).cast(schema)
    if kind == SEGMENT_KIND:
        _check_states(rows)
    return rows


def _check_version(rows: pa.Table, kind: str) -> None:
    """Raises FormatVersionError for rows of another format version, which may have other columns."""
    version = FORMAT_VERSION
    if kind == TOPIC_KIND:
        [properties] = rows.column("properties").to_pylist()
        version = int(dict(properties or ()).get(FORMAT_KEY, "none"))
    elif kind == SEGMENT_KIND and "path" in rows.column_names and "position" not in rows.column_names:
        version = 1
    if version > FORMAT_VERSION:
        message = "The topic was written by a newer version of this package"
        hint = "Use a newer spark-segments"
    else:
        message = f"The topic has format version {version}, which no release has written"
        hint = "With the commit that wrote it: segments export. Then, with this version: segments import"
    if version != FORMAT_VERSION:
        raise FormatVersionError(message, expected=f"format.version {FORMAT_VERSION}", found=version, hint=hint)


def _check_states(rows: pa.Table) -> None:
    """Raises FormatVersionError for an unknown state: nobody can tell whether its row is in the log."""
    unknown = sorted(state or "null" for state in set(pc.unique(rows.column("state")).to_pylist()) - set(STATES))
    if unknown:
        raise FormatVersionError(
            "A row of the manifest has a state that this package does not know",
            expected=f"any of {', '.join(STATES)}",
            found=unknown[0],
            hint="Use a newer spark-segments",
        )
