"""A Python data source that costs nothing: every task yields one batch, made beforehand, over and over; a task that
writes only takes its rows.

What that takes is what Spark itself takes for batches of that shape.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from spark_segments.spark.schema import record_schema


class PrebuiltSource(DataSource):
    """Options of a read: path (an Arrow IPC file with one batch), tasks, and rows of a task."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    def schema(self) -> StructType:
        return record_schema(include_headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(self.options["path"], int(self.options["tasks"]), int(self.options["rows"]))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return TakingWriter()


class PrebuiltReader(DataSourceReader):
    def __init__(self, path: str, tasks: int, rows: int) -> None:
        self._path, self._tasks, self._rows = path, tasks, rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = _batch(self._path)
        left = self._rows
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class TakingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


@functools.cache
def _batch(path: str) -> pa.RecordBatch:
    with pa.OSFile(path) as file:
        return next(iter(pa.ipc.open_stream(file.read())))
