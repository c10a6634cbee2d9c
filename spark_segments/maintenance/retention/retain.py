"""Retention: whole sealed segments leave a partition's log because of their age, of its size, or of the log start.

retention_plan.py says which segments these are, and max_bytes.py adds to them if a whole log directory must stay under
a size. The active segment is never touched: where all of it has expired, roll seals it first (`emptied_partitions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.extensions import observed_job
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.report import Report
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.retention.max_bytes import MaxBytesPlan, plan_log_directory, with_max_bytes
from spark_segments.maintenance.retention.retention_plan import (
    MAX_BYTES,
    REASONS,
    RETENTION_MS,
    Expired,
    newest_ms,
    plan_retention,
)
from spark_segments.progress import Progress
from spark_segments.quantities import Duration, Time, span_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_RETENTION_MS = 86_400_000
"""The default floor: a day, as long as Redpanda keeps records on its disks by default."""


@observed_job("retain")
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
    which retention.ms would have removed the same, and the report in `over_bytes` by how much the size was missed.
    Followers do not count, and a warning names them: retention at their leader shortens them. All topics are planned
    together, then each topic is one commit. If several runs overlap, no run removes what another run has made
    unnecessary.

    The job moves no data: it takes `spark` and `progress` because all jobs do, and uses neither. Raises
    InvalidOptionError for `topics` together with `max_bytes`, and for a negative `max_bytes` or `min_retention_ms`.
    """
    job = Job.of("retain", log, topics, spark, dry_run, progress, now_ms, planned)
    if max_bytes is not None and topics is not None:
        found = ", ".join(topics)
        raise InvalidOptionError("max_bytes is a limit for a whole log directory", expected="no topic", found=found)
    # Read before any topic is: a floor that is no time must not be found after the first commit.
    least_ms = span_ms(min_retention_ms)
    snapshots: Iterable[Snapshot] = (snapshot for snapshot, _ in job.snapshots(load=False))
    limit = None
    if max_bytes is not None:
        snapshots = [*snapshots]
        limit = plan_log_directory(job, snapshots, max_bytes, least_ms)
    for snapshot in snapshots:
        _retain_and_report(job, snapshot, limit)
    if limit is not None:
        job.report.details |= limit.figures()
    return job.report.finish()


def _retain_and_report(job: Job, snapshot: Snapshot, limit: MaxBytesPlan | None) -> None:
    """Retains a topic. One that fails stays for the next run, and its bytes count as not removed."""
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


def _retain_topic(job: Job, snapshot: Snapshot, limit: MaxBytesPlan | None) -> tuple[Snapshot, Expired]:
    """(the snapshot that rows are removed from, the rows that are removed)"""
    plans = _Plans(job, limit)
    expired = plans.of(snapshot)
    if not len(expired.rows):
        return snapshot, expired
    if job.dry_run:
        if job.planned is not None:
            job.planned[snapshot.topic] = _as_retained(job, snapshot, expired)
        return snapshot, expired
    commit = job.log.manifest(snapshot.topic).commit(
        lambda current: _change(current, plans.of(current), job.storage.now_ms())
    )
    # The report is read off the change that was committed: another commit may have come between plan and commit.
    before = commit.snapshot_before
    return before, plans.of(before)


@dataclass(frozen=True, slots=True)
class _Plans:
    """What leaves a topic, planned once for each version of it that the run meets."""

    job: Job
    limit: MaxBytesPlan | None
    by_version: dict[tuple[str, int], Expired] = field(default_factory=dict)

    def of(self, snapshot: Snapshot) -> Expired:
        # By topic id, too: a topic that was deleted and made again may have reached the same version.
        version = (snapshot.topic_id, snapshot.version)
        if version not in self.by_version:
            self.by_version[version] = _expired(self.job, snapshot, self.limit)
        return self.by_version[version]


