"""A log directory: the topics in it, and everything that can be done to them without Spark."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.config import TopicConfig, check_new_topic_name, names_collide, normal_overrides, topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, StorageError, UnknownTopicError
from spark_segments.log.appending.appender import Appender, Chunks, ProducerOptions, Target
from spark_segments.log.appending.input_columns import record_batches
from spark_segments.log.appending.offset_assignment import commit_written
from spark_segments.log.description import describe
from spark_segments.log.kafka.directory import KafkaDirectory
from spark_segments.log.kafka.transfer import export_all, import_all
from spark_segments.log.manifest.delta_log import MANIFEST_DIRECTORY, OpenDeltaLog
from spark_segments.log.manifest.delta_rs import DeltaRsLog
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.transaction import AnyTransaction, checked
from spark_segments.log.marker import check_format, is_marked, mark
from spark_segments.log.reading.isolation import READ_UNCOMMITTED
from spark_segments.log.reading.plan import offset_bounds
from spark_segments.log.reading.records import check_reading, read_records
from spark_segments.log.reading.times import offsets_for_times
from spark_segments.log.topic_changes import altered, records_deleted
from spark_segments.log.typed.typed_log import TypedLog, typed_columns
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LogDir(TypedLog):
    """Topics under one location. `create` makes one, `open` opens one or a plain Kafka log directory (read-only)."""

    def __init__(
        self,
        storage: Storage,
        *,
        kafka: KafkaDirectory | None = None,
        defaults: Mapping[str, str] | None = None,
        open_delta_log: OpenDeltaLog = DeltaRsLog,
    ) -> None:
        """Use `create` or `open`. `kafka` is set where Kafka, and not a manifest, says what the log is.

        `open_delta_log` stands in for delta-rs, for tests and simulations, as a `FileSystem` does for a storage's own.
        """
        self.storage = storage
        self.open_delta_log = open_delta_log
        self.defaults = dict(defaults or {})
        self._kafka = kafka
        self._manifests: dict[str, Manifest] = {}

    @classmethod
    def create(
        cls,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Makes an empty log directory at `uri`, or opens the one that is there already.

        A location that holds a plain Kafka log directory raises LogDirError: import it into a new one instead.
        `defaults` are configuration values, in Kafka's names, for what topics do not set themselves.
        """
        storage = Storage(uri, dict(storage_options or {}))
        if not is_marked(storage):
            if KafkaDirectory.recognises(storage):
                raise LogDirError(
                    "The location holds partitions that Kafka wrote",
                    path=uri,
                    hint="Open it as it is (read-only), or import it: segments import KAFKA_DIR LOG_DIR",
                )
            mark(storage)
        return cls.open(uri, storage_options, defaults=defaults)

    @classmethod
    def open(
        cls,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, str] | None = None,
    ) -> LogDir:
        """Opens a log directory; one without a manifest that holds `<topic>-<n>` directories opens read-only, as Kafka
        would recover it.
        """
        storage = Storage(uri, dict(storage_options or {}))
        if is_marked(storage):
            check_format(storage)
            return cls(storage, defaults=defaults)
        if KafkaDirectory.recognises(storage):
            return cls(storage, kafka=KafkaDirectory(storage), defaults=defaults)
        raise LogDirError(
            "Not a log directory",
            path=uri,
            expected="a log directory of ours or of Kafka's",
            found="neither a manifest nor <topic>-<partition> directories",
            hint="LogDir.create(uri) or segments topic create makes one",
        )

    @property
    def uri(self) -> str:
        return self.storage.uri

    @property
    def is_kafka(self) -> bool:
        """Whether this is a plain Kafka log directory, which is never written to."""
        return self._kafka is not None

    # Topics

    def topics(self) -> list[str]:
        """The names of the topics, sorted. A topic whose manifest cannot be read is there, too."""
        if self._kafka is not None:
            return self._kafka.topics()
        names = sorted(self.storage.directories(MANIFEST_DIRECTORY))
        with ThreadPoolExecutor(max_workers=8) as pool:
            there = list(pool.map(self._is_there, names))
        return [name for name, exists in zip(names, there, strict=True) if exists]

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Makes a topic. Raises TopicExistsError where there is one, InvalidOptionError for a bad name, count or
        configuration.
        """
        self._check_writable()
        names = self.storage.directories(MANIFEST_DIRECTORY)
        check_new_topic_name(topic, [name for name in names if names_collide(topic, name) and self._is_there(name)])
        if partitions < 1:
            raise InvalidOptionError("A topic has at least one partition", expected="partitions ≥ 1", found=partitions)
        overrides = normal_overrides(config or {})
        topic_config(overrides, self.defaults)
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        rows = [Partition(topic_id, number) for number in range(partitions)]
        self.manifest(topic).create(topic_id, overrides, rows)

    def alter_topic(
        self, topic: str, config: Mapping[str, str | None] | None = None, partitions: int | None = None
    ) -> None:
        """Sets configuration values (None takes one away) and raises the number of partitions, in one commit."""
        self._check_writable()
        with self._topic(topic) as manifest:
            manifest.commit(altered(config or {}, partitions, self.defaults))

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Takes a topic out of the log directory. Its files stay for the readers that have them, until vacuum.

        `force` takes out a topic whose manifest cannot be read, too, because it is damaged or a newer version of this
        package wrote it. Vacuum then deletes all files of the topic, whoever could still read them, after the log
        directory's file.delete.delay.ms; a manifest that is repaired before that brings the topic back.
        """
        self._check_writable()
        with self._topic(topic) as manifest:
            if force:
                manifest.delete_by_force()
                return
            try:
                manifest.delete()
            except (LogDirError, StorageError) as error:
                error.hint = error.hint or "Restore the manifest from a backup, or delete the topic by force"
                raise

    def config(self, topic: str) -> TopicConfig:
        """The topic's configuration: its own values over the defaults of this log directory over Kafka's."""
        return topic_config(self.snapshot(topic).config, self.defaults)

    def describe(self, topic: str) -> dict[str, Any]:
        """The topic's id, version and effective configuration; its partitions' offsets, segments, bytes and dirty
        ratio.
        """
        snapshot = self.snapshot(topic)
        return describe(snapshot, topic_config(snapshot.config, self.defaults))

    def manifest(self, topic: str) -> Manifest:
        """The manifest of a topic, whether or not it exists."""
        if topic not in self._manifests:
            self._manifests[topic] = Manifest(self.storage, topic, self.open_delta_log)
        return self._manifests[topic]

    def snapshot(self, topic: str, version: int | None = None) -> Snapshot:
        """What the log of a topic is now, or was at an earlier version. Raises UnknownTopicError."""
        if self._kafka is not None:
            if version is not None:
                raise InvalidOptionError("A Kafka log directory has no versions", path=self.uri, found=version)
            return self._kafka.snapshot(topic)
        with self._topic(topic) as manifest:
            return manifest.snapshot(version)

    def snapshot_at(self, topic: str, timestamp_ms: int) -> Snapshot:
        """What the log of a topic was at a time: the last version that was committed by then, by the clocks of those
        who committed. Raises InvalidOptionError for a time before the first version that is still there.
        """
        if self._kafka is not None:
            raise InvalidOptionError("A Kafka log directory has no versions", path=self.uri, found=timestamp_ms)
        with self._topic(topic) as manifest:
            return manifest.snapshot(manifest.version_at(timestamp_ms))

    # Records

    def append(
        self,
        topic: str,
        table: pa.Table | pa.RecordBatch | Iterable[pa.RecordBatch],
        txn: tuple[str, int] | None = None,
        *,
        options: ProducerOptions | None = None,
        formats: Mapping[str, str] | None = None,
    ) -> dict[int, tuple[int, int]]:
        """Appends rows and returns {partition: (first offset, last offset)}, both inclusive; {} for a repeated `txn`.

        Takes the columns of a writer (value, key, headers, partition, timestamp): without timestamp a record gets the
        time of now. `txn` is (application id, version from 0 to 2**63 - 1): a version not above the application's last
        one adds nothing, and that is so after an append of no rows, too.

        Raises UnknownTopicError; InvalidOptionError for a version out of range; InvalidRecordError where the topic is
        compacted and a row has no key. Nothing is appended then. `formats` are options such as value.format: what typed
        columns key and value are written as.
        """
        self._check_writable()
        if txn is not None:
            checked(txn)
        with self._topic(topic) as manifest:
            state = manifest.state()
            target = self._target(state.snapshot)
            with Appender(self.storage, lambda _: target, topic=topic, options=options) as appender:
                rows = record_batches(table)
                for batch in typed_columns(self).encoded(topic, rows, formats) if formats else rows:
                    appender.write(batch)
                written = appender.close()
            # No rows are an append, too: their transaction is recorded, and a repeat with rows adds nothing.
            written = written or [Chunks(topic, target.topic_id)]
            return commit_written(manifest, written, txn, self.defaults, state=state)

    def target(self, topic: str) -> Target:
        """The topic as a writer's tasks need it."""
        self._check_writable()
        return self._target(self.snapshot(topic))

    def _target(self, snapshot: Snapshot) -> Target:
        config = topic_config(snapshot.config, self.defaults)
        return Target(snapshot.topic, snapshot.topic_id, snapshot.partitions.num_rows, config)

    def commit_chunks(self, chunks: Sequence[Chunks], txn: AnyTransaction | None = None) -> dict[int, tuple[int, int]]:
        """Gives the chunks of one topic their offsets, in the order given; chunks without records record `txn` alone.

        Raises where the topic is not the one that was written to, or where it is compacted by now and a row has no key;
        CommitConflictError for chunks that were committed before and have left the log since.
        """
        if not chunks:
            return {}
        with self._topic(chunks[0].topic) as manifest:
            return commit_written(manifest, chunks, txn, self.defaults, replayed=True)

    def read(
        self,
        topic: str,
        partition: int | None = None,
        start_offset: int | None = None,
        end_offset: int | None = None,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        isolation_level: str = READ_UNCOMMITTED,
        include_control: bool = False,
        *,
        formats: Mapping[str, str] | None = None,
        view: str | None = None,
        include_tombstones: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The records of a topic, partition by partition and by offset, in batches of a few MiB.

        `end_offset` is exclusive; offsets are clipped to what is there. `columns` are names of RECORD_SCHEMA, in the
        wanted order. The log is that of this moment, or of an earlier `version`: appends that come later are not seen.
        `formats` are options such as value.format: what the bytes of key and value are read as, so that these columns
        are typed. What cannot be read so raises ValueFormatError.

        The `view` latest is the newest record of each key in the range, partition by partition: what cleaning would
        leave of it. Records without a key and aborted data are not in it; tombstones are, unless told otherwise.
        """
        names = check_reading(columns, isolation_level, view, include_control, include_tombstones)
        typed = typed_columns(self).columns(topic, names, formats, version) if formats else None
        if typed is not None and include_control:
            raise InvalidOptionError("Control records have no values", hint="Read them without value.format")
        batches = read_records(
            self.storage,
            self.snapshot(topic, version),
            partition,
            start_offset,
            end_offset,
            names if typed is None else typed.wanted,
            isolation_level,
            include_control=include_control,
            latest=view is not None,
            include_tombstones=include_tombstones,
        )
        return batches if typed is None else typed.decoded(batches)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, log end offset)}: the end is the next offset to be given out."""
        return offset_bounds(self.snapshot(topic))

    def offsets_for_times(self, topic: str, timestamp_ms: int) -> dict[int, tuple[int, int] | None]:
        """{partition: (offset, timestamp in ms)} of the first offset with a timestamp ≥ `timestamp_ms`, None where
        there is none.
        """
        snapshot = self.snapshot(topic)
        targets = dict.fromkeys(offset_bounds(snapshot), timestamp_ms)
        return offsets_for_times(self.storage, snapshot, targets)

    def delete_records(self, topic: str, before_offsets: Mapping[int, int]) -> dict[int, int]:
        """Moves the log start of partitions up to the offsets given (-1: the log end) and returns {partition: log start
        offset}.

        Files go with the next retention and vacuum. Raises OffsetOutOfRangeError for an offset above the log end, and
        PolicyViolationError where the topic's cleanup.policy is without delete: as a broker does, for in a compacted
        topic a deleted record may be the newest value of its key.
        """
        self._check_writable()
        with self._topic(topic) as manifest:
            plan = records_deleted(before_offsets, self.defaults, self.uri)
            bounds = manifest.commit(plan).bounds()
        return {number: bounds[number][0] for number in before_offsets}

    # Kafka's directories

    def import_kafka(
        self,
        path: str,
        topic: str | None = None,
        config: Mapping[str, str] | None = None,
        *,
        recovery: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        spark: SparkSession | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Copies every `<topic>-<n>` of a Kafka directory, or only those of `topic`, into topics of the same names.

        Offsets, epochs, transactions, log starts and cleaner checkpoints are kept; Kafka's last segment stays the
        active one. A topic gets `config`, and retention.ms=-1 where that does not say otherwise. Run it again after it
        was killed, or when the directory has grown: what is here already is not copied twice. Returns what was copied
        of each topic.

        Raises LogDirError where damage would cut more than a torn last batch (`recovery="kafka"` cuts, as a broker
        would), or where a topic of that name is another one; UnknownTopicError where there is no such topic. Of several
        topics, those that fail are raised, as one LogDirError, after all the others were imported.
        """
        self._check_writable()
        overrides = normal_overrides(config or {})
        source = KafkaDirectory(Storage(path, dict(storage_options or {})))
        topics = [topic] if topic is not None else source.topics()
        if not topics:
            raise LogDirError("There is no topic to import", path=path, expected="<topic>-<partition> directories")
        return import_all(
            source,
            self.storage,
            topics,
            self.manifest,
            overrides,
            self.defaults,
            recovery=recovery,
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
        what was written of each topic. Raises LogDirError where a partition's directory is there already, and, after
        all the others were exported, for topics whose manifest cannot be read.
        """
        return export_all(
            self.storage,
            Storage(path, dict(storage_options or {})),
            [topic] if topic is not None else self.topics(),
            self.snapshot,
            self.defaults,
            spark=spark,
            progress=progress,
        )

    def _is_there(self, topic: str) -> bool:
        try:
            return self.manifest(topic).exists()
        except SegmentsError:
            return True

    @contextmanager
    def _topic(self, topic: str) -> Iterator[Manifest]:
        """The manifest of a topic. An UnknownTopicError within says which topics there are."""
        try:
            yield self.manifest(topic)
        except UnknownTopicError as error:
            if error.path == self.uri:  # else it is a partition that is not there
                there = f"There are: {', '.join(self.topics()[:20]) or 'no topics'}"
                error.hint = there if error.hint is None else f"{error.hint}. {there}"
            raise

    def _check_writable(self) -> None:
        if self._kafka is not None:
            raise LogDirError(
                "A Kafka log directory is read-only",
                path=self.uri,
                hint="Import it into a log directory of its own: segments import KAFKA_DIR LOG_DIR",
            )
