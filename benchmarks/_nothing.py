"""A Python stream source and sink that do nothing: what they take is what Spark itself takes for a trigger."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from spark_segments.spark.schema import projection, record_schema


class NothingSource(DataSource):
    """Options of a stream: tasks, and rows of a task. Every trigger has a batch."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> StructType:
        return record_schema(include_headers=False)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NothingReader(int(self.options["tasks"]), int(self.options["rows"]))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return NothingWriter()


class NothingReader(DataSourceStreamReader):
    def __init__(self, tasks: int, rows: int) -> None:
        self._tasks = tasks
        count = {"key": b"k", "value": b"v" * 100, "topic": "t", "partition": 0, "offset": 0, "timestamp": 0}
        self._columns = count | {"timestampType": 0}
        self._rows = rows

    def initialOffset(self) -> dict[str, Any]:
        return {"at": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = projection(record_schema(include_headers=False))
        arrays = [pa.array([self._columns[field.name]] * self._rows).cast(field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class NothingWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:
        pass

    def abort(self, messages: Any, batchId: int) -> None:
        pass
