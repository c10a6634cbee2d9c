"""Rolling: a partition's active segment becomes sealed segments, and many small chunks become one.

Batches are copied, not decoded: what changes in them is the base offset and the leader epoch, which lie outside their
CRC.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_segments.config import topic_config
from spark_segments.errors import SegmentsError
from spark_segments.execution import in_bins, task_slots, try_tasks
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.swap import RowSwap
from spark_segments.log.report import Report, first_and_last
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.rolling.copies import CopySegments, CopyTask, copied
from spark_segments.maintenance.rolling.plan import PartitionToRoll, RollPlan, RollRules, plan_roll
from spark_segments.maintenance.rolling.planned_segments import RolledPartition, plan_segments
from spark_segments.maintenance.selection import selected_topics
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE_PARTITIONS = 1000
WAVE_BYTES_A_SLOT = 2 << 30
"""A wave has this many partitions at most, and ends once it has this many bytes for each task slot. Each wave is one
commit: a job that is killed loses the work of its last wave only."""


@dataclass(frozen=True, slots=True)
class _RollJob:
    """A run of the job: where it works, the moment it plans by, and the report it fills."""

    log: LogDirectory
    spark: SparkSession | None
    now_ms: int
    report: Report


@dataclass(frozen=True, slots=True)
class _Wave:
    """Partitions of a topic that are rolled in one commit, and the snapshot and rules that they are rolled by."""

    snapshot: Snapshot
    rules: RollRules
    plan: RollPlan
    partitions: list[PartitionToRoll]


def roll(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: int | None = None,
) -> Report:
    """Rolls what is due at `now_ms`, by Kafka's rules, and merges small chunks.

    Planning the segments of a partition is a task, and so is copying a segment. A topic's partitions are rolled in
    waves, and each wave is one commit. A partition that another job changed meanwhile is left to the next run, and its
    new files to vacuum. A partition that fails, for a damaged file say, is left to the next run, too: see `Report`.
    Each wave follows the topic's configuration at the moment when the wave begins. A dry run says which partitions are
    due and why, and opens no segment.

    A partition's line in the report has `sealed_segments`, how many segments were sealed. `sealed` has their base
    offsets: all of them, or the first and the last few where there are many (see `first_and_last`).
    """
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    job = _RollJob(log, spark, now_ms, Report("roll", dry_run))
    for snapshot, config in selected_topics(log, topics, job.report):
        rules = RollRules.of(snapshot.topic_id, config)
        plan = plan_roll(snapshot.live, rules, now_ms)
        if dry_run:
            _note_plan(job.report, snapshot, plan)
            continue
        done, total = 0, len(plan.partitions)
        for partitions in _waves(plan.partitions, WAVE_BYTES_A_SLOT * task_slots(spark)):
            wave = _Wave(snapshot, rules, plan, partitions)
            try:
                wave = _planned_anew_if_altered(job, wave) if done else wave
            except SegmentsError as error:
                for one in partitions:
                    job.report.fail(snapshot.topic, one.partition, error)
            else:
                _roll_wave(job, wave, _progress_within(progress, done, len(partitions), total))
            done += len(partitions)
            if progress is not None:
                progress(done, total)
    return job.report.finish()


def _waves(partitions: Sequence[PartitionToRoll], wave_bytes: int) -> Iterator[list[PartitionToRoll]]:
    return in_bins(
        partitions,
        lambda one: one.log_bytes,
        lambda wave, log_bytes, _: log_bytes >= wave_bytes or len(wave) == WAVE_PARTITIONS,
    )


def _planned_anew_if_altered(job: _RollJob, wave: _Wave) -> _Wave:
    """The same partitions as they are to be rolled now: the topic may have been altered since they were planned."""
    snapshot = job.log.snapshot(wave.snapshot.topic)
    rules = RollRules.of(wave.snapshot.topic_id, topic_config(snapshot.config, job.log.defaults))
    # If another topic has the name now, the commit refuses the wave.
    if snapshot.topic_id != wave.snapshot.topic_id or rules == wave.rules:
        return wave
    plan = plan_roll(snapshot.live, rules, job.now_ms)
    numbers = {one.partition for one in wave.partitions}
    return _Wave(snapshot, rules, plan, [one for one in plan.partitions if one.partition in numbers])


def _progress_within(progress: Progress | None, before: int, partitions: int, total: int) -> Progress | None:
    """Progress in partitions, from the progress of one wave's copies."""
    if progress is None:
        return None
    return lambda done, tasks: progress(before + partitions * done // tasks, total)


def _roll_wave(job: _RollJob, wave: _Wave, progress: Progress | None) -> None:
    """Writes the segments of a wave, commits them and notes what was done."""
    snapshot = wave.snapshot
    rolled = _copied(job, wave, _segments_of_wave(job, wave), progress)
    if not rolled:
        return
    chunks = {one.partition: list(one.chunks) for one in rolled}

    def is_first(swap: RowSwap, live: Sequence[Segment]) -> bool:
        # Only appends may have followed. A restore may have made chunks of segments that were sealed before, and a
        # chunk below a sealed segment would be merged across it.
        wanted = chunks[swap.partition]
        return [row for row in live if row.state == Segment.CHUNK][: len(wanted)] == wanted

    try:
        made = job.log.manifest(snapshot.topic).swap_rows(
            "roll",
            [one.swap() for one in rolled if one.replaced_chunks],
            topic_id=snapshot.topic_id,
            holds=is_first,
        )
        committed = {swap.partition for swap in made}
    except SegmentsError as error:
        for one in rolled:
            job.report.fail(snapshot.topic, one.partition, error)
        return
    reasons = {one.partition: list(one.reasons) for one in wave.partitions}
    for one in rolled:
        _note(job.report, snapshot.topic, one, reasons[one.partition], lost=one.partition not in committed)


def _segments_of_wave(job: _RollJob, wave: _Wave) -> list[RolledPartition]:
    """The planned segments of each partition that has any. Partitions that fail are noted and left out."""
    chunks = {one.partition: wave.plan.chunks_of(one) for one in wave.partitions}
    plan = partial(plan_segments, job.log.storage, rules=wave.rules, now_ms=job.now_ms, merge=wave.plan.merge)
    by_headers = [one.partition for one in wave.partitions if one.needs_headers]
    work = [chunks[number] for number in by_headers]
    tried = try_tasks(plan, work, job.spark, at_a_time=job.log.storage.tasks_at_a_time)
    found = dict(zip(by_headers, tried, strict=True))
    rolled = []
    for one in wave.partitions:
        number = one.partition
        planned = found[number] if one.needs_headers else plan(chunks[number])
        if isinstance(planned, SegmentsError):
            job.report.fail(wave.snapshot.topic, number, planned)
        elif planned:
            rolled.append(RolledPartition(number, chunks[number], planned, {}))
    return rolled


def _copied(
    job: _RollJob, wave: _Wave, rolled: Sequence[RolledPartition], progress: Progress | None
) -> list[RolledPartition]:
    """The partitions, with their segments written out. Partitions that fail are noted and left out."""
    epochs = {
        row.partition: LeaderEpochs.of_copies(wave.snapshot, row)
        for row in Partition.of_table(wave.snapshot.partitions)
    }
    copies = [
        CopyTask(planned, epochs[one.partition])
        for one in rolled
        for planned in one.planned
        if not (planned.sealed and planned.is_one_chunk)
    ]
    copy = CopySegments(job.log.storage, wave.snapshot.topic, wave.rules)
    rows = copied(copy, copies, job.spark, progress=progress)
    by_partition = {one.partition: one for one in rolled}
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
        discard(job.log.storage, by_partition[number].copies.values())
    return [one for one in rolled if one.partition not in failed]


def _note_plan(report: Report, snapshot: Snapshot, plan: RollPlan) -> None:
    for one in plan.partitions:
        report.add(
            snapshot.topic, one.partition, "roll",
            records_in=one.records, records_out=one.records, bytes_in=one.log_bytes, bytes_out=one.log_bytes,
            reasons=list(one.reasons), chunks=one.rows,
        )  # fmt: skip


def _note(report: Report, topic: str, rolled: RolledPartition, reasons: list[str], *, lost: bool) -> None:
    if lost:
        report.add(topic, rolled.partition, Report.LOST, reasons=reasons)
        return
    replaced, files = rolled.replaced_chunks, rolled.files
    sealed = [planned.base_offset for planned in rolled.planned if planned.sealed]
    report.add(
        topic, rolled.partition, "roll",
        records_in=sum(chunk.records for chunk in replaced),
        records_out=sum(row.records for row in files),
        bytes_in=sum(chunk.log_bytes for chunk in replaced),
        bytes_out=sum(row.log_bytes for row in files),
        reasons=reasons,
        chunks=len(replaced),
        sealed_segments=len(sealed),
        sealed=first_and_last(sealed),
        merged=sum(1 for planned in rolled.planned if not planned.sealed),
        copied_bytes=sum(row.log_bytes for row in rolled.copies.values()),
    )  # fmt: skip
