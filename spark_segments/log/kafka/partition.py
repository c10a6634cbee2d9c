"""A partition directory that Kafka wrote: its files, its checkpoints and its recovery."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_segments.errors import SegmentsError
from spark_segments.format.sidecars.checkpoints import (
    LEADER_EPOCHS_FILE,
    PARTITION_METADATA_FILE,
    parse_leader_epochs,
    parse_partition_metadata,
)
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from spark_segments.log.kafka.leftovers import base_offset, choose_files, file_name, is_tiered_name
from spark_segments.log.kafka.recovered import Cut, LeaderEpochs, Note, PartitionFiles, Recovered
from spark_segments.log.kafka.recovery import next_offset_of, recover
from spark_segments.log.manifest.rows import Partition
from spark_segments.storage import FileInfo, Storage

ZERO_TOPIC_ID = "A" * 22
"""The topic id of partitions without a topic id: sixteen zero bytes, as Kafka's Uuid.ZERO_UUID."""

TIERED_LEADER_EPOCHS_SUFFIX = ".leader_epoch_checkpoint"
PRODUCER_SNAPSHOT_SUFFIX = ".snapshot"

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The place of a partition: `path` relative to the storage's root (empty: the root itself)."""

    topic: str
    partition: int
    path: str
    topic_id: str | None = None  # from the name of a directory in tiered storage


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """The partition's row, with the topic id of its directory or ZERO_TOPIC_ID, and the recovery of its segments."""

    partition: Partition
    found: Recovered


def recover_partition(
    storage: Storage, source: PartitionSource, log_start_offset: int, first_dirty_offset: int | None
) -> RecoveredPartition:
    """Recovers a partition. The offsets are those of the log directory's checkpoints, else 0 and None."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return _Directory(storage, source).recover(log_start_offset, first_dirty_offset)
        except FileNotFoundError:
            continue  # a running broker has just deleted or renamed a file: list the directory again
    return _Directory(storage, source).recover(log_start_offset, first_dirty_offset)


@dataclass
class _Directory:
    """The files of a partition directory, listed once."""

    storage: Storage
    source: PartitionSource
    logs: list[tuple[int, FileInfo]] = field(init=False)
    files: dict[str, FileInfo] = field(init=False)  # by name
    notes: list[Note] = field(default_factory=list)

    def __post_init__(self) -> None:
        def next_offset(info: FileInfo) -> int:
            return next_offset_of(self.storage, info, base_offset(file_name(info)) or 0)

        chosen = choose_files(self.storage.list(self.source.path), next_offset)
        for info, reason in chosen.passed_over:
            self.note(info, reason)
        self.files = chosen.files
        self.logs = _without_copies(chosen.logs, self.note)

    @property
    def is_tiered(self) -> bool:
        return any(is_tiered_name(file_name(info)) for _, info in self.logs)

    def recover(self, log_start_offset: int, first_dirty_offset: int | None) -> RecoveredPartition:
        topic_id = self.source.topic_id or self._topic_id() or ZERO_TOPIC_ID
        files = PartitionFiles(
            self.source.topic,
            topic_id,
            self.source.partition,
            tuple(self.logs),
            {info.path: info for info in self.files.values()},
            has_active=not self.is_tiered,
        )
        found = recover(
            self.storage,
            files,
            log_start_offset=log_start_offset,
            leader_epochs=self._leader_epochs(),
            producers=self._producers_at_start(log_start_offset),
        )
        _begin_at(found, files, log_start_offset)
        start = max(log_start_offset, found.segments[0].base_offset if found.segments else log_start_offset)
        end = found.log_end_offset
        epochs = _epochs_between(found.leader_epochs, log_start_offset, end)
        dirty = start if first_dirty_offset is None or not start <= first_dirty_offset <= end else first_dirty_offset
        # Records behind an overlap were to be replaced by a cleaning, whatever the cleaner's checkpoint says.
        overlapped = [row.base_offset for row in found.segments if row.base_offset > row.name_offset]
        dirty = max(start, min([dirty, *overlapped]))
        partition = Partition(
            topic_id=topic_id,
            partition=self.source.partition,
            log_start_offset=start,
            log_end_offset=end,
            first_dirty_offset=dirty,
            last_stable_offset=max(start, found.last_stable_offset),
            leader_epoch=epochs[-1][0] if epochs else 0,
            leader_epochs=epochs,
            producer_snapshot=self._producer_snapshot(found),
        )
        found.notes[:0] = self.notes
        return RecoveredPartition(partition, found)

    def note(self, info: FileInfo, message: str) -> None:
        self.notes.append(Note(self.source.topic, self.source.partition, info.path, message))

    def _topic_id(self) -> str | None:
        info = self.files.get(PARTITION_METADATA_FILE)
        if info is None:
            return None
        try:
            return parse_partition_metadata(self.storage.read(info.path), path=info.path)
        except SegmentsError as error:
            self.note(info, f"{error.message}; the topic id is not known")
            return None

    def _leader_epochs(self) -> LeaderEpochs:
        name = LEADER_EPOCHS_FILE
        if self.is_tiered:
            # Each segment has a checkpoint; later segments show their epochs in their batches.
            name = file_name(self.logs[0][1]).partition(".")[0] + TIERED_LEADER_EPOCHS_SUFFIX
        info = self.files.get(name)
        if info is None:
            return ()
        try:
            return parse_leader_epochs(self.storage.read(info.path), path=info.path)
        except SegmentsError as error:
            self.note(info, f"{error.message}; leader epochs are taken from the log")
            return ()

    def _producers_at_start(self, log_start_offset: int) -> tuple[ProducerEntry, ...]:
        """The producer state at the first segment: Kafka keeps a snapshot there for records that retention deleted."""
        if not self.logs or self.logs[0][0] <= log_start_offset:
            return ()
        content = self._snapshot_at(self.logs[0][0])
        return () if content is None else tuple(parse_producer_snapshot(content))

    def _producer_snapshot(self, found: Recovered) -> bytes | None:
        """The producer state at the log end: Kafka's file where nothing was cut, else the state from the scan."""
        content = None if found.cuts else self._snapshot_at(found.log_end_offset)
        if content is not None:
            return content
        return producer_snapshot_bytes(found.producers) if found.producers else None

    def _snapshot_at(self, offset: int) -> bytes | None:
        info = self.files.get(f"{offset:020d}{PRODUCER_SNAPSHOT_SUFFIX}")
        if info is None:
            return None
        content: bytes = self.storage.read(info.path).to_pybytes()
        try:
            parse_producer_snapshot(content, path=info.path)
        except SegmentsError as error:
            self.note(info, f"{error.message}; the log is read instead")
            return None
        return content


