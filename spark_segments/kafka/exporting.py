"""Export: a topic as the partition directories that a Kafka broker serves, under Kafka's names, with absolute offsets.

A sealed segment is copied byte by byte where Kafka can read it unchanged. Otherwise only header fields outside the CRC
are rewritten. The chunks of the active segment become a single segment, or as many as segment.bytes asks for.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from spark_segments.config import SegmentLimits, TopicConfig
from spark_segments.errors import InvalidOptionError, LogDirError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.format.layout import NO_PRODUCER_ID
from spark_segments.format.sidecars.checkpoints import (
    CLEANER_OFFSETS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSETS_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    REPLICATION_OFFSETS_FILE,
    is_topic_id,
    leader_epochs_bytes,
    leader_epochs_from,
    offsets_bytes,
    parse_offsets,
    partition_metadata_bytes,
)
from spark_segments.format.sidecars.producer_state import (
    ProducerState,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from spark_segments.format.sidecars.txn_index import txn_index_bytes
from spark_segments.format.single_batch import LARGEST_BATCH_OFFSETS, empty_batches
from spark_segments.format.window import Window
from spark_segments.log import LeaderEpochs, Partition, Report, Segment, SegmentFile, Snapshot, copy_batches
from spark_segments.progress import Progress
from spark_segments.storage import Storage
from spark_segments.storage.fetch import copy_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLUSTER_METADATA_TOPIC = "__cluster_metadata"


@dataclass(frozen=True, slots=True)
class _ExportedSegment:
    """A segment to be written: its rows, and the leader epochs for its batches (None: they keep their epochs)."""

    rows: tuple[Segment, ...]
    leader_epochs: LeaderEpochs | None

    @property
    def base_offset(self) -> int:
        return self.rows[0].base_offset


@dataclass(frozen=True, slots=True)
class _Written:
    """The result of a task: a segment's records, bytes, whether it has producers' batches, and the offset behind its
    last batch: its base offset where it has none.
    """

    partition: int
    records: int
    bytes: int
    has_producers: bool
    end_offset: int


def _write(source: Storage, target: Storage, topic: str, limits: SegmentLimits, output: _ExportedSegment) -> _Written:
    """Task function: writes a segment and its sidecars. Its .log is read once."""
    row = output.rows[0]
    stem = f"{topic}-{row.partition}/{output.base_offset:020d}"
    try:
        seen = _written_as_it_is(source, target, stem, output)
    except _CannotStayError:
        seen = _Seen()
        copy_batches(
            source,
            topic,
            output.rows,
            output.base_offset,
            output.rows[-1].next_offset,
            sealed=False,
            leader_epochs=output.leader_epochs,
            limits=limits,
            target=target,
            stem=stem,
            see=seen.add,
        )
    log_bytes = _size(output)
    end_offset = min(max(seen.end_offset, output.base_offset), output.rows[-1].next_offset)
    return _Written(row.partition, seen.records, log_bytes, seen.has_producers, end_offset)


class _CannotStayError(Exception):
    """A segment cannot be copied byte by byte: Kafka needs other bytes."""


@dataclass(slots=True)
class _Seen:
    """What the headers of a segment's batches say. `epochs`: a batch that gets one of them is a _CannotStayError."""

    epochs: LeaderEpochs | None = None
    has_producers: bool = False
    records: int = 0
    end_offset: int = 0

    def add(self, window: Window) -> None:
        if self.epochs is not None:
            offsets = window.batches.base_offset + window.offset_shift
            wrong = (window.batches.leader_epoch != self.epochs.at(offsets)) & self.epochs.stamps_all
            if ((window.batches.leader_epoch < 0) | wrong).any():
                raise _CannotStayError
        self.has_producers |= bool((window.batches.producer_id > NO_PRODUCER_ID).any())
        self.records += int(window.batches.count.sum())
        self.end_offset = int(window.batches.last_offset[-1]) + window.offset_shift + 1


