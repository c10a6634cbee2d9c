"""A forecast of a topic: what each job does with it next, and when, by the jobs' own plans.

The forecast supposes that nothing is appended. New records can fill a segment, so that it rolls, or exceed
retention.bytes, at any time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.rows import OUT_OF_LOG, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import ErasedTombstones
from spark_segments.maintenance.compaction.compaction_plan import CompactionCandidate, plan_compaction
from spark_segments.maintenance.retention.retention_plan import (
    REASONS,
    RETENTION_MS,
    Expired,
    emptied_partitions,
    is_sealed,
    largest_ms,
    newest_ms,
    plan_retention,
)
from spark_segments.maintenance.rolling.roll_plan import PartitionToRoll, RollRules, plan_roll

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class TopicForecast:
    """What the jobs do with a topic now, and when they do the rest.

    Partitions are rows of `snapshot.partitions`, not numbers: Kafka's directories may have gaps. Of the live rows (n,
    sorted): `owner` int64[n], the partition; `expired` {row: reason} what retention takes now; `retain_ms` int64[n],
    when retention.ms takes the others; `retain_bytes` int64[n], how much must be appended before retention.bytes does;
    NEVER where it does not. `cleanable_ms` int64[n] is when min.compaction.lag.ms lets cleaning go to the end of a
    sealed one, NEVER for the others. `roll` has the partitions that roll now; `idle_ms` int64[partitions] is when an
    active segment to which nothing is appended does by segment.ms, and `expires_ms` int64[partitions] when one does
    because all of its partition has expired. `compact` has the partitions with sealed segments; `max_lag_ms`
    int64[partitions] is when max.compaction.lag.ms is over for what is dirty in them. `removed` and `removed_bytes`
    int64[partitions] are the segments that wait for vacuum, `vacuum_ms` is when the first of them goes.
    """

    owner: np.ndarray
    expired: dict[int, str]
    retain_ms: np.ndarray
    retain_bytes: np.ndarray
    cleanable_ms: np.ndarray
    roll: dict[int, PartitionToRoll]
    idle_ms: np.ndarray
    expires_ms: np.ndarray
    compact: dict[int, CompactionCandidate]
    max_lag_ms: np.ndarray
    removed: np.ndarray
    removed_bytes: np.ndarray
    vacuum_ms: np.ndarray


def forecast_topic(snapshot: Snapshot, config: TopicConfig, now_ms: int) -> TopicForecast:
    """Asks the jobs' plans about every partition of a topic."""
    partitions = snapshot.partitions
    count = partitions.num_rows
    rows = _by_row(snapshot.live, partitions)
    live = _Live(rows, rows.column("partition").to_numpy(), is_sealed(rows), partitions, config)
    starts = live.of_partitions("log_start_offset")
    expired = plan_retention(rows, starts, config, now_ms)
    going = {int(row): REASONS[reason] for row, reason in zip(expired.rows, expired.reason, strict=True)}
    rules = RollRules.of(snapshot.topic_id, config)
    numbers = live.of_partitions("partition")
    emptied = numbers[emptied_partitions(rows, starts, config, now_ms)]
    rolls = plan_roll(snapshot.live, rules, now_ms, emptied).partitions  # the jitter goes by the partition's number
    removed = _by_row(row_tables.in_states(snapshot.segments, *OUT_OF_LOG), partitions)
    gone_owner = removed.column("partition").to_numpy()
    erased = ErasedTombstones.of(snapshot.states)
    candidates = plan_compaction(rows, partitions, config, now_ms, erased=erased) if config.compact else []
    vacuum_ms = np.full(count, NEVER)
    np.minimum.at(vacuum_ms, gone_owner, vacuum_moments(removed, config))
    return TopicForecast(
        live.owner,
        going,
        live.retain_ms(expired.rows),
        live.retain_bytes(),
        live.cleanable_ms(),
        {int(np.searchsorted(numbers, roll.partition)): roll for roll in rolls},
        live.idle_ms(rules),
        live.expires_ms(expired),
        {candidate.partition: candidate for candidate in candidates},
        live.max_lag_ms(candidates),
        np.bincount(gone_owner, minlength=count),
        np.bincount(gone_owner, removed.column("log_bytes").to_numpy(), minlength=count).astype(np.int64),
        vacuum_ms,
    )


