"""Directories that Kafka wrote, opened read-only: a whole log.dirs, a partition of it, or tiered storage.

This module finds the topics and partitions; partition.py and recovery.py read a partition. The log is the same that a
broker would recover after an unclean stop.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeVar

from spark_segments.errors import InvalidOptionError, LogDirError, SegmentsError, UnknownTopicError
from spark_segments.format.sidecars.checkpoints import (
    CLEANER_OFFSETS_FILE,
    LOG_START_OFFSETS_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    REPLICATION_OFFSETS_FILE,
    parse_offsets,
)
from spark_segments.kafka.early_copies import EarlyCopies
from spark_segments.kafka.listing import ChangingPartitionError, file_name, is_log_name, is_tiered_name
from spark_segments.kafka.partition import (
    ZERO_TOPIC_ID,
    Checkpoints,
    Copied,
    PartitionSource,
    RecoveredPartition,
    recover_partition,
)
from spark_segments.kafka.recovered_log import Note, RecoveryReport
from spark_segments.kafka.verification import add_report, check_listing, check_log_directory
from spark_segments.log import Eras, Findings, Partition, Segment, Snapshot, TopicRow
from spark_segments.storage import FileInfo, Storage

_PARTITION_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
_TIERED_NAME = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})-(?P<topic_id>[A-Za-z0-9_-]{22})"
)
_LARGEST_PARTITION = 2**31 - 1
_THREADS = min(8, os.cpu_count() or 1)

_logger = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(frozen=True)
class KafkaSnapshot(Snapshot):
    """A topic as recovery found it. `report` lists the parts that recovery left out.

    `cleaned`: {partition: the offset of Kafka's cleaner checkpoint}, as it was before the segments were listed.
    `is_replicated`: logs end at the high watermarks in the broker's last checkpoint, even if the files have more.
    """

    report: RecoveryReport = field(default_factory=RecoveryReport)
    cleaned: Mapping[int, int] = field(default_factory=dict)
    is_replicated: bool = False


@dataclass(frozen=True, slots=True)
class Recovery:
    """A scan of a topic: its snapshot, and its partitions by number.

    `changing`: the partitions that changed in every attempt. The snapshot has no rows of them.
    """

    snapshot: KafkaSnapshot
    partitions: Mapping[int, RecoveredPartition]
    changing: Mapping[int, ChangingPartitionError]


class KafkaDirectory:
    """The topics of a location. The first call of `snapshot` scans a topic; later calls return the same snapshot."""

    def __init__(self, storage: Storage, high_watermarks: Mapping[tuple[str, int], int] | None = None) -> None:
        """`high_watermarks`: by topic and partition, where each log ends for this reader; a partition that has none is
        one that a broker has just begun, and empty. By default logs end with their files.

        Raises LogDirError where the location is a single partition and its name does not say which.
        """
        self._storage = storage
        self._high_watermarks = high_watermarks
        self._lock = threading.Lock()
        self._topic_locks: dict[str, threading.Lock] = {}
        self._snapshots: dict[str, KafkaSnapshot] = {}
        self._single = _holds_segments(storage.list())
        self._above = _above(storage) if self._single else storage
        self._sources = _by_topic([_single_source(storage)] if self._single else _sources(storage))

    @property
    def storage(self) -> Storage:
        """The location; paths of segments are relative to it."""
        return self._storage

    @property
    def log_directory(self) -> Storage:
        """The log directory that has the checkpoint files: the location, or what is above a single partition."""
        return self._above

    def is_cleaned(self, topic: str) -> bool:
        """Whether Kafka's cleaner has a checkpoint for the topic: then the topic was compacted."""
        return bool(self._offsets(CLEANER_OFFSETS_FILE, topic, []))

    def topics(self) -> list[str]:
        """The names of the topics, sorted."""
        if self._high_watermarks is None:
            return sorted(self._sources)
        return sorted(self._sources.keys() & {topic for topic, _ in self._high_watermarks})

    def sources(self, topic: str) -> list[PartitionSource]:
        """The partition directories of a topic."""
        return list(self._sources.get(topic, ()))

    def report(self, topic: str) -> RecoveryReport:
        """The parts of the topic's files that are not in its log."""
        return self.snapshot(topic).report

    def check_files(self, topic: str, findings: Findings) -> int:
        """As `ReadOnlyTopics` says."""
        sources = self.sources(topic)
        for source in sources:
            findings.partition = source.partition
            check_listing(self._storage, source, findings)
        findings.partition = None
        return len(sources)

    def check_log(self, topic: str, findings: Findings) -> None:
        """As `ReadOnlyTopics` says."""
        add_report(self.report(topic), findings)

    def check_directory(self, findings: Findings) -> None:
        """As `ReadOnlyTopics` says."""
        check_log_directory(self._storage, findings)

    def snapshot(self, topic: str) -> KafkaSnapshot:
        """The log of a topic: the first call scans it. Raises UnknownTopicError."""
        with self._lock:
            topic_lock = self._topic_locks.setdefault(topic, threading.Lock())
        with topic_lock:
            if topic not in self._snapshots:
                recovery = self.recover(topic)
                for error in recovery.changing.values():
                    raise error
                self._snapshots[topic] = recovery.snapshot
            return self._snapshots[topic]

    def recover(
        self,
        topic: str,
        partitions: Collection[int] | None = None,
        copied: Mapping[int, Copied] | None = None,
        copies: EarlyCopies | None = None,
    ) -> Recovery:
        """Scans the current files of a topic: of these partitions, or of all. Segments that are `copied` already are
        left out, and so is a partition without others. The scan may copy segments meanwhile (`copies`). Raises
        UnknownTopicError.
        """
        sources = self._distinct_sources(topic)
        if partitions is not None:
            sources = [source for source in sources if source.partition in partitions]
        notes: list[Note] = []
        # Read before the segments are listed: an offset that a cleaner moves meanwhile is then too low, never too high.
        log_starts = self._offsets(LOG_START_OFFSETS_FILE, topic, notes)
        cleaned = self._offsets(CLEANER_OFFSETS_FILE, topic, notes)
        changing: dict[int, ChangingPartitionError] = {}

        def recover_source(source: PartitionSource) -> RecoveredPartition | None:
            number = source.partition
            checkpoints = Checkpoints(
                log_starts.get(number, 0), cleaned.get(number), self._high_watermark(topic, number)
            )
            try:
                return recover_partition(self._storage, source, checkpoints, (copied or {}).get(number), copies)
            except ChangingPartitionError as error:
                changing[number] = error
                return None

        with ThreadPoolExecutor(_THREADS) as pool:
            recovered = [partition for partition in pool.map(recover_source, sources) if partition is not None]
        snapshot = self._recovered_snapshot(topic, recovered, notes, cleaned)
        for left_out in (*snapshot.report.cuts, *snapshot.report.overlaps):
            _logger.warning("%s", left_out)
        return Recovery(snapshot, {partition.partition.partition: partition for partition in recovered}, changing)

    def _distinct_sources(self, topic: str) -> list[PartitionSource]:
        """The partition directories of a topic, one a partition. Raises UnknownTopicError, LogDirError."""
        sources = self._sources.get(topic)
        if sources is None:
            raise UnknownTopicError(
                f"Unknown topic {topic!r}",
                path=self._storage.uri,
                hint=f"There are: {', '.join(self.topics()[:20]) or 'no topics'}",
            )
        _check_distinct(sources, self._storage.uri)
        return sources

    def _high_watermark(self, topic: str, partition: int) -> int | None:
        """Where a partition's log ends for this reader; None: with its files."""
        if self._high_watermarks is None:
            return None
        return self._high_watermarks.get((topic, partition), 0)

    def _recovered_snapshot(
        self, topic: str, recovered: Sequence[RecoveredPartition], notes: Sequence[Note], cleaned: Mapping[int, int]
    ) -> KafkaSnapshot:
        """The topic of these partitions. A partition without a topic id has that of the others."""
        topic_id = _topic_id(recovered)
        logs = [partition.log for partition in recovered]
        segments = [replace(row, topic_id=topic_id) for log in logs for row in log.segments]
        return KafkaSnapshot(
            topic=topic,
            version=0,
            topic_id=topic_id,
            config={},
            committed_ms=max((row.created_ms for row in segments), default=0),
            partitions=Partition.table(replace(partition.partition, topic_id=topic_id) for partition in recovered),
            states=Eras.unknown(TopicRow(topic_id, {})).states,
            offset_indexes=_merged(log.offset_indexes for log in logs),
            aborted=_merged(log.aborted for log in logs),
            report=RecoveryReport.of(logs, notes),
            cleaned=cleaned,
            is_replicated=self._high_watermarks is not None,
        ).holding(Segment.table(segments))

    def _offsets(self, name: str, topic: str, notes: list[Note]) -> dict[int, int]:
        """{partition: offset} of a checkpoint file of the log directory; as in Kafka, {} where it is damaged."""
        try:
            content = self._above.read(name)
        except FileNotFoundError:
            return {}
        try:
            offsets = parse_offsets(content, path=name)
        except SegmentsError as error:
            notes.append(Note(topic, None, name, f"{error.message}; the log is opened without it"))
            return {}
        return {partition: offset for (of_topic, partition), offset in offsets.items() if of_topic == topic}


def _topic_id(recovered: Sequence[RecoveredPartition]) -> str:
    """The first topic id that a partition has; Kafka's zero where none has."""
    ids = (partition.partition.topic_id for partition in recovered)
    return next((topic_id for topic_id in ids if topic_id != ZERO_TOPIC_ID), ZERO_TOPIC_ID)


def is_kafka_directory(storage: Storage) -> bool:
    """Whether Kafka wrote this: there are segments, or `<topic>-<partition>` directories with segments."""
    return _holds_segments(storage.list()) or next(_sources(storage), None) is not None


def committed_directory(storage: Storage) -> KafkaDirectory:
    """A broker's log directory below its replication-offset-checkpoint: what all in-sync replicas have.

    A broker writes the high watermark of each partition to that file every few seconds. Records above it may be
    replaced when another broker takes over the partition. A log below it never has to take anything back. Raises
    LogDirError where there is no such file, InvalidOptionError for a directory that is not local.
    """
    if not storage.is_local:
        raise InvalidOptionError("A broker's disk is local", path=storage.uri, expected="a directory of this machine")
    try:
        offsets = parse_offsets(storage.read(REPLICATION_OFFSETS_FILE), path=REPLICATION_OFFSETS_FILE)
    except FileNotFoundError as error:
        raise LogDirError(
            f"The directory has no {REPLICATION_OFFSETS_FILE}: nobody can tell what all replicas have",
            path=storage.uri,
            hint="Name the log.dirs of a broker, or import it: segments import takes all that is there",
        ) from error
    return KafkaDirectory(storage, offsets)


def _sources(storage: Storage) -> Iterator[PartitionSource]:
    """The partition directories of a location. Kafka's -delete, -future and -stray directories have other names.

    Where no file of the location is one of Kafka's log.dirs, a directory is a partition if it has a segment, or the
    file that Kafka writes first: other programs have directories such as dbus-1, too.
    """
    is_known = any(info.path in (META_PROPERTIES_FILE, LOG_START_OFFSETS_FILE) for info in storage.list())
    for name in storage.directories():
        tiered = _named(_TIERED_NAME, name)
        if tiered and any(is_tiered_name(file_name(info)) for info in storage.list(name)):
            yield PartitionSource(tiered["topic"], int(tiered["partition"]), name, tiered["topic_id"])
            continue
        plain = _named(_PARTITION_NAME, name)
        if plain and (is_known or _is_partition(storage.list(name))):
            yield PartitionSource(plain["topic"], int(plain["partition"]), name)


def _is_partition(files: Sequence[FileInfo]) -> bool:
    return _holds_segments(files) or any(file_name(info) == PARTITION_METADATA_FILE for info in files)


def _named(pattern: re.Pattern[str], name: str) -> re.Match[str] | None:
    """The parts of a directory's name; None where it is no partition's: the number must fit 32 bits."""
    match = pattern.fullmatch(name)
    return match if match and int(match["partition"]) <= _LARGEST_PARTITION else None


def _single_source(storage: Storage) -> PartitionSource:
    name = storage.uri.rstrip("/").rpartition("/")[2]
    tiered = _named(_TIERED_NAME, name)
    if tiered and any(is_tiered_name(info.path) for info in storage.list()):
        return PartitionSource(tiered["topic"], int(tiered["partition"]), "", tiered["topic_id"])
    plain = _named(_PARTITION_NAME, name)
    if plain is None:
        raise LogDirError(
            "A partition directory's name must say which partition it is",
            path=storage.uri,
            expected="<topic>-<partition>",
            found=name,
            hint="Rename the directory, or open the log directory above it",
        )
    return PartitionSource(plain["topic"], int(plain["partition"]), "")


def _above(storage: Storage) -> Storage:
    """The log directory around a single partition's directory: its checkpoint files have the partition's offsets."""
    return Storage(storage.uri.rstrip("/").rpartition("/")[0] or "/", storage.storage_options)


def _by_topic(sources: Iterable[PartitionSource]) -> dict[str, list[PartitionSource]]:
    topics: dict[str, list[PartitionSource]] = {}
    for source in sources:
        topics.setdefault(source.topic, []).append(source)
    for partitions in topics.values():
        partitions.sort(key=lambda source: (source.partition, source.path))
    return topics


def _check_distinct(sources: list[PartitionSource], uri: str) -> None:
    for source, other in itertools.pairwise(sources):
        if source.partition == other.partition:
            raise LogDirError(
                f"Two directories are partition {source.partition} of topic {source.topic}",
                path=uri,
                found=f"{source.path} and {other.path}",
                hint="The topic was created again, or moved. Open the wanted directory by itself",
            )


def _holds_segments(listing: Iterable[FileInfo]) -> bool:
    return any(is_log_name(file_name(info)) for info in listing)


def _merged(parts: Iterable[dict[str, T]]) -> dict[str, T]:
    return {path: value for part in parts for path, value in part.items()}


def kafka_directory(storage: Storage) -> KafkaDirectory | None:
    """The topics that Kafka wrote at a location, None where Kafka wrote none: an opener of log directories."""
    return KafkaDirectory(storage) if is_kafka_directory(storage) else None
