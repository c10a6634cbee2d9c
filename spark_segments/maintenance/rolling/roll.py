"""Rolling: a partition's active segment becomes sealed segments, and many small chunks become one.

Batches are copied, not decoded: what changes in them is the base offset and the leader epoch, which lie outside their
CRC.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.errors import SegmentsError
from spark_segments.execution import in_bins, task_slots, try_tasks
from spark_segments.extensions import observed_job
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.swap import RowSwap
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.report import Report
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.retention.retention_plan import emptied_partitions
from spark_segments.maintenance.rolling.copies import CopySegments, CopyTask, copied
from spark_segments.maintenance.rolling.planned_segments import PlannedSegment, RolledPartition, plan_segments
from spark_segments.maintenance.rolling.roll_plan import MergeRules, PartitionToRoll, RollPlan, RollRules, plan_roll
from spark_segments.progress import Progress, part_of
from spark_segments.quantities import Time
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE_PARTITIONS = 1000
WAVE_BYTES_A_SLOT = 2 << 30
"""A wave has this many partitions at most, and ends once it has this many bytes for each task slot. Each wave is one
commit: a job that is killed loses the work of its last wave only."""


@dataclass(frozen=True, slots=True)
class _Wave:
    """Partitions of a topic that are rolled in one commit, and the snapshot and configuration that say so."""

    snapshot: Snapshot
    config: TopicConfig
    plan: RollPlan
    partitions: list[PartitionToRoll]

    @property
    def rules(self) -> RollRules:
        return RollRules.of(self.snapshot.topic_id, self.config)


@observed_job("roll")
def roll(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    planned: dict[str, Snapshot] | None = None,
) -> Report:
    """Rolls what is due at `now_ms`, by Kafka's rules, and merges small chunks.

    Planning the segments of a partition is a task, and so is copying a segment. A topic's partitions are rolled in
    waves, and each wave is one commit. A partition that another job changed meanwhile is left to the next run, and its
    new files to vacuum. A partition that fails, for a damaged file say, is left to the next run, too: see `Report`.
    Each wave follows the topic's configuration at the moment when the wave begins. A dry run says which partitions are
    due and why, and opens no segment, unless `planned` wants to know what would come of it (see `Job`).

    Where all of a partition has expired by the topic's own retention, all of it is sealed: retention takes sealed
    segments alone. `expired_records` in the report's details are the records of such active segments.

    A partition's line in the report has `sealed_segments`, how many segments were sealed. `sealed` has their base
    offsets: all of them, or the first and the last few where there are many (see `first_and_last`).
    """
    job = Job.of("roll", log, topics, spark, dry_run, progress, now_ms, planned)
    for snapshot, config in job.snapshots():
        plan = _plan(job, snapshot, config)
        expired_records = sum(partition.records for partition in plan.partitions if partition.is_expired)
        if expired_records:
            job.report.count(expired_records=expired_records)
        if dry_run:
            _report_plan(job, _Wave(snapshot, config, plan, plan.partitions))
        else:
            _roll_topic(job, snapshot, config, plan, progress)
    return job.report.finish()


def _report_plan(job: Job, topic: _Wave) -> None:
    """A dry run's lines of a topic, and what later jobs of the same dry run would find."""
    for partition in topic.partitions:
        job.report.add(topic.snapshot.topic, **partition.line())
    if job.planned is not None and topic.partitions:
        job.planned[topic.snapshot.topic] = _as_rolled(job, topic)


def _roll_topic(job: Job, snapshot: Snapshot, config: TopicConfig, plan: RollPlan, progress: Progress | None) -> None:
    done = 0
    total = len(plan.partitions)
    for partitions in _waves(plan.partitions, WAVE_BYTES_A_SLOT * task_slots(job.spark)):
        wave = _Wave(snapshot, config, plan, partitions)
        try:
            # The first wave has just been planned. Hours may have passed before a later one.
            wave = _planned_again_if_altered(job, wave) if done else wave
        except SegmentsError as error:
            for partition in partitions:
                job.report.fail(snapshot.topic, partition.partition, error)
        else:
            _roll_wave(job, wave, part_of(progress, done, len(partitions), total))
        # Also where the wave failed: the bar counts partitions that are done with, and would never end.
        done += len(partitions)
        if progress is not None:
            progress(done, total)


def _plan(job: Job, snapshot: Snapshot, config: TopicConfig) -> RollPlan:
    log_start = snapshot.partitions.column("log_start_offset").to_numpy()
    emptied = emptied_partitions(snapshot.live, log_start, config, job.now_ms)
    return plan_roll(snapshot.live, RollRules.of(snapshot.topic_id, config), job.now_ms, emptied)


def _waves(partitions: Sequence[PartitionToRoll], wave_bytes: int) -> Iterator[list[PartitionToRoll]]:
    return in_bins(
        partitions,
        lambda partition: partition.log_bytes,
        lambda wave, log_bytes, _: log_bytes >= wave_bytes or len(wave) == WAVE_PARTITIONS,
    )


