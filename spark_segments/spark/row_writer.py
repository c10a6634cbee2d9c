"""What the batch writer and the stream writer share: rows become chunks in tasks, and each topic gets a commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import BinaryType, DateType, StructField, StructType, TimestampNTZType

from spark_segments.errors import CommitConflictError, InvalidOptionError, InvalidRecordError, SegmentsError
from spark_segments.execution import Versioned
from spark_segments.format.record_columns import COLUMNS, WRITER_SCHEMA, slips
from spark_segments.log.appending.append import append_target, commit_chunks
from spark_segments.log.appending.caller_rows import check_columns
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.transaction import Transaction
from spark_segments.spark.arrow_types import to_arrow_schema
from spark_segments.spark.batches import merged, watched
from spark_segments.spark.options import WriteOptions
from spark_segments.spark.shown_errors import without_traceback
from spark_segments.spark.worker import freeze_imports

if TYPE_CHECKING:
    from spark_segments.log.appending.appender import Chunks, Target
    from spark_segments.log.typed import Encoders

# A write that leaves so many chunks in a topic, smaller on average than the next limit, warns how to leave fewer.
MANY_CHUNKS = 1000
SMALL_CHUNK_BYTES = 1 << 20

QUERY_ID = "sql.streaming.queryId"
"""The local property in which a task of a streaming query, or of its foreachBatch, finds the query's id."""

_log = logging.getLogger(__name__)


@dataclass
class ChunksMessage(Versioned, WriterCommitMessage):
    """The chunks that a task wrote, an entry per topic.

    `txn`: the transaction of the write. `repeated`: topics that held the transaction already, whose rows the task left
    out.
    """

    chunks: tuple[Chunks, ...]
    txn: Transaction | None = None
    repeated: tuple[str, ...] = ()


