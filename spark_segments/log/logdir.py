"""A log directory: the topics in it, and everything that can be done to them without Spark."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.config import TopicConfig, check_new_topic_name, names_collide, normal_overrides, topic_config
from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    MissingFileError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SegmentsError,
    StorageError,
    UnknownTopicError,
)
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.appending.appender import Appender, Chunks, ProducerOptions, Target
from spark_segments.log.appending.input_columns import record_batches
from spark_segments.log.appending.offset_assignment import check_written, commit_append
from spark_segments.log.description import describe
from spark_segments.log.kafka.directory import KafkaDirectory
from spark_segments.log.kafka.exporting import export_topics
from spark_segments.log.kafka.importing import import_topic
from spark_segments.log.manifest.commit import check_transaction
from spark_segments.log.manifest.delta_log import OpenDeltaLog
from spark_segments.log.manifest.delta_rs import DeltaRsLog
from spark_segments.log.manifest.manifest import MANIFEST_DIRECTORY, Change, Manifest
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.topic_log import TableState
from spark_segments.log.reading.latest import LATEST, LatestPlan, read_latest
from spark_segments.log.reading.plan import check_partition, offset_bounds, read_ranges
from spark_segments.log.reading.read import READ_COMMITTED, READ_UNCOMMITTED, read_range
from spark_segments.log.reading.times import offsets_for_times
from spark_segments.log.segment.files import missing_file
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.log.typed_columns import TypedColumns
    from spark_segments.values.batches import Decoder, Encoder
    from spark_segments.values.registries.registry import Registry

MARKER = f"{MANIFEST_DIRECTORY}/log-directory.json"
FORMAT_VERSION = 1


class LogDir:
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
        self._open_delta_log = open_delta_log
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
        if not storage.exists(MARKER):
            if KafkaDirectory.recognises(storage):
                raise LogDirError(
                    "The location holds partitions that Kafka wrote",
                    path=uri,
                    hint="Open it as it is (read-only), or import it: segments import KAFKA_DIR LOG_DIR",
                )
            with contextlib.suppress(FileExistsError):  # somebody else may make it at the same moment
                storage.write(MARKER, json.dumps({"format.version": FORMAT_VERSION}).encode())
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
        if storage.exists(MARKER):
            _check_format(storage)
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

        def plan(snapshot: Snapshot) -> Change | None:
            overrides: dict[str, str] = dict(snapshot.config)
            for key, value in (config or {}).items():
                if value is None:
                    overrides.pop(key, None)
                else:
                    overrides |= normal_overrides({key: value})
            topic_config(overrides, self.defaults)
            count = snapshot.partitions.num_rows
            if partitions is not None and partitions < count:
                raise InvalidOptionError(
                    "The number of partitions can only be raised", expected=f"at least {count}", found=partitions
                )
            added = [Partition(snapshot.topic_id, number) for number in range(count, partitions or count)]
            if overrides == snapshot.config and not added:
                return None
            return Change(config=overrides, partitions=added, operation="alter")

        with self._topic(topic) as manifest:
            manifest.commit(plan)

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
            self._manifests[topic] = Manifest(self.storage, topic, self._open_delta_log)
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
            check_transaction(txn)
        with self._topic(topic) as manifest:
            state = manifest.state()
            target = self._target(state.snapshot)
            with Appender(self.storage, lambda _: target, topic=topic, options=options) as appender:
                rows = record_batches(table)
                for batch in self._typed.encoded(topic, rows, formats) if formats else rows:
                    appender.write(batch)
                written = appender.close()
            # No rows are an append, too: their transaction is recorded, and a repeat with rows adds nothing.
            written = written or [Chunks(topic, target.topic_id)]
            return self._commit(manifest, written, txn, state=state, replayed=False)

    def target(self, topic: str) -> Target:
        """The topic as a writer's tasks need it."""
        self._check_writable()
        return self._target(self.snapshot(topic))

    def _target(self, snapshot: Snapshot) -> Target:
        config = topic_config(snapshot.config, self.defaults)
        return Target(snapshot.topic, snapshot.topic_id, snapshot.partitions.num_rows, config)

    def commit_chunks(self, chunks: Sequence[Chunks], txn: tuple[str, int] | None = None) -> dict[int, tuple[int, int]]:
        """Gives the chunks of one topic their offsets, in the order given; chunks without records record `txn` alone.

        Raises where the topic is not the one that was written to, or where it is compacted by now and a row has no key;
        CommitConflictError for chunks that were committed before and have left the log since.
        """
        if not chunks:
            return {}
        with self._topic(chunks[0].topic) as manifest:
            return self._commit(manifest, chunks, txn, state=None, replayed=True)

    def _commit(
        self,
        manifest: Manifest,
        chunks: Sequence[Chunks],
        txn: tuple[str, int] | None,
        *,
        state: TableState | None,
        replayed: bool,
    ) -> dict[int, tuple[int, int]]:
        return commit_append(
            manifest,
            [segment for written in chunks for segment in written.segments],
            txn,
            check=lambda snapshot: check_written(snapshot, chunks, self.defaults),
            state=state,
            replayed=replayed,
        )

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
        names = _check_columns(columns)
        typed = self._typed.columns(topic, names, formats, version) if formats else None
        if typed is not None and include_control:
            raise InvalidOptionError("Control records have no values", hint="Read them without value.format")
        wanted = names if typed is None else typed.wanted
        if isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
            raise InvalidOptionError(
                "Unknown isolation level", expected=f"{READ_UNCOMMITTED} or {READ_COMMITTED}", found=isolation_level
            )
        if view not in (None, LATEST) or (view is not None and include_control):
            raise InvalidOptionError(
                "Unknown view" if view != LATEST else "Control records are in no view", expected=LATEST, found=view
            )
        if view is None and not include_tombstones:
            raise InvalidOptionError("Tombstones are left out of the view latest alone", hint="Add view='latest'")
        snapshot = self.snapshot(topic, version)
        if partition is not None:
            check_partition(snapshot, partition)
        offsets = {
            number: (log_start if start_offset is None else start_offset, log_end if end_offset is None else end_offset)
            for number, (log_start, log_end) in offset_bounds(snapshot).items()
            if partition is None or number == partition
        }
        if view is not None:
            tasks = LatestPlan(snapshot, offsets, isolation_level, include_tombstones).tasks()
            batches = itertools.chain.from_iterable(read_latest(self.storage, task, columns=wanted) for task in tasks)
        else:
            ranges = read_ranges(snapshot, offsets, isolation_level=isolation_level)
            batches = itertools.chain.from_iterable(
                read_range(self.storage, one, columns=wanted, include_control=include_control) for one in ranges
            )
        return batches if typed is None else typed.decoded(batches)

    def value_readers(self, topic: str, formats: Mapping[str, str], version: int | None = None) -> list[Decoder]:
        """What decodes key and value of a topic as `formats` say. Raises InvalidOptionError, RegistryError."""
        return self._typed.readers(topic, formats, version)

    def value_writers(
        self, topic: str | None, formats: Mapping[str, str], types: Mapping[str, pa.DataType | None]
    ) -> list[Encoder]:
        """What encodes columns of these types (None: the schema's) as `formats` say; a new schema is registered."""
        return self._typed.writers(topic, formats, types)

    def registry(self, formats: Mapping[str, str]) -> Registry:
        """The schema registry that schema.registry names, by default the topic `_schemas` of this log directory."""
        return self._typed.registry(formats)

    @property
    def _typed(self) -> TypedColumns:
        from spark_segments.log.typed_columns import TypedColumns  # formats and registries, which few reads need

        return TypedColumns(self)

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

        def plan(snapshot: Snapshot) -> Change | None:
            config = topic_config(snapshot.config, self.defaults)
            if not config.delete:
                raise PolicyViolationError(
                    f"Records of topic {topic} cannot be deleted by offset",
                    path=self.uri,
                    expected="a cleanup.policy with delete",
                    found=",".join(sorted(config.cleanup_policy)) or "none",
                    hint="Set cleanup.policy=compact,delete for as long as it takes: retention.ms and retention.bytes "
                    "apply from then on, and -1 keeps all that they would take",
                )
            rows = []
            for number, before in before_offsets.items():
                check_partition(snapshot, number)
                row = snapshot.partition(number)
                before = row.log_end_offset if before == -1 else before
                if not 0 <= before <= row.log_end_offset:
                    raise OffsetOutOfRangeError(
                        f"Cannot delete records of {topic}-{number}",
                        expected=f"an offset from 0 to {row.log_end_offset}",
                        found=before,
                    )
                if before > row.log_start_offset:
                    rows.append(replace(row, log_start_offset=before))
            return Change(partitions=rows, operation="delete-records") if rows else None

        with self._topic(topic) as manifest:
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
        would), or where a topic of that name is another one; UnknownTopicError where there is no such topic.
        """
        self._check_writable()
        overrides = normal_overrides(config or {})
        source = KafkaDirectory(Storage(path, dict(storage_options or {})))
        topics = [topic] if topic is not None else source.topics()
        if not topics:
            raise LogDirError("There is no topic to import", path=path, expected="<topic>-<partition> directories")
        with _missing_files():
            return [
                import_topic(
                    source,
                    self.storage,
                    self.manifest(name),
                    name,
                    overrides,
                    topic_config(overrides, self.defaults),
                    spark=spark,
                    recovery=recovery,
                    progress=progress,
                )
                for name in topics
            ]

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
        names = [topic] if topic is not None else self.topics()
        snapshots, unreadable = self._snapshots(names)
        if topic is not None and unreadable:
            raise unreadable[topic]
        with _missing_files():
            done = export_topics(
                self.storage,
                Storage(path, dict(storage_options or {})),
                [(snapshot, topic_config(snapshot.config, self.defaults)) for snapshot in snapshots],
                spark=spark,
                progress=progress,
            )
        if unreadable:
            raise LogDirError(
                f"Topics could not be exported: {', '.join(unreadable)}",
                path=self.uri,
                found="; ".join(str(error) for error in unreadable.values()),
                hint=f"The others were exported: {', '.join(one['topic'] for one in done) or 'there are none'}",
            )
        return done

    def _snapshots(self, topics: Iterable[str]) -> tuple[list[Snapshot], dict[str, SegmentsError]]:
        """The snapshots of topics with their live rows, and what was raised for those that cannot be read."""
        snapshots: list[Snapshot] = []
        unreadable: dict[str, SegmentsError] = {}
        for topic in topics:
            try:
                snapshot = self.snapshot(topic)
                _ = snapshot.live
                snapshots.append(snapshot)
            except SegmentsError as error:
                unreadable[topic] = error
        return snapshots, unreadable

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


@contextmanager
def _missing_files() -> Iterator[None]:
    """Files that go while a directory is copied raise MissingFileError."""
    try:
        yield
    except MissingFileError:
        raise
    except FileNotFoundError as error:
        raise missing_file(error.filename) from error


def _check_format(storage: Storage) -> None:
    content = storage.read(MARKER).to_pybytes()
    if not content:
        return  # who makes the directory has not written it yet, or was killed before that
    try:
        version = int(json.loads(content)["format.version"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDirError("The log directory's marker file is damaged", path=MARKER, found=content[:80]) from error
    if version > FORMAT_VERSION:
        raise LogDirError(
            "The log directory has a newer format",
            path=MARKER,
            expected=f"format.version {FORMAT_VERSION}",
            found=version,
            hint="Use a newer spark-segments",
        )


def _check_columns(columns: Sequence[str] | None) -> list[str]:
    if columns is None:
        return list(RECORD_SCHEMA.names)
    unknown = [name for name in columns if name not in RECORD_SCHEMA.names]
    if unknown:
        raise InvalidOptionError(
            "Unknown columns", expected=f"some of {', '.join(RECORD_SCHEMA.names)}", found=", ".join(unknown)
        )
    return list(columns)
