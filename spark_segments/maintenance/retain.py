"""Retention: whole sealed segments leave a partition's head by age, by size, or because they lie below the log start.

The rules are those of Kafka's UnifiedLog.deleteOldSegments; the active segment is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest import Change
from spark_segments.log.rows import REMOVED, SEALED, SEGMENT_SCHEMA
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.report import Report
from spark_segments.maintenance.selection import selected_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BELOW_LOG_START = "log_start_offset"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
_REASONS = (BELOW_LOG_START, RETENTION_BYTES, RETENTION_MS)


@dataclass(frozen=True, slots=True)
class Expired:
    """The rows that retention takes: `rows` of the live table, and why (an index into the reasons) for each."""

    rows: np.ndarray
    reason: np.ndarray


def plan_retention(live: pa.Table, log_start: np.ndarray, config: TopicConfig, now_ms: int) -> Expired:
    """Which of a topic's live rows (sorted by partition and offset) have expired at `now_ms`.

    `log_start` is int64[partitions]. A prefix of each partition's sealed segments goes: first what lies below the log
    start, then, oldest first, what is above retention.bytes, then what is older than retention.ms up to the first that
    is not. A segment in which no record has a timestamp is as old as its file.
    """
    count = live.num_rows
    if count == 0:
        return Expired(np.empty(0, np.int64), np.empty(0, np.int8))
    owner = live.column("partition").to_numpy()
    sealed = live.column("state").to_numpy(zero_copy_only=False) == SEALED
    log_bytes = live.column("log_bytes").to_numpy()
    first_row = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    rows = np.diff(np.append(first_row, count))
    head = _prefix(sealed, first_row, rows)

    below = head & _prefix(live.column("next_offset").to_numpy() <= log_start[owner], first_row, rows)
    gone, reason = below.copy(), np.zeros(count, np.int8)
    if "delete" in config.cleanup_policy and config.retention_bytes >= 0:
        kept_bytes = np.where(gone, 0, log_bytes)
        total = np.add.reduceat(kept_bytes, first_row)
        running = np.cumsum(kept_bytes)
        before_partition = running[first_row] - kept_bytes[first_row]
        # What would be left once this row and all before it are gone must still be retention.bytes.
        left = np.repeat(total + before_partition, rows) - running
        above = head & ~gone & _prefix(gone | (left >= config.retention_bytes), first_row, rows)
        gone |= above
        reason[above] = 1
    if "delete" in config.cleanup_policy and config.retention_ms >= 0:
        largest = live.column("max_timestamp_ms").to_numpy()
        largest = np.where(largest >= 0, largest, live.column("created_ms").to_numpy())
        old = head & ~gone & _prefix(gone | (now_ms - largest > config.retention_ms), first_row, rows)
        gone |= old
        reason[old] = 2
    taken = np.flatnonzero(gone)
    return Expired(taken, reason[taken])


def retain(
    log: LogDir,
    spark: SparkSession | None = None,
    topic: str | None = None,
    now_ms: int | None = None,
    dry_run: bool = False,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Applies retention.ms, retention.bytes and the log start to one topic or all. Files stay until vacuum.

    It moves no data, so there is nothing for `spark` to do or `progress` to tell; they are there because all jobs take
    them.
    """
    report = Report("retain", dry_run)
    now_ms = log.storage.now_ms() if now_ms is None else now_ms
    for snapshot, config in selected_topics(log, topic):
        if dry_run:
            _note(report, snapshot, _expired(snapshot, config, now_ms))
            continue

        def plan(current: Snapshot, config: TopicConfig = config) -> Change | None:
            return _change(current, _expired(current, config, now_ms), now_ms)

        commit = log.manifest(snapshot.topic).commit(plan)
        if commit.change is not None:
            _note(report, commit.snapshot_before, _expired(commit.snapshot_before, config, now_ms))
    return report.finish()


def _expired(snapshot: Snapshot, config: TopicConfig, now_ms: int) -> Expired:
    return plan_retention(snapshot.live, snapshot.partitions.column("log_start_offset").to_numpy(), config, now_ms)


def _change(snapshot: Snapshot, expired: Expired, now_ms: int) -> Change | None:
    if len(expired.rows) == 0:
        return None
    rows = snapshot.live.take(expired.rows)
    owner, next_offset = rows.column("partition").to_numpy(), rows.column("next_offset").to_numpy()
    removed = rows.set_column(
        SEGMENT_SCHEMA.get_field_index("state"), "state", pa.repeat(pa.scalar(REMOVED), len(owner))
    ).set_column(SEGMENT_SCHEMA.get_field_index("removed_ms"), "removed_ms", pa.repeat(pa.scalar(now_ms), len(owner)))
    starts = snapshot.partitions.column("log_start_offset").to_numpy().copy()
    np.maximum.at(starts, owner, next_offset)
    moved = snapshot.partitions.take(np.unique(owner))
    for name in ("log_start_offset", "first_dirty_offset"):
        position = moved.schema.get_field_index(name)
        raised = np.maximum(moved.column(name).to_numpy(), starts[np.unique(owner)])
        moved = moved.set_column(position, moved.schema.field(position), pa.array(raised))
    return Change(replace=removed.cast(SEGMENT_SCHEMA), partitions=moved, operation="retain")


def _note(report: Report, snapshot: Snapshot, expired: Expired) -> None:
    live = snapshot.live
    owner = live.column("partition").to_numpy()
    records, log_bytes = live.column("records").to_numpy(), live.column("log_bytes").to_numpy()
    count = snapshot.partitions.num_rows
    all_records = np.bincount(owner, weights=records, minlength=count)
    all_bytes = np.bincount(owner, weights=log_bytes, minlength=count)
    for partition in np.unique(owner[expired.rows]):
        mine = owner[expired.rows] == partition
        taken, reason = expired.rows[mine], expired.reason[mine]
        dropped: dict[str, Any] = {}
        for number, name in enumerate(_REASONS):
            if (reason == number).any():
                dropped[name] = int(records[taken[reason == number]].sum())
        report.add(
            snapshot.topic,
            int(partition),
            "retain",
            records_in=int(all_records[partition]),
            records_out=int(all_records[partition]) - sum(dropped.values()),
            bytes_in=int(all_bytes[partition]),
            bytes_out=int(all_bytes[partition] - log_bytes[taken].sum()),
            dropped=dropped,
            segments=len(taken),
            log_start_offset=int(live.column("next_offset").to_numpy()[taken[-1]]),
        )


def _prefix(flags: np.ndarray, first_row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Keeps of each partition's flags those before its first False."""
    misses = np.cumsum(~flags)
    before = misses[first_row] - ~flags[first_row]
    return misses == np.repeat(before, rows)
