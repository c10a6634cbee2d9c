"""Import: partitions that Kafka wrote become topics of a log directory, their segments and sidecars byte for byte.

Each segment is a copying task. Copies are committed wave by wave. So a repeated import goes on where a killed import
stopped, and adds the new segments of a directory that has grown.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from spark_segments.config import SegmentLimits
from spark_segments.difference import SAME
from spark_segments.errors import CorruptBatchError, LogDirError, SegmentsError, UnknownTopicError
from spark_segments.execution import in_bins, try_tasks
from spark_segments.format.batches import scan_batches
from spark_segments.format.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.format.layout import BATCH_LENGTH_POSITION, BATCH_OVERHEAD, LOG_OVERHEAD, MAGIC_POSITION
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index, txn_index_bytes
from spark_segments.kafka.directory import KafkaDirectory, KafkaSnapshot, Recovery
from spark_segments.kafka.early_copies import EarlyCopies
from spark_segments.kafka.import_landing import Landing
from spark_segments.kafka.import_plan import (
    PartitionPlan,
    SegmentCopy,
    check_end,
    check_erased,
    check_names,
    compare_with_kafka,
    plan_import,
)
from spark_segments.kafka.partition import ZERO_TOPIC_ID, Copied, RecoveredPartition
from spark_segments.kafka.recovered_log import CUT_SHORT, Cut
from spark_segments.log import (
    Change,
    CopiedEnd,
    Eras,
    Hole,
    Manifest,
    Operation,
    Partition,
    Report,
    Segment,
    SegmentFile,
    Snapshot,
    TopicRow,
    copy_batches,
)
from spark_segments.progress import Progress
from spark_segments.storage import Storage
from spark_segments.storage.fetch import copy_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.difference import Comparison

WAVE_BYTES = 4 << 30
LONGEST_TAIL_BYTES = 256 << 20

_ATTEMPTS = 5
"""How often a partition is read whose files change meanwhile, if nothing of it could be committed."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """Task function: copies a segment and returns its row here."""

    source: Storage
    target: Storage
    limits: SegmentLimits

    @property
    def at_a_time(self) -> int | None:
        return self.source.tasks_at_a_time or self.target.tasks_at_a_time

    def __call__(self, task: SegmentCopy) -> Segment:
        copied = self._copy(task)
        if self.limits.forced:
            sidecars = copied.sidecars()
            paths = [copied.path, sidecars[INDEX_SUFFIX].path, sidecars[TIME_INDEX_SUFFIX].path]
            others = (sidecars[TXN_INDEX_SUFFIX].path, copied.stem + PRODUCER_SNAPSHOT_SUFFIX)
            self.target.force([*paths, *(path for path in others if self.target.exists(path))])
        return copied

    def _copy(self, task: SegmentCopy) -> Segment:
        row = dataclasses.replace(task.row, topic_id=task.topic_id)
        is_legacy = task.log_copy is None and _is_legacy(self.source, row)
        is_rewritten = is_legacy or max(task.base_offset, row.base_offset) > row.name_offset
        if is_rewritten or not _has_indexes(self.source, row):
            # A part of a file, old messages, or a file without usable indexes: batches are copied, with new indexes.
            copied = copy_batches(
                self.source,
                task.topic,
                [row if is_rewritten else dataclasses.replace(row, txn_index_bytes=0)],
                max(task.base_offset, row.base_offset),
                row.next_offset,
                sealed=row.state != Segment.CHUNK,
                leader_epochs=None,
                target=self.target,
                limits=self.limits,
            )
            copied = dataclasses.replace(copied, created_ms=row.created_ms)
            if is_rewritten and task.aborted is None:
                return copied
            return _with_transactions(self.source, self.target, row, copied, task.aborted)
        return _copied(self.source, self.target, task, row)


@dataclass(slots=True)
class TopicImport:
    """An import of a topic, or of its new segments.

    `overrides`: the settings of a topic that is made. `as_broker`: damage cuts the log as far as it does in a broker.
    `copied`: the segments, records and log_bytes of each partition. `created`: partitions that it created here.
    `to_scan_whole`: partitions of which all segments are to be scanned. `left`: partitions that changed while they were
    read, and how often since anything of them was committed.
    """

    source: KafkaDirectory
    manifest: Manifest
    overrides: Mapping[str, str]
    limits: SegmentLimits
    as_broker: bool = False
    spark: SparkSession | None = None
    progress: Progress | None = None
    copied: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    holes: list[Hole] = field(default_factory=list)
    created: set[int] = field(default_factory=set)
    to_scan_whole: set[int] = field(default_factory=set)
    left: dict[int, int] = field(default_factory=dict)

    def run(self, report: Report) -> None:
        """Imports all partitions. A partition that changes while it is read is read again, a few times. The report gets
        a line for each partition, with its copied segments, and in `details` the "holes" that were found, as plain
        values. A partition whose files changed in each attempt has failed: it has what the attempts had committed.

        Raises LogDirError where damage would cut the log by more than a torn last batch, or segments are missing that
        Kafka's cleaner has seen, unless the log is taken `as_broker`; where a segment holds offsets that an index
        cannot; and, before anything is copied, where the topic of this name holds other records.
        """
        topic = self.manifest.topic
        check_names(self.source, topic)
        pending: set[int] | None = None
        while pending is None or pending:
            pending = self._attempt(pending)
        for number in sorted({source.partition for source in self.source.sources(topic)}):
            copied = self.copied[number]
            action = Operation.IMPORT if copied["segments"] else "leave"
            failed = {}
            if number in self.left:
                action = Report.FAILED
                failed["error"] = f"Its files changed in each of {_ATTEMPTS} attempts: run it again"
            report.add_copied(
                topic, number, action, copied["segments"], copied["records"], copied["log_bytes"], **failed
            )
        report.details["holes"] += [{"topic": topic, **hole.to_dict()} for hole in self.holes]

    def _attempt(self, numbers: set[int] | None) -> set[int]:
        """Recovers these partitions, or all, plans them, copies and commits. Returns the partitions to read again."""
        current = self._current()
        # On Spark, executors copy: this process examines all files, and has no time for their copies.
        early_bytes = 0 if self.spark is not None else WAVE_BYTES
        early = EarlyCopies(self.manifest.storage, self.manifest.topic, early_bytes)
        try:
            recovery = self.source.recover(self.manifest.topic, numbers, self._here(current), early)
            self._note_changes(recovery.changing)
            landing = self._planned(recovery, current)
            if landing is not None:
                for number in self._copy_waves(recovery, landing, early):
                    self.left.pop(number, None)
                self.holes += landing.holes
        finally:
            early.discard()
        # A commit of any segment sets the tries of its partition back to 0: a large one of a running broker may take
        # many attempts, and only a partition of which nothing can be committed is left.
        again = {number for number, tries in self.left.items() if tries < _ATTEMPTS}
        scanned = recovery.partitions.items()
        return again | {
            number for number, partition in scanned if number in self.to_scan_whole and partition.scanned_from
        }

    def _note_changes(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.left[number] = self.left.get(number, 0) + 1

    def _current(self) -> Snapshot | None:
        """The topic here, None where there is none yet."""
        try:
            current = self.manifest.snapshot()
        except UnknownTopicError:
            return None
        current.check_role(Operation.IMPORT)
        return current

    def _here(self, current: Snapshot | None) -> dict[int, Copied]:
        """What is here of the partitions."""
        if current is None:
            return {}
        copied_ends = CopiedEnd.of(current.states)
        return {
            row.partition: Copied(
                row,
                tuple(current.live_of(row.partition)),
                copied_ends.get(row.partition),
                scan_all=row.partition in self.to_scan_whole,
            )
            for row in current.partition_rows
        }

    def _planned(self, recovery: Recovery, current: Snapshot | None) -> Landing | None:
        """The plans of the partitions that may be imported, and have not changed since they were scanned; None where
        there is none. The topic, and partitions that it gained, are made here. Raises for partitions that may not be.
        """
        kafka = self._checked(recovery)
        if not kafka.partitions.num_rows:
            return None
        if current is None:
            current = self._created(kafka)
        comparisons = self._compared(recovery, current, kafka)
        current = self._with_partitions(kafka, current)
        plans = {}
        for number, comparison in comparisons.items():
            recovered = recovery.partitions[number]
            with self._unless_changed(recovered):
                plan = self._plan(recovered, current, kafka, comparison)
                if plan is not None:
                    plans[number] = plan
        gaps = {number: tuple(partition.log.gaps) for number, partition in recovery.partitions.items()}
        return Landing(self.manifest, kafka, current, plans, gaps, frozenset(self.created))

    def _plan(
        self, recovered: RecoveredPartition, current: Snapshot, kafka: KafkaSnapshot, comparison: Comparison
    ) -> PartitionPlan | None:
        """The plan of a partition; None where it needs segments that this scan has passed over: then the next attempt
        scans all of them.
        """
        number = recovered.partition.partition
        storage = self.source.storage
        lacks_segments = bool(recovered.log.gaps)
        plan = plan_import(storage, current, kafka, number, comparison, lacks_segments=lacks_segments)
        if plan.needs_all and recovered.scanned_from:
            self.to_scan_whole.add(number)
            return None
        if plan.replaces_all:
            check_erased(storage, self.manifest.storage, current, kafka, number)
        return plan

    @contextmanager
    def _unless_changed(self, recovered: RecoveredPartition) -> Iterator[None]:
        """Raises an error of a partition only if its files are as they were listed; else it is left, for that."""
        try:
            yield
        except (SegmentsError, FileNotFoundError):
            if not self._has_changed(recovered):
                raise
            self._note_changes([recovered.partition.partition])

    def _checked(self, recovery: Recovery) -> KafkaSnapshot:
        """The snapshot with the partitions that may be imported. Raises where a partition may not."""
        kafka = recovery.snapshot
        storage = self.source.storage
        kept = []
        for row in kafka.partition_rows:
            with self._unless_changed(recovery.partitions[row.partition]):
                if not self.as_broker:
                    self._check_cuts(kafka, row.partition)
                for segment in kafka.live_of(row.partition):
                    _check_offsets(storage, segment)
                kept.append(row)
        return dataclasses.replace(kafka, partitions=Partition.table(kept))

    def _check_cuts(self, kafka: KafkaSnapshot, number: int) -> None:
        """Raises LogDirError where the log of a partition ends before records that it had."""
        for cut in kafka.report.cuts:
            if cut.partition == number:
                _check_cut(self.source.storage, cut)
        check_end(self.source.storage, kafka, number)

    def _has_changed(self, recovered: RecoveredPartition, from_offset: int = 0, *, was_read: bool = False) -> bool:
        """Whether files of a partition's segments, from an offset on, have changed since they were listed."""
        return recovered.listing.changed_file(self.source.storage, from_offset, was_read=was_read) is not None

    def _created(self, kafka: KafkaSnapshot) -> Snapshot:
        """The topic, made here empty at Kafka's log start."""
        topic_id = kafka.topic_id
        if topic_id == ZERO_TOPIC_ID:
            topic_id = TopicRow.new_id()
        rows = _empty_partitions(kafka, topic_id, 0)
        topic = _with_ends(Eras.unknown(TopicRow(topic_id, self.overrides)), rows)
        self.manifest.create(topic, rows)
        self.created |= {row.partition for row in rows}
        return self.manifest.snapshot()

    def _with_partitions(self, kafka: KafkaSnapshot, current: Snapshot) -> Snapshot:
        """The topic with the partitions that Kafka's topic gained since it was made here."""
        created: list[Partition] = []

        def plan(current: Snapshot) -> Change | None:
            # Each try plans again: another import may have created some of them, and a second row would empty theirs.
            created[:] = _empty_partitions(kafka, current.topic_id, current.partitions.num_rows)
            if not created:
                return None
            topic = _with_ends(Eras.unknown(current.topic_row), created)
            return Change(Operation.IMPORT, partitions=created, topic=topic)

        if not _empty_partitions(kafka, current.topic_id, current.partitions.num_rows):
            return current
        self.manifest.commit(plan)
        self.created |= {row.partition for row in created}
        return self.manifest.snapshot()

    def _compared(self, recovery: Recovery, current: Snapshot, kafka: KafkaSnapshot) -> dict[int, Comparison]:
        """The comparisons of the partitions that have not changed meanwhile. Raises where one holds other records."""
        scanned_from = {number: partition.scanned_from for number, partition in recovery.partitions.items()}
        storage = self.manifest.storage
        results = compare_with_kafka(self.source.storage, storage, current, kafka, scanned_from, self.spark)
        new = {row.partition for row in kafka.partition_rows} - results.keys()
        good = dict.fromkeys(new, SAME)  # nothing of them is here
        for number, (check, comparison) in results.items():
            with self._unless_changed(recovery.partitions[number]):
                if isinstance(comparison, SegmentsError):
                    raise comparison
                check(comparison)
                good[number] = comparison
        return good

    def _copy_waves(self, recovery: Recovery, landing: Landing, early: EarlyCopies) -> set[int]:
        """Copies and commits, wave by wave. Returns the partitions that were as they were listed to the end."""
        copy = _Copy(self.source.storage, self.manifest.storage, self.limits)
        good = set(landing.plans)
        total = sum(_size(task) for plan in landing.plans.values() for task in plan.tasks)
        finished = 0

        def note(done: int, _: int) -> None:
            if self.progress is not None:
                self.progress(finished + done, total)

        waves = list(_waves(landing.plans)) or [[]]
        for wave in waves:
            tasks = [
                dataclasses.replace(task, log_copy=early.of(task.row.path, task.row.log_bytes))
                for task in wave
                if task.row.partition in good
            ]
            rows = try_tasks(copy, tasks, self.spark, progress=note, at_a_time=copy.at_a_time, size=_size)
            finished += sum(map(_size, wave))
            changed = self._changed_while_copied(recovery, tasks, rows)
            self._note_changes(changed)
            good -= changed
            copies = [
                (task, row)
                for task, row in zip(tasks, rows, strict=True)
                if task.row.partition in good and isinstance(row, Segment)
            ]
            early.keep([row.path for _, row in copies])
            landing.commit(copies, good, last=wave is waves[-1])
            for task, row in copies:
                self.left.pop(task.row.partition, None)
                self.copied[task.row.partition].update(segments=1, records=row.records, log_bytes=row.log_bytes)
        return good

    def _changed_while_copied(
        self, recovery: Recovery, tasks: Sequence[SegmentCopy], rows: Sequence[Segment | SegmentsError]
    ) -> set[int]:
        """The partitions whose files changed while they were copied: errors of their copies do not count.
        Raises the first error of another partition.
        """
        changed = set()
        for number in {task.row.partition for task in tasks}:
            copies = [(task, row) for task, row in zip(tasks, rows, strict=True) if task.row.partition == number]
            errors = [row for _, row in copies if isinstance(row, SegmentsError)]
            first_offset = min(task.row.name_offset for task, _ in copies)
            if self._has_changed(recovery.partitions[number], first_offset, was_read=not errors):
                changed.add(number)
            elif errors:
                raise errors[0]
        return changed


