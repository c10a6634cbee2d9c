"""A log directory: the topics in it, and everything that can be done to them without Spark."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_segments.config import normal_overrides, topic_config
from spark_segments.errors import LogDirError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.log.appending.appender import Appender, Chunks, ProducerOptions, Target
from spark_segments.log.appending.caller_rows import Rows, record_batches
from spark_segments.log.appending.offset_assignment import commit_written
from spark_segments.log.kafka.directory import KafkaDirectory, committed_directory
from spark_segments.log.kafka.transfer import export_all, import_all
from spark_segments.log.manifest.change import APPEND
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role
from spark_segments.log.manifest.topic_log import TableState
from spark_segments.log.manifest.transaction import AnyTransaction, checked, is_repeat
from spark_segments.log.marker import check_apart, is_marked
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.reading.times import offsets_for_times
from spark_segments.log.reading.topic_reads import TopicReads
from spark_segments.log.topics import Topics
from spark_segments.log.typed.typed_log import TypedLog, typed_columns
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LogDir(Topics, TypedLog, TopicReads):
    """Topics under one location. `create` makes one, `open` opens one or a plain Kafka log directory (read-only)."""

    # Records

    def append(
        self,
        topic: str,
        table: Rows,
        txn: tuple[str, int] | None = None,
        *,
        options: ProducerOptions | None = None,
        formats: Mapping[str, str] | None = None,
    ) -> dict[int, tuple[int, int]]:
        """Appends rows and returns {partition: (first offset, last offset)}, both inclusive; {} for a repeated `txn`.

        Takes the columns of a writer (value, key, headers, partition, timestamp) as Arrow, as a pandas or another data
        frame, or as a list of dicts; without timestamp a record gets the time of now. In dicts text is UTF-8, a
        timestamp is a datetime or milliseconds since 1970, headers are a dict or pairs, and a value of None is a
        tombstone. `txn` is (application id, version from 0 to 2**63 - 1): a version not above the application's last
        one adds nothing, and that is so after an append of no rows, too.

        Raises UnknownTopicError; InvalidOptionError for a version out of range; InvalidRecordError where the topic is
        compacted and a row has no key, and for a dict that is no record; NotLeaderError where the topic is a follower
        or fenced. Nothing is appended then. `formats` are options such as value.format: what typed columns key and
        value are written as.
        """
        self._check_writable()
        if txn is not None:
            checked(txn)
        is_once = hasattr(table, "__next__")  # rows that can be read once only
        with self._topic(topic) as manifest:
            state = manifest.state_to_commit_on(is_latest=is_once)
            try:
                return self._append(manifest, state, table, txn, options, formats)
            except (StorageError, UnknownOutcomeError):
                raise
            except SegmentsError:  # it rests on a state that may be an old one
                latest = None if is_once else manifest.moved(state)
                if latest is None:
                    raise
            return self._append(manifest, latest, table, txn, options, formats)

    def _append(
        self,
        manifest: Manifest,
        state: TableState,
        table: Rows,
        txn: tuple[str, int] | None,
        options: ProducerOptions | None,
        formats: Mapping[str, str] | None,
    ) -> dict[int, tuple[int, int]]:
        topic = manifest.topic
        check_role(state.snapshot, APPEND)
        target = self._target(state.snapshot)
        with Appender(self.storage, lambda _: target, topic=topic, options=options) as appender:
            rows = record_batches(table, formats or {})
            for batch in typed_columns(self).encoded(topic, rows, formats) if formats else rows:
                appender.write(batch)
            written = appender.close()
        # No rows are an append, too: their transaction is recorded, and a repeat with rows adds nothing.
        written = written or [Chunks(topic, target.topic_id)]
        return commit_written(manifest, written, txn, self.defaults, state=state)

    def target(self, topic: str, txn: AnyTransaction | None = None) -> Target:
        """The topic as a writer's tasks need it; with `txn`, whether the topic holds that transaction already.

        Raises UnknownTopicError; TransactionOrderError where the topic refuses `txn`; NotLeaderError where it takes no
        appends.
        """
        self._check_writable()
        sent = None if txn is None else checked(txn)
        with self._topic(topic) as manifest:
            state = manifest.state()
            check_role(state.snapshot, APPEND)
            repeated = sent is not None and is_repeat(sent, state.last_transaction(sent.application), topic)
            return dataclasses.replace(self._target(state.snapshot), repeated=repeated)

    def _target(self, snapshot: Snapshot) -> Target:
        config = topic_config(snapshot.config, self.defaults)
        count = snapshot.partitions.num_rows
        return Target(snapshot.topic, snapshot.topic_id, count, config, format_version=snapshot.format_version)

    def commit_chunks(self, chunks: Sequence[Chunks], txn: AnyTransaction | None = None) -> dict[int, tuple[int, int]]:
        """Gives the chunks of one topic their offsets, in the order given; chunks without records record `txn` alone.

        Raises where the topic is not the one that was written to, or where it is compacted by now and a row has no key;
        CommitConflictError for chunks that were committed before and have left the log since.
        """
        if not chunks:
            return {}
        with self._topic(chunks[0].topic) as manifest:
            return commit_written(manifest, chunks, txn, self.defaults, replayed=True)

    def offsets_for_times(self, topic: str, timestamp_ms: int) -> dict[int, tuple[int, int] | None]:
        """{partition: (offset, timestamp in ms)} of the first offset with a timestamp ≥ `timestamp_ms`, None where
        there is none.
        """
        snapshot = self.snapshot(topic)
        targets = dict.fromkeys(offset_bounds(snapshot), timestamp_ms)
        return offsets_for_times(self.storage, snapshot, targets)

    # Kafka's directories

    def import_kafka(
        self,
        path: str,
        topic: str | None = None,
        config: Mapping[str, str] | None = None,
        *,
        recovery: str | None = None,
        keep_retention: bool = False,
        exclude_internal: bool = False,
        replicated: bool = False,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Copies every `<topic>-<n>` of a Kafka directory, or only those of `topic`, a name or a pattern (`orders*`),
        into topics of the same names.

        Offsets, epochs, transactions, log starts and cleaner checkpoints are kept; Kafka's last segment stays the
        active one. A new topic gets the settings that it has in Kafka, where the directory is that of a KRaft
        controller, too (`__cluster_metadata-0`), then `config`. Its retention is not kept unless `keep_retention`: it
        gets retention.ms=-1. `exclude_internal` leaves topics out whose names begin with __. `replicated` copies each
        log up to the high watermark that the broker noted last: what all in-sync replicas have.

        Run it again after it was killed, or when the directory has grown: what is here already is not copied twice.
        Returns what was copied of each topic, and its `warnings`.

        Raises LogDirError where damage would cut more than a torn last batch, or segments are missing that Kafka's
        cleaner has seen (`recovery="kafka"` takes the log as a broker would), or where a topic of that name is another
        one; UnknownTopicError where there is no such topic. Of several topics, those that fail are raised, as one
        LogDirError, after all the others were imported; LogDirError, too, where `replicated` finds no high watermarks.
        """
        self._check_writable()
        overrides = normal_overrides(config or {})
        source_storage = Storage(path, dict(storage_options or {}))
        if is_marked(source_storage):
            raise LogDirError(
                "The location is a log directory of this package, and none that Kafka wrote",
                path=path,
                expected="<topic>-<partition> directories of Kafka",
                hint=f"segments mirror {path} {self.uri} keeps copies of its topics",
            )
        source = committed_directory(source_storage) if replicated else KafkaDirectory(source_storage)
        names = source.topics()
        topics = names if topic is None else fnmatch.filter(names, topic) or [topic]
        if exclude_internal:
            topics = [name for name in topics if not name.startswith("__")]
        if not topics:
            raise LogDirError(
                "The directory holds no topic to import", path=path, expected="<topic>-<partition> directories"
            )
        return import_all(
            source,
            self.storage,
            topics,
            self.manifest,
            overrides,
            self.defaults,
            recovery=recovery,
            keep_retention=keep_retention,
            spark=spark,
            progress=progress,
        )

    def export_kafka(
        self,
        path: str,
        topic: str | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Writes `<topic>-<n>` directories and checkpoints that a Kafka broker serves, of one topic or of all.

        Segments get Kafka's names and absolute offsets, with indexes, producer snapshots, leader epochs and topic ids.
        A broker's own meta.properties is not written: put the directories into a log.dirs of a stopped broker. Returns
        what was written of each topic. Raises LogDirError where a partition's directory is there already, where `path`
        is in a log directory, and, after all the others were exported, for topics whose manifest cannot be read.
        """
        target = Storage(path, dict(storage_options or {}))
        if is_marked(target):
            raise LogDirError(
                "The location is a log directory, and none of Kafka's", path=path, hint="Name another one"
            )
        check_apart(target)
        return export_all(
            self.storage,
            target,
            [topic] if topic is not None else self.topics(),
            self.snapshot,
            self.defaults,
            spark=spark,
            progress=progress,
        )
