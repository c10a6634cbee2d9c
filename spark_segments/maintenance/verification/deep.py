"""The deep look of a verification, which reads every byte of a topic's segments, and the repair that follows it.

It is imported where it is asked for: a quick check needs no kernel of reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_segments.config import SegmentLimits, TopicConfig
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import Hole
from spark_segments.maintenance.verification.keys import KeysTask, verify_keys
from spark_segments.maintenance.verification.manifest_rows import well_named
from spark_segments.maintenance.verification.repair import Rebuild, commit_repairs, rebuild_sidecars
from spark_segments.maintenance.verification.segments import SegmentFacts, SegmentTask, look_at
from spark_segments.maintenance.verification.transactions import aborted_by, check_transactions
from spark_segments.progress import Progress
from spark_segments.storage import FileInfo, Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_segments.maintenance.verification.verify import VerifiedTopic

_KEY_TASKS_AT_A_TIME = 2  # each holds a map of keys
SEGMENTS_A_WAVE = 10_000
"""How many segments have their facts, some kilobytes each, in memory together."""

_SEGMENTS_A_TASK_BYTES = 256 << 20  # on Spark, a task checks many small segments


def _look_at_all(storage: Storage, tasks: Sequence[SegmentTask]) -> list[SegmentFacts]:
    """Task function: the facts of several segments."""
    return [look_at(storage, task) for task in tasks]


def look_deep(
    storage: Storage,
    snapshot: Snapshot,
    config: TopicConfig,
    files: Mapping[str, FileInfo] | None,
    findings: Findings,
    spark: SparkSession | None,
    progress: Progress | None,
    *,
    keep: bool = False,
) -> tuple[int, dict[int, list[SegmentFacts]]]:
    """Checks every live segment, then what only several segments of a partition show together.

    Partitions are done in waves, so that the facts of a topic's segments are not in memory together. Returns the bytes
    that were read, and {partition: facts in order} of all of them to `keep`, else of none. `files`: what is there, by
    path; None in a directory that Kafka wrote.
    """
    by_kafka = files is None
    named = set() if by_kafka else well_named(snapshot)
    kept: dict[int, list[SegmentFacts]] = {}
    bytes_read = 0
    is_compacted = "compact" in config.cleanup_policy
    for partitions in _waves(snapshot):
        tasks = [
            SegmentTask(
                snapshot.topic,
                segment,
                row.log_start_offset,
                row.leader_epochs,
                SegmentLimits.of(config),
                by_kafka,
                is_compacted or bool(Hole.within(snapshot, number, segment.next_offset - 1, segment.next_offset)),
            )
            for number, row in partitions.items()
            for segment in snapshot.live_of(number)
            if files is None or (segment.path in files and segment.path in named)
        ]
        facts: dict[int, list[SegmentFacts]] = {number: [] for number in partitions}
        look, at_a_time = partial(_look_at_all, storage), storage.tasks_at_a_time
        grouped = _grouped(tasks, spark)
        for several in run_tasks(look, grouped, spark, progress=progress, at_a_time=at_a_time, size=_size):
            for one in several:
                facts[one.segment.partition].append(one)
                findings.found += one.findings
                findings.left_out += one.left_out
                bytes_read += one.bytes_read
        if not by_kafka:  # recovery has compared the sidecars that Kafka wrote with the log
            for number, segments in facts.items():
                if not any(one.damaged for one in segments):
                    transactions = [one.transactions for one in segments]
                    findings.partition = number
                    check_transactions(transactions, aborted_by(transactions), findings)
            findings.partition = None
            if not is_compacted:
                for number, segments in facts.items():
                    check_gaps(snapshot, partitions[number], segments, findings)
        _check_keys(storage, snapshot, config, by_kafka, partitions, facts, findings, spark)
        if keep:
            kept |= facts
    return bytes_read, kept


def _waves(snapshot: Snapshot) -> Iterator[dict[int, Partition]]:
    """The partitions, as many at a time as have SEGMENTS_A_WAVE live segments; a single one may have more."""
    rows = Partition.of_table(snapshot.partitions)
    sizes = {row.partition: snapshot.live_table(row.partition).num_rows for row in rows}
    waves = in_bins(
        rows,
        lambda row: sizes[row.partition],
        lambda _, total, row: total + sizes[row.partition] > SEGMENTS_A_WAVE,
    )
    return ({row.partition: row for row in wave} for wave in waves)


def _size(tasks: list[SegmentTask]) -> int:
    return sum(task.segment.log_bytes for task in tasks)


def _grouped(tasks: Sequence[SegmentTask], spark: SparkSession | None) -> list[list[SegmentTask]]:
    def begins(_: list[SegmentTask], total: int, task: SegmentTask) -> bool:
        return spark is None or total + task.segment.log_bytes > _SEGMENTS_A_TASK_BYTES

    return list(in_bins(tasks, lambda task: task.segment.log_bytes, begins))


def _check_keys(
    storage: Storage,
    snapshot: Snapshot,
    config: TopicConfig,
    by_kafka: bool,
    partitions: Mapping[int, Partition],
    facts: Mapping[int, list[SegmentFacts]],
    findings: Findings,
    spark: SparkSession | None,
) -> None:
    """Checks the clean tails whose segments are all whole."""
    if not by_kafka and "compact" not in config.cleanup_policy:
        return
    tasks = []
    for number, row in partitions.items():
        tail = [one for one in facts[number] if one.segment.base_offset < row.first_dirty_offset]
        if row.first_dirty_offset <= row.log_start_offset or not tail or any(one.damaged for one in tail):
            continue
        aborted = AbortedTransactions.concatenate(aborted_by(one.transactions for one in facts[number]).values())
        segments = tuple(one.segment for one in tail)
        tasks.append(KeysTask(snapshot.topic, number, segments, row.log_start_offset, row.first_dirty_offset, aborted))
    for found in run_tasks(partial(verify_keys, storage), tasks, spark, at_a_time=_KEY_TASKS_AT_A_TIME):
        findings.found += found


def repair(
    topic: VerifiedTopic,
    config: TopicConfig,
    facts: Mapping[int, list[SegmentFacts]],
    findings: Findings,
    spark: SparkSession | None,
) -> dict[str, dict[str, Any]]:
    """Rebuilds sidecars of whole segments that have a finding which a rebuild corrects. Returns a line of each, by
    the `Segment.place` that it had."""
    wanted = {finding.rebuilds for finding in findings.found if finding.rebuilds is not None}
    tasks = []
    for segments in facts.values():
        aborted = aborted_by(one.transactions for one in segments)
        whole = not any(one.damaged for one in segments)
        for one in segments:
            # Only all segments together show which transactions the markers of a segment abort.
            known = whole or not one.transactions.events.has_aborts
            if one.segment.place in wanted and not one.damaged and known:
                tasks.append(Rebuild(topic.name, one.segment, aborted[one.segment.place], SegmentLimits.of(config)))
    if not tasks:
        return {}
    new = run_tasks(partial(rebuild_sidecars, topic.log.storage), tasks, spark)
    old = [task.segment for task in tasks]
    committed = {segment.path for segment in commit_repairs(topic.log.manifest(topic.name), old, new)}
    return {
        before.place: {"partition": after.partition, "path": before.path, "new_path": after.path}
        for before, after in zip(old, new, strict=True)
        if after.path in committed
    }


MESSAGE = "Offsets between segments are missing, and no hole of the topic explains them"


def check_gaps(snapshot: Snapshot, row: Partition, facts: Sequence[SegmentFacts], findings: Findings) -> None:
    """Adds a finding for each gap of a partition that is not compacted here. `facts`: of its segments, in order."""
    there = [one for one in facts if one.offsets is not None]
    if any(one.damaged for one in facts):
        return
    for one, following in itertools.pairwise(there):
        assert one.offsets is not None and following.offsets is not None
        start, end = max(one.offsets[1], row.first_dirty_offset, row.log_start_offset), following.offsets[0]
        if start >= end or one.was_cleaned or following.was_cleaned:
            continue
        holes = Hole.within(snapshot, row.partition, start, end)
        if not any(hole.start_offset <= start and end <= hole.end_offset for hole in holes):
            findings.add(
                MESSAGE,
                rule="M27",
                partition=row.partition,
                path=following.segment.path,
                byte_position=following.segment.byte_position,
                expected=f"a batch at offset {start}",
                found=f"offset {end}; if its source still has them, import the partition anew: segments import into "
                f"another log directory, or into this one after segments topic delete {snapshot.topic}",
            )