def _check_offsets(storage: Storage, row: Segment) -> None:
    """Raises LogDirError for a segment with an offset that no entry of its indexes can hold.

    Cleaners before Kafka 1.1.1 could write such a segment. Only a segment whose next segment begins that far away is
    opened.
    """
    largest = row.name_offset + MAX_RELATIVE_OFFSET
    if row.next_offset - 1 <= largest:
        return
    for window in SegmentFile(storage, row).windows(check_crc=False):
        beyond = np.flatnonzero(window.batches.last_offset > largest)
        if len(beyond):
            raise LogDirError(
                "A segment holds an offset that its indexes cannot hold",
                path=storage.location(row.path),
                byte_position=int(window.batches.byte_position[beyond[0]]),
                expected=f"at most {MAX_RELATIVE_OFFSET} above its base offset {row.name_offset}",
                found=f"{window.batches.last_offset[beyond[0]]}",
                hint="Start a Kafka broker of version 1.1.1 or later on the directory once: it splits the segment",
            )


def _empty_partitions(kafka: KafkaSnapshot, topic_id: str, first: int) -> list[Partition]:
    """Partitions from number `first` on, each empty at Kafka's log start; partitions of other brokers begin at 0."""
    starts = {row.partition: row.log_start_offset for row in kafka.partition_rows}
    rows = []
    for number in range(first, max(starts, default=-1) + 1):
        start = starts.get(number, 0)
        rows.append(Partition(topic_id, number, start, start, start, start))
    return rows


