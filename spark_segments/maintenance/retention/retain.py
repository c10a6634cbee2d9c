"""Retention: whole sealed segments leave a partition's log because of their age, of its size, or of the log start.

plan.py says which segments these are. `plan_log_directory` adds to them if a whole log directory must stay under a
size. The active segment is never touched: where all of it has expired, roll seals it first (`emptied_partitions`).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.extensions import observed
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import Segment, removed_rows, with_column
from spark_segments.log.manifest.state.snapshot import Snapshot, live_rows
from spark_segments.log.report import Report
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.retention.plan import (
    MAX_BYTES,
    REASONS,
    RETENTION_MS,
    Expired,
    is_sealed,
    newest_ms,
    partition_runs,
    plan_retention,
    prefix,
)
from spark_segments.progress import Progress
from spark_segments.quantities import Duration, Time, span_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_RETENTION_MS = 86_400_000
"""The default floor: a day, as long as Redpanda keeps records on its disks by default."""


@observed("retain")
def retain(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    max_bytes: int | None = None,
    min_retention_ms: Duration = MIN_RETENTION_MS,
    planned: dict[str, Snapshot] | None = None,
) -> Report:
    """Applies retention.ms, retention.bytes and the log start. Files stay until vacuum.

    With `max_bytes`, further sealed segments go until the live files of all topics have no more
    bytes. The oldest segments of all topics whose cleanup.policy has delete go first, also before their retention.ms,
    but no segment with a record younger than `min_retention_ms`. A partition's line says in `shortened_to_ms`
    which retention.ms would have removed the same, and the report in `over_bytes` by how much the size was missed. All
    topics are planned together, then each topic is one commit. If several runs overlap, no run removes what another run
    has made unnecessary.

    The job moves no data: it takes `spark` and `progress` because all jobs do, and uses neither. Raises
    InvalidOptionError for `topics` together with `max_bytes`, and for a negative `max_bytes` or `min_retention_ms`.
    """
    job = Job.of("retain", log, topics, spark, dry_run, progress, now_ms, planned)
    if max_bytes is not None and topics is not None:
        found = ", ".join(topics)
        raise InvalidOptionError("max_bytes is a limit for a whole log directory", expected="no topic", found=found)
    least_ms = span_ms(min_retention_ms)
    snapshots: Iterable[Snapshot] = (snapshot for snapshot, _ in job.snapshots(load=False))
    limit = None
    if max_bytes is not None:
        snapshots = [*snapshots]
        limit = plan_log_directory(job, snapshots, max_bytes, least_ms)
    for snapshot in snapshots:
        try:
            before, expired = _retain_topic(job, snapshot, limit)
            for line in _lines(before, expired, job.now_ms):
                job.report.add(snapshot.topic, **line)
            if limit is not None:
                limit.note(before, expired)
        except SegmentsError as error:
            job.report.fail(snapshot.topic, None, error)
            if limit is not None:
                limit.note_failed(snapshot)
    if limit is not None:
        job.report.details |= limit.figures()
    return job.report.finish()


def _retain_topic(job: Job, snapshot: Snapshot, limit: MaxBytesPlan | None) -> tuple[Snapshot, Expired]:
    """(the snapshot that rows are removed from, the rows that are removed)"""
    if not job.dry_run and len(_expired(job, snapshot, limit).rows):
        commit = job.log.manifest(snapshot.topic).commit(
            lambda current: _change(current, _expired(job, current, limit), job.storage.now_ms())
        )
        snapshot = commit.snapshot_before
        if commit.change is None:
            return snapshot, Expired(np.empty(0, np.int64), np.empty(0, np.int8))
    expired = _expired(job, snapshot, limit)
    if job.planned is not None and len(expired.rows):
        job.planned[snapshot.topic] = _as_retained(job, snapshot, expired)
    return snapshot, expired


def _as_retained(job: Job, snapshot: Snapshot, expired: Expired) -> Snapshot:
    """The topic as retention would leave it, had it run whenever something expired."""
    rows = snapshot.live.take(expired.rows)
    # The plan may be for a moment to come. What has expired by now leaves now, what expires later leaves then.
    left_ms = np.full(len(expired.rows), min(job.now_ms, job.storage.now_ms()))
    by_age = expired.reason == REASONS.index(RETENTION_MS)
    due_ms = np.minimum(newest_ms(rows)[by_age] + job.config(snapshot).retention_ms + 1, job.now_ms)
    left_ms[by_age] = np.maximum(left_ms[by_age], due_ms)
    gone = with_column(removed_rows(rows, 0), "removed_ms", pa.array(left_ms))
    return snapshot.holding(pa.concat_tables([Segment.without(snapshot.segments, rows), gone]))


def _expired(job: Job, snapshot: Snapshot, limit: MaxBytesPlan | None) -> Expired:
    # The snapshot's configuration decides: a topic that was altered a moment ago keeps what it must keep from now on.
    config = job.config(snapshot)
    starts = snapshot.partitions.column("log_start_offset").to_numpy()
    expired = plan_retention(snapshot.live, starts, config, job.now_ms)
    # By topic id: a topic that was made again meanwhile has other segments, and begins at offset 0. By name, the ends
    # of the topic before it would remove its first records.
    ends = limit.ends.get(snapshot.topic_id) if limit is not None and config.delete else None
    return expired if ends is None else with_max_bytes(snapshot.live, expired, ends)


def _change(snapshot: Snapshot, expired: Expired, removed_ms: int) -> Change | None:
    if len(expired.rows) == 0:
        return None
    rows = snapshot.live.take(expired.rows)
    owner = rows.column("partition").to_numpy()
    starts = snapshot.partitions.column("log_start_offset").to_numpy().copy()
    # Never lower than it is: a deletion of records can have put the log start into the middle of a later segment.
    #
    #   |expired|expired|segment ... log start ...|
    #                   ^ next offset of the rows
    np.maximum.at(starts, owner, rows.column("next_offset").to_numpy())
    changed = np.unique(owner)
    moved = snapshot.partitions.take(changed)
    moved = with_column(moved, "log_start_offset", pa.array(starts[changed]))
    return Change(Operation.RETAIN, replace=removed_rows(rows, removed_ms), partitions=moved)


def _lines(snapshot: Snapshot, expired: Expired, now_ms: int) -> Iterator[dict[str, Any]]:
    """The line in the report of each partition that loses rows."""
    live = snapshot.live
    owner = live.column("partition").to_numpy()
    records, log_bytes = live.column("records").to_numpy(), live.column("log_bytes").to_numpy()
    next_offset = live.column("next_offset").to_numpy()
    count = snapshot.partitions.num_rows
    gone, gone_owner = expired.rows, owner[expired.rows]
    all_records = _sums(owner, records, count)
    all_bytes = _sums(owner, log_bytes, count)
    gone_bytes = _sums(gone_owner, log_bytes[gone], count)
    gone_segments = np.bincount(gone_owner, minlength=count)
    for_reason = [expired.reason == number for number in range(len(REASONS))]
    dropped_records = [_sums(gone_owner[mine], records[gone[mine]], count) for mine in for_reason]
    dropped_segments = [np.bincount(gone_owner[mine], minlength=count) for mine in for_reason]
    shortened = expired.reason == REASONS.index(MAX_BYTES)
    youngest = np.full(count, -1)
    np.maximum.at(youngest, gone_owner[shortened], newest_ms(live)[gone[shortened]])
    last = np.searchsorted(gone_owner, np.arange(count), side="right") - 1
    for partition in np.flatnonzero(gone_segments):
        dropped = {
            name: int(dropped_records[number][partition])
            for number, name in enumerate(REASONS)
            if dropped_segments[number][partition]
        }
        line = {
            "partition": int(partition),
            "action": "retain",
            "records_in": int(all_records[partition]),
            "records_out": int(all_records[partition]) - sum(dropped.values()),
            "bytes_in": int(all_bytes[partition]),
            "bytes_out": int(all_bytes[partition] - gone_bytes[partition]),
            "dropped": dropped,
            "segments": int(gone_segments[partition]),
            "log_start_offset": int(next_offset[gone[last[partition]]]),
        }
        # More than this time has passed since the youngest record that was removed.
        yield line | ({"shortened_to_ms": now_ms - int(youngest[partition]) - 1} if MAX_BYTES in dropped else {})


def _sums(owner: np.ndarray, values: np.ndarray, partitions: int) -> np.ndarray:
    """int64[partitions]: the sum of the values of each."""
    sums = np.zeros(partitions, np.int64)
    np.add.at(sums, owner, values)
    return sums


_NOTHING = -1
_SIZES = ("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes")


@dataclass(frozen=True, slots=True)
class TopicSizes:
    """The sizes of a topic's segments once retention has removed what has expired.

    Segments that may go, in log order: `partition`, `next_offset`, `size_bytes` and `going_ms` (int64[n] each).
    `going_ms` is the largest timestamp of a segment and all before it: it goes with them or after them. Bytes that must
    stay, by reason: `active_bytes` are in active segments; `young_bytes` are in segments with a record younger than the
    floor, or after such a segment; `compacted_bytes` are in a topic that is only compacted. `partitions`: how many the
    topic has.
    """

    partitions: int
    partition: np.ndarray
    next_offset: np.ndarray
    going_ms: np.ndarray
    size_bytes: np.ndarray
    active_bytes: int
    young_bytes: int
    compacted_bytes: int

    @property
    def live_bytes(self) -> int:
        return int(self.size_bytes.sum()) + self.active_bytes + self.young_bytes + self.compacted_bytes


def topic_sizes(
    live: pa.Table, expired: Expired, config: TopicConfig, now_ms: int, min_retention_ms: int, partitions: int
) -> TopicSizes:
    """The sizes of a topic, from its live rows (sorted by partition and offset) without the `expired` rows."""
    owner = live.column("partition").to_numpy()
    left = np.ones(live.num_rows, bool)
    left[expired.rows] = False
    sizes = np.where(left, file_bytes(live), 0)
    may_go, going_ms = np.zeros(live.num_rows, bool), np.where(left, newest_ms(live), -1)
    active = left & ~is_sealed(live)
    if config.delete and live.num_rows:
        first_row, rows = partition_runs(owner)
        for start, end in zip(first_row.tolist(), (first_row + rows).tolist(), strict=True):
            np.maximum.accumulate(going_ms[start:end], out=going_ms[start:end])
        may_go = left & prefix(~left | (~active & (now_ms - going_ms > min_retention_ms)), first_row, rows)
    stays = int(sizes[~may_go & ~active].sum())
    return TopicSizes(
        partitions,
        owner[may_go].astype(np.int64),
        live.column("next_offset").to_numpy()[may_go],
        going_ms[may_go],
        sizes[may_go],
        active_bytes=int(sizes[active].sum()),
        young_bytes=stays if config.delete else 0,
        compacted_bytes=0 if config.delete else stays,
    )


def plan_max_bytes(topics: Sequence[TopicSizes], max_bytes: int) -> list[np.ndarray]:
    """Which segments go so that all topics together are within `max_bytes`: for each topic int64[partitions], the next
    offset of the last segment that goes; -1 if none goes.

    The oldest segments of all topics go first, and no more than necessary. Ties go by topic, partition and offset. If
    removing everything that may go is not enough, all of it goes.
    """
    ends = [np.full(topic.partitions, _NOTHING) for topic in topics]
    over = sum(topic.live_bytes for topic in topics) - max_bytes
    if over <= 0:
        return ends
    oldest_first = np.argsort(np.concatenate([topic.going_ms for topic in topics]), kind="stable")
    running = np.cumsum(np.concatenate([topic.size_bytes for topic in topics])[oldest_first])
    # `running` at a row is what has gone with it. The first row at which that reaches `over` still goes, for it is the
    # one that brings the size under the limit: hence the + 1. Behind the last row the slice takes all.
    taken = np.zeros(len(oldest_first), bool)
    taken[oldest_first[: np.searchsorted(running, over) + 1]] = True
    of_topics = np.split(taken, np.cumsum([len(topic.size_bytes) for topic in topics])[:-1])
    for end, topic, mine in zip(ends, topics, of_topics, strict=True):
        np.maximum.at(end, topic.partition[mine], topic.next_offset[mine])
    return ends


def with_max_bytes(live: pa.Table, expired: Expired, ends: np.ndarray) -> Expired:
    """The expired rows and the sealed rows that end at or below `ends`, which `plan_max_bytes` gives for the topic.

    If `ends` were planned from an earlier snapshot, no more goes than was planned.
    """
    if live.num_rows == 0:
        return expired
    owner = live.column("partition").to_numpy()
    ends = np.append(ends, np.full(max(0, int(owner[-1]) + 1 - len(ends)), _NOTHING))  # partitions that are new
    goes = live.column("next_offset").to_numpy() <= ends[owner]
    goes[expired.rows] = True
    rows = np.flatnonzero(prefix(goes & is_sealed(live), *partition_runs(owner)))
    reason = np.full(live.num_rows, REASONS.index(MAX_BYTES), np.int8)
    reason[expired.rows] = expired.reason
    return Expired(rows, reason[rows])


def file_bytes(rows: pa.Table) -> np.ndarray:
    """int64[n]: the size of each row's files, sidecars included."""
    return sum((rows.column(name).to_numpy() for name in _SIZES), start=np.zeros(rows.num_rows, np.int64))