class RowWriter(Versioned):
    """Appends rows to topics. The driver makes it and commits, tasks write. Pickles."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Checks everything before a task starts. Raises InvalidOptionError, InvalidRecordError, UnknownTopicError or
        LogDirError.
        """
        check_names(schema)
        self._columns = [name for name in schema.names if name in COLUMNS]
        self._log_dir = LogDirectory.open(options.location.uri, options.location.storage_options)
        self._value_writers = self._encoders(options, schema)
        check_writable_columns(_as_bytes(schema, self._value_writers), topic_given=options.topic is not None)
        self._options = options
        self._target = None if options.topic is None else append_target(self._log_dir, options.topic)
        if self._target is not None and self._target.config.compact and "key" not in schema.names:
            raise InvalidRecordError(
                f"Topic {options.topic} is compacted: records without a key cannot be appended",
                expected="a column key",
                found=", ".join(schema.names),
                hint="Name the key's column key, or take compact out of the topic's cleanup.policy",
            )

    def write(self, iterator: Iterator[pa.RecordBatch], txn: Transaction | None) -> ChunksMessage:
        """A task's part. Rows for topics that hold `txn` already are left out before anything is encoded.

        Raises TransactionOrderError where a topic refuses `txn`, and errors of the rows.
        """
        from spark_segments.log.appending.appender import (
            DEFAULT_BATCH_BYTES,
            Appender,
            ProducerOptions,
        )  # kernels, which only tasks need

        options = self._options
        producer = ProducerOptions(options.compression_type, options.batch_bytes or DEFAULT_BATCH_BYTES)
        targets = _Targets(self._log_dir, self._target, txn)
        try:
            with Appender(self._log_dir.storage, targets.find, topic=options.topic, options=producer) as appender:
                for batch in self._encoded(targets.new_rows(watched(iterator))):
                    appender.write(batch.select(self._columns))
                written = tuple(appender.close())
        except InvalidRecordError as error:
            task = TaskContext.get()  # None on servers other than Spark's own
            error.message += "" if task is None else f" (task {task.partitionId()})"
            raise
        freeze_imports()
        return ChunksMessage(written, txn, tuple(sorted(targets.repeated)))

    def commit(self, messages: Sequence[ChunksMessage], txn: Transaction | None, *, empty: bool) -> None:
        """Commits each topic once, with its chunks in the order of `messages`, which is that of the tasks.

        `empty`: the topic of the option topic gets a commit, which records `txn`, where there are no rows, too. Where a
        topic's commit fails, the error says which topics have their rows.
        """
        from spark_segments.log.appending.appender import Chunks

        topics: dict[str, list[Chunks]] = {}
        repeated: set[str] = set()
        if empty and self._target is not None:
            topics[self._target.topic] = [Chunks(self._target.topic, self._target.topic_id)]
        for message in messages:
            repeated.update(message.repeated)
            for chunks in message.chunks:
                topics.setdefault(chunks.topic, []).append(chunks)
        # Sorted, so that a repeat of a write that failed in between commits in the same order.
        names = sorted(topics.keys() | repeated)
        for number, topic in enumerate(names):
            try:
                if topic in repeated:
                    self._check_still_there(topic, txn)
                    has_txn_already = True
                else:
                    has_txn_already = self._commit_to(topic, topics[topic], txn)
            except SegmentsError as error:
                raise _failed_at(error, names, number, has_txn=txn is not None) from error
            if has_txn_already:
                _log.warning("Nothing appended: %s has %s already", topic, txn)
            else:
                warn_of_small_chunks(topic, topics[topic])
        freeze_imports()

    def _commit_to(self, topic: str, chunks: Sequence[Chunks], txn: Transaction | None) -> bool:
        """Commits chunks to their topic. Whether the topic had taken the transaction before, so that none is appended:
        chunks with records that got no offsets.
        """
        offsets = commit_chunks(self._log_dir, topic, chunks, txn)
        return not offsets and any(task.segments for task in chunks)

    def _check_still_there(self, topic: str, txn: Transaction | None) -> None:
        """Raises CommitConflictError where a topic that tasks left out does not hold the transaction any more."""
        if not append_target(self._log_dir, topic, txn).repeated:
            raise CommitConflictError(
                f"Topic {topic} held the transaction when the tasks wrote, and does not hold it now",
                expected=txn,
                found="a topic that was made again, or restored, meanwhile",
                hint="Send the write again",
            )

    def _encoders(self, options: WriteOptions, schema: StructType) -> Encoders | None:
        if not options.formats:
            return None
        columns = [field for field in schema.fields if field.name in ("key", "value")]
        arrow = to_arrow_schema(StructType(columns))
        types = {field.name: field.type for field in arrow}
        return self._log_dir.values.encoders(options.topic, options.formats, types)

    def _encoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        encoders = self._value_writers
        return (encoders.encode(batch) for batch in merged(batches)) if encoders else batches


class _Targets:
    """The topics of a task. Each is looked up once. Rows for a topic that holds the transaction are left out."""

    def __init__(self, log_dir: LogDirectory, only: Target | None, txn: Transaction | None) -> None:
        """`only`: the topic that all rows go to, where the writer was given one."""
        self._log_dir = log_dir
        self._only = only
        self._txn = txn
        self._found: dict[str, Target] = {}

    @property
    def repeated(self) -> set[str]:
        """The topics found so far that hold the transaction."""
        return {topic for topic, target in self._found.items() if target.repeated}

    def find(self, topic: str) -> Target:
        if self._txn is None and self._only is not None:
            return self._only
        if topic not in self._found:
            self._found[topic] = append_target(self._log_dir, topic, self._txn)
        return self._found[topic]

    def new_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches without the rows of topics that hold the transaction. All batches are taken from Spark."""
        repeated = self._only is not None and self.find(self._only.topic).repeated
        for batch in batches:
            if repeated:
                continue
            yield batch if self._txn is None or self._only is not None else self._rows_of_new_topics(batch)

    def _rows_of_new_topics(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        column = batch.column("topic")
        topics = [topic for topic in pc.unique(column).to_pylist() if topic is not None]
        repeated = [topic for topic in topics if self.find(topic).repeated]
        if not repeated:
            return batch
        held = pc.is_in(column, pa.array(repeated, column.type))
        return batch.filter(pc.invert(held))


def task_property(name: str) -> str | None:
    """A local property of the job that this task is part of; None where it is not set, or where no task runs."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(name)


