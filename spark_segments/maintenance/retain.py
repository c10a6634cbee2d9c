"""Retention: whole sealed segments leave a partition's head by age, by size, or because they lie below the log start.

The rules are those of Kafka's UnifiedLog.deleteOldSegments; the active segment is never touched.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest import Change
from spark_segments.log.rows import SEALED, removed_rows
from spark_segments.log.snapshot import Snapshot
from spark_segments.maintenance.report import Report
from spark_segments.maintenance.selection import selected_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BELOW_LOG_START = "log_start_offset"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
REASONS = (BELOW_LOG_START, RETENTION_BYTES, RETENTION_MS)
"""What `Expired.reason` counts."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The rows that retention takes: `rows` of the live table, and why (an index into REASONS) for each."""

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
    sealed = pc.equal(live.column("state"), SEALED).combine_chunks().to_numpy(zero_copy_only=False)
    log_bytes = live.column("log_bytes").to_numpy()
    first_row = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    rows = np.diff(np.append(first_row, count))
    head = _prefix(sealed, first_row, rows)

    below = head & _prefix(live.column("next_offset").to_numpy() <= log_start[owner], first_row, rows)
    gone, reason = below.copy(), np.zeros(count, np.int8)
    if config.delete and config.retention_bytes >= 0:
        kept_bytes = np.where(gone, 0, log_bytes)
        total = np.add.reduceat(kept_bytes, first_row)
        running = np.cumsum(kept_bytes)
        before_partition = running[first_row] - kept_bytes[first_row]
        # What would be left once this row and all before it are gone must still be retention.bytes.
        left = np.repeat(total + before_partition, rows) - running
        above = head & ~gone & _prefix(gone | (left >= config.retention_bytes), first_row, rows)
        gone |= above
        reason[above] = 1
    if config.delete and config.retention_ms >= 0:
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
    for snapshot, _ in selected_topics(log, topic, report, load=dry_run):
        if dry_run:
            _note(report, snapshot, _expired(log, snapshot, now_ms))
            continue

        def change(current: Snapshot) -> Change | None:
            return _change(current, _expired(log, current, now_ms), now_ms)

        try:
            commit = log.manifest(snapshot.topic).commit(change)
        except SegmentsError as error:
            report.fail(snapshot.topic, None, error)
            continue
        if commit.change is not None:
            _note(report, commit.snapshot_before, _expired(log, commit.snapshot_before, now_ms))
    return report.finish()


def _expired(log: LogDir, snapshot: Snapshot, now_ms: int) -> Expired:
    # By the snapshot's own configuration: a topic that was altered a moment ago keeps what it is to keep from now on.
    config = topic_config(snapshot.config, log.defaults)
    return plan_retention(snapshot.live, snapshot.partitions.column("log_start_offset").to_numpy(), config, now_ms)


def _change(snapshot: Snapshot, expired: Expired, now_ms: int) -> Change | None:
    if len(expired.rows) == 0:
        return None
    rows = snapshot.live.take(expired.rows)
    owner = rows.column("partition").to_numpy()
    starts = snapshot.partitions.column("log_start_offset").to_numpy().copy()
    np.maximum.at(starts, owner, rows.column("next_offset").to_numpy())
    changed = np.unique(owner)
    moved = snapshot.partitions.take(changed)
    # An open transaction that began below the log start holds back no more than that.
    for name in ("log_start_offset", "first_dirty_offset", "last_stable_offset"):
        position = moved.schema.get_field_index(name)
        raised = np.maximum(moved.column(name).to_numpy(), starts[changed])
        moved = moved.set_column(position, moved.schema.field(position), pa.array(raised))
    return Change("retain", replace=removed_rows(rows, now_ms), partitions=moved)


def _note(report: Report, snapshot: Snapshot, expired: Expired) -> None:
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
        )


def _sums(owner: np.ndarray, values: np.ndarray, partitions: int) -> np.ndarray:
    """int64[partitions]: the sum of the values of each."""
    sums = np.zeros(partitions, np.int64)
    np.add.at(sums, owner, values)
    return sums


def _prefix(flags: np.ndarray, first_row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Keeps of each partition's flags those before its first False."""
    misses = np.cumsum(~flags)
    before = misses[first_row] - ~flags[first_row]
    return misses == np.repeat(before, rows)
