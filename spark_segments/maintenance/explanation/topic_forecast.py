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
from spark_segments.log.manifest.rows import OUT_OF_LOG, Segment, in_states
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.maintenance.compaction.plan import CompactionCandidate, plan_compaction
from spark_segments.maintenance.retention.plan import REASONS, is_sealed, newest_ms, plan_retention
from spark_segments.maintenance.rolling.plan import PartitionToRoll, RollRules, plan_roll

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class TopicForecast:
    """What the jobs do with a topic now, and when they do the rest.

    Partitions are rows of `snapshot.partitions`, not numbers: Kafka's directories may have gaps. Of the live rows (n,
    sorted): `owner` int64[n], the partition; `expired` {row: reason} what retention takes now; `retain_ms` int64[n],
    when retention.ms takes the others; `retain_bytes` int64[n], how much must be appended before retention.bytes does;
    NEVER where it does not. `cleanable_ms` int64[n] is when min.compaction.lag.ms lets cleaning go to the end of a
    sealed one, NEVER for the others. `roll` has the partitions that roll now; `idle_ms` int64[partitions] is when an
    active segment to which nothing is appended does. `compact` has the partitions with sealed segments; `max_lag_ms`
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
    compact: dict[int, CompactionCandidate]
    max_lag_ms: np.ndarray
    removed: np.ndarray
    removed_bytes: np.ndarray
    vacuum_ms: np.ndarray


def forecast_topic(snapshot: Snapshot, config: TopicConfig, now_ms: int) -> TopicForecast:
    """Asks the jobs' plans about every partition of a topic."""
    partitions = snapshot.partitions
    count = partitions.num_rows
    live = _by_row(snapshot.live, partitions)
    owner = live.column("partition").to_numpy()
    sealed = is_sealed(live)
    expired = plan_retention(live, partitions.column("log_start_offset").to_numpy(), config, now_ms)
    going = {int(row): REASONS[reason] for row, reason in zip(expired.rows, expired.reason, strict=True)}
    rules, numbers = RollRules.of(snapshot.topic_id, config), _numbers(partitions, "partition")
    rolls = plan_roll(snapshot.live, rules, now_ms).partitions  # the jitter goes by the partition's number
    removed = _by_row(in_states(snapshot.segments, *OUT_OF_LOG), partitions)
    gone_owner = removed.column("partition").to_numpy()
    candidates = plan_compaction(live, partitions, config, now_ms) if config.compact else []
    vacuum_ms = np.full(count, NEVER)
    np.minimum.at(vacuum_ms, gone_owner, vacuum_moments(removed, config))
    return TopicForecast(
        owner,
        going,
        _retain_ms(live, owner, sealed, expired.rows, config),
        _retain_bytes(live, owner, sealed, count, config),
        _cleanable_ms(live, owner, sealed, partitions, config),
        {int(np.searchsorted(numbers, roll.partition)): roll for roll in rolls},
        _idle_ms(live, owner, sealed, numbers, rules),
        {candidate.partition: candidate for candidate in candidates},
        _max_lag_ms(live, owner, sealed, candidates, count, config),
        np.bincount(gone_owner, minlength=count),
        np.bincount(gone_owner, _numbers(removed, "log_bytes"), minlength=count).astype(np.int64),
        vacuum_ms,
    )


def _by_row(segments: pa.Table, partitions: pa.Table) -> pa.Table:
    """The segment rows, with the row of their partition in `partitions` in place of its number."""
    rows = pc.index_in(segments.column("partition"), partitions.column("partition"))
    place = segments.schema.get_field_index("partition")
    return segments.set_column(place, segments.schema.field(place), rows)


def _retain_ms(
    live: pa.Table, owner: np.ndarray, sealed: np.ndarray, expired: np.ndarray, config: TopicConfig
) -> np.ndarray:
    """When retention.ms removes each segment: not before its own moment, nor before that of any segment before it."""
    moments = np.full(live.num_rows, NEVER)
    if not config.delete or config.retention_ms < 0:
        return moments
    waits = sealed.copy()
    waits[expired] = False
    rows = np.flatnonzero(waits)
    own = later(newest_ms(live)[rows], config.retention_ms)
    for start, end in _runs(owner[rows]):
        own[start:end] = np.maximum.accumulate(own[start:end])
    moments[rows] = own
    return moments


def _retain_bytes(live: pa.Table, owner: np.ndarray, sealed: np.ndarray, count: int, config: TopicConfig) -> np.ndarray:
    """How much must be appended until retention.bytes are left without a segment and all before it."""
    grows = np.full(live.num_rows, NEVER)
    if not config.delete or config.retention_bytes < 0:
        return grows
    log_bytes = _numbers(live, "log_bytes")
    total = np.bincount(owner, log_bytes, minlength=count).astype(np.int64)
    for start, end in _runs(owner):
        left = total[owner[start]] - np.cumsum(log_bytes[start:end])
        grows[start:end] = np.maximum(config.retention_bytes - left, 0)
    return np.where(sealed, grows, NEVER)