def _without_copies(
    logs: Iterable[tuple[int, FileInfo]], note: Callable[[FileInfo, str], None]
) -> list[tuple[int, FileInfo]]:
    """A single .log for each base offset: in tiered storage a repeated upload leaves a second, shorter copy."""
    best: dict[int, FileInfo] = {}
    for offset, info in logs:
        other = best.setdefault(offset, info)
        if other is info:
            continue
        best[offset], shorter = (info, other) if info.size > other.size else (other, info)
        note(shorter, "another copy of this segment is no shorter and is read instead")
    return sorted(best.items(), key=lambda log: log[0])


def _begin_at(found: Recovered, files: PartitionFiles, log_start_offset: int) -> None:
    """A log that ends before its log start has lost its files: it begins again at the log start, empty."""
    if found.log_end_offset >= log_start_offset:
        return
    if found.segments:
        first, *later = found.segments
        found.cuts.append(
            Cut(
                files.topic,
                files.partition,
                first.path,
                0,
                first.log_bytes,
                f"the log ends at offset {found.log_end_offset}, before the log start offset {log_start_offset}",
                tuple(row.path for row in later),
                sum(row.log_bytes for row in later),
            )
        )
    found.segments.clear()
    found.offset_indexes.clear()
    found.aborted.clear()
    found.producers.clear()
    found.leader_epochs = ()
    found.log_end_offset = found.last_stable_offset = log_start_offset


def _epochs_between(epochs: LeaderEpochs, log_start_offset: int, log_end_offset: int) -> LeaderEpochs:
    """As Kafka's LeaderEpochFileCache: no epoch starts at or after the log end, none before the log start."""
    is_empty = log_start_offset == log_end_offset  # a broker begins its epoch there before the first record comes
    kept = tuple((epoch, start) for epoch, start in epochs if start < log_end_offset + is_empty)
    early = [epoch for epoch, start in kept if start <= log_start_offset]
    return ((early[-1], log_start_offset), *kept[len(early) :]) if early else kept