def _as_retained(job: Job, snapshot: Snapshot, expired: Expired) -> Snapshot:
    """The topic as retention would leave it, had it run whenever something expired."""
    rows = snapshot.live.take(expired.rows)
    # The plan may be for a moment to come. What has expired by now leaves now, what expires later leaves then.
    left_ms = np.full(len(expired.rows), min(job.now_ms, job.storage.now_ms()))
    by_age = expired.reason == REASONS.index(RETENTION_MS)
    due_ms = np.minimum(newest_ms(rows)[by_age] + job.config(snapshot).retention_ms + 1, job.now_ms)
    left_ms[by_age] = np.maximum(left_ms[by_age], due_ms)
    gone = row_tables.with_column(row_tables.removed(rows, 0), "removed_ms", pa.array(left_ms))
    return snapshot.holding(pa.concat_tables([row_tables.without(snapshot.segments, rows), gone]))


def _expired(job: Job, snapshot: Snapshot, limit: MaxBytesPlan | None) -> Expired:
    # The snapshot's configuration decides: a topic that was altered a moment ago keeps what it must keep from now on.
    config = job.config(snapshot)
    expired = None if limit is None else limit.expired.get((snapshot.topic_id, snapshot.version))
    if expired is None:
        starts = snapshot.partitions.column("log_start_offset").to_numpy()
        expired = plan_retention(snapshot.live, starts, config, job.now_ms)
    if limit is None or not config.delete:
        return expired
    # By topic id: a topic that was made again meanwhile has other segments, and begins at offset 0. By name, the ends
    # of the topic before it would remove its first records.
    ends = limit.ends.get(snapshot.topic_id)
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
    log_starts = pa.array(starts[changed])
    partitions = row_tables.with_column(snapshot.partitions.take(changed), "log_start_offset", log_starts)
    return Change(Operation.RETAIN, replace=row_tables.removed(rows, removed_ms), partitions=partitions)


def _lines(snapshot: Snapshot, expired: Expired, now_ms: int) -> Iterator[dict[str, Any]]:
    """The line in the report of each partition that loses rows."""
    count = snapshot.partitions.num_rows
    before = _Figures.of(snapshot.live, count)
    rows = snapshot.live.take(expired.rows)
    removed = _Figures.of(rows, count)
    dropped = {}
    for number, name in enumerate(REASONS):
        dropped[name] = _Figures.of(rows.filter(pa.array(expired.reason == number)), count)
    youngest = np.full(count, -1)
    is_shortened = expired.reason == REASONS.index(MAX_BYTES)
    owner = rows.column("partition").to_numpy()
    np.maximum.at(youngest, owner[is_shortened], newest_ms(rows)[is_shortened])
    log_start = np.zeros(count, np.int64)
    np.maximum.at(log_start, owner, rows.column("next_offset").to_numpy())
    for partition in np.flatnonzero(removed.segments).tolist():
        reasons = {name: int(part.records[partition]) for name, part in dropped.items() if part.segments[partition]}
        line = {
            "partition": partition,
            "action": "retain",
            "records_in": int(before.records[partition]),
            "records_out": int(before.records[partition] - removed.records[partition]),
            "bytes_in": int(before.log_bytes[partition]),
            "bytes_out": int(before.log_bytes[partition] - removed.log_bytes[partition]),
            "dropped": reasons,
            "segments": int(removed.segments[partition]),
            "log_start_offset": int(log_start[partition]),
        }
        if MAX_BYTES in reasons:
            # More than this time has passed since the youngest record that was removed.
            line["shortened_to_ms"] = now_ms - int(youngest[partition]) - 1
        yield line


@dataclass(frozen=True, slots=True)
class _Figures:
    """What rows have, by partition: int64[partitions] each."""

    segments: np.ndarray
    records: np.ndarray
    log_bytes: np.ndarray

    @classmethod
    def of(cls, rows: pa.Table, partitions: int) -> _Figures:
        owner = rows.column("partition").to_numpy()
        records = _sums(owner, rows.column("records").to_numpy(), partitions)
        log_bytes = _sums(owner, rows.column("log_bytes").to_numpy(), partitions)
        return cls(np.bincount(owner, minlength=partitions), records, log_bytes)


def _sums(owner: np.ndarray, values: np.ndarray, partitions: int) -> np.ndarray:
    """int64[partitions]: the sum of the values of each."""
    sums = np.zeros(partitions, np.int64)
    np.add.at(sums, owner, values)
    return sums
