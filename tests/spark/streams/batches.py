"""The stream writer as Spark's processes call it, without a JVM: a batch's tasks, then its commit in another process'
writer.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

from spark_segments.spark.source import Source

BATCH_ID, QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"


@contextlib.contextmanager
def task_of(properties: Mapping[str, str]) -> Iterator[None]:
    """Makes this process a task with these local properties."""
    before = TaskContext._taskContext
    task = object.__new__(TaskContext)
    task._localProperties = dict(properties)
    task._partitionId = 0
    TaskContext._setTaskContext(task)
    try:
        yield
    finally:
        TaskContext._taskContext = before


def write(uri: str, options: Mapping[str, Any], tasks: Sequence[pa.Table], query: str, batch: int) -> list[Any]:
    """The messages of a batch's tasks. Nothing is committed."""
    writer = pickle.loads(pickle.dumps(_writer(uri, options, tasks[0].schema)))
    with task_of({QUERY_ID: query, BATCH_ID: str(batch)}):
        return [pickle.loads(pickle.dumps(writer.write(iter(task.to_batches())))) for task in tasks]


def commit(uri: str, options: Mapping[str, Any], tasks: Sequence[pa.Table], messages: list[Any], batch: int) -> None:
    """Commits what tasks wrote."""
    _writer(uri, options, tasks[0].schema).commit(messages, batch)


def run(uri: str, options: Mapping[str, Any], tasks: Sequence[pa.Table], *, query: str = "q1", batch: int) -> None:
    """A whole batch."""
    commit(uri, options, tasks, write(uri, options, tasks, query, batch), batch)


def _writer(uri: str, options: Mapping[str, Any], schema: pa.Schema) -> Any:
    given = {"path": uri, "checkpointlocation": "/checkpoint"} | {name: str(value) for name, value in options.items()}
    return Source(given).stream_writer(schema=from_arrow_schema(schema), overwrite=False)
