"""Why a record is still here and when it can be gone, by the rules of the jobs' plans and from the manifest alone.

The explanation holds for any later appends, as long as the topic's settings do not change, nobody deletes or restores
records, and the log directory is not kept under a size. A latest moment also supposes that every job runs in time and
does not fail, and that later records have timestamps. The time that a job takes is not counted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, server_config, topic_config
from spark_segments.errors import InvalidOptionError
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.rows import OUT_OF_LOG, Partition, Segment
from spark_segments.log.manifest.state.snapshot import SegmentRows, Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.maintenance.explanation.record_explanation import (
    CLEANING_SETTINGS,
    SETTINGS,
    Explanation,
    RecordState,
    Rule,
    Step,
    TimeBounds,
    Wait,
)
from spark_segments.maintenance.explanation.roll_forecast import RollForecast, forecast_roll, last_of, object_deleted
from spark_segments.maintenance.explanation.topic_forecast import (
    NEVER,
    TopicForecast,
    forecast_topic,
    later,
    vacuum_moments,
)
from spark_segments.maintenance.retention.retention_plan import (
    BELOW_LOG_START,
    RETENTION_BYTES,
    RETENTION_MS,
    is_sealed,
    newest_ms,
)
from spark_segments.maintenance.rolling.roll_plan import MERGE, SHARED_OBJECT, RollRules
from spark_segments.quantities import wall_ms


def explain(
    log: LogDirectory,
    snapshot: Snapshot,
    partition: int,
    offset: int | None,
    timestamp_ms: int | None,
    *,
    every_ms: int,
    now_ms: int | None,
) -> Explanation:
    """As `Topic.explain` says."""
    if (offset is None) == (timestamp_ms is None) or (offset or 0) < 0:
        raise InvalidOptionError("Which record is to be explained?", expected="an offset from 0 on, or a time")
    snapshot.check_partition(partition)
    record_ms = None
    if timestamp_ms is not None:
        from spark_segments.log.reading.times import offsets_for_times

        answer = offsets_for_times(log.storage, snapshot, {partition: timestamp_ms})[partition]
        offset, record_ms = answer or (snapshot.partition(partition).log_end_offset, None)
    assert offset is not None
    return explain_record(
        snapshot,
        topic_config(snapshot.config, log.defaults),
        partition,
        offset,
        wall_ms() if now_ms is None else now_ms,
        every_ms=every_ms,
        cleaner=server_config({}, log.defaults).log_cleaner_enable,
        timestamp_ms=record_ms,
    )


def explain_record(
    snapshot: Snapshot,
    config: TopicConfig,
    partition: int,
    offset: int,
    now_ms: int,
    *,
    every_ms: int,
    cleaner: bool = True,
    timestamp_ms: int | None = None,
) -> Explanation:
    """Explains a record from a snapshot. `cleaner`: log.cleaner.enable. `timestamp_ms`: the record's, if known."""
    names = [*SETTINGS, *(CLEANING_SETTINGS if config.compact else ())]
    effective = config.effective()
    in_force = {name: effective[name] for name in names}
    state = RecordState.NOT_WRITTEN
    explanation = Explanation(snapshot.topic, partition, offset, timestamp_ms, now_ms, every_ms, in_force, state)
    if offset < snapshot.partition(partition).log_end_offset:
        explanation = _explained(snapshot, config, explanation, cleans=cleaner and config.compact)
    if explanation.files_deleted is None:
        return explanation
    rows = _that_have(snapshot.load_segments({partition}), offset)
    objects = pc.unique(rows.filter(pc.is_valid(rows.column("index_position"))).column("path")).to_pylist()
    if not objects:
        return explanation
    bounds = [object_deleted(snapshot, config, path, now_ms, every_ms) for path in objects]
    deleted = last_of([explanation.files_deleted, *bounds])
    steps = tuple(
        dataclasses.replace(step, window=deleted) if step.job == "vacuum" else step for step in explanation.steps
    )
    return dataclasses.replace(explanation, steps=steps, files_deleted=deleted)


