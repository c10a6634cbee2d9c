"""The stream writer: every batch of a streaming query is a transaction, so each topic takes the batch once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.log.manifest.transaction import Transaction
from spark_segments.spark import PYSPARK
from spark_segments.spark.options import WriteOptions
from spark_segments.spark.row_writer import QUERY_ID, ChunksMessage, RowWriter, task_property
from spark_segments.spark.worker import freeze_imports

BATCH_ID = "streaming.sql.batchId"
"""The local property in which a task of a streaming query finds the number of its batch."""


# PySpark 4.0 has no Arrow writer for streams. It gives Arrow batches to any DataSourceArrowWriter, also to a stream's.
_BASES: Any = (
    (datasource.DataSourceStreamArrowWriter,)
    if PYSPARK >= (4, 1)
    else (datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter)
)


def refuse_asynchronous_progress(options: Mapping[str, str]) -> None:
    """Raises InvalidOptionError where the query has the option asyncProgressTrackingEnabled.

    With it a restarted query may give the id of a batch to other rows, which would be taken for a repeat and be lost.
    """
    settings = {name.lower(): value for name, value in options.items()}
    if str(settings.get("asyncprogresstrackingenabled", "false")).strip().lower() == "true":
        raise InvalidOptionError(
            "Option asyncProgressTrackingEnabled cannot be combined with exactly once",
            hint="Leave it out: with it, a restarted query may send other rows under the id of an earlier batch",
        )


class StreamWriter(*_BASES):  # type: ignore[misc]
    """Appends the batches of a streaming query to topics. Spark makes a new one for every batch and every commit.

    The transaction of a batch is (query id, batch id). A topic that holds it takes nothing more of the batch, whichever
    process sends it again: a restarted query, or a driver that was taken for dead.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        """Checks everything before a task starts. Raises InvalidOptionError, InvalidRecordError, UnknownTopicError or
        LogDirError.
        """
        if overwrite:
            raise InvalidOptionError(
                "A stream appends to topics: it cannot replace what they hold, as output mode complete does",
                hint='Use .outputMode("append"), or write the result of each batch in foreachBatch',
            )
        if options.txn is not None or options.once is not None:
            raise InvalidOptionError(
                "Options appendOnce, txnAppId and txnVersion are not a stream's: its query id and batch id are its "
                "transaction",
                hint="Leave them out, or use them on the writer inside foreachBatch",
            )
        self._rows = RowWriter(options, schema)
        freeze_imports()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ChunksMessage:
        query_id = task_property(QUERY_ID)
        batch_id = task_property(BATCH_ID)
        if query_id is None or batch_id is None:
            raise SegmentsError(
                "A task does not know its streaming query and batch, so the batch could not be added exactly once",
                expected=f"the local properties {QUERY_ID} and {BATCH_ID}, which Spark sets",
                hint="Write in foreachBatch, with the options txnAppId and txnVersion",
            )
        return self._rows.write(iterator, Transaction(query_id, int(batch_id), query_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commits the batch to each topic that got rows. A batch without rows leaves nothing behind."""
        written = [message for message in messages if isinstance(message, ChunksMessage)]
        if not written:
            return
        txn = written[0].txn
        if txn is None or any(message.txn != txn for message in written) or txn.version != batchId:
            raise SegmentsError(
                "Tasks of several batches were sent to one commit: nothing was committed",
                expected=f"batch {batchId}",
                found=sorted({str(message.txn) for message in written}),
            )
        self._rows.commit(written, txn, empty=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Deletes nothing: Spark also aborts after a commit that raised. Vacuum deletes files that no commit names."""