def _with_ends(topic: TopicRow, created: Iterable[Partition]) -> TopicRow:
    return CopiedEnd.topic_row(topic, {row.partition: row.log_end_offset for row in created})


def _check_cut(source: Storage, cut: Cut) -> None:
    """Accepts zeros and a torn batch at the end of the last segment. Raises LogDirError for every other cut."""
    if not cut.dropped and cut.bytes <= LONGEST_TAIL_BYTES:
        tail = np.frombuffer(source.read(cut.path, cut.byte_position, cut.bytes), np.uint8)
        if not tail.any() or (cut.reason == CUT_SHORT and not _holds_batch(tail)):
            return
    raise LogDirError(
        "Damage would cut the log: " + str(cut),
        hint="Import from an intact replica, or accept the cut, as a broker does, with recovery=kafka",
    )


def _holds_batch(tail: np.ndarray) -> bool:
    """Whether a whole record batch lies anywhere behind a bad batch: then more than a torn end would be lost."""
    magic = np.flatnonzero(tail[MAGIC_POSITION:] <= 2)
    starts = magic[magic + BATCH_OVERHEAD <= len(tail)]
    lengths = np.zeros(len(starts), np.int64)
    for byte in range(4):
        lengths = lengths << 8 | tail[starts + BATCH_LENGTH_POSITION + byte]
    fits = (lengths >= LOG_OVERHEAD) & (starts + LOG_OVERHEAD + lengths <= len(tail))
    for start, length in zip(starts[fits].tolist(), lengths[fits].tolist(), strict=True):
        if len(scan_batches(tail[start : start + LOG_OVERHEAD + length]).batches):
            return True
    return False