def _written_as_it_is(source: Storage, target: Storage, stem: str, output: _ExportedSegment) -> _Seen:
    """Copies the files of a segment unchanged. Raises _CannotStayError where they cannot be; no file is there then."""
    row = output.rows[0]
    is_file = len(output.rows) == 1 and not row.is_shared
    if not (is_file and row.offset_shift == 0 and row.base_offset == row.name_offset):
        raise _CannotStayError
    seen = _Seen(output.leader_epochs)
    try:
        SegmentFile(source, row).copy_log(target, stem + LOG_SUFFIX, see=seen.add)
    except _CannotStayError:
        target.delete([stem + LOG_SUFFIX])
        raise
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        index = row.sidecars()[suffix]
        copy_file(source, index.path, target, stem + suffix, index.size_bytes)
    aborted = SegmentFile(source, row).aborted()
    if len(aborted):
        target.write(stem + TXN_INDEX_SUFFIX, txn_index_bytes(aborted))
    return seen


@dataclass
class _Checkpoints:
    """Collects the entries of the log directory's checkpoint files. `partitions`: the exported partitions."""

    partitions: set[tuple[str, int]] = field(default_factory=set)
    log_start: dict[tuple[str, int], int] = field(default_factory=dict)
    log_end: dict[tuple[str, int], int] = field(default_factory=dict)
    cleaned: dict[tuple[str, int], int] = field(default_factory=dict)

    def add(self, topic: str, row: Partition, config: TopicConfig, first_base_offset: int) -> None:
        if topic == CLUSTER_METADATA_TOPIC:
            return  # KRaft's log has no entries in a broker's checkpoints
        at = (topic, row.partition)
        self.partitions.add(at)
        self.log_end[at] = row.log_end_offset
        if row.log_start_offset > first_base_offset:
            self.log_start[at] = row.log_start_offset
        # Also where nothing is clean: a line that the broker has of this partition from before counts these records as
        # clean, so that its cleaner would never look at them. An offset at the log start is as good to Kafka as none.
        if "compact" in config.cleanup_policy or row.first_dirty_offset > row.log_start_offset:
            self.cleaned[at] = max(row.first_dirty_offset, row.log_start_offset)

    def write(self, target: Storage) -> None:
        """Writes the files. Entries that they have already stay, except of partitions that were exported or are gone.

        An old log start would hide records; an old cleaner offset would keep records dirty or count them as clean.
        """
        directories = set(target.directories())
        for name, offsets in (
            (LOG_START_OFFSETS_FILE, self.log_start),
            (RECOVERY_POINTS_FILE, self.log_end),
            (REPLICATION_OFFSETS_FILE, self.log_end),
            (CLEANER_OFFSETS_FILE, self.cleaned),
        ):
            is_there = target.exists(name)
            if name == CLEANER_OFFSETS_FILE and not offsets and not is_there:
                continue
            before = parse_offsets(target.read(name), path=name) if is_there else {}
            topics = {topic for topic, _ in self.partitions}
            kept = {
                at: offset
                for at, offset in before.items()
                if at not in self.partitions and (at[0] not in topics or f"{at[0]}-{at[1]}" in directories)
            }
            target.replace(name, offsets_bytes(kept | offsets))


