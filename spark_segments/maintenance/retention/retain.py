"""Retention: whole sealed segments leave a partition's log because of their age, of its size, or of the log start.

plan.py says which segments these are. max_bytes.py adds to them if a whole log directory must stay under a size. The
active segment is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_segments.config import topic_config
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.manifest import Change
from spark_segments.log.manifest.rows import removed_rows, with_column
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.report import Report
from spark_segments.maintenance.retention.max_bytes import (
    MIN_RETENTION_MS,
    MaxBytesPlan,
    plan_log_directory,
    with_max_bytes,
)
from spark_segments.maintenance.retention.plan import MAX_BYTES, REASONS, Expired, newest_ms, plan_retention
from spark_segments.maintenance.selection import selected_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def retain(
    log: LogDir,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    now_ms: int | None = None,
    max_bytes: int | None = None,
    min_retention_ms: int = MIN_RETENTION_MS,
) -> Report:
    """Applies retention.ms, retention.bytes and the log start. Files stay until vacuum.

    With `max_bytes`, further sealed segments go until the live files of all topics (see max_bytes.py) have no more
    bytes. The oldest segments of all topics whose cleanup.policy has delete go first, whatever their retention.ms, but
    no segment with a record younger than `min_retention_ms`. A partition's line in the report says in `shortened_to_ms`
    which retention.ms would have removed the same, and the report in `over_bytes` by how much the size was missed. All
    topics are planned together, then each topic is one commit. If several runs overlap, no run removes what another run
    has made unnecessary.

    The job moves no data: it takes `spark` and `progress` because all jobs do, and uses neither. Raises
    InvalidOptionError for `topics` together with `max_bytes`, and for a negative `max_bytes` or `min_retention_ms`.
    """
    report = Report("retain", dry_run)
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    if max_bytes is not None and topics is not None:
        found = ", ".join(topics)
        raise InvalidOptionError("max_bytes is a limit for a whole log directory", expected="no topic", found=found)
    snapshots: Iterable[Snapshot] = (snapshot for snapshot, _ in selected_topics(log, topics, report, load=False))
    limit = None
    if max_bytes is not None:
        snapshots = [*snapshots]
        limit = plan_log_directory(log, snapshots, max_bytes, min_retention_ms, now_ms)
    for snapshot in snapshots:
        try:
            before, expired = _retain_topic(log, snapshot, now_ms, dry_run, limit)
            _note(report, before, expired, now_ms)
            if limit is not None:
                limit.note(before, expired)
        except SegmentsError as error:
            report.fail(snapshot.topic, None, error)
            if limit is not None:
                limit.note_failed(snapshot)
    if limit is not None:
        report.details |= limit.figures()
    return report.finish()


def _retain_topic(
    log: LogDir, snapshot: Snapshot, now_ms: int, dry_run: bool, limit: MaxBytesPlan | None
) -> tuple[Snapshot, Expired]:
    """(the snapshot that rows are removed from, the rows that are removed)"""
    if not dry_run and len(_expired(log, snapshot, now_ms, limit).rows):
        commit = log.topic(snapshot.topic).manifest.commit(
            lambda current: _change(current, _expired(log, current, now_ms, limit), log.storage.now_ms())
        )
        snapshot = commit.snapshot_before
        if commit.change is None:
            return snapshot, Expired(np.empty(0, np.int64), np.empty(0, np.int8))
    return snapshot, _expired(log, snapshot, now_ms, limit)


def _expired(log: LogDir, snapshot: Snapshot, now_ms: int, limit: MaxBytesPlan | None) -> Expired:
    # The snapshot's configuration decides: a topic that was altered a moment ago keeps what it must keep from now on.
    config = topic_config(snapshot.config, log.defaults)
    starts = snapshot.partitions.column("log_start_offset").to_numpy()
    expired = plan_retention(snapshot.live, starts, config, now_ms)
    # By topic id: a topic that was made again meanwhile has other segments.
    ends = limit.ends.get(snapshot.topic_id) if limit is not None and config.delete else None
    return expired if ends is None else with_max_bytes(snapshot.live, expired, ends)


def _change(snapshot: Snapshot, expired: Expired, removed_ms: int) -> Change | None:
    if len(expired.rows) == 0:
        return None
    rows = snapshot.live.take(expired.rows)
    owner = rows.column("partition").to_numpy()
    starts = snapshot.partitions.column("log_start_offset").to_numpy().copy()
    np.maximum.at(starts, owner, rows.column("next_offset").to_numpy())
    changed = np.unique(owner)
    moved = snapshot.partitions.take(changed)
    moved = with_column(moved, "log_start_offset", pa.array(starts[changed]))
    return Change("retain", replace=removed_rows(rows, removed_ms), partitions=moved)


def _note(report: Report, snapshot: Snapshot, expired: Expired, now_ms: int) -> None:
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
        report.add(
            snapshot.topic,
            int(partition),
            "retain",
            records_in=int(all_records[partition]),
            records_out=int(all_records[partition]) - sum(dropped.values()),
            bytes_in=int(all_bytes[partition]),
            bytes_out=int(all_bytes[partition] - gone_bytes[partition]),
            dropped=dropped,
            segments=int(gone_segments[partition]),
            log_start_offset=int(next_offset[gone[last[partition]]]),
            # More than this time has passed since the youngest record that was removed.
            **({"shortened_to_ms": now_ms - int(youngest[partition]) - 1} if MAX_BYTES in dropped else {}),
        )


def _sums(owner: np.ndarray, values: np.ndarray, partitions: int) -> np.ndarray:
    """int64[partitions]: the sum of the values of each."""
    sums = np.zeros(partitions, np.int64)
    np.add.at(sums, owner, values)
    return sums