def _as_bytes(schema: StructType, encoders: Encoders | None) -> StructType:
    """The schema after `encoders` have encoded its columns."""
    encoded = encoders.names if encoders else frozenset()
    return StructType(
        [StructField(field.name, BinaryType()) if field.name in encoded else field for field in schema.fields]
    )


def _failed_at(error: SegmentsError, topics: Sequence[str], number: int, *, has_txn: bool) -> SegmentsError:
    """The error of the commit to `topics[number]`, with the outcome of the write's other topics."""
    if len(topics) == 1:
        return error
    committed = ", ".join(topics[:number]) or "none"
    # The commit that failed may have arrived all the same: its topic is among those of which nobody knows.
    open_topics = ", ".join(topics[number:])
    hint = f"Topics whose rows were committed: {committed}. Not committed, or not known to be: {open_topics}. "
    if has_txn:
        hint += "Send the whole write again with the same transaction or key: each topic takes it once"
    elif number:
        hint += "Send the rows of these topics only; with appendOnce the whole write can be sent again"
    else:
        hint += error.hint or "Send the write again"
    error.hint = hint
    return error


def check_writable_columns(schema: StructType, *, topic_given: bool) -> None:
    """Raises InvalidOptionError unless a DataFrame of this schema can be appended. Further columns are not checked."""
    used = [field for field in schema.fields if field.name in WRITER_SCHEMA.names]
    names = [field.name for field in used]
    if len(set(names)) < len(names):
        raise InvalidOptionError("The data has two columns of the same name", found=", ".join(names))
    if not used:
        check_columns(pa.schema([pa.field(name, pa.null()) for name in schema.names]), topic_given=topic_given)
    for field in used:
        if field.name == "timestamp" and isinstance(field.dataType, (DateType, TimestampNTZType)):
            raise InvalidOptionError(
                "Column timestamp is no moment: it has no time zone",
                expected="TIMESTAMP",
                found="DATE" if isinstance(field.dataType, DateType) else "TIMESTAMP_NTZ",
                hint="CAST(timestamp AS TIMESTAMP) takes the session's time zone (spark.sql.session.timeZone)",
            )
    check_columns(to_arrow_schema(StructType(used)), topic_given=topic_given)


def check_names(schema: StructType) -> None:
    """Raises InvalidOptionError for a column whose name is a slip for a writer's. Warns once of all others that a
    record cannot hold: they are left out.
    """
    for name, meant in slips(schema.names).items():
        raise InvalidOptionError(
            f"A record has no column {name!r}",
            hint=f"Did you mean {meant}? Rename the column, or put it into the value, as with to_json(struct(*))",
        )
    unread = [name for name in schema.names if name not in COLUMNS]
    if unread:
        _log.warning(
            "Columns %s are not written: a record has %s. Put them into the value, as with to_json(struct(*))",
            ", ".join(unread),
            ", ".join(name for name in WRITER_SCHEMA.names),
        )


def warn_of_small_chunks(topic: str, chunks: Sequence[Chunks]) -> None:
    """Warns once where a write left very many small chunks, and says how the next write leaves fewer."""
    sizes = [segment.log_bytes for chunk in chunks for segment in chunk.segments if not segment.is_shared]
    if len(sizes) >= MANY_CHUNKS and sum(sizes) < SMALL_CHUNK_BYTES * len(sizes):
        _log.warning(
            "The write left %d chunks of %d KiB on average in topic %s: one for each task and partition. Fewer tasks "
            "leave fewer (df.coalesce(n), or repartition by the key); rolling puts them together (segments roll)",
            len(sizes),
            sum(sizes) // len(sizes) // 1024,
            topic,
        )


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
        self._txn = Transaction.named(options.once, options.txn)
        self._rows = RowWriter(options, schema)
        freeze_imports()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> ChunksMessage:
        txn = self._txn
        if txn is not None and txn.key is None:
            txn = Transaction(txn.application, txn.version, task_property(QUERY_ID))
        return self._rows.write(iterator, txn)

    @without_traceback
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
