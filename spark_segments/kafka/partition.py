"""A partition directory that Kafka wrote: its files, its checkpoints and its recovery.

A partition is listed once, and the scan reads the listed files alone. Where a file has changed by the time the scan is
done, the partition is listed and scanned again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from spark_segments.errors import SegmentsError
from spark_segments.format.file_names import PRODUCER_SNAPSHOT_SUFFIX
from spark_segments.format.sidecars.checkpoints import (
    LEADER_EPOCHS_FILE,
    PARTITION_METADATA_FILE,
    leader_epochs_from,
    parse_leader_epochs,
    parse_partition_metadata,
)
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from spark_segments.kafka.early_copies import EarlyCopies
from spark_segments.kafka.listing import (
    ChangingPartitionError,
    Listing,
    base_offset,
    choose_files,
    file_name,
    is_log_name,
    is_tiered_name,
)
from spark_segments.kafka.recovered_log import Cut, Note, PartitionFiles, RecoveredLog
from spark_segments.kafka.recovery import recover
from spark_segments.kafka.segment_scan import span_of
from spark_segments.log import Partition, Segment
from spark_segments.storage import FileInfo, Storage

ZERO_TOPIC_ID = "A" * 22
"""The topic id of partitions without a topic id: sixteen zero bytes, as Kafka's Uuid.ZERO_UUID."""