@dataclass(slots=True)
class MaxBytesPlan:
    """The plan that keeps a log directory under a size, and what came of it.

    By topic id: `ends`, see `plan_max_bytes`, and `planned_bytes`, which were live at the plan. The rest are figures
    for the report.
    """

    max_bytes: int
    ends: dict[str, np.ndarray] = field(default_factory=dict)
    planned_bytes: dict[str, int] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    live_bytes: int = 0
    waiting_bytes: int = 0

    def note(self, before: Snapshot, expired: Expired) -> None:
        """Counts the bytes that a topic still has, and the removed bytes."""
        sizes = file_bytes(before.live)
        gone = int(sizes[expired.rows].sum())
        self.live_bytes += int(sizes.sum()) - gone
        self.waiting_bytes += gone

    def note_failed(self, snapshot: Snapshot) -> None:
        """Counts a topic that could not be changed with the bytes that it had."""
        self.live_bytes += self.planned_bytes.get(snapshot.topic_id, 0)

    def figures(self) -> dict[str, int]:
        """Figures for the report. `over_bytes`: by how much the limit was missed. `held_…`: bytes that could not go, by
        reason. `waiting_bytes`: bytes that have left the log and wait for vacuum.
        """
        return {
            "max_bytes": self.max_bytes,
            "live_bytes": self.live_bytes,
            "over_bytes": max(0, self.live_bytes - self.max_bytes),
            "waiting_bytes": self.waiting_bytes,
            **self.held,
        }


