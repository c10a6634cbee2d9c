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

from spark_segments.config import SegmentLimits
from spark_segments.difference import SAME
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.execution import in_bins, try_tasks
from spark_segments.kafka.directory import KafkaDirectory, KafkaSnapshot, Recovery
from spark_segments.kafka.early_copies import EarlyCopies
from spark_segments.kafka.import_checks import check_cut, check_names, check_offsets
from spark_segments.kafka.import_landing import Landing
from spark_segments.kafka.import_plan import (
    PartitionPlan,
    SegmentCopy,
    check_end,
    check_erased,
    compare_with_kafka,
    plan_import,
)
from spark_segments.kafka.partition import ZERO_TOPIC_ID, Copied, RecoveredPartition
from spark_segments.kafka.segment_copier import SegmentCopier
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
    Snapshot,
    TopicRow,
)
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.difference import Comparison

WAVE_BYTES = 4 << 30

_ATTEMPTS = 5
"""How often a partition is read whose files change meanwhile, if nothing of it could be committed."""


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
        if plan.replaces_all and not plan.is_over:
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
                    check_offsets(storage, segment)
                kept.append(row)
        return dataclasses.replace(kafka, partitions=Partition.table(kept))

    def _check_cuts(self, kafka: KafkaSnapshot, number: int) -> None:
        """Raises LogDirError where the log of a partition ends before records that it had."""
        for cut in kafka.report.cuts:
            if cut.partition == number:
                check_cut(self.source.storage, cut)
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
        copy = SegmentCopier(self.source.storage, self.manifest.storage, self.limits)
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


def _size(task: SegmentCopy) -> int:
    return task.row.log_bytes


def _waves(plans: Mapping[int, PartitionPlan]) -> Iterator[list[SegmentCopy]]:
    """The copies of each commit. Copies that replace all rows of a partition stay in the same commit."""

    def begins(wave: list[SegmentCopy], total: int, task: SegmentCopy) -> bool:
        number = task.row.partition
        return total >= WAVE_BYTES and not (plans[number].replaces_all and wave[-1].row.partition == number)

    return in_bins((task for plan in plans.values() for task in plan.tasks), _size, begins)