TIERED_LEADER_EPOCHS_SUFFIX = ".leader_epoch_checkpoint"

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """The place of a partition: `path` relative to the storage's root (empty: the root itself)."""

    topic: str
    partition: int
    path: str
    topic_id: str | None = None  # from the name of a directory in tiered storage


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A partition's offsets in the checkpoint files of its log directory, read before the partition is listed.

    `log_start_offset`: 0 where there is none. `high_watermark`: where only what all in-sync replicas have is wanted.
    """

    log_start_offset: int = 0
    first_dirty_offset: int | None = None
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class Copied:
    """What is here already of a partition that Kafka wrote: its row, and its live segments by offset.

    `copied_end`: the log end that the last import or capture left, None where a version that did not note it was the
    last to copy. `scan_all`: nothing of it saves a scan.
    """

    partition: Partition
    segments: tuple[Segment, ...]
    copied_end: int | None = None
    scan_all: bool = False

    def was_here(self, end: int) -> bool:
        """Whether a segment that ends at this offset was copied, and retention here has taken it. What was appended
        here lay at offsets that the directory gives to records of its own.
        """
        is_copied = self.copied_end is None or end <= self.copied_end
        return is_copied and end <= self.partition.log_start_offset


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """The partition's row, with the topic id of its directory or ZERO_TOPIC_ID, and the recovery of its segments.

    `scanned_from`: the offset that the scan began at. The segments below it were `Copied` before.
    """

    partition: Partition
    log: RecoveredLog
    scanned_from: int
    listing: Listing


def recover_partition(
    storage: Storage,
    source: PartitionSource,
    checkpoints: Checkpoints,
    copied: Copied | None = None,
    copies: EarlyCopies | None = None,
) -> RecoveredPartition | None:
    """Recovers a partition; None where all of it is `copied`. `copies` get what is scanned of segments that are not.
    Raises ChangingPartitionError where a running broker changed its files in each of some attempts.
    """
    # An attempt during which a file changed counts for nothing: its parts are of two logs, neither of which it is.
    changed: str | None = None
    for _ in range(_ATTEMPTS):
        try:
            directory = _Directory(storage, source, checkpoints, copies)
            if copied is not None and directory.is_copied(copied):
                return None
            done = directory.recover(copied)
            changed = done.listing.changed_file(storage)
            if changed is None:
                return done
        except FileNotFoundError as error:  # a running broker has just deleted or renamed the file
            changed = error.filename
    raise ChangingPartitionError(
        f"The files of {source.topic}-{source.partition} change while they are read",
        path=storage.location(source.path),
        expected=f"the same files for as long as one of {_ATTEMPTS} attempts takes",
        found=f"{changed} was replaced, cut or deleted",
        hint="A running broker cleans or deletes segments here: try again",
    )


@dataclass
class _Directory:
    """The files of a partition directory, listed once."""

    storage: Storage
    source: PartitionSource
    checkpoints: Checkpoints
    copies: EarlyCopies | None
    logs: list[tuple[int, FileInfo]] = field(init=False)
    files: dict[str, FileInfo] = field(init=False)  # by name
    notes: list[Note] = field(default_factory=list)
    listed: frozenset[str] = field(init=False)  # the paths of all files, whether or not they are the log
    end_offset: int | None = field(init=False, default=None)  # where only what all replicas have is wanted
    is_sealed: bool = field(init=False, default=False)  # whether segments are left out for that

    def __post_init__(self) -> None:
        def next_offset(info: FileInfo) -> int:
            return span_of(self.storage, info, base_offset(file_name(info)) or 0)[1]

        listing = self.storage.list(self.source.path)
        self.listed = frozenset(info.path for info in listing)
        chosen = choose_files(listing, next_offset)
        for info, reason in chosen.passed_over:
            self.note(info, reason)
        self.files = chosen.files
        self.logs = _without_copies(chosen.logs, self.note)
        if self.checkpoints.high_watermark is not None:
            self._end_at(self.checkpoints.high_watermark)

    def _end_at(self, high_watermark: int) -> None:
        """Ends the log at the high watermark.

        The broker writes its checkpoints at different times. Neither a log start nor a cleaner's checkpoint is ever
        above the high watermark, so the highest of them is what all replicas had.
        """
        replicated = (self.checkpoints.log_start_offset, self.checkpoints.first_dirty_offset or 0)
        first = self.logs[0][0] if self.logs else 0
        self.end_offset = max(high_watermark, first, *replicated)
        count = len(self.logs)
        self.logs = [log for log in self.logs if log[0] <= self.end_offset]
        self.is_sealed = len(self.logs) < count
        if self.logs:
            last = self.logs[-1][0]
            self.files = {name: info for name, info in self.files.items() if _is_before_end(name, last)}

    @property
    def is_tiered(self) -> bool:
        return any(is_tiered_name(file_name(info)) for _, info in self.logs)

    @property
    def listing(self) -> Listing:
        """The files of the segments that are the log. Producer snapshots may go at any time."""
        bases = {base for base, _ in self.logs}
        files = tuple(
            info
            for name, info in self.files.items()
            if base_offset(name) in bases and PRODUCER_SNAPSHOT_SUFFIX not in name
        )
        return Listing(self.source.path, files, self.listed - {info.path for info in files})

    @property
    def log_start_offset(self) -> int:
        return max(self.checkpoints.log_start_offset, self.logs[0][0] if self.logs else 0)

    def is_copied(self, copied: Copied) -> bool:
        """Whether the whole log is here already, by the names, sizes and times of its files."""
        here = copied.partition
        if not self.logs or not copied.segments or copied.scan_all or self._scan_from(copied) < len(self.logs) - 1:
            return False
        base, info = self.logs[-1]
        row = copied.segments[-1]
        is_there = _is_named(row, base) and row.log_bytes <= info.size and row.next_offset == here.log_end_offset
        is_whole = row.log_bytes == info.size and row.created_ms == info.mtime_ms
        is_above = self.end_offset is not None and self.end_offset <= here.log_end_offset
        return (
            is_there
            and (is_above or (self.end_offset is None and is_whole))
            and self.log_start_offset <= here.log_start_offset
            and (self.checkpoints.first_dirty_offset or 0) <= here.first_dirty_offset
            and (self.source.topic_id or self._topic_id() or here.topic_id) == here.topic_id
        )

    def _scan_from(self, copied: Copied) -> int:
        """How many segments, from the first on, need no scan: those here are copies of them, or were until retention
        here took them. A broker, and its cleaner, keep the time of a file; a cleaner that keeps its size, too, has
        removed nothing from it.
        """
        if copied.scan_all:
            return 0
        rows = {row.base_offset: row for row in copied.segments}
        for number, ((base, info), (following, _)) in enumerate(itertools.pairwise(self.logs)):
            row = rows.get(base)
            if copied.was_here(following):
                continue
            is_same = row is not None and _is_named(row, base) and row.next_offset == following
            if row is None or not is_same or row.state != Segment.SEALED:
                return number
            if (row.log_bytes, row.created_ms) != (info.size, info.mtime_ms):
                return number
        return max(len(self.logs) - 1, 0)

    def recover(self, copied: Copied | None = None) -> RecoveredPartition:
        """Recovers the partition. What is `copied` is not scanned, where the state of producers behind it is known."""
        number = 0 if copied is None or self.is_tiered else self._scan_from(copied)
        state = self._snapshot_at(self.logs[number][0]) if number else None
        if state is not None and self._leader_epochs():
            done = self._recover(number, tuple(parse_producer_snapshot(state)), copied)
            is_short = (self.checkpoints.first_dirty_offset or 0) > done.partition.log_end_offset
            if not done.log.cuts and not done.log.overlaps and not is_short:
                return done
        return self._recover(0, self._producers_at_start(copied), copied)

    def _recover(self, number: int, producers: tuple[ProducerEntry, ...], copied: Copied | None) -> RecoveredPartition:
        """Recovers the log from the segment of this number on."""
        log_start_offset = self.checkpoints.log_start_offset
        first_dirty_offset = self.checkpoints.first_dirty_offset
        files = self._recovery_files(number)
        recovered = recover(
            self.storage,
            files,
            log_start_offset=log_start_offset,
            leader_epochs=self._leader_epochs(),
            producers=producers,
            copies=self.copies,
            copied_end=0 if copied is None else copied.partition.log_end_offset,
        )
        begins = self.logs[0][0] if self.logs else 0
        if (first_dirty_offset or 0) > begins or recovered.was_cleaned:
            recovered.gaps.clear()  # the cleaner made them
        _begin_at(recovered, files, log_start_offset)
        partition = self._partition_row(number, files.topic_id, recovered)
        recovered.notes[:0] = dict.fromkeys(self.notes)
        return RecoveredPartition(partition, recovered, self.logs[number][0] if number else 0, self.listing)

    def _recovery_files(self, number: int) -> PartitionFiles:
        return PartitionFiles(
            self.source.topic,
            self.source.topic_id or self._topic_id() or ZERO_TOPIC_ID,
            self.source.partition,
            tuple(self.logs[number:]),
            {info.path: info for info in self.files.values()},
            has_active=not self.is_tiered,
            end_offset=self.end_offset,
            is_sealed=self.is_sealed,
        )

    def _partition_row(self, number: int, topic_id: str, recovered: RecoveredLog) -> Partition:
        """The partition as it was recovered from the segment of this number on."""
        log_start_offset = self.checkpoints.log_start_offset
        start = log_start_offset
        if recovered.segments:
            start = max(start, self.logs[0][0] if number else recovered.segments[0].base_offset)
        end = recovered.log_end_offset
        # As Kafka's LeaderEpochFileCache. An empty log's epoch begins before the first record comes.
        begun = tuple(epoch for epoch in recovered.leader_epochs if epoch[1] < end + (end == log_start_offset))
        epochs = leader_epochs_from(begun, log_start_offset)
        return Partition(
            topic_id=topic_id,
            partition=self.source.partition,
            log_start_offset=start,
            log_end_offset=end,
            first_dirty_offset=self._first_dirty_offset(recovered, start),
            last_stable_offset=max(start, recovered.last_stable_offset),
            leader_epoch=epochs[-1][0] if epochs else 0,
            leader_epochs=epochs,
            producer_snapshot=self._producer_snapshot(recovered),
        )

    def _first_dirty_offset(self, recovered: RecoveredLog, start: int) -> int:
        """The checkpoint of Kafka's cleaner, where the log has that offset. Else all is dirty: records that were never
        cleaned and count as clean would keep older values for ever.
        """
        offset = self.checkpoints.first_dirty_offset
        if offset is None or not start <= offset <= recovered.log_end_offset:
            return start
        # A cleaning was to replace the records behind an overlap, even if the cleaner's checkpoint does not say so.
        overlapped = [row.base_offset for row in recovered.segments if row.base_offset > row.name_offset]
        return max(start, min([offset, *overlapped]))

    def note(self, info: FileInfo, message: str) -> None:
        self.notes.append(Note(self.source.topic, self.source.partition, info.path, message))

    def _topic_id(self) -> str | None:
        info = self.files.get(PARTITION_METADATA_FILE)
        if info is None:
            return None
        content = self.storage.read(info.path)
        try:
            return parse_partition_metadata(content, path=info.path)
        except SegmentsError as error:
            self.note(info, f"{error.message}; the topic id is not known")
            return None

    def _leader_epochs(self) -> tuple[tuple[int, int], ...]:
        name = LEADER_EPOCHS_FILE
        if self.is_tiered:
            # Each segment has a checkpoint; later segments show their epochs in their batches.
            name = file_name(self.logs[0][1]).partition(".")[0] + TIERED_LEADER_EPOCHS_SUFFIX
        info = self.files.get(name)
        if info is None:
            return ()
        content = self.storage.read(info.path)
        try:
            return parse_leader_epochs(content, path=info.path)
        except SegmentsError as error:
            self.note(info, f"{error.message}; leader epochs are taken from the log")
            return ()

    def _producers_at_start(self, copied: Copied | None) -> tuple[ProducerEntry, ...]:
        """The producer state at the first segment: Kafka keeps a snapshot there for records that retention deleted.

        A broker that starts ignores a snapshot at the log start or below. A running broker does not, and neither does a
        log that has the records before it.
        """
        begins = self.logs[0][0] if self.logs else 0
        goes_on = copied is not None and bool(copied.segments) and copied.segments[0].base_offset < begins
        if not goes_on and begins <= self.checkpoints.log_start_offset:
            return ()
        content = self._snapshot_at(begins)
        return () if content is None else tuple(parse_producer_snapshot(content))

    def _producer_snapshot(self, log: RecoveredLog) -> bytes | None:
        """The producer state at the log end: Kafka's file where nothing was cut, else the state from the scan."""
        content = None if log.cuts else self._snapshot_at(log.log_end_offset)
        if content is not None:
            return content
        return producer_snapshot_bytes(log.producers) if log.producers else None

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