def export_topics(
    storage: Storage,
    target: Storage,
    topics: Sequence[tuple[Snapshot, TopicConfig]],
    *,
    topic_ids: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Report:
    """Writes the partition directories and checkpoints of topics; see LogDir.export_kafka."""
    report = Report("export", dry_run=False)
    directories = set(target.directories())
    for snapshot, _ in topics:
        if topic_ids is not None:
            _check_topic_id(snapshot.topic, topic_ids)
        for row in snapshot.partition_rows:
            name = f"{snapshot.topic}-{row.partition}"
            if name in directories and target.list(name):
                raise LogDirError(
                    "The partition directory already exists",
                    path=target.location(name),
                    hint="Export into an empty directory, or remove the partition first",
                )
    checkpoints = _Checkpoints()
    for snapshot, config in topics:
        topic_id = None if topic_ids is None else topic_ids[snapshot.topic]
        export = _Export(storage, target, snapshot, config, topic_id)
        export.run(checkpoints, report, spark, progress)
    # After all logs: a checkpoint must not speak of a log that is not there yet.
    checkpoints.write(target)
    return report.finish()


def _check_topic_id(topic: str, topic_ids: Mapping[str, str]) -> None:
    """Raises InvalidOptionError where the topic has no id in the cluster, or none that a broker takes."""
    if topic not in topic_ids:
        names = ", ".join(sorted(topic_ids)[:20]) or "none"
        raise InvalidOptionError(f"Topic {topic} has no id in the cluster", found=f"ids of {names}")
    if not is_topic_id(topic_ids[topic]):
        raise InvalidOptionError(
            f"The id of topic {topic} is none that a broker takes",
            expected="22 characters of URL-safe base64, as kafka-topics --describe prints it",
            found=repr(topic_ids[topic])[:100],
            hint="Where a client prints it with + and /, put - and _ in their place, and leave = out",
        )


@dataclass(frozen=True, slots=True)
class _Export:
    """A topic that is exported. `topic_id`: that of a new topic of this name in another cluster, whose leader epochs
    begin at 0.

    A leader of epoch 1 that found batches of epoch 7 would drop what it knows of epochs, and a consumer that has read
    such a batch would take the cluster's metadata for older than its own.
    """

    storage: Storage
    target: Storage
    snapshot: Snapshot
    config: TopicConfig
    topic_id: str | None

    def run(
        self, checkpoints: _Checkpoints, report: Report, spark: SparkSession | None, progress: Progress | None
    ) -> None:
        """Writes the partition directories, and adds to the checkpoints and the report."""
        topic = self.snapshot.topic
        partitions = self.snapshot.partition_rows
        if self.topic_id is not None:
            partitions = [
                dataclasses.replace(row, leader_epoch=0, leader_epochs=((0, row.log_start_offset),))
                for row in partitions
            ]
        outputs = {row.partition: list(self._outputs(row)) for row in partitions}
        write = partial(_write, self.storage, self.target, topic, SegmentLimits.of(self.config))
        tasks = [output for row in partitions for output in outputs[row.partition]]
        at_a_time = self.storage.tasks_at_a_time or self.target.tasks_at_a_time
        written: dict[int, list[_Written]] = defaultdict(list)
        for segment in run_tasks(write, tasks, spark, progress=progress, at_a_time=at_a_time, size=_size):
            written[segment.partition].append(segment)
        for row in partitions:
            segments = outputs[row.partition]
            files = written[row.partition]
            self._write_beside(row, segments, files)
            checkpoints.add(topic, row, self.config, segments[0].base_offset if segments else row.log_end_offset)
            records = sum(file.records for file in files)
            log_bytes = sum(file.bytes for file in files)
            report.add_copied(topic, row.partition, "export", len(files), records, log_bytes)

    def _write_beside(self, row: Partition, outputs: Sequence[_ExportedSegment], files: Sequence[_Written]) -> None:
        """Writes what a partition's directory has beside the copied segments."""
        end = max((file.end_offset for file in files), default=row.log_end_offset)
        self._write_end(row, end, outputs)
        self._write_snapshots(row, outputs, [file.has_producers for file in files])
        # A log that begins with its first segment has no log start checkpoint: a broker uses such a file unchanged.
        epochs = leader_epochs_from(row.leader_epochs, row.log_start_offset)
        self.target.write(self._path(row, LEADER_EPOCHS_FILE), leader_epochs_bytes(epochs))
        metadata = partition_metadata_bytes(self.topic_id or self.snapshot.topic_id)
        self.target.write(self._path(row, PARTITION_METADATA_FILE), metadata)

    def _path(self, row: Partition, name: str) -> str:
        return f"{self.snapshot.topic}-{row.partition}/{name}"

    def _outputs(self, row: Partition) -> Iterator[_ExportedSegment]:
        """The segments to write: each sealed row by itself, chunks together up to segment.bytes.

        An imported active segment may be an empty file. As in Kafka an empty segment is not rolled: the next segment
        begins at the same offset.
        """
        leader_epochs = LeaderEpochs.of_copies(self.snapshot, row) if row.leader_epochs else None
        if self.topic_id is not None:
            leader_epochs = LeaderEpochs(row.leader_epochs, stamps_all=True)

        def begins(rows: list[Segment], total: int, segment: Segment) -> bool:
            is_full = total > 0 and total + segment.log_bytes > self.config.segment_bytes
            return is_full or Segment.SEALED in (rows[-1].state, segment.state)

        for rows in in_bins(self.snapshot.live_of(row.partition), lambda segment: segment.log_bytes, begins):
            yield _ExportedSegment(tuple(rows), leader_epochs)

    def _write_end(self, row: Partition, end: int, outputs: Sequence[_ExportedSegment]) -> None:
        """Writes what keeps the log end, where no batch reaches it: a segment without batches in an empty log, else
        segments of a batch without records, from the offset `end` behind the last batch on. A broker begins at the end
        of its last segment, and a consumer waits at an offset until it gets a batch from there.
        """
        log_end = row.log_end_offset
        if end < log_end:
            epoch = int(LeaderEpochs.of(row).at(np.array([log_end - 1]))[0])
            bases = range(end, log_end, LARGEST_BATCH_OFFSETS)
            logs = dict(zip(bases, empty_batches(end, log_end, epoch), strict=True))
        else:
            logs = {} if outputs else {log_end: b""}
        for base_offset, data in logs.items():
            for suffix, content in ((LOG_SUFFIX, data), (INDEX_SUFFIX, b""), (TIME_INDEX_SUFFIX, b"")):
                self.target.write(self._path(row, f"{base_offset:020d}{suffix}"), content)

    def _write_snapshots(
        self, row: Partition, outputs: Sequence[_ExportedSegment], have_producers: Sequence[bool]
    ) -> None:
        """Writes a .snapshot at each segment but the first, and at the log end: the imported or else a new snapshot.
        `have_producers`: of each output, whether it has producers' batches, which alone change what producers are
        known.
        """
        state = ProducerState()
        for output, has_producers in zip(outputs, have_producers, strict=True):
            source_path = output.rows[0].stem + PRODUCER_SNAPSHOT_SUFFIX
            content = self._imported_snapshot(output, source_path)
            if content is not None:
                state = ProducerState(parse_producer_snapshot(content, path=source_path))
            elif output is not outputs[0]:
                content = producer_snapshot_bytes(state.entries())
            if content is not None:
                self._write_snapshot(row, output.base_offset, content)
            if has_producers:
                self._add_producers(state, output)
        # Where the last segment is empty, its own snapshot is the one at the log end.
        if not outputs or row.log_end_offset > outputs[-1].base_offset:
            # Appends by this package have no producers: the state that came with an import still holds.
            self._write_snapshot(
                row, row.log_end_offset, row.producer_snapshot or producer_snapshot_bytes(state.entries())
            )

    def _write_snapshot(self, row: Partition, offset: int, content: bytes) -> None:
        self.target.write(self._path(row, f"{offset:020d}{PRODUCER_SNAPSHOT_SUFFIX}"), content)

    def _imported_snapshot(self, output: _ExportedSegment, path: str) -> bytes | None:
        """The .snapshot that came with an import; None where there is none of the offset that the segment begins at."""
        if output.rows[0].name_offset != output.base_offset or not self.storage.exists(path):
            return None
        content: bytes = self.storage.read(path).to_pybytes()
        return content

    def _add_producers(self, state: ProducerState, output: _ExportedSegment) -> None:
        for segment in output.rows:
            for window in SegmentFile(self.storage, segment).windows():
                state.add(window)


def _size(output: _ExportedSegment) -> int:
    return sum(row.log_bytes for row in output.rows)
