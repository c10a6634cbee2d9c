"""The batch writer: tasks write chunks, the driver's commit gives them their offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StructField, StructType

from spark_segments.errors import InvalidOptionError, InvalidRecordError, SegmentsError
from spark_segments.log.appending.input_columns import WRITER_SCHEMA, check_columns
from spark_segments.log.logdir import LogDir
from spark_segments.spark.options import WriteOptions
from spark_segments.spark.worker import freeze_imports

if TYPE_CHECKING:
    from spark_segments.log.appending.appender import Chunks, Target
    from spark_segments.values.batches import Encoder

# A write that leaves so many chunks in a topic, smaller on average than the next limit, warns how to leave fewer.
MANY_CHUNKS = 1000
SMALL_CHUNK_BYTES = 1 << 20

# Columns of a read that an append sets anew.
LOG_COLUMNS = ("offset", "timestampType")

_log = logging.getLogger(__name__)


@dataclass
class ChunksMessage(WriterCommitMessage):
    """The chunks that a task wrote, an entry per topic."""

    chunks: tuple[Chunks, ...]


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
        warn_of_unread_columns(schema)
        self._log_dir = LogDir.open(options.location.uri, options.location.storage_options)
        self._value_writers = self._encoders(options, schema)
        check_writable_columns(_as_bytes(schema, self._value_writers), topic_given=options.topic is not None)
        self._options = options
        self._target = None if options.topic is None else self._log_dir.target(options.topic)
        if self._target is not None and self._target.config.compact and "key" not in schema.names:
            raise InvalidRecordError(
                f"Topic {options.topic} is compacted: records without a key cannot be appended",
                expected="a column key",
                found=", ".join(schema.names),
                hint="Name the key's column key, or take compact out of the topic's cleanup.policy",
            )
        freeze_imports()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ChunksMessage:
        from spark_segments.log.appending.appender import (
            DEFAULT_BATCH_BYTES,
            Appender,
            ProducerOptions,
        )  # numba, which only tasks need

        options = self._options
        producer = ProducerOptions(options.compression_type, options.batch_bytes or DEFAULT_BATCH_BYTES)
        try:
            with Appender(self._log_dir.storage, self._resolve, topic=options.topic, options=producer) as appender:
                for batch in iterator:
                    appender.write(self._encoded(batch))
                written = tuple(appender.close())
        except InvalidRecordError as error:
            task = TaskContext.get()  # None on servers other than Spark's own
            error.message += "" if task is None else f" (task {task.partitionId()})"
            raise
        freeze_imports()
        return ChunksMessage(written)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commits each topic once, with its chunks in the order of tasks and then of rows.

        A transaction is recorded in every topic that got rows, and in the topic of the option topic. Where a topic's
        commit fails, the error says which topics have their rows.
        """
        from spark_segments.log.appending.appender import Chunks

        topics: dict[str, list[Chunks]] = {}
        if self._target is not None:  # a write without rows records its transaction, too
            topics[self._target.topic] = [Chunks(self._target.topic, self._target.topic_id)]
        for message in messages:  # Spark passes them in the order of task numbers
            assert isinstance(message, ChunksMessage)
            for chunks in message.chunks:
                topics.setdefault(chunks.topic, []).append(chunks)
        for number, (topic, written) in enumerate(sorted(topics.items())):
            try:
                self._log_dir.commit_chunks(written, self._options.txn)
            except SegmentsError as error:
                raise _failed_at(error, sorted(topics), number, has_txn=self._options.txn is not None) from error
            warn_of_small_chunks(topic, written)
        freeze_imports()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing: Spark also aborts after a commit that raised. Vacuum deletes files that no commit names."""

    def _encoders(self, options: WriteOptions, schema: StructType) -> list[Encoder]:
        if not options.formats:
            return []
        columns = [field for field in schema.fields if field.name in ("key", "value")]
        arrow = to_arrow_schema(StructType(columns), timezone="UTC")
        types = {field.name: field.type for field in arrow}
        return self._log_dir.value_writers(options.topic, options.formats, types)

    def _encoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._value_writers:
            return batch
        from spark_segments.values.batches import encode_batch

        return encode_batch(batch, self._value_writers)

    def _resolve(self, topic: str) -> Target:
        return self._target or self._log_dir.target(topic)


def _as_bytes(schema: StructType, writers: Sequence[Encoder]) -> StructType:
    """The schema after `writers` have encoded its columns."""
    encoded = {one.chosen.column for one in writers}
    return StructType([StructField(one.name, BinaryType()) if one.name in encoded else one for one in schema.fields])


def _failed_at(error: SegmentsError, topics: Sequence[str], number: int, *, has_txn: bool) -> SegmentsError:
    """The error of the commit to `topics[number]`, with the outcome of the write's other topics."""
    if len(topics) == 1:
        return error
    committed, open_topics = ", ".join(topics[:number]) or "none", ", ".join(topics[number:])
    hint = f"Topics whose rows were committed: {committed}. Not committed, or not known to be: {open_topics}. "
    if has_txn:
        hint += "Send the whole write again with the same transaction: each topic takes it once"
    elif number:
        hint += "Send the rows of these topics only; with txnAppId and txnVersion the whole write can be sent again"
    else:
        hint += error.hint or "Send the write again"
    error.hint = hint
    return error


def check_writable_columns(schema: StructType, *, topic_given: bool) -> None:
    """Raises InvalidOptionError unless a DataFrame of this schema can be appended. Further columns are not checked."""
    used = [field for field in schema.fields if field.name in WRITER_SCHEMA.names]
    names = [field.name for field in used]
    if len(set(names)) < len(names):
        raise InvalidOptionError("A column to be written is there twice", found=", ".join(names))
    if not used:
        check_columns(pa.schema([pa.field(name, pa.null()) for name in schema.names]), topic_given=topic_given)
    check_columns(to_arrow_schema(StructType(used), timezone="UTC"), topic_given=topic_given)


def warn_of_unread_columns(schema: StructType) -> None:
    """Warns once of columns that a record cannot hold, save those that the log itself sets: they are left out."""
    unread = [name for name in schema.names if name not in WRITER_SCHEMA.names and name not in LOG_COLUMNS]
    if unread:
        _log.warning(
            "Columns %s are not written: a record has %s. Put them into the value, as with to_json(struct(*))",
            ", ".join(unread),
            ", ".join(name for name in WRITER_SCHEMA.names),
        )


def warn_of_small_chunks(topic: str, chunks: Sequence[Chunks]) -> None:
    """Warns once where a write left very many small chunks, and says how the next write leaves fewer."""
    sizes = [segment.log_bytes for one in chunks for segment in one.segments]
    if len(sizes) >= MANY_CHUNKS and sum(sizes) < SMALL_CHUNK_BYTES * len(sizes):
        _log.warning(
            "The write left %d chunks of %d KiB on average in topic %s: one for each task and partition. Fewer tasks "
            "leave fewer (df.coalesce(n), or repartition by the key); rolling puts them together (segments roll)",
            len(sizes),
            sum(sizes) // len(sizes) // 1024,
            topic,
        )
