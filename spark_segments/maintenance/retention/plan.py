"""The plan of retention, from the manifest's rows alone: the rules of Kafka's UnifiedLog.deleteOldSegments.

retain.py adds the segments that go to keep a whole log directory under a size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.manifest.rows import Segment

BELOW_LOG_START = "log_start_offset"
RETENTION_BYTES = "retention.bytes"
RETENTION_MS = "retention.ms"
MAX_BYTES = "max-bytes"
REASONS = (BELOW_LOG_START, RETENTION_BYTES, RETENTION_MS, MAX_BYTES)
"""The names of the numbers in `Expired.reason`."""


@dataclass(frozen=True, slots=True)
class Expired:
    """The rows that retention removes: `rows` of the live table, and the `reason` of each, an index into REASONS."""

    rows: np.ndarray
    reason: np.ndarray


def plan_retention(live: pa.Table, log_start: np.ndarray, config: TopicConfig, now_ms: int) -> Expired:
    """Which of a topic's live rows (sorted by partition and offset) have expired at `now_ms`.

    `log_start` is int64[partitions]. A prefix of each partition's sealed segments goes. The first to go are the
    segments below the log start. Then the oldest go while more than retention.bytes are left, and then those older than
    retention.ms, up to the first segment that is not. A segment without timestamps is as old as its file.
    """
    count = live.num_rows
    if count == 0:
        return Expired(np.empty(0, np.int64), np.empty(0, np.int8))
    owner = live.column("partition").to_numpy()
    sealed = is_sealed(live)
    log_bytes = live.column("log_bytes").to_numpy()
    first_row, rows = partition_runs(owner)
    head = prefix(sealed, first_row, rows)

    # Everything that goes is a prefix of the sealed rows, so that the log keeps one start:
    #
    #   |old|old|young|old|active|       the last old one stays: without `prefix` it would leave a hole in the log
    #   |gone...|
    below = head & prefix(live.column("next_offset").to_numpy() <= log_start[owner], first_row, rows)
    gone, reason = below.copy(), np.zeros(count, np.int8)
    if config.delete and config.retention_bytes >= 0:
        kept_bytes = np.where(gone, 0, log_bytes)
        total = np.add.reduceat(kept_bytes, first_row)
        running = np.cumsum(kept_bytes)
        before_partition = running[first_row] - kept_bytes[first_row]
        # What would be left once this row and all before it are gone must still be retention.bytes.
        left = np.repeat(total + before_partition, rows) - running
        above = head & ~gone & prefix(gone | (left >= config.retention_bytes), first_row, rows)
        gone |= above
        reason[above] = 1
    if config.delete and config.retention_ms >= 0:
        # Strictly older, as in Kafka. `gone` rows count as old: what size has removed must not end the prefix of age.
        old = head & ~gone & prefix(gone | (now_ms - newest_ms(live) > config.retention_ms), first_row, rows)
        gone |= old
        reason[old] = 2
    taken = np.flatnonzero(gone)
    return Expired(taken, reason[taken])


def expired_records(live: pa.Table, config: TopicConfig, now_ms: int) -> int:
    """The records in segments and chunks of `live` that are older than retention.ms at `now_ms`, all of them."""
    if not config.delete or config.retention_ms < 0 or not live.num_rows:
        return 0
    old = now_ms - newest_ms(live) > config.retention_ms
    return int(live.column("records").to_numpy()[old].sum())


def newest_ms(live: pa.Table) -> np.ndarray:
    """int64[n]: the largest timestamp of each segment, or the file's time if no record has a timestamp, as of Kafka's
    LogSegment.largestTimestamp.
    """
    largest = live.column("max_timestamp_ms").to_numpy()
    values: np.ndarray = np.where(largest >= 0, largest, live.column("created_ms").to_numpy())
    return values


def is_sealed(live: pa.Table) -> np.ndarray:
    """bool[n]: which rows are sealed segments. The others belong to an active segment."""
    values: np.ndarray = pc.equal(live.column("state"), Segment.SEALED).combine_chunks().to_numpy(zero_copy_only=False)
    return values


def partition_runs(owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(first row, number of rows) of each partition. `owner`: the partition of each row, sorted, at least one row."""
    first_row = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    return first_row, np.diff(np.append(first_row, len(owner)))


def prefix(flags: np.ndarray, first_row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Clears each partition's flags from its first False on."""
    misses = np.cumsum(~flags)
    before = misses[first_row] - ~flags[first_row]
    values: np.ndarray = misses == np.repeat(before, rows)
    return values