def _by_row(segments: pa.Table, partitions: pa.Table) -> pa.Table:
    """The segment rows, with the row of their partition in `partitions` in place of its number."""
    return row_tables.with_column(
        segments, "partition", pc.index_in(segments.column("partition"), partitions.column("partition"))
    )


@dataclass(frozen=True, slots=True)
class _Live:
    """The live rows of a topic, sorted, the row of each one's partition, and which of them are sealed."""

    rows: pa.Table
    owner: np.ndarray
    sealed: np.ndarray
    partitions: pa.Table
    config: TopicConfig

    def numbers(self, name: str) -> np.ndarray:
        values: np.ndarray = self.rows.column(name).to_numpy()
        return values

    def of_partitions(self, name: str) -> np.ndarray:
        values: np.ndarray = self.partitions.column(name).to_numpy()
        return values

    def _never(self) -> np.ndarray:
        return np.full(self.rows.num_rows, NEVER)

    def retain_ms(self, expired: np.ndarray) -> np.ndarray:
        """When retention.ms removes each segment: not before its own moment, nor before that of any before it."""
        if not self.config.delete or self.config.retention_ms < 0:
            return self._never()
        waits = self.sealed.copy()
        waits[expired] = False
        return self._moments(np.flatnonzero(waits), self.config.retention_ms, self._never())

    def _moments(self, rows: np.ndarray, wait_ms: int, moments: np.ndarray) -> np.ndarray:
        """`moments` with those of `rows`: `wait_ms` after the largest timestamp of a segment and of all before it."""
        own = later(newest_ms(self.rows)[rows], wait_ms)
        for start, end in _runs(self.owner[rows]):
            own[start:end] = np.maximum.accumulate(own[start:end])
        moments[rows] = own
        return moments

    def retain_bytes(self) -> np.ndarray:
        """How much must be appended until retention.bytes are left without a segment and all before it."""
        grows = self._never()
        most_bytes = self.config.retention_bytes
        if not self.config.delete or most_bytes < 0:
            return grows
        log_bytes = self.numbers("log_bytes")
        total = np.bincount(self.owner, log_bytes, minlength=self.partitions.num_rows).astype(np.int64)
        for start, end in _runs(self.owner):
            left = total[self.owner[start]] - np.cumsum(log_bytes[start:end])
            grows[start:end] = np.maximum(most_bytes - left, 0)
        return np.where(self.sealed, grows, NEVER)

    def idle_ms(self, rules: RollRules) -> np.ndarray:
        """When the clock rolls the active segment of each partition: see `plan_roll`."""
        numbers = self.of_partitions("partition")
        moments = np.full(len(numbers), NEVER)
        chunks = np.flatnonzero(~self.sealed)
        base = np.zeros(len(numbers), np.int64)
        base[self.owner[chunks[::-1]]] = self.numbers("base_offset")[chunks[::-1]]
        filled = chunks[self.numbers("log_bytes")[chunks] > 0]
        first = filled[np.unique(self.owner[filled], return_index=True)[1]]
        began = np.maximum(self.numbers("first_batch_max_timestamp_ms"), self.numbers("created_ms"))
        for row, partition in zip(first.tolist(), self.owner[first].tolist(), strict=True):
            roll_ms = rules.roll_ms(int(numbers[partition]), int(base[partition]))
            moments[partition] = later(began[row : row + 1], roll_ms)[0]
        return moments

    def expires_ms(self, expired: Expired) -> np.ndarray:
        """When all of each partition with an active segment has expired: see `emptied_partitions`. By size it has since
        the last append.
        """
        count = self.partitions.num_rows
        owner = self.owner
        config = self.config
        chunks = ~self.sealed
        has_records = np.bincount(owner[chunks], self.numbers("log_bytes")[chunks], minlength=count) > 0
        created_ms = _largest(owner[chunks], self.numbers("created_ms")[chunks], count)
        if config.delete and config.retention_bytes == 0:
            return np.where(has_records, created_ms, NEVER)
        if not config.delete or config.retention_ms < 0:
            return np.full(count, NEVER)
        # The chunks are one segment. It waits for those before it that go by time, not for those that go sooner.
        timestamp_ms = _largest(owner[chunks], self.numbers("max_timestamp_ms")[chunks], count)
        newest = largest_ms(timestamp_ms, created_ms)
        waited_for = self.sealed.copy()
        waited_for[expired.rows[expired.reason != REASONS.index(RETENTION_MS)]] = False
        before = _largest(owner[waited_for], newest_ms(self.rows)[waited_for], count)
        return np.where(has_records, later(np.maximum(newest, before), config.retention_ms), NEVER)

    def cleanable_ms(self) -> np.ndarray:
        """When cleaning may reach the end of each segment, and of all before it. 0 for clean segments."""
        config = self.config
        moments = np.where(self.sealed & config.compact, 0, NEVER)
        if not config.compact or config.min_compaction_lag_ms <= 0:
            return moments
        dirty = np.maximum(self.of_partitions("log_start_offset"), self.of_partitions("first_dirty_offset"))
        rows = np.flatnonzero(self.sealed & (self.numbers("next_offset") > dirty[self.owner]))
        return self._moments(rows, config.min_compaction_lag_ms - 1, moments)

    def max_lag_ms(self, candidates: Sequence[CompactionCandidate]) -> np.ndarray:
        """When what is dirty in a partition has waited for max.compaction.lag.ms: see `plan_compaction`."""
        count = self.partitions.num_rows
        owner = self.owner
        dirty = np.zeros(count, np.int64)
        bound = np.zeros(count, np.int64)
        for candidate in candidates:
            dirty[candidate.partition] = candidate.first_dirty_offset
            bound[candidate.partition] = candidate.first_uncleanable_offset
        first_timestamp = self.numbers("first_batch_max_timestamp_ms")
        waits = self.sealed & (self.numbers("next_offset") > dirty[owner])
        rows = np.flatnonzero(waits & (self.numbers("base_offset") < bound[owner]) & (first_timestamp > 0))
        moments = np.full(count, NEVER)
        np.minimum.at(moments, owner[rows], later(first_timestamp[rows], self.config.max_compaction_lag_ms))
        return moments


