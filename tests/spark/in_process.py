"""The data source as Spark's processes call it, without a JVM: a load, its plan and its tasks; a write, its commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from spark_segments.spark.source import Source


def plan(uri: str, options: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """The reader of a load and its tasks."""
    source = Source({"path": uri} | {name: str(value) for name, value in options.items()})
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def load(uri: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All rows of a read, by topic, partition and offset."""
    reader, tasks = plan(uri, options)
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["offset"]))


def save(uri: str, options: Mapping[str, Any], tasks: Sequence[pa.Table], *, overwrite: bool = False) -> None:
    """Writes what each task has, and commits it."""
    given = {"path": uri} | {name: str(value) for name, value in options.items()}
    schema = from_arrow_schema(tasks[0].schema)
    writer = Source(given).writer(schema, overwrite=overwrite)
    writer.commit([writer.write(iter(task.to_batches())) for task in tasks])
