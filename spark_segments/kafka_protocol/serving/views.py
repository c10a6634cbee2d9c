"""The topics that a server shows: a snapshot of each, refreshed at most once an interval, and their batches."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
import time
import uuid
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import InvalidTopicError, MissingFileError, SegmentsError, UnknownTopicError
from spark_segments.format.layout import BATCH_OVERHEAD
from spark_segments.format.single_batch import LARGEST_BATCH_OFFSETS, empty_batches
from spark_segments.kafka_protocol.serving.read_ahead import BLOCK_BYTES, CheckedBlock, FileRange, Held, ReadAhead
from spark_segments.log import Group, LeaderEpochs, LogDirectory, Partition, PartitionLog, Snapshot, offsets_for_times
from spark_segments.storage.local import OpenFile

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.api_call import Call
    from spark_segments.log import FetchedBatches

LATEST_TIMESTAMP, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
"""Times of a ListOffsets request that are none."""

READ_AHEAD_BYTES = 64 << 20
"""Bound on the batches that a server has read before they are asked for."""

_MOST_FILES = 64  # of an answer: a client does not wait until thousands of small chunks are read
_LEAST_BYTES = 256 << 10  # of a segment: what is smaller is not worth a block


@dataclass(frozen=True, slots=True)
class Found:
    """An answer to a look-up by time: -1 where there is none."""

    offset: int = -1
    timestamp_ms: int = -1
    leader_epoch: int = -1


class ServedTopic:
    """A topic as one snapshot has it."""

    def __init__(self, log: LogDirectory, snapshot: Snapshot, read_ahead: ReadAhead) -> None:
        self._log = log
        self.snapshot = snapshot
        self.partitions: dict[int, Partition] = {row.partition: row for row in snapshot.partition_rows}
        self._read_ahead = read_ahead
        self._logs: dict[int, PartitionLog] = {}

    @property
    def name(self) -> str:
        return self.snapshot.topic

    @cached_property
    def topic_id(self) -> uuid.UUID:
        return uuid.UUID(bytes=base64.urlsafe_b64decode(self.snapshot.topic_id + "=="))

    @cached_property
    def config(self) -> TopicConfig:
        return topic_config(self.snapshot.config, self._log.defaults)

    def _partition_log(self, partition: int) -> PartitionLog:
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = PartitionLog(self._log.storage, self.snapshot, partition)
        return log

    def end_offset(self, partition: int, *, committed: bool) -> int:
        """The first offset that a reader does not get: the log end, or the last stable offset."""
        row = self.partitions[partition]
        return max(row.last_stable_offset, row.log_start_offset) if committed else row.log_end_offset

    def bytes_from(self, partition: int, offset: int, *, committed: bool) -> int:
        """The bytes that a read from `offset` can give at most, 0 where it gives none."""
        if offset >= self.end_offset(partition, committed=committed):
            return 0
        return max(BATCH_OVERHEAD, self._partition_log(partition).bytes_from(offset))

    def read(
        self,
        partition: int,
        offset: int,
        max_bytes: int,
        *,
        committed: bool,
        at_least_one: bool,
        from_files: bool = False,
    ) -> tuple[list[np.ndarray | FileRange], int]:
        """(buffers, the offset behind them): as `PartitionLog.read` has them. `from_files`: batches that were checked
        not long ago may be ranges of files.

        Where no batch follows up to the end, the answer is a batch without records that goes on to it. A broker keeps
        one there, and a reader stands at its offset until it gets one.
        """
        end = self.end_offset(partition, committed=committed)
        taken, behind = self._batches(partition, offset, end, max_bytes, at_least_one, from_files)
        if offset < end <= behind and not taken and (at_least_one or max_bytes >= BATCH_OVERHEAD):
            epoch = int(LeaderEpochs.of(self.partitions[partition]).at(np.array([end - 1]))[0])
            batch = next(empty_batches(offset, end, epoch))
            return [np.frombuffer(batch, np.uint8)], min(end, offset + LARGEST_BATCH_OFFSETS)
        return taken, behind

    def _batches(
        self, partition: int, offset: int, end: int, max_bytes: int, at_least_one: bool, from_files: bool
    ) -> tuple[list[np.ndarray | FileRange], int]:
        taken: list[np.ndarray | FileRange] = []
        left, following = max_bytes, offset
        while following < end:
            is_first = at_least_one and not taken
            opened = self._block(partition, following, left, from_files=from_files)
            if opened is None:
                read = self._read(partition, following, end, left, at_least_one=is_first)
                return [*taken, *read.data], read.next_offset
            block, held, segment_end = opened
            pieces, behind = block.cut(held, following, min(end, segment_end), left, at_least_one=is_first)
            if behind == following:
                break
            taken += pieces
            left -= sum(piece.nbytes for piece in pieces)
            following = behind
            if behind >= block.next_offset:
                self._read_ahead.give_up(self._id(partition), block)
            if left < block.largest_bytes:
                break
        return taken, following

    def _id(self, partition: int) -> tuple[uuid.UUID, int]:
        return self.topic_id, partition

    def _read(
        self, partition: int, offset: int, end: int, max_bytes: int, *, at_least_one: bool = True
    ) -> FetchedBatches:
        """Reads from the files, and remembers where that ended."""
        place = self._read_ahead.place(self._id(partition), offset)
        read = self._partition_log(partition).read(
            offset, end, max_bytes, place=place, at_least_one=at_least_one, most_files=_MOST_FILES
        )
        self._read_ahead.remember(self._id(partition), read.place)
        return read

    def _block(
        self, partition: int, offset: int, wanted_bytes: int, *, from_files: bool
    ) -> tuple[CheckedBlock, Held, int] | None:
        """The block that holds `offset`, its bytes, and the end offset of its segment. A block that is not in memory is
        read now, `wanted_bytes` or more. None where a fetch should read only what it asks for: a reader's first fetch,
        a small file, or no room.
        """
        ahead, log = self._read_ahead, self._id(partition)
        segment = self._partition_log(partition).segment_at(offset)
        if segment is None or segment.log_bytes < _LEAST_BYTES or offset < segment.base_offset:
            return None
        block_before = ahead.find(log, offset)
        # Files do not change. Where others have taken a file's place, or the log starts later, the block is no more.
        if (
            block_before is not None
            and block_before.source.path == segment.path
            and segment.base_offset <= block_before.first_offset
        ):
            held = block_before.data if block_before.data is not None or not from_files else self._file(segment.path)
            if held is not None:
                return block_before, held, segment.next_offset
        size = max(wanted_bytes, BLOCK_BYTES)
        if ahead.place(log, offset) is None or not ahead.has_room(size):
            return None
        read = self._read(partition, offset, segment.next_offset, size)
        block = ahead.keep(log, offset, read)
        return None if block is None else (block, read.data, segment.next_offset)

    def _file(self, path: str) -> OpenFile | None:
        try:
            return self._log.storage.open_file(path)
        except FileNotFoundError as error:
            raise MissingFileError.gone(self._log.storage.location(path)) from error

    def read_ahead(self, partition: int, offset: int, wanted_bytes: int, *, from_files: bool = False) -> None:
        """Reads what a reader asks for next, where there is room."""
        block = self._read_ahead.find(self._id(partition), offset)
        if block is not None and (from_files or block.data is not None):
            if block.data is None or block.bytes_from(offset) >= wanted_bytes:
                return
            offset = block.next_offset
        with contextlib.suppress(SegmentsError):  # the fetch of these offsets gets the error
            self._block(partition, offset, wanted_bytes, from_files=from_files)

    def aborted(self, partition: int, start: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions with data in [start, end), by first offset."""
        aborted = self._partition_log(partition).aborted(start, end)
        transactions = zip(aborted.producer_id.tolist(), aborted.first_offset.tolist(), strict=True)
        return sorted(transactions, key=lambda transaction: transaction[1])

    def offset_for(self, partition: int, timestamp_ms: int, *, committed: bool) -> Found:
        """The answer to ListOffsets: of a time, or of one of the times that are none."""
        row = self.partitions[partition]
        epochs = LeaderEpochs.of(row)
        end = self.end_offset(partition, committed=committed)
        if timestamp_ms == LATEST_TIMESTAMP:
            return Found(end, -1, row.leader_epoch)
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            return Found(row.log_start_offset, -1, _epoch_at(epochs, row.log_start_offset))
        if timestamp_ms == LATEST_TIERED:
            return Found()
        if timestamp_ms == MAX_TIMESTAMP:
            rows = self.snapshot.live_table(partition)
            if not rows.num_rows:
                return Found()
            timestamp_ms = int(rows.column("max_timestamp_ms").to_numpy().max())
        if timestamp_ms < 0:
            return Found()
        answer = offsets_for_times(self._log.storage, self.snapshot, {partition: timestamp_ms})[partition]
        if answer is None or answer[0] >= end:
            return Found()
        return Found(answer[0], answer[1], _epoch_at(epochs, answer[0]))

    def end_of_epoch(self, partition: int, epoch: int) -> tuple[int, int]:
        """(the largest epoch up to `epoch`, its end offset); (-1, -1) where the log has none (KIP-101)."""
        row = self.partitions[partition]
        if epoch == row.leader_epoch:
            return epoch, row.log_end_offset
        entries = LeaderEpochs.of(row).entries
        up_to = [other for other, _ in entries if other <= epoch]
        later = [start for other, start in entries if other > epoch]
        if epoch > row.leader_epoch or not later or (not up_to and not later):
            return -1, -1
        return (max(up_to) if up_to else epoch), min(later)