def _size(task: SegmentCopy) -> int:
    return task.row.log_bytes


def _waves(plans: Mapping[int, PartitionPlan]) -> Iterator[list[SegmentCopy]]:
    """The copies of each commit. Copies that replace all rows of a partition stay in the same commit."""

    def begins(wave: list[SegmentCopy], total: int, task: SegmentCopy) -> bool:
        number = task.row.partition
        return total >= WAVE_BYTES and not (plans[number].replaces_all and wave[-1].row.partition == number)

    return in_bins((task for plan in plans.values() for task in plan.tasks), _size, begins)


def _copied(source: Storage, target: Storage, task: SegmentCopy, row: Segment) -> Segment:
    """Copies the segment byte by byte: its .log up to where recovery ends it, and its sidecars."""
    if task.log_copy is None:
        stem = Segment.new_stem(task.topic, row.partition, row.name_offset)
        SegmentFile(source, row).copy_log(target, stem + LOG_SUFFIX, unique=True)
    else:
        stem = task.log_copy.removesuffix(LOG_SUFFIX)
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        index = row.sidecars()[suffix]
        copy_file(source, index.path, target, stem + suffix, index.size_bytes, unique=True)
    return _with_transactions(source, target, row, dataclasses.replace(row, path=stem + LOG_SUFFIX), task.aborted)


