"""The batch writer: tasks write chunks, the driver's commit gives them their offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError
from spark_segments.log.manifest.transaction import Transaction, named
from spark_segments.spark.options import WriteOptions
from spark_segments.spark.row_writer import QUERY_ID, ChunksMessage, RowWriter, task_property
from spark_segments.spark.shown_errors import as_itself
from spark_segments.spark.worker import freeze_imports


class Writer(DataSourceArrowWriter):
    """Appends a DataFrame's rows to topics. Before the commit none of the rows is in the log, after it all are."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Checks everything before a task starts. Raises InvalidOptionError, InvalidRecordError, UnknownTopicError or
        LogDirError.
        """
        if overwrite:
            raise InvalidOptionError(
                "Topics are appended to, never overwritten",
                hint='Use .mode("append"); to start anew, delete the topic and create it again',
            )
        self._txn = named(options.once, options.txn)
        self._rows = RowWriter(options, schema)
        freeze_imports()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ChunksMessage:
        txn = self._txn
        if txn is not None and txn.key is None:
            txn = Transaction(txn.application, txn.version, task_property(QUERY_ID))
        return self._rows.write(iterator, txn)

    @as_itself
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits each topic once, with its chunks in the order of tasks and then of rows.

        A transaction is recorded in every topic that got rows, and in the topic of the option topic. Where a topic's
        commit fails, the error says which topics have their rows.
        """
        written = [message for message in messages if isinstance(message, ChunksMessage)]
        # A write without rows, or without tasks, records its transaction, too.
        self._rows.commit(written, written[0].txn if written else self._txn, empty=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing: Spark also aborts after a commit that raised. Vacuum deletes files that no commit names."""