def _is_before_end(name: str, last: int) -> bool:
    """Whether a file says nothing of offsets behind the high watermark in the segment `last`: of that segment its
    indexes may have entries behind the end, and recovery rebuilds them.
    """
    base = base_offset(name)
    if base is None or base < last:
        return True
    return base == last and (is_log_name(name) or name.endswith(PRODUCER_SNAPSHOT_SUFFIX))


def _is_named(row: Segment, base_offset: int) -> bool:
    """Whether a row here is a copy of the whole segment of this base offset."""
    return not row.is_shared and row.name_offset == row.base_offset == row.file_base_offset == base_offset


def _without_copies(
    logs: Iterable[tuple[int, FileInfo]], note: Callable[[FileInfo, str], None]
) -> list[tuple[int, FileInfo]]:
    """A single .log for each base offset: in tiered storage a repeated upload leaves a second, shorter copy."""
    best: dict[int, FileInfo] = {}
    for offset, info in logs:
        other = best.setdefault(offset, info)
        if other is info:
            continue
        longer, shorter = (info, other) if info.size > other.size else (other, info)
        best[offset] = longer
        note(shorter, "another copy of this segment is no shorter and is read instead")
    return sorted(best.items(), key=lambda log: log[0])


def _begin_at(recovered: RecoveredLog, files: PartitionFiles, log_start_offset: int) -> None:
    """A log that ends before its log start has lost its files: it begins again at the log start, empty."""
    if recovered.log_end_offset >= log_start_offset:
        return
    # Below a high watermark nothing is lost: a batch that the log start cuts comes later.
    if recovered.segments and files.end_offset is None:
        first, *later = recovered.segments
        recovered.cuts.append(
            Cut(
                files.topic,
                files.partition,
                first.path,
                0,
                first.log_bytes,
                f"the log ends at offset {recovered.log_end_offset}, before the log start offset {log_start_offset}",
                tuple(row.path for row in later),
                sum(row.log_bytes for row in later),
            )
        )
    recovered.segments.clear()
    recovered.offset_indexes.clear()
    recovered.aborted.clear()
    recovered.producers.clear()
    recovered.leader_epochs = ()
    recovered.log_end_offset = log_start_offset
    recovered.last_stable_offset = log_start_offset
