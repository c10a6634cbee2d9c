"""The topics of a log directory: everything about them that needs no byte of a segment, from their manifests alone.

Nothing here, and nothing that this module imports, needs a kernel: a command that lists topics starts at once.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from spark_segments.config import TopicConfig, check_new_topic_name, names_collide, normal_overrides, topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, StorageError, UnknownTopicError
from spark_segments.log.description import describe
from spark_segments.log.groups.group import Groups
from spark_segments.log.history import history
from spark_segments.log.manifest.delta.delta_log import MANIFEST_DIRECTORY, DeltaLog, OpenDeltaLog
from spark_segments.log.manifest.manifest import Manifest, Upgrade
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.marker import is_marked, mark
from spark_segments.log.partitions import check_partition_count, offset_bounds
from spark_segments.log.topic_changes import altered, records_deleted
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.kafka.directory import KafkaDirectory


NAMED_TOPICS = 20
"""How many topics an error for an unknown topic names."""


class Topics(Groups):
    """The part of `LogDir` that is about topics: their names, settings, versions and offsets."""

    def __init__(
        self,
        storage: Storage,
        *,
        kafka: KafkaDirectory | None = None,
        defaults: Mapping[str, str] | None = None,
        open_delta_log: OpenDeltaLog = DeltaLog,
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
    ) -> Self:
        """Makes an empty log directory at `uri`, or opens the one that is there already.

        A location that holds a plain Kafka log directory raises LogDirError: import it into a new one instead.
        `defaults` are configuration values, in Kafka's names, for what topics do not set themselves.
        """
        storage = Storage(uri, dict(storage_options or {}))
        if not is_marked(storage):
            if _kafka_directory(storage) is not None:
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
    ) -> Self:
        """Opens a log directory; one without a manifest that holds `<topic>-<n>` directories opens read-only, as Kafka
        would recover it.
        """
        storage = Storage(uri, dict(storage_options or {}))
        if is_marked(storage):
            return cls(storage, defaults=defaults)
        if (kafka := _kafka_directory(storage)) is not None:
            return cls(storage, kafka=kafka, defaults=defaults)
        raise LogDirError(
            "Not a log directory",
            path=uri,
            expected="a log directory of spark-segments or of Kafka",
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
        names = self.topic_directories()
        return names if self._kafka is not None else self._those_there(names)

    def topic_directories(self) -> list[str]:
        """The names that may be topics, sorted: a topic may have been deleted. No manifest is opened."""
        if self._kafka is not None:
            return self._kafka.topics()
        return self.storage.directories(MANIFEST_DIRECTORY)

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Makes a topic. Raises TopicExistsError where there is one, InvalidOptionError for a bad name, count or
        configuration.
        """
        self._check_writable()
        # No other name collides with one that has neither character: it is no matter then how many topics there are.
        names = self.storage.directories(MANIFEST_DIRECTORY) if {".", "_"} & set(topic) else []
        check_new_topic_name(topic, [name for name in names if names_collide(topic, name) and self._is_there(name)])
        check_partition_count(topic, partitions)
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

    def upgrade_topic(self, topic: str, dry_run: bool = False) -> Upgrade:
        """Raises the topic's format version to the newest that this package writes, in one commit.

        Packages older than that format refuse the topic from then on, by name: upgrade every reader and writer first.
        There is no way back. No record and no file of the log changes, and jobs may run meanwhile. A topic of the
        newest version is left as it is. `dry_run` only tells what would be done.
        """
        self._check_writable()
        with self._topic(topic) as manifest:
            return manifest.upgrade(dry_run=dry_run)

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
            self._manifests[topic] = Manifest(self.storage, topic, self.open_delta_log, self.defaults)
        return self._manifests[topic]

    def snapshot(self, topic: str, version: int | None = None, *, deleted: bool = False) -> Snapshot:
        """What the log of a topic is now, or was at an earlier version. Raises UnknownTopicError; not for a topic that
        was deleted and whose files are still here, where that is asked for (`deleted`).
        """
        if self._kafka is not None:
            if version is not None:
                raise InvalidOptionError("A Kafka log directory has no versions", path=self.uri, found=version)
            return self._kafka.snapshot(topic)
        with self._topic(topic) as manifest:
            return manifest.snapshot(version, deleted=deleted)

    def snapshot_at(self, topic: str, timestamp_ms: int) -> Snapshot:
        """What the log of a topic was at a time: the last version that was committed by then, by the clocks of those
        who committed. Raises InvalidOptionError for a time before the first version that is still there.
        """
        if self._kafka is not None:
            raise InvalidOptionError("A Kafka log directory has no versions", path=self.uri, found=timestamp_ms)
        with self._topic(topic) as manifest:
            return manifest.snapshot(manifest.version_at(timestamp_ms))

    def history(self, topic: str, limit: int | None = None) -> list[dict[str, Any]]:
        """The newest `limit` commits of a topic (None: all), newest first: version, committed_ms, job, records_in,
        records_out, bytes_in, bytes_out, and partitions: {partition: (log start offset, log end offset)}.

        A deleted topic has its history until vacuum takes it. Figures are None where vacuum has taken the version
        before. Raises UnknownTopicError.
        """
        if self._kafka is not None:
            raise InvalidOptionError("A Kafka log directory has no versions", path=self.uri)
        with self._topic(topic) as manifest:
            return history(manifest, limit)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, log end offset)}: the end is the next offset to be given out."""
        return offset_bounds(self.snapshot(topic))

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

    def _first_topics(self, count: int) -> list[str]:
        """The first names of `topics`, at most so many: looks no further in a directory of very many."""
        names = self.topic_directories()
        if self._kafka is not None:
            return names[:count]
        found: list[str] = []
        for start in range(0, len(names), count):
            found += self._those_there(names[start : start + count])
            if len(found) >= count:
                break
        return found[:count]

    def _those_there(self, names: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(max_workers=8) as pool:
            there = list(pool.map(self._is_there, names))
        return [name for name, exists in zip(names, there, strict=True) if exists]

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
                there = f"There are: {', '.join(self._first_topics(NAMED_TOPICS)) or 'no topics'}"
                error.hint = there if error.hint is None else f"{error.hint}. {there}"
            raise

    def _check_writable(self) -> None:
        if self._kafka is not None:
            raise LogDirError(
                "A Kafka log directory is read-only",
                path=self.uri,
                hint="Import it into another log directory: segments import KAFKA_DIR LOG_DIR",
            )


def _kafka_directory(storage: Storage) -> KafkaDirectory | None:
    """The topics that Kafka wrote at a location, None where Kafka wrote none."""
    if not storage.list() and not storage.directories():
        return None
    from spark_segments.log.kafka.directory import KafkaDirectory  # reads segments, and so needs kernels

    return KafkaDirectory(storage) if KafkaDirectory.recognises(storage) else None
