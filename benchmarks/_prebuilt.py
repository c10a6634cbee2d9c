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

# What the package's reader gives, without headers. The package is not imported: that would not be for nothing.
COLUMNS = {
    "key": ("binary", pa.binary()),
    "value": ("binary", pa.binary()),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("int", pa.int32()),
}


class PrebuiltSource(DataSource):
    """Options of a read: path (an Arrow IPC file with one batch), tasks, and rows of a task."""

    @classmethod
    def name(cls) -> str:
        return "prebuilt"

    @staticmethod
    def arrow_schema() -> pa.Schema:
        return pa.schema([(name, kind) for name, (_, kind) in COLUMNS.items()])

    def schema(self) -> str:
        return ", ".join(f"`{name}` {kind}" for name, (kind, _) in COLUMNS.items())

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
