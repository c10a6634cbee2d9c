"""The moments of topic_forecast.py are the first at which the jobs' plans say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.config import TopicConfig
from spark_segments.maintenance.explanation.topic_forecast import NEVER, forecast_topic
from spark_segments.maintenance.removal.vacuum import expired_rows
from spark_segments.maintenance.retention.retention_plan import emptied_partitions, plan_retention
from spark_segments.maintenance.rolling.roll_plan import EXPIRED, IDLE, RollRules, plan_roll
from tests.examples import examples
from tests.maintenance.rows import TOPIC_ID, row, snapshot, table
from verification.world.manifest_rows import Partition, Segment, Snapshot
from verification.world.rounds import plan_compaction

times = st.integers(0, 60) | st.just(-1)
parts = st.tuples(
    st.lists(st.tuples(st.integers(0, 50), times, st.integers(0, 60)), max_size=6),
    st.lists(st.tuples(st.integers(1, 50), times, st.integers(0, 60)), max_size=3),
    st.integers(0, 30),  # the first dirty offset
)
configs = st.fixed_dictionaries(
    {
        "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete"]),
        "retention.ms": st.integers(0, 100) | st.sampled_from([-1, 2**63 - 1]),
        "retention.bytes": st.integers(0, 120) | st.just(-1),
        "segment.ms": st.integers(1, 100),
        "segment.jitter.ms": st.integers(0, 20),
        "max.compaction.lag.ms": st.integers(1, 100) | st.just(2**63 - 1),
        "min.cleanable.dirty.ratio": st.just(1),
    }
)


def topic_of(parts: Sequence[Any], config: Mapping[str, Any]) -> tuple[Snapshot, TopicConfig]:
    """Partitions of (sealed segments, chunks, first dirty offset); a segment is (bytes, largest timestamp, created)."""
    rows, partitions = [], []
    for number, (sealed, chunks, first_dirty) in enumerate(parts):
        offset = 0
        for place, (size, largest, created) in enumerate([*sealed, *chunks]):
            state = "sealed" if place < len(sealed) else "chunk"
            rows.append(
                row(
                    offset,
                    offset + 5,
                    partition=number,
                    state=state,
                    log_bytes=size,
                    max_timestamp_ms=largest,
                    created_ms=created,
                )
            )
            offset += 5
        partitions.append(Partition(TOPIC_ID, number, 0, offset, min(first_dirty, offset), offset))
    return snapshot("orders", {name: str(value) for name, value in config.items()}, rows, partitions)


@examples(300)
@given(st.lists(parts, min_size=1, max_size=3), configs, st.integers(60, 130))
def test_moments_are_the_first_at_which_the_plans_say_so(parts, overrides, now_ms):
    made, config = topic_of(parts, overrides)
    forecast = forecast_topic(made, config, now_ms)
    start = np.zeros(len(parts), np.int64)

    def retained(at_ms: int) -> set[int]:
        return set(plan_retention(made.live, start, config, at_ms).rows.tolist())

    assert set(forecast.expired) == retained(now_ms)
    for number, at_ms in enumerate(forecast.retain_ms.tolist()):
        if number in forecast.expired:
            continue
        assert at_ms == NEVER or (number in retained(at_ms) and number not in retained(at_ms - 1))
        assert at_ms < NEVER or number not in retained(2**62)

    rules = RollRules.of(TOPIC_ID, config)

    def rolled(at_ms: int, reason: str = "") -> set[int]:
        emptied = emptied_partitions(made.live, start, config, at_ms)
        partitions = plan_roll(made.live, rules, at_ms, emptied).partitions
        return {one.partition for one in partitions if not reason or reason in one.reasons}

    for number, at_ms in enumerate(forecast.idle_ms.tolist()):
        assert [number in rolled(moment_ms, IDLE) for moment_ms in (at_ms - 1, at_ms)] == [False, at_ms < NEVER]
    for number, at_ms in enumerate(forecast.expires_ms.tolist()):
        is_by_size = config.delete and config.retention_bytes == 0 and at_ms < NEVER
        expires = [number in rolled(moment_ms, EXPIRED) for moment_ms in (at_ms - 1, at_ms)]
        assert expires == [is_by_size, at_ms < NEVER]
    assert set(forecast.roll) == rolled(now_ms)

    def late(partition: int, at_ms: int) -> bool:
        plan = plan_compaction(made.live, made.partitions, config, at_ms)
        return any(one.partition == partition and one.picked for one in plan)

    if config.compact:
        for number, at_ms in enumerate(forecast.max_lag_ms.tolist()):
            if at_ms < NEVER and forecast.compact[number].cleanable_bytes > 0:
                assert [late(number, at_ms - 1), late(number, at_ms)] == [False, True]


@settings(deadline=None)
@given(parts, st.integers(0, 100), st.integers(0, 200))
def test_cleaning_may_go_to_the_end_of_a_segment_once_its_lag_and_those_before_it_are_over(part, lag_ms, now_ms):
    overrides = {"cleanup.policy": "compact", "min.compaction.lag.ms": lag_ms}
    made, config = topic_of([part], overrides)

    def bound(at_ms: int) -> int:
        [candidate] = plan_compaction(made.live, made.partitions, config, at_ms, force=True)
        return candidate.first_uncleanable_offset

    dirty = made.partitions.column("first_dirty_offset")[0].as_py()
    for one, at_ms in zip(
        Segment.of_table(made.live), forecast_topic(made, config, now_ms).cleanable_ms.tolist(), strict=True
    ):
        if one.state != "sealed":
            assert at_ms == NEVER
        elif one.next_offset <= dirty:
            assert at_ms == 0
        else:
            assert bound(at_ms) >= one.next_offset
            assert at_ms == 0 or bound(at_ms - 1) < one.next_offset


@settings(deadline=None)
@given(parts, st.integers(0, 120))
def test_retention_bytes_take_a_segment_once_so_much_is_appended(part, limit):
    made, config = topic_of([part], {"retention.bytes": limit, "retention.ms": -1})
    forecast = forecast_topic(made, config, 100)
    end = made.partitions.column("log_end_offset")[0].as_py()

    def taken(grown: int) -> set[int]:
        rows = [*Segment.of_table(made.live), row(end, end + 1, state="chunk", log_bytes=grown)]
        return set(plan_retention(table(rows), np.zeros(1, np.int64), config, 100).rows.tolist())

    for number, grow in enumerate(forecast.retain_bytes.tolist()):
        if grow < NEVER:
            assert number in taken(grow)
            assert grow == 0 or number not in taken(grow - 1)
        else:
            assert number not in taken(10**9)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 100) | st.just(-1)), max_size=8),
    st.integers(0, 100) | st.just(2**63 - 1),
)
def test_vacuum_comes_for_the_first_removed_segment_when_its_delay_is_over(removed, delay_ms):
    rows = [
        row(
            10 * place,
            10 * place + 10,
            partition=number,
            removed_ms=at_ms,
            log_bytes=7,
            state="deleting" if at_ms == -1 else "removed",
        )
        for place, (number, at_ms) in enumerate(removed)
    ]
    partitions = [Partition(TOPIC_ID, number, 100, 100, 100, 100) for number in range(3)]
    made, config = snapshot("orders", {"file.delete.delay.ms": str(delay_ms)}, rows, partitions)
    forecast = forecast_topic(made, config, 1000)
    for number, at_ms in enumerate(forecast.vacuum_ms.tolist()):
        mine = made.segments.filter(pc.equal(made.segments.column("partition"), number))
        assert (forecast.removed[number], forecast.removed_bytes[number]) == (mine.num_rows, 7 * mine.num_rows)
        if at_ms < NEVER:
            assert expired_rows(mine, config, at_ms).num_rows > 0
            assert at_ms == 0 or expired_rows(mine, config, at_ms - 1).num_rows == 0
        else:
            assert expired_rows(mine, config, 2**62).num_rows == 0
