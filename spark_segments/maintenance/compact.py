"""Compaction: key-based cleaning of the partitions that are due, in parallel over the cluster, as Kafka's cleaner does
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_segments.config import TopicConfig, server_config
from spark_segments.errors import SegmentsError
from spark_segments.execution import try_tasks
from spark_segments.format.clean import CleanCounts
from spark_segments.log.logdir import LogDir
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.cleaner import CleanResult, CleanSettings, clean_partition
from spark_segments.maintenance.compact_plan import Candidate, plan_compaction
from spark_segments.maintenance.report import LOST, Report
from spark_segments.maintenance.selection import selected_topics
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class _CleanTask:
    settings: CleanSettings
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class _Clean:
    """Task function: cleans one partition."""

    storage: Storage

    def __call__(self, task: _CleanTask) -> CleanResult:
        candidate = task.candidate
        return clean_partition(self.storage, task.settings, candidate.partition, candidate.first_uncleanable_offset)


def compact(
    log: LogDir,
    spark: SparkSession | None = None,
    topic: str | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    *,
    force: bool = False,
    max_partitions: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Compacts the partitions of compacted topics that are due at `now_ms`, filthiest first, at most `max_partitions`.

    `force` takes whatever has cleanable bytes. A partition is one task, the largest ones begin first; each of its
    rounds is one commit. One that fails, for a damaged file say, is left to the next run: see `Report`. A task's memory
    is bounded by log.cleaner.dedupe.buffer.size for the map (1.25 times that while it grows) and some windows of the
    segments. In this process the buffer is shared by the tasks that run at a time.
    """
    report = Report("compact", dry_run)
    started_ms = log.storage.now_ms()
    now_ms = started_ms if now_ms is None else now_ms
    server = server_config({}, log.defaults)
    found: list[tuple[Snapshot, TopicConfig, Candidate]] = []
    for snapshot, config in selected_topics(log, topic, report, "compact"):
        if server.log_cleaner_enable:
            plan = plan_compaction(snapshot.live, snapshot.partitions, config, now_ms, force=force)
            found += [(snapshot, config, candidate) for candidate in plan]
    found.sort(key=lambda one: -one[2].ratio)
    picked = [one for one in found if one[2].picked][:max_partitions]
    if dry_run:
        for snapshot, _, candidate in found:
            _note_plan(report, snapshot, candidate, within=any(candidate is one[2] for one in picked))
        return report.finish()
    picked.sort(key=lambda one: -(one[2].clean_bytes + one[2].cleanable_bytes))
    shared = 1 if spark is not None else max(1, min(len(picked), server.log_cleaner_threads))
    tasks = [
        _CleanTask(
            CleanSettings(
                snapshot.topic,
                snapshot.topic_id,
                config,
                now_ms,
                server.log_cleaner_dedupe_buffer_size // shared,
                server.log_cleaner_io_buffer_load_factor,
                started_ms,
            ),
            candidate,
        )
        for snapshot, config, candidate in picked
    ]
    results = try_tasks(_Clean(log.storage), tasks, spark, progress=progress, at_a_time=None if spark else shared)
    for task, result in zip(tasks, results, strict=True):
        if isinstance(result, SegmentsError):
            report.fail(task.settings.topic, task.candidate.partition, result)
        else:
            _note(report, task, result)
    return report.finish()


def _note_plan(report: Report, snapshot: Snapshot, candidate: Candidate, *, within: bool) -> None:
    report.add(
        snapshot.topic,
        candidate.partition,
        "compact" if within else "leave",
        reason=candidate.reason if within or not candidate.picked else "above --max-partitions",
        dirty_ratio=round(candidate.ratio, 4),
        clean_bytes=candidate.clean_bytes,
        cleanable_bytes=candidate.cleanable_bytes,
        first_dirty_offset=candidate.first_dirty_offset,
        first_uncleanable_offset=candidate.first_uncleanable_offset,
    )


def _note(report: Report, task: _CleanTask, result: CleanResult) -> None:
    counts = result.counts
    report.add(
        task.settings.topic,
        result.partition,
        LOST if result.lost else "compact",
        records_in=counts.records_read,
        records_out=counts.records_kept,
        bytes_in=counts.bytes_read,
        bytes_out=counts.bytes_written,
        dropped=dropped(counts),
        rounds=result.rounds,
        indexed=result.indexed,
        segments_in=result.segments_in,
        segments_out=result.segments_out,
        written_bytes=result.bytes_written,
        reduction=round(1 - counts.bytes_written / counts.bytes_read, 4) if counts.bytes_read else 0.0,
        tombstones_kept=counts.tombstones_kept,
        first_dirty_offset=result.first_dirty_offset,
    )


def dropped(counts: CleanCounts) -> dict[str, int]:
    """Records that cleaning dropped, by reason."""
    reasons = {
        "superseded": counts.superseded,
        "tombstone": counts.tombstone,
        "no_key": counts.no_key,
        "aborted": counts.aborted,
        "control": counts.control,
    }
    return {reason: count for reason, count in reasons.items() if count}