def _explained(snapshot: Snapshot, config: TopicConfig, explanation: Explanation, *, cleans: bool) -> Explanation:
    """As `explain_record`, as if every run were a file. `explanation`: what is known without the rows of segments."""
    offset = explanation.offset
    now_ms = explanation.now_ms
    if Hole.within(snapshot, explanation.partition, offset, offset + 1):
        return dataclasses.replace(explanation, state=RecordState.GONE)
    # All partitions stay, because the plans know them by their places, but only this partition has rows.
    of_partition = dataclasses.replace(snapshot, source=SegmentRows(snapshot.load_segments({explanation.partition})))
    removed = _that_have(row_tables.in_states(of_partition.segments, *OUT_OF_LOG), offset)
    moments = vacuum_moments(removed, config)
    freed_ms = max(now_ms, int(moments.max(initial=0)))
    if _that_have(of_partition.live, offset).num_rows:
        return _Record(of_partition, config, explanation, cleans).explained(freed_ms)
    if not removed.num_rows:
        return dataclasses.replace(explanation, state=RecordState.GONE)
    last = Segment.of_table(removed.slice(int(moments.argmax()), 1))[0]
    deleted = TimeBounds.of(freed_ms, freed_ms + explanation.every_ms)
    steps = (Step("vacuum", Rule.FILE_DELETE_DELAY_MS, deleted),)
    return dataclasses.replace(explanation, state=RecordState.REMOVED, segment=last, steps=steps, files_deleted=deleted)


def _that_have(rows: pa.Table, offset: int) -> pa.Table:
    below = pc.less_equal(rows.column("base_offset"), offset)
    return rows.filter(pc.and_(below, pc.greater(rows.column("next_offset"), offset)))


@dataclass(frozen=True, slots=True)
class _SegmentForecast:
    """What becomes of the sealed segment that holds a record, or will hold it.

    `row`: the live row of the file that holds it now. `sealed_ms`: the latest moment at which it is sealed.
    `retained_ms` and `cleanable_ms`: (earliest, latest) moment at which retention.ms removes it and
    min.compaction.lag.ms lets it be cleaned. `max_lag_ms`: the latest moment at which max.compaction.lag.ms is over.
    `roll`: the forecast of the segment until it is sealed.
    """

    row: int
    segment: Segment
    sealed_ms: int
    retained_ms: tuple[int, int]
    cleanable_ms: tuple[int, int]
    max_lag_ms: int
    roll: RollForecast | None = None