def plan_log_directory(job: Job, snapshots: Sequence[Snapshot], max_bytes: int, min_retention_ms: int) -> MaxBytesPlan:
    """Plans for all topics of a log directory. `snapshots`: of all topics that are not deleted.

    A topic that cannot be read is left out. Raises InvalidOptionError for a negative limit or floor.
    """
    for name, value in (("max_bytes", max_bytes), ("min_retention_ms", min_retention_ms)):
        if value < 0:
            raise InvalidOptionError(f"{name} is below 0", expected="≥ 0", found=value)
    plan = MaxBytesPlan(max_bytes)
    sizes: dict[str, TopicSizes] = {}
    for snapshot in snapshots:
        try:
            live = live_rows(snapshot.load_segments())
            live_bytes = int(file_bytes(live).sum())
            plan.waiting_bytes += _all_bytes(snapshot) - live_bytes
        except SegmentsError:  # retention meets the same error and reports it
            continue
        plan.planned_bytes[snapshot.topic_id] = live_bytes
        config = job.config(snapshot)
        starts = snapshot.partitions.column("log_start_offset").to_numpy()
        expired = plan_retention(live, starts, config, job.now_ms)
        sizes[snapshot.topic_id] = topic_sizes(live, expired, config, job.now_ms, min_retention_ms, len(starts))
    for topic in sizes.values():
        plan.held["held_active_bytes"] += topic.active_bytes
        plan.held["held_young_bytes"] += topic.young_bytes
        plan.held["held_compacted_bytes"] += topic.compacted_bytes
    plan.ends = dict(zip(sizes, plan_max_bytes([*sizes.values()], max_bytes), strict=True))
    there = {snapshot.topic for snapshot in snapshots}
    for name in job.log.directories():
        if name not in there:
            with contextlib.suppress(SegmentsError):  # never made, or reported as unreadable already
                plan.waiting_bytes += _all_bytes(job.log.manifest(name).snapshot(deleted=True))
    return plan


def _all_bytes(snapshot: Snapshot) -> int:
    """The bytes of all files that the manifest names, also in removed rows and rows of deleted topics of this name."""
    return int(file_bytes(snapshot.source.read(None)).sum())