def _idle_ms(
    live: pa.Table, owner: np.ndarray, sealed: np.ndarray, numbers: np.ndarray, rules: RollRules
) -> np.ndarray:
    """When the clock rolls each active segment: see `plan_roll`. `numbers`: of the partitions, by row."""
    moments = np.full(len(numbers), NEVER)
    chunks = np.flatnonzero(~sealed)
    base = np.zeros(len(numbers), np.int64)
    base[owner[chunks[::-1]]] = _numbers(live, "base_offset")[chunks[::-1]]
    filled = chunks[_numbers(live, "log_bytes")[chunks] > 0]
    first = filled[np.unique(owner[filled], return_index=True)[1]]
    began = np.maximum(_numbers(live, "first_batch_max_timestamp_ms"), _numbers(live, "created_ms"))
    for row, partition in zip(first.tolist(), owner[first].tolist(), strict=True):
        roll_ms = rules.roll_ms(int(numbers[partition]), int(base[partition]))
        moments[partition] = later(began[row : row + 1], roll_ms)[0]
    return moments


def _cleanable_ms(
    live: pa.Table, owner: np.ndarray, sealed: np.ndarray, partitions: pa.Table, config: TopicConfig
) -> np.ndarray:
    """When cleaning may reach the end of each segment, and of all before it. 0 for clean segments."""
    moments = np.where(sealed & config.compact, 0, NEVER)
    if not config.compact or config.min_compaction_lag_ms <= 0:
        return moments
    dirty = np.maximum(_numbers(partitions, "log_start_offset"), _numbers(partitions, "first_dirty_offset"))
    rows = np.flatnonzero(sealed & (_numbers(live, "next_offset") > dirty[owner]))
    own = later(newest_ms(live)[rows], config.min_compaction_lag_ms - 1)
    for start, end in _runs(owner[rows]):
        own[start:end] = np.maximum.accumulate(own[start:end])
    moments[rows] = own
    return moments


def _max_lag_ms(
    live: pa.Table,
    owner: np.ndarray,
    sealed: np.ndarray,
    candidates: Sequence[CompactionCandidate],
    count: int,
    config: TopicConfig,
) -> np.ndarray:
    """When what is dirty in a partition has waited for max.compaction.lag.ms: see `plan_compaction`."""
    dirty, bound = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for candidate in candidates:
        dirty[candidate.partition] = candidate.first_dirty_offset
        bound[candidate.partition] = candidate.first_uncleanable_offset
    first_timestamp = _numbers(live, "first_batch_max_timestamp_ms")
    waits = sealed & (_numbers(live, "next_offset") > dirty[owner]) & (_numbers(live, "base_offset") < bound[owner])
    rows = np.flatnonzero(waits & (first_timestamp > 0))
    moments = np.full(count, NEVER)
    np.minimum.at(moments, owner[rows], later(first_timestamp[rows], config.max_compaction_lag_ms))
    return moments


def vacuum_moments(
    removed: pa.Table, config: TopicConfig, deleted_topics: Mapping[str, TopicConfig] | None = None
) -> np.ndarray:
    """int64[n]: when vacuum deletes the file of each removed row, 0 where it has begun to: see `expired_rows`."""
    deleting = removed.column("state").to_numpy(zero_copy_only=False) == Segment.DELETING
    delay_ms = np.full(removed.num_rows, config.file_delete_delay_ms)
    for topic_id, its_config in (deleted_topics or {}).items():
        delay_ms[pc.equal(removed.column("topic_id"), topic_id).to_numpy()] = its_config.file_delete_delay_ms
    return np.where(deleting, 0, later(_numbers(removed, "removed_ms"), delay_ms))


def later(since_ms: np.ndarray | int, wait_ms: np.ndarray | int) -> np.ndarray:
    """int64[]: the first moment at which more than `wait_ms` have passed; NEVER if no clock reaches it."""
    moments: np.ndarray = since_ms + np.minimum(np.minimum(wait_ms, NEVER - 1) + 1, NEVER - np.maximum(since_ms, 0))
    return moments


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    values: np.ndarray = table.column(name).to_numpy()
    return values


def _runs(owner: np.ndarray) -> Iterator[tuple[int, int]]:
    """[start, end) of the rows of each partition."""
    starts = np.flatnonzero(np.diff(owner, prepend=-1)).tolist()
    return itertools.pairwise([*starts, len(owner)])
