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
    if live.num_rows == 0:
        return Expired(np.empty(0, np.int64), np.empty(0, np.int8))
    sealed = is_sealed(live)
    first_row, rows = partition_runs(live.column("partition").to_numpy())
    head = prefix(sealed, first_row, rows)
    segments = _Segments(
        live.column("partition").to_numpy(),
        live.column("next_offset").to_numpy(),
        live.column("log_bytes").to_numpy(),
        newest_ms(live),
        sealed,
    )
    return segments.expired(head, log_start, config, now_ms)


def emptied_partitions(live: pa.Table, log_start: np.ndarray, config: TopicConfig, now_ms: int) -> np.ndarray:
    """int64[n]: the partitions of which all has expired at `now_ms`, the active segment too. Takes what
    `plan_retention` takes.

    A broker rolls the active segment of such a partition, and deletes it as an inactive one (UnifiedLog's
    deletableSegments and deleteSegments). One young record keeps all of the active segment, and a segment that stays
    keeps all behind it.
    """
    if live.num_rows == 0:
        return np.empty(0, np.int64)
    owner = live.column("partition").to_numpy()
    sealed = is_sealed(live)
    is_first = sealed.copy()  # of a segment: the chunks of a partition are one
    is_first[0] = True
    # A row begins a segment after a sealed one, and in another partition. Two chunks side by side are one segment.
    is_first[1:] |= (owner[1:] != owner[:-1]) | sealed[:-1]
    first = np.flatnonzero(is_first)
    last = np.append(first[1:], live.num_rows) - 1
    timestamp = live.column("max_timestamp_ms").to_numpy()
    created = live.column("created_ms").to_numpy()
    segments = _Segments(
        owner[first],
        live.column("next_offset").to_numpy()[last],
        np.add.reduceat(live.column("log_bytes").to_numpy(), first),
        largest_ms(np.maximum.reduceat(timestamp, first), np.maximum.reduceat(created, first)),
        sealed[first],
    )
    expired = segments.expired(np.ones(len(first), bool), log_start, config, now_ms)
    first_segment, count = partition_runs(segments.owner)
    # What expires is a prefix of a partition: where the last segment goes, all go.
    last_segments = first_segment + count - 1
    values: np.ndarray = segments.owner[last_segments[np.isin(last_segments, expired.rows)]].astype(np.int64)
    return values


@dataclass(frozen=True, slots=True)
class _Segments:
    """Segments of a topic, sorted by partition (`owner`) and offset, as arrays."""

    owner: np.ndarray
    next_offset: np.ndarray
    log_bytes: np.ndarray
    newest_ms: np.ndarray
    sealed: np.ndarray

    def expired(self, may_go: np.ndarray, log_start: np.ndarray, config: TopicConfig, now_ms: int) -> Expired:
        """Those of `may_go` that have expired: one rule after the other, the oldest segment of a partition first."""
        owner = self.owner
        first_row, rows = partition_runs(owner)
        # Everything that goes is a prefix of a partition, so that the log keeps one start:
        #
        #   |old|old|young|old|active|       the last old one stays: without `prefix` it would leave a hole in the log
        #   |gone...|
        is_below = self.sealed & (self.next_offset <= log_start[owner])  # the log start never takes an active segment
        below = may_go & prefix(is_below, first_row, rows)
        gone = below.copy()
        reason = np.zeros(len(owner), np.int8)
        if config.delete and config.retention_bytes >= 0:
            above = self._above_bytes(may_go, gone, config.retention_bytes)
            gone |= above
            reason[above] = REASONS.index(RETENTION_BYTES)
        if config.delete and config.retention_ms >= 0:
            # Strictly older, as in Kafka. `gone` segments count as old: what size took must not end the prefix of age.
            is_old = now_ms - self.newest_ms > config.retention_ms
            old = may_go & ~gone & prefix(gone | is_old, first_row, rows)
            gone |= old
            reason[old] = REASONS.index(RETENTION_MS)
        taken = np.flatnonzero(gone)
        return Expired(taken, reason[taken])

    def _above_bytes(self, may_go: np.ndarray, gone: np.ndarray, retention_bytes: int) -> np.ndarray:
        """bool[n]: those of `may_go` without which, and without all before them, retention.bytes are left."""
        first_row, rows = partition_runs(self.owner)
        kept_bytes = np.where(gone, 0, self.log_bytes)
        total = np.add.reduceat(kept_bytes, first_row)
        running = np.cumsum(kept_bytes)
        # One running sum goes over all partitions: what lies before a partition is added, so that `left` counts its own
        # rows.
        before_partition = running[first_row] - kept_bytes[first_row]
        # What would be left once this row and all before it are gone must still be retention.bytes.
        left = np.repeat(total + before_partition, rows) - running
        values: np.ndarray = may_go & ~gone & prefix(gone | (left >= retention_bytes), first_row, rows)
        return values


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
    return largest_ms(live.column("max_timestamp_ms").to_numpy(), live.column("created_ms").to_numpy())


def largest_ms(timestamp_ms: np.ndarray, created_ms: np.ndarray) -> np.ndarray:
    """int64[n]: the largest timestamps of segments, or the times of their files where no record has a timestamp."""
    values: np.ndarray = np.where(timestamp_ms >= 0, timestamp_ms, created_ms)
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
    # How many misses lie before each partition. While the sum is still that, no row of the partition was one.
    before = misses[first_row] - ~flags[first_row]
    values: np.ndarray = misses == np.repeat(before, rows)
    return values