def vacuum_moments(
    removed: pa.Table, config: TopicConfig, deleted_topics: Mapping[str, TopicConfig] | None = None
) -> np.ndarray:
    """int64[n]: when vacuum deletes the file of each removed row, 0 where it has begun to: see `expired_rows`."""
    deleting = removed.column("state").to_numpy(zero_copy_only=False) == Segment.DELETING
    delay_ms = np.full(removed.num_rows, config.file_delete_delay_ms)
    for topic_id, its_config in (deleted_topics or {}).items():
        delay_ms[pc.equal(removed.column("topic_id"), topic_id).to_numpy()] = its_config.file_delete_delay_ms
    return np.where(deleting, 0, later(removed.column("removed_ms").to_numpy(), delay_ms))


def later(since_ms: np.ndarray | int, wait_ms: np.ndarray | int) -> np.ndarray:
    """int64[]: the first moment at which more than `wait_ms` have passed; NEVER if no clock reaches it."""
    moments: np.ndarray = since_ms + np.minimum(np.minimum(wait_ms, NEVER - 1) + 1, NEVER - np.maximum(since_ms, 0))
    return moments


def _largest(owner: np.ndarray, values: np.ndarray, partitions: int) -> np.ndarray:
    """int64[partitions]: the largest value of each, -1 without one."""
    largest = np.full(partitions, -1)
    np.maximum.at(largest, owner, values)
    return largest


def _runs(owner: np.ndarray) -> Iterator[tuple[int, int]]:
    """[start, end) of the rows of each partition."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    return itertools.pairwise([*starts, len(owner)])