@dataclass(frozen=True)
class _Record:
    """A record that a file of the log holds. `explanation`: what is known without the rows of segments. `cleans`:
    whether the topic is compacted.
    """

    snapshot: Snapshot
    config: TopicConfig
    explanation: Explanation
    cleans: bool

    @property
    def live(self) -> pa.Table:
        return self.snapshot.live

    @property
    def now_ms(self) -> int:
        return self.explanation.now_ms

    @cached_property
    def partition(self) -> Partition:
        return self.snapshot.partition(self.explanation.partition)

    @cached_property
    def forecast(self) -> TopicForecast:
        return forecast_topic(self.snapshot, self.config, self.now_ms)

    @cached_property
    def rules(self) -> RollRules:
        return RollRules.of(self.snapshot.topic_id, self.config)

    @cached_property
    def sealed_rows(self) -> int:
        """How many live rows are sealed: they come first."""
        return int(is_sealed(self.live).sum())

    @cached_property
    def dirty_from(self) -> int:
        # Retention can have passed the cleaner, which begins at the log start then.
        return max(self.partition.first_dirty_offset, self.partition.log_start_offset)

    def explained(self, freed_ms: int) -> Explanation:
        """The explanation. `freed_ms`: when vacuum may delete the last of those files that held the record before."""
        expected = self._segment_forecast()
        ways = [*self._retention(expected), *self._compaction(expected)]
        earliest = [way.window.earliest_ms for way in ways if way.window.earliest_ms is not None]
        latest = [way.window.latest_ms for way in ways if way.window.latest_ms is not None]
        leaves = TimeBounds(min(earliest, default=None), min(latest, default=None))
        deleted = TimeBounds.of(
            self._deletable_ms(leaves.earliest_ms, freed_ms),
            self._deletable_ms(leaves.latest_ms, freed_ms) + self.explanation.every_ms,
        )
        steps = [*self._roll(expected), *ways]
        if ways:
            steps.append(Step("vacuum", Rule.FILE_DELETE_DELAY_MS, deleted))
        return dataclasses.replace(
            self.explanation,
            state=RecordState.ACTIVE if expected.roll else RecordState.SEALED,
            segment=expected.segment,
            steps=tuple(steps),
            leaves_log=leaves if self.explanation.offset >= self.partition.log_start_offset else None,
            files_deleted=deleted,
        )

    def _deletable_ms(self, removed_ms: int | None, freed_ms: int) -> int:
        """When vacuum may delete the last file that holds the record, if it leaves the log at `removed_ms`."""
        if removed_ms is None:
            return NEVER
        return max(int(later(removed_ms, self.config.file_delete_delay_ms)), freed_ms)

    def _by(self, at_ms: int) -> int:
        """The latest moment at which a job that is due at `at_ms` has run."""
        return max(at_ms, self.now_ms) + self.explanation.every_ms

    def _segment_forecast(self) -> _SegmentForecast:
        row = int(np.searchsorted(self.live.column("next_offset").to_numpy(), self.explanation.offset, side="right"))
        segment = Segment.of_table(self.live.slice(row, 1))[0]
        if row < self.sealed_rows:
            first_ms = segment.first_batch_max_timestamp_ms
            retained_ms, cleanable_ms = self._moments_of(row)
            return _SegmentForecast(
                row, segment, self.now_ms, (retained_ms,) * 2, (cleanable_ms,) * 2, self._max_lag_ms(first_ms)
            )
        chunks = self.live.slice(self.sealed_rows)
        roll = forecast_roll(
            chunks, row - self.sealed_rows, self.rules, self.now_ms, record_timestamp_ms=self.explanation.timestamp_ms
        )
        retained_ms, cleanable_ms = self._moments_of(self.sealed_rows - 1) if self.sealed_rows else (0, 0)
        return _SegmentForecast(
            row,
            segment,
            self._by(roll.due_ms),
            _after(roll, self.config.retention_ms, retained_ms),
            _after(roll, self.config.min_compaction_lag_ms - 1, cleanable_ms),
            self._max_lag_ms(roll.first_ms),
            roll,
        )

    def _moments_of(self, row: int) -> tuple[int, int]:
        """When retention.ms removes a sealed segment, and when min.compaction.lag.ms lets it be cleaned."""
        retained_ms = 0 if row in self.forecast.expired else int(self.forecast.retain_ms[row])
        return retained_ms, int(self.forecast.cleanable_ms[row])

    def _max_lag_ms(self, first_ms: int) -> int:
        return int(later(first_ms, self.config.max_compaction_lag_ms)) if first_ms > 0 else NEVER

    def _roll(self, expected: _SegmentForecast) -> Iterator[Step]:
        if expected.roll is None:
            return
        window = TimeBounds.of(self.now_ms, expected.sealed_ms)
        due = self.forecast.roll.get(self.partition.partition)
        facts = {
            "due": [reason for reason in due.reasons if reason not in (MERGE, SHARED_OBJECT)] if due else [],
            "segment_ms": self.rules.segment_ms,
            "log_bytes": int(self.live.slice(self.sealed_rows).column("log_bytes").to_numpy().sum()),
        }
        numbers = self.snapshot.partitions.column("partition").to_numpy()  # a directory of Kafka's may have gaps
        expires_ms = int(self.forecast.expires_ms[np.searchsorted(numbers, self.partition.partition)])
        if expires_ms < NEVER:
            facts["expires_ms"] = expires_ms
        waits_for = None if window.latest_ms is not None else _missing(expected.roll)
        yield Step("roll", Rule.ACTIVE_SEGMENT, window, waits_for, facts)

    def _retention(self, expected: _SegmentForecast) -> Iterator[Step]:
        """The ways in which retention can remove the segment."""
        now_ms = self.now_ms
        config = self.config
        reason = self.forecast.expired.get(expected.row)
        if reason:
            yield self._retain(reason, now_ms, self._by(now_ms), None, {"due": True})
            return
        if expected.roll is not None and self.explanation.offset < self.partition.log_start_offset:
            yield Step("retain", BELOW_LOG_START, TimeBounds(now_ms, None), Wait.LOG_START)
        if config.delete and config.retention_bytes >= 0:
            more = {} if expected.roll else {"more_bytes": int(self.forecast.retain_bytes[expected.row])}
            yield Step("retain", RETENTION_BYTES, TimeBounds(now_ms, None), Wait.RECORDS, more)
        earliest_ms, latest_ms = expected.retained_ms
        if config.delete and config.retention_ms >= 0 and earliest_ms < NEVER:
            latest_ms = self._by(max(latest_ms, expected.sealed_ms))
            yield self._retain(RETENTION_MS, earliest_ms, latest_ms, expected.roll, self._largest(expected))

    def _retain(
        self, rule: str, earliest_ms: int, latest_ms: int, roll: RollForecast | None, facts: dict[str, Any]
    ) -> Step:
        if self.cleans:
            # Cleaning may drop the record with the largest timestamp, and may join the segment with younger segments.
            earliest_ms = min(earliest_ms, self._first_cleaning_ms())
            latest_ms = NEVER
        window = TimeBounds.of(max(earliest_ms, self.now_ms), latest_ms)
        waits_for = None
        if window.latest_ms is None:
            waits_for = Wait.CLEANING if self.cleans else _missing(roll)
        return Step("retain", rule, window, waits_for, facts)

    def _largest(self, expected: _SegmentForecast) -> dict[str, Any]:
        """The timestamp that retention.ms counts from, and the segment that has it."""
        waits = np.ones(min(expected.row + 1, self.sealed_rows), bool)
        waits[[row for row in self.forecast.expired if row < len(waits)]] = False
        rows = np.flatnonzero(waits)
        largest_ms = newest_ms(self.live)[rows]
        if expected.roll is not None and largest_ms.max(initial=-1) <= expected.roll.most_ms:
            window = TimeBounds.of(expected.roll.least_ms, expected.roll.most_ms)
            return {"largest_timestamp_from_ms": window.earliest_ms, "largest_timestamp_to_ms": window.latest_ms}
        at = int(largest_ms.argmax())
        base_offset = self.live.column("base_offset")[int(rows[at])].as_py()
        return {"largest_timestamp_ms": int(largest_ms[at]), "segment_base_offset": base_offset}

    def _first_cleaning_ms(self) -> int:
        """The earliest moment at which any of the partition can be cleaned."""
        dirty = self.live.column("next_offset").to_numpy()[: self.sealed_rows] > self.dirty_from
        return int(self.forecast.cleanable_ms[int(dirty.argmax())]) if dirty.any() else 0

    def _compaction(self, expected: _SegmentForecast) -> Iterator[Step]:
        """What cleaning may do with the record, and when it has read it. The newest record of a key stays."""
        if not self.cleans:
            return
        dirty = self.explanation.offset >= self.dirty_from
        earliest_ms = expected.cleanable_ms[0] if dirty else self._first_cleaning_ms()
        cleaned_ms = NEVER
        # Retention may remove what makes a partition due, and an open transaction holds cleaning back.
        if dirty and not self.config.delete and self.explanation.offset < self.partition.last_stable_offset:
            due_ms = max(expected.sealed_ms, expected.cleanable_ms[1], expected.max_lag_ms)
            candidate = self.forecast.compact.get(self.partition.partition)
            if candidate and candidate.picked and expected.segment.next_offset <= candidate.first_uncleanable_offset:
                due_ms = self.now_ms
            cleaned_ms = self._by(due_ms)
        facts = {
            "dirty": dirty,
            "cleaned_by_ms": cleaned_ms if cleaned_ms < NEVER else None,
            "first_dirty_offset": self.dirty_from,
            "tombstones": expected.segment.tombstones,
            "delete_horizon_ms": expected.segment.delete_horizon_ms,
        }
        yield Step("compact", Rule.NEWEST_OF_KEY, TimeBounds(max(earliest_ms, self.now_ms), None), Wait.KEYS, facts)


def _after(roll: RollForecast, wait_ms: int, before_ms: int) -> tuple[int, int]:
    """(earliest, latest) moment at which more than `wait_ms` have passed since the largest timestamp of a segment that
    is not sealed yet; neither is before `before_ms`.
    """
    least_ms = int(later(roll.least_ms, wait_ms)) if roll.least_ms >= 0 else 0
    most_ms = int(later(roll.most_ms, wait_ms))
    return (max(before_ms, least_ms), max(before_ms, most_ms)) if wait_ms >= 0 else (before_ms, before_ms)


def _missing(roll: RollForecast | None) -> Wait:
    """What must happen before a segment ends, if the passing of time alone does not end it."""
    return Wait.TIMESTAMPS if roll is None or roll.most_ms >= NEVER else Wait.RECORDS