def _planned_again_if_altered(job: Job, wave: _Wave) -> _Wave:
    """A new plan for the same partitions: the topic may have been altered since they were planned."""
    snapshot = job.log.snapshot(wave.snapshot.topic)
    config = job.config(snapshot)
    # If another topic has the name now, the commit refuses the wave.
    if snapshot.topic_id != wave.snapshot.topic_id or config == wave.config:
        return wave
    plan = _plan(job, snapshot, config)
    numbers = {partition.partition for partition in wave.partitions}
    return _Wave(snapshot, config, plan, [again for again in plan.partitions if again.partition in numbers])


def _roll_wave(job: Job, wave: _Wave, progress: Progress | None) -> None:
    """Writes the segments of a wave, commits them and notes what was done."""
    snapshot = wave.snapshot
    rolled = _copied(job, wave, _segments_of_wave(job, wave), progress)
    if not rolled:
        return
    by_partition = {done.partition: done for done in rolled}

    def is_first(swap: RowSwap, live: Sequence[Segment]) -> bool:
        # Only appends may have followed. A restore may have made chunks of segments that were sealed before, and a
        # chunk below a sealed segment would be merged across it.
        planned_chunks = by_partition[swap.partition].chunks
        live_chunks = tuple(row for row in live if row.state == Segment.CHUNK)
        return live_chunks[: len(planned_chunks)] == planned_chunks

    try:
        swaps = job.log.manifest(snapshot.topic).swap_rows(
            "roll",
            [done.swap() for done in rolled if done.replaced_chunks],
            topic_id=snapshot.topic_id,
            holds=is_first,
        )
        committed = {swap.partition for swap in swaps}
    except SegmentsError as error:
        for number in by_partition:
            job.report.fail(snapshot.topic, number, error)
        return
    reasons = {partition.partition: list(partition.reasons) for partition in wave.partitions}
    for number, done in by_partition.items():
        job.report.add(snapshot.topic, **done.line(reasons[number], is_lost=number not in committed))


@dataclass(frozen=True, slots=True)
class _PlanSegments:
    """Task function: the segments that a partition's active segment becomes."""

    storage: Storage
    rules: RollRules
    now_ms: int
    merge: MergeRules

    def __call__(self, task: tuple[Sequence[Segment], bool]) -> list[PlannedSegment]:
        """`task`: the chunks of the active segment, and whether all of the partition has expired."""
        chunks, is_expired = task
        return plan_segments(self.storage, chunks, self.rules, self.now_ms, self.merge, is_expired=is_expired)


def _segments_of_wave(job: Job, wave: _Wave) -> list[RolledPartition]:
    """The planned segments of each partition that has any. Partitions that fail are noted and left out."""
    chunks = {partition.partition: wave.plan.chunks_of(partition) for partition in wave.partitions}
    expired = {partition.partition for partition in wave.partitions if partition.is_expired}
    plan = _PlanSegments(job.storage, wave.rules, job.now_ms, wave.plan.merge)
    by_headers = [partition.partition for partition in wave.partitions if partition.needs_headers]
    work = [(chunks[number], number in expired) for number in by_headers]
    tried = try_tasks(plan, work, job.spark, at_a_time=job.storage.tasks_at_a_time)
    read = dict(zip(by_headers, tried, strict=True))
    rolled = []
    for number in chunks:
        planned = read[number] if number in read else plan((chunks[number], number in expired))
        if isinstance(planned, SegmentsError):
            job.report.fail(wave.snapshot.topic, number, planned)
        elif planned:
            rolled.append(RolledPartition(number, chunks[number], planned, {}))
    return rolled


def _as_rolled(job: Job, wave: _Wave) -> Snapshot:
    """The topic as a roll of the wave would leave it."""
    rolled = _segments_of_wave(job, wave)
    replaced = Segment.table(itertools.chain.from_iterable(done.replaced_chunks for done in rolled))
    kept = row_tables.without(wave.snapshot.segments, replaced)
    new = Segment.table(planned.expected for done in rolled for planned in done.planned)
    return wave.snapshot.holding(pa.concat_tables([kept, new]))


def _copied(
    job: Job, wave: _Wave, rolled: Sequence[RolledPartition], progress: Progress | None
) -> list[RolledPartition]:
    """The partitions, with their segments written out. Partitions that fail are noted and left out."""
    epochs = {row.partition: LeaderEpochs.of_copies(wave.snapshot, row) for row in wave.snapshot.partition_rows}
    copies = [
        CopyTask(planned, epochs[partition.partition])
        for partition in rolled
        for planned in partition.planned
        if not (planned.sealed and planned.is_one_chunk)
    ]
    copy = CopySegments(job.storage, wave.snapshot.topic, wave.rules)
    rows = copied(copy, copies, job.spark, progress=progress)
    by_partition = {partition.partition: partition for partition in rolled}
    failed: dict[int, SegmentsError] = {}
    for task, row in zip(copies, rows, strict=True):
        if isinstance(row, SegmentsError):
            failed.setdefault(task.planned.partition, row)
        else:
            by_partition[task.planned.partition].copies[task.planned] = row
    for number, error in failed.items():
        job.report.fail(wave.snapshot.topic, number, error)
        # No commit names these files. If they were left to vacuum, a partition that fails in each run would pile them
        # up.
        discard(job.storage, by_partition[number].copies.values())
    return [partition for partition in rolled if partition.partition not in failed]
