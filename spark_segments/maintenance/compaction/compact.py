"""Compaction: key-based cleaning of the partitions that are due, in parallel over the cluster, as Kafka's cleaner does
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from spark_segments.config import server_config
from spark_segments.errors import SegmentsError
from spark_segments.execution import task_slots, try_tasks
from spark_segments.format.cleaner.clean import CleanCounts
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.maintenance.compaction.parallel_round import CleanByTasks
from spark_segments.maintenance.compaction.partition_cleaner import CleanResult, clean_partition
from spark_segments.maintenance.compaction.plan import Candidate, count_large, plan_compaction
from spark_segments.maintenance.compaction.round import CleanSettings, clean_round
from spark_segments.maintenance.report import FAILED, LOST, Report
from spark_segments.maintenance.selection import selected_topics
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class _CleanTask:
    settings: CleanSettings
    candidate: Candidate
    so_far: CleanResult | None = None

    def with_map_bytes(self, map_bytes: int) -> _CleanTask:
        return replace(self, settings=replace(self.settings, map_bytes=map_bytes))


@dataclass(frozen=True, slots=True)
class _Clean:
    """Task function: cleans one partition, in this task or in others."""

    storage: Storage
    by_tasks: CleanByTasks | None = None

    def __call__(self, task: _CleanTask) -> CleanResult:
        return clean_partition(
            self.storage,
            task.settings,
            task.candidate.partition,
            task.candidate.first_uncleanable_offset,
            clean=self.by_tasks or clean_round,
            so_far=task.so_far,
        )


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

    `force` takes whatever has cleanable bytes. A partition is one task, the largest ones begin first; one that is much
    of all there is to do (`count_large`) is done by many tasks, before the others. Each round of a partition is one
    commit. A partition that fails, for a damaged file say, is left to the next run: see `Report`. Where that is in a
    later round, its line tells of the rounds before, too, which stand. Records without a key are removed, as Kafka's
    cleaner does, with one warning a topic.

    On Spark every slot of an executor is a task; in this process there are log.cleaner.threads. Over what an idle
    worker has, a task takes at most 1.25 times log.cleaner.dedupe.buffer.size for the offset map (the quarter only
    while it grows) and 100 MiB for windows of 8 MiB of the segments. That is 260 MiB by default, however large the
    segments, however many the keys, and however well they compress; only a record batch that is larger than a window
    takes more, some times its decompressed size. In this process all maps together share the buffer. On Spark the
    driver merges the maps of a large partition: it holds one such map, too.
    """
    report = Report("compact", dry_run)
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    server = server_config({}, log.defaults)
    found: list[tuple[Snapshot, Candidate]] = []
    for snapshot, config in selected_topics(log, topic, report, "compact"):
        if server.log_cleaner_enable:
            plan = plan_compaction(snapshot.live, snapshot.partitions, config, now_ms, force=force)
            found += [(snapshot, candidate) for candidate in plan]
    found.sort(key=lambda one: -one[1].ratio)
    picked = [one for one in found if one[1].picked][:max_partitions]
    if dry_run:
        for snapshot, candidate in found:
            _note_plan(report, snapshot, candidate, within=any(candidate is one[1] for one in picked))
        return report.finish()
    picked.sort(key=lambda one: -one[1].log_bytes)
    tasks = [
        _CleanTask(
            CleanSettings(
                snapshot.topic,
                snapshot.topic_id,
                log.defaults,
                now_ms,
                server.log_cleaner_dedupe_buffer_size,
                server.log_cleaner_io_buffer_load_factor,
                log.open_delta_log,
            ),
            candidate,
        )
        for snapshot, candidate in picked
    ]
    threads = server.log_cleaner_threads if spark is None else None
    without_key: Counter[str] = Counter()
    for task, result in _cleaned(log.storage, tasks, spark, threads, progress):
        if isinstance(result, SegmentsError):
            report.fail(task.settings.topic, task.candidate.partition, result)
        else:
            _note(report, task, result)
            without_key[task.settings.topic] += result.counts.no_key
    for name, count in without_key.items():
        if count:
            report.warn(
                f"Topic {name} is compacted and held {count:,} records without a key, appended before it was or "
                "imported: compaction has removed them, as Kafka's does"
            )
    return report.finish()


def _cleaned(
    storage: Storage,
    tasks: Sequence[_CleanTask],
    spark: SparkSession | None,
    threads: int | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[_CleanTask, CleanResult | SegmentsError]]:
    """Cleans partitions, the largest first: large ones by all slots, one after the other, then the rest side by side.

    `threads`: of this process, None on Spark.
    """

    def told(before: int) -> Callable[[int, int], None] | None:
        return None if progress is None else lambda done, _: progress(before + done, len(tasks))

    slots = threads or task_slots(spark)
    large = count_large([task.candidate.log_bytes for task in tasks], slots)
    # Threads share the map's memory: one part each while slices are read, and two for the merged map.
    parts = 1 if threads is None else threads + 2
    slice_bytes = tasks[0].settings.map_bytes // parts if tasks else 0
    by_tasks = CleanByTasks(slots, slice_bytes, slice_bytes * min(parts, 2), spark)
    rest = []
    results = try_tasks(_Clean(storage, by_tasks), tasks[:large], at_a_time=1, progress=told(0))
    for task, result in zip(tasks[:large], results, strict=True):
        if isinstance(result, CleanResult) and result.unfinished:
            rest.append(replace(task, so_far=result))
        else:
            yield task, result
    rest += tasks[large:]
    at_a_time = None if threads is None else max(1, min(len(rest), threads))
    alone = [task.with_map_bytes(task.settings.map_bytes // (at_a_time or 1)) for task in rest]
    results = try_tasks(_Clean(storage), alone, spark, at_a_time=at_a_time, progress=told(len(tasks) - len(rest)))
    yield from zip(rest, results, strict=True)


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
    counts, failed = result.counts, {"error": str(result.error)} if result.error is not None else {}
    report.add(
        task.settings.topic,
        result.partition,
        FAILED if failed else LOST if result.lost else "compact",
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
        **failed,
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
