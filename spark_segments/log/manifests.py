"""The manifests of the topics at a location: what a log directory, its topics and its groups are made of.

Nothing here, and nothing that this module imports, needs a kernel: a command that lists topics starts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, UnknownTopicError
from spark_segments.log.manifest.delta.delta_log import MANIFEST_DIRECTORY, DeltaLog, OpenDeltaLog
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.marker import is_marked
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.kafka.directory import KafkaDirectory

NAMED_TOPICS = 20
"""How many topics an error for an unknown topic names."""


class Manifests:
    """The manifests of the topics at a location, or the directory in which Kafka, and no manifest, says what is there.

    `defaults` are configuration values, in Kafka's names, for what topics do not set themselves. `open_delta_log`
    stands in for delta-rs, for tests and simulations, as a `FileSystem` does for a storage's own.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        kafka: KafkaDirectory | None = None,
        defaults: Mapping[str, str] | None = None,
        open_delta_log: OpenDeltaLog = DeltaLog,
    ) -> None:
        self.storage = storage
        self.kafka = kafka
        self.defaults = dict(defaults or {})
        self.open_delta_log = open_delta_log
        self._known: dict[str, Manifest] = {}

    def __getstate__(self) -> dict[str, object]:
        """For tasks: what one process knows of the tables, another looks up by itself."""
        return self.__dict__ | {"_known": {}}

    @classmethod
    def open(cls, storage: Storage, *, defaults: Mapping[str, str] | None = None) -> Manifests:
        """The manifests at a location, or what Kafka wrote there. Raises LogDirError where there is neither."""
        if is_marked(storage):
            return cls(storage, defaults=defaults)
        if (kafka := kafka_directory(storage)) is not None:
            return cls(storage, kafka=kafka, defaults=defaults)
        raise LogDirError(
            "Not a log directory",
            path=storage.uri,
            expected="a log directory of spark-segments or of Kafka",
            found="neither a manifest nor <topic>-<partition> directories",
            hint="LogDir.create(uri) or segments topic create makes one",
        )

    def manifest(self, topic: str) -> Manifest:
        """The manifest of a topic, whether or not it exists."""
        if topic not in self._known:
            self._known[topic] = Manifest(self.storage, topic, self.open_delta_log, self.defaults)
        return self._known[topic]

    def snapshot(self, topic: str, version: int | None = None, timestamp_ms: int | None = None) -> Snapshot:
        """What the log of a topic is now, or was at an earlier version or time.

        Of a time: the last version that was committed by then, by the clocks of those who committed. Raises
        UnknownTopicError; InvalidOptionError for a version or a time before the first version that is still there.
        """
        if version is not None and timestamp_ms is not None:
            raise InvalidOptionError("A topic is read as of a version or as of a time", found="both")
        if self.kafka is not None:
            if version is not None or timestamp_ms is not None:
                found = timestamp_ms if version is None else version
                raise InvalidOptionError("A Kafka log directory has no versions", path=self.storage.uri, found=found)
            return self.kafka.snapshot(topic)
        with self.known(topic) as manifest:
            return manifest.snapshot(version if timestamp_ms is None else manifest.version_at(timestamp_ms))

    def directories(self) -> list[str]:
        """The names that may be topics, sorted: a topic may have been deleted. No manifest is opened."""
        return self.storage.directories(MANIFEST_DIRECTORY) if self.kafka is None else self.kafka.topics()

    def topics(self) -> list[str]:
        """The names of the topics, sorted. A topic whose manifest cannot be read is there, too."""
        names = self.directories()
        return names if self.kafka is not None else self._those_there(names)

    def is_there(self, topic: str) -> bool:
        """Whether there is such a topic. One whose manifest cannot be read is there, too."""
        try:
            return self.manifest(topic).exists()
        except SegmentsError:
            return True

    @contextmanager
    def known(self, topic: str) -> Iterator[Manifest]:
        """The manifest of a topic. An UnknownTopicError within says which topics there are."""
        try:
            yield self.manifest(topic)
        except UnknownTopicError as error:
            if error.path == self.storage.uri:  # else it is a partition that is not there
                there = f"There are: {', '.join(self._first_topics(NAMED_TOPICS)) or 'no topics'}"
                error.hint = there if error.hint is None else f"{error.hint}. {there}"
            raise

    def check_writable(self) -> None:
        """Raises LogDirError for a directory that Kafka wrote."""
        if self.kafka is not None:
            raise LogDirError(
                "A Kafka log directory is read-only",
                path=self.storage.uri,
                hint="Import it into another log directory: segments import KAFKA_DIR LOG_DIR",
            )

    def _first_topics(self, count: int) -> list[str]:
        """The first names of `topics`, at most so many: looks no further in a directory of very many."""
        names = self.directories()
        if self.kafka is not None:
            return names[:count]
        found: list[str] = []
        for start in range(0, len(names), count):
            found += self._those_there(names[start : start + count])
            if len(found) >= count:
                break
        return found[:count]

    def _those_there(self, names: Sequence[str]) -> list[str]:
        with ThreadPoolExecutor(max_workers=8) as pool:
            there = list(pool.map(self.is_there, names))
        return [name for name, exists in zip(names, there, strict=True) if exists]


def selected(names: Iterable[str], topics: Sequence[str] | None) -> list[str]:
    """Those of the names that `topics` has or that match a pattern of it (`orders*`), and the other names of `topics`,
    which are no patterns; sorted. All names where it is None.
    """
    if isinstance(topics, str):
        raise InvalidOptionError("topics is a list of names and patterns", expected=f"[{topics!r}]", found=repr(topics))
    if topics is None:
        return sorted(names)
    matching = {name for name in names if any(fnmatchcase(name, one) for one in topics)}
    return sorted(matching | {one for one in topics if not {*"*?["} & {*one}})


def kafka_directory(storage: Storage) -> KafkaDirectory | None:
    """The topics that Kafka wrote at a location, None where Kafka wrote none."""
    if not storage.list() and not storage.directories():
        return None
    from spark_segments.log.kafka.directory import KafkaDirectory  # reads segments, and so needs kernels

    return KafkaDirectory(storage) if KafkaDirectory.recognises(storage) else None