def _with_transactions(
    source: Storage, target: Storage, row: Segment, copied: Segment, aborted: AbortedTransactions | None
) -> Segment:
    """Copies a segment's .snapshot, where it can be read, and writes its .txnindex: `aborted`, or what Kafka's file
    says of the segment up to its end here. The row says what was written.
    """
    snapshot = _read(source, row.stem + PRODUCER_SNAPSHOT_SUFFIX)
    if copied.base_offset == row.name_offset and _is_producer_snapshot(snapshot):
        target.write(copied.stem + PRODUCER_SNAPSHOT_SUFFIX, snapshot)
    if aborted is None:
        aborted = _listed_aborted(source, row)
    else:
        aborted = aborted.overlapping(copied.base_offset, copied.next_offset)
    data = txn_index_bytes(aborted)
    if data:
        target.write(copied.sidecars()[TXN_INDEX_SUFFIX].path, data)
    return dataclasses.replace(copied, txn_index_bytes=len(data))


def _listed_aborted(source: Storage, row: Segment) -> AbortedTransactions:
    """The entries of Kafka's .txnindex whose markers are in the segment; none where it cannot be read."""
    txn_index = row.sidecars()[TXN_INDEX_SUFFIX]
    try:
        entries = parse_txn_index(_read(source, txn_index.path), path=txn_index.path)
    except CorruptBatchError:
        entries = AbortedTransactions.of()
    entries = entries.take(entries.last_offset < row.next_offset)
    if txn_index.size_bytes and len(txn_index_bytes(entries)) != txn_index.size_bytes:
        raise CorruptBatchError(
            "The transaction index is not what it was when its segment was scanned",
            path=txn_index.path,
            expected=f"{txn_index.size_bytes} bytes for offsets below {row.next_offset}",
            found=f"{len(txn_index_bytes(entries))} bytes",
        )
    return entries


def _read(source: Storage, path: str) -> bytes:
    """A small file; b"" where it is not there."""
    try:
        return bytes(source.read(path))
    except FileNotFoundError:
        return b""


def _is_producer_snapshot(data: bytes) -> bool:
    try:
        parse_producer_snapshot(data)
    except SegmentsError:
        return False
    return True


def _has_indexes(source: Storage, row: Segment) -> bool:
    """Whether both indexes are there and true: recovery uses them, or both are empty."""
    sidecars = row.sidecars()
    for index in (sidecars[INDEX_SUFFIX], sidecars[TIME_INDEX_SUFFIX]):
        if index.size_bytes == 0 and not (source.exists(index.path) and source.size(index.path) == 0):
            return False
    return True


def _is_legacy(source: Storage, row: Segment) -> bool:
    """Whether the segment begins with a message of magic 0 or 1."""
    header = source.read(row.path, 0, MAGIC_POSITION + 1).to_pybytes() if row.log_bytes else b""
    return len(header) > MAGIC_POSITION and header[MAGIC_POSITION] < 2
