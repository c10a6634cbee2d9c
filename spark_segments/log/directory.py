"""A log directory: the manifests of the topics at a location, or the topics that a registered opener finds there.

Nothing here, and nothing that this module imports, needs a kernel: a command that lists topics starts at once.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, Self

from spark_segments import extensions
from spark_segments.config import (
    check_new_topic_name,
    check_partition_count,
    is_pattern,
    is_topic_name,
    names_collide,
    normal_overrides,
    selected_topics,
    topic_config,
)
from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, StorageError, UnknownTopicError
from spark_segments.log.key_offsets import KeyOffsets, KeyProvider, key_provider
from spark_segments.log.manifest.files.delta.delta_log import MANIFEST_DIRECTORY, DeltaLog, OpenDeltaLog
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.marker import check_apart, is_marked, mark
from spark_segments.log.typed import ValueFormats, ValueProvider, value_provider
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.findings import Findings

FOLLOWERS_DIRECTORY = "_followers"

NAMED_TOPICS = 20
"""How many topics an error for an unknown topic names."""


class ReadOnlyTopics(Protocol):
    """Topics of a location that no manifest describes: a directory that a Kafka broker wrote."""

    def topics(self) -> list[str]:
        """The names of the topics, sorted."""

    def snapshot(self, topic: str) -> Snapshot:
        """What a topic holds. Raises UnknownTopicError."""

    def check_files(self, topic: str, findings: Findings) -> int:
        """Finds faults of a topic's files without reading its log. Returns the number of partitions, 0 where there is
        no such topic.
        """

    def check_log(self, topic: str, findings: Findings) -> None:
        """Finds what is no part of the log that `snapshot` gives."""

    def check_directory(self, findings: Findings) -> None:
        """Finds faults of files that belong to no topic."""


class LogDirectory:
    """The topics at a location.

    `defaults` are configuration values, in Kafka's names, for what topics do not set themselves. `kafka`: the topics of
    a location that has no manifest, which is read-only. `values` opens the formats of keys and values, `keys` the
    indexes of keys; None: the package's. `open_delta_log` stands in for delta-rs, for tests and simulations, as a
    `FileSystem` does for a storage's own.
    """

    is_marked = staticmethod(is_marked)
    check_apart = staticmethod(check_apart)

    def __init__(
        self,
        storage: Storage,
        *,
        kafka: ReadOnlyTopics | None = None,
        defaults: Mapping[str, str] | None = None,
        values: ValueProvider | None = None,
        keys: KeyProvider | None = None,
        open_delta_log: OpenDeltaLog = DeltaLog,
    ) -> None:
        """Use `create` or `open`."""
        if not isinstance(storage, Storage):
            raise LogDirError(
                "A location is no storage", expected="LogDir.open(uri) or LogDir.create(uri)", found=storage
            )
        self.storage = storage
        self.kafka = kafka
        self.defaults = dict(defaults or {})
        self.open_delta_log = open_delta_log
        self._values = values
        self._keys = keys
        self._manifests: dict[str, Manifest] = {}

    def __getstate__(self) -> dict[str, object]:
        """For tasks: what one process knows of the tables, another looks up by itself."""
        return self.__dict__ | {"_manifests": {}}

    @classmethod
    def create(
        cls,
        uri: str,
        storage_options: Mapping[str, str] | None = None,
        *,
        defaults: Mapping[str, str] | None = None,
    ) -> Self:
        """Makes an empty log directory at `uri`, or opens the existing one.

        A location that holds a plain Kafka log directory raises LogDirError: import it into a new one instead.
        `defaults` are configuration values, in Kafka's names, for what topics do not set themselves.
        """
        storage = Storage(uri, dict(storage_options or {}))
        if not is_marked(storage):
            if _read_only_topics(storage) is not None:
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
        would recover it. Raises LogDirError where there is neither.
        """
        storage = Storage(uri, dict(storage_options or {}))
        if is_marked(storage):
            return cls(storage, defaults=defaults)
        kafka = _read_only_topics(storage)
        if kafka is not None:
            return cls(storage, kafka=kafka, defaults=defaults)
        raise LogDirError(
            "Not a log directory",
            path=storage.uri,
            expected="a log directory of spark-segments or of Kafka",
            found="neither a manifest nor <topic>-<partition> directories",
            hint="LogDir.create(uri) or segments topic create makes one",
        )

    @property
    def uri(self) -> str:
        """Where it is: a path, or the URI of an object store."""
        return self.storage.uri

    @property
    def is_kafka(self) -> bool:
        """Whether this is a plain Kafka log directory, which is never written to."""
        return self.kafka is not None

    @property
    def values(self) -> ValueFormats:
        """The formats of its topics' keys and values."""
        provider = value_provider() if self._values is None else self._values
        return provider.open(self)

    @property
    def key_offsets(self) -> KeyOffsets:
        """Where records with some keys can be in its topics."""
        provider = key_provider() if self._keys is None else self._keys
        return provider.open(self)

    def manifest(self, topic: str) -> Manifest:
        """The manifest of a topic, whether or not it exists. Raises InvalidTopicError for a name that none can have."""
        if topic not in self._manifests:
            self._manifests[topic] = Manifest(self.storage, topic, self.open_delta_log, self.defaults)
        return self._manifests[topic]

    def snapshot(self, topic: str, version: int | None = None, timestamp_ms: int | None = None) -> Snapshot:
        """The newest snapshot of a topic's log, or its snapshot of an earlier version or time.

        For a time: the last version that was committed by then, by the clocks of the committing machines. Raises
        UnknownTopicError; InvalidOptionError for a version or a time before the first version that still exists.
        """
        if version is not None and timestamp_ms is not None:
            raise InvalidOptionError("A topic is read as of a version or as of a time", found="both")
        if self.kafka is not None:
            if version is not None or timestamp_ms is not None:
                found = timestamp_ms if version is None else version
                raise InvalidOptionError("A Kafka log directory has no versions", path=self.storage.uri, found=found)
            return self.kafka.snapshot(topic)
        with self.hinting(topic) as manifest:
            return manifest.snapshot(version if timestamp_ms is None else manifest.version_at(timestamp_ms))

    def directories(self) -> list[str]:
        """The names that may be topics, sorted: a topic may have been deleted. No manifest is opened."""
        names = self.storage.directories(MANIFEST_DIRECTORY) if self.kafka is None else self.kafka.topics()
        return [name for name in names if is_topic_name(name)]

    def topics(self) -> list[str]:
        """The names of the topics, sorted. A topic whose manifest cannot be read is there, too."""
        names = self.directories()
        return names if self.kafka is not None else self._existing(names)

    def is_there(self, topic: str) -> bool:
        """Whether there is such a topic. One whose manifest cannot be read is there, too."""
        if self.kafka is not None:
            return topic in self.directories()
        try:
            return self.manifest(topic).exists()
        except SegmentsError:
            return True

    def named(self, topics: Sequence[str]) -> list[str]:
        """The topics that names and patterns mean, sorted. A name is returned whether or not the topic exists. Raises
        UnknownTopicError where patterns match none, InvalidTopicError for a name that no topic can have.
        """
        names = selected_topics(self.topics() if any(map(is_pattern, topics)) else (), topics)
        if not names:
            raise UnknownTopicError(f"No topic matches {', '.join(topics)}", path=self.uri, hint=self._named_topics())
        return names

    @contextmanager
    def hinting(self, topic: str) -> Iterator[Manifest]:
        """The manifest of a topic. An UnknownTopicError within gets a hint: the name that was meant, or the topics that
        there are.
        """
        try:
            yield self.manifest(topic)
        except UnknownTopicError as error:
            if error.path == self.storage.uri:  # else it is a partition that is not there
                meant = difflib.get_close_matches(topic, self.directories(), n=1)
                hints = [error.hint, f"Did you mean {meant[0]}?" if meant else self._named_topics()]
                error.hint = ". ".join(filter(None, hints))
            raise

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Makes a topic. Raises TopicExistsError where there is one, InvalidTopicError for a bad name,
        InvalidOptionError for a bad count or configuration.
        """
        self.check_writable()
        # No other name collides with one that has neither character: it is no matter then how many topics there are.
        names = self.directories() if {".", "_"} & set(topic) else []
        check_new_topic_name(topic, [name for name in names if names_collide(topic, name) and self.is_there(name)])
        check_partition_count(topic, partitions)
        overrides = normal_overrides(config or {})
        topic_config(overrides, self.defaults)
        topic_id = TopicRow.new_id()
        rows = [Partition(topic_id, number) for number in range(partitions)]
        self.manifest(topic).create(TopicRow(topic_id, overrides), rows)

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Takes a topic out of the log directory. Its files stay for the readers that have them, until vacuum.

        `force` takes out a topic whose manifest cannot be read, too, because it is damaged or a newer version of this
        package wrote it. Vacuum then deletes all files of the topic, also files that readers could still use, after the
        log directory's file.delete.delay.ms; a manifest that is repaired before that brings the topic back.
        """
        self.check_writable()
        with self.hinting(topic) as manifest:
            if force:
                manifest.delete_by_force()
                return
            try:
                manifest.delete()
            except (LogDirError, StorageError) as error:
                error.hint = error.hint or "Restore the manifest from a backup, or delete the topic by force"
                raise

    def note_follower(self, topic: str, uri: str) -> None:
        """Leaves the note that the log directory at `uri` follows a topic. Raises StorageError where it cannot.

        Nothing goes by these notes but the account of a key: a follower has what its leader had. A note stays when the
        follower becomes a leader or goes, since its files may be there for longer.
        """
        name = hashlib.sha256(uri.encode()).hexdigest()[:32]
        with contextlib.suppress(FileExistsError):
            self.storage.create(f"{FOLLOWERS_DIRECTORY}/{topic}/{name}.json", json.dumps({"uri": uri}).encode())

    def known_followers(self, topic: str) -> list[str]:
        """The addresses of the log directories that have followed a topic of this name, sorted."""
        notes = self.storage.list(f"{FOLLOWERS_DIRECTORY}/{topic}")
        return sorted(json.loads(self.storage.read(note.path).to_pybytes())["uri"] for note in notes)

    def check_writable(self) -> None:
        """Raises LogDirError for a directory that Kafka wrote."""
        if self.kafka is not None:
            raise LogDirError(
                "A Kafka log directory is read-only",
                path=self.storage.uri,
                hint="Import it into another log directory: segments import KAFKA_DIR LOG_DIR",
            )

    def _named_topics(self) -> str:
        """A hint with the first topics that there are."""
        return f"There are: {', '.join(self._first_topics(NAMED_TOPICS)) or 'no topics'}"

    def _first_topics(self, count: int) -> list[str]:
        """The first names of `topics`, at most so many: looks no further in a directory of very many."""
        names = self.directories()
        if self.kafka is not None:
            return names[:count]
        topics: list[str] = []
        for start in range(0, len(names), count):
            topics += self._existing(names[start : start + count])
            if len(topics) >= count:
                break
        return topics[:count]

    def _existing(self, names: Sequence[str]) -> list[str]:
        """The names that topics have. A name costs a look at its manifest, and mostly a request."""
        with ThreadPoolExecutor(max_workers=8) as pool:
            exist = list(pool.map(self.is_there, names))
        return [name for name, exists in zip(names, exist, strict=True) if exists]


def _read_only_topics(storage: Storage) -> ReadOnlyTopics | None:
    """The topics of a location that is no log directory, None where no opener finds any."""
    if not storage.list() and not storage.directories():
        return None
    openers = (opened(storage) for opened in extensions.providers("open_directory"))
    return next((topics for topics in openers if topics is not None), None)