def _epoch_at(epochs: LeaderEpochs, offset: int) -> int:
    epoch = epochs.epoch_of(offset)
    return -1 if epoch is None else epoch


@dataclass(slots=True)
class _Shown:
    """A topic's view and when it was read (time.monotonic()); None: no topic of this name was there."""

    view: ServedTopic | None
    read_seconds: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: WeakSet[Call] = field(default_factory=WeakSet)


class Views:
    """The topics of a log directory: the newest snapshots (read again every `interval_seconds` at most), or earlier
    ones.

    `timestamp_ms`: all topics, as of that time. `versions`: {topic: version}, these topics alone, as of that version.
    Safe to share between threads. A topic that cannot be read raises what the log raises; one of `versions` does so at
    once, where there is no such topic or version.
    """

    def __init__(
        self,
        log: LogDirectory,
        *,
        interval_seconds: float = 1.0,
        timestamp_ms: int | None = None,
        versions: Mapping[str, int] | None = None,
    ) -> None:
        self.log = log
        self.interval_seconds = interval_seconds
        self._timestamp_ms = timestamp_ms
        self._versions = dict(versions or {})
        for name in self._versions:
            self._snapshot(name)
        self._lock = threading.Lock()
        self._shown: dict[str, _Shown] = {}
        self._names: tuple[float, Sequence[str], Set[str]] | None = None
        self._groups: tuple[float, Sequence[str]] | None = None
        self._watched: dict[str, _Shown] = {}
        self._ids: dict[uuid.UUID, str] = {}
        self.read_ahead = ReadAhead(READ_AHEAD_BYTES, sends_files=log.storage.is_local and not log.is_kafka)

    @cached_property
    def cluster_id(self) -> str:
        """An id of the form of Kafka's, the same for each server of this log directory."""
        digest = hashlib.sha256(self.log.uri.encode()).digest()[:16]
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    @property
    def is_fixed(self) -> bool:
        """Whether the topics never change: a directory of Kafka's, or the log as it was."""
        return self.log.is_kafka or self._timestamp_ms is not None or bool(self._versions)

    def names(self) -> Sequence[str]:
        """The names of the topics, sorted, as they were an interval ago at most."""
        return self._listed()[0]

    def _listed(self) -> tuple[Sequence[str], Set[str]]:
        listed = self._names
        if listed is None or (time.monotonic() - listed[0] >= self.interval_seconds and not self._versions):
            names = sorted(self._versions) or self.log.topics()
            listed = self._names = (time.monotonic(), names, frozenset(names))
        return listed[1:]

    def groups(self) -> Sequence[str]:
        """The groups that have positions, sorted, as they were an interval ago at most."""
        listed = self._groups
        if listed is None or time.monotonic() - listed[0] >= self.interval_seconds:
            listed = self._groups = (time.monotonic(), [group.id for group in Group.with_positions(self.log)])
        return listed[1]

    def look_for_groups(self) -> None:
        """Has the next `groups` look again: this server has deleted one."""
        self._groups = None

    def topic(self, name: str, *, is_newest: bool = False) -> ServedTopic | None:
        """The topic's snapshot, None where there is no topic; `is_newest`: with the newest commit, however short ago.
        Raises SegmentsError where it cannot be read.
        """
        shown = self._shown.get(name)
        if shown is None:
            # No name but one of a topic becomes a path, or is remembered.
            if name not in self._listed()[1]:
                return None
            with self._lock:
                shown = self._shown.setdefault(name, _Shown(None, -1.0))
        self._refresh(name, shown, is_newest=is_newest)
        view = shown.view
        if view is None:
            with self._lock:
                self._shown.pop(name, None)
            return None
        self._ids[view.topic_id] = name
        return view

    def _refresh(self, name: str, shown: _Shown, *, is_newest: bool) -> None:
        """Reads a topic again where its view is too old, and wakes the requests that wait for another view."""
        # While one thread reads the topic again, all others get the view before. Else they would queue, each with a
        # view that is too old when its turn comes.
        asked_seconds = time.monotonic()
        if not shown.lock.acquire(blocking=shown.view is None or is_newest):
            return
        try:
            if self._is_due(shown, asked_seconds, is_newest=is_newest):
                before = shown.view
                shown.view = self._read(name, before)
                shown.read_seconds = time.monotonic()
                if shown.view is not before:
                    self._wake(shown)
        finally:
            shown.lock.release()

    def _is_due(self, shown: _Shown, asked_seconds: float, *, is_newest: bool) -> bool:
        """Whether a view is too old for a request of this time."""
        if shown.read_seconds < 0:
            return True
        if self.is_fixed and shown.view:
            return False
        # A thread that waited for the lock may find a view that was read after its own request: that is new enough, and
        # the age is negative. By the time at which it got the lock, each of a hundred requests would read again.
        age = asked_seconds - shown.read_seconds
        return age >= (0 if is_newest else self.interval_seconds)

    def _wake(self, shown: _Shown) -> None:
        """Wakes the requests that wait for another view of a topic."""
        # Taken out under the lock: a request that begins to wait now looks at the new view first (`watch`).
        with self._lock:
            waiting = shown.waiting
            shown.waiting = WeakSet()
        for call in waiting:
            call.wake()

    def watch(self, view: ServedTopic, call: Call) -> bool:
        """Has a request woken once the topic is another than `view`; False: it is already."""
        with self._lock:
            shown = self._shown.get(view.name)
            if shown is None or shown.view is not view:
                return False
            shown.waiting.add(call)
            if not self.is_fixed:
                self._watched[view.name] = shown
            return True

    def known(self) -> list[str]:
        """The topics that are in memory."""
        return sorted(self._shown)

    @property
    def is_watched(self) -> bool:
        """Whether somebody may wait for a topic that may change."""
        return bool(self._watched)

    def watched(self) -> list[str]:
        """The topics that somebody waits for, and that may change."""
        with self._lock:
            self._watched = {name: shown for name, shown in self._watched.items() if shown.waiting}
            return [*self._watched]

    def _read(self, name: str, before: ServedTopic | None) -> ServedTopic | None:
        try:
            snapshot = self._snapshot(name)
        except (InvalidTopicError, UnknownTopicError):
            return None
        if before is not None and before.snapshot.version == snapshot.version and not self.log.is_kafka:
            return before
        return ServedTopic(self.log, snapshot, self.read_ahead)

    def _snapshot(self, name: str) -> Snapshot:
        if self._timestamp_ms is not None:
            return self.log.snapshot(name, timestamp_ms=self._timestamp_ms)
        return self.log.snapshot(name, self._versions.get(name))

    def name_of(self, topic_id: uuid.UUID) -> str | None:
        """The topic that has this id, None where there is none."""
        if topic_id not in self._ids:
            for name in self.names():
                try:
                    self.topic(name)
                except SegmentsError:
                    continue
        topic = self._ids.get(topic_id)
        view = None if topic is None else self.topic(topic)
        return topic if view is not None and view.topic_id == topic_id else None
