"""message.timestamp.before.max.ms and message.timestamp.after.max.ms, as Kafka's LogValidator has them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_segments.errors import InvalidOptionError
from verification.world.clock import store_clock

NOW_MS = 1_700_000_000_000
LIMITS = {"message.timestamp.before.max.ms": "5000", "message.timestamp.after.max.ms": "1000"}


@pytest.fixture(autouse=True)
def fixed_clock():
    with store_clock(NOW_MS):
        yield


def rows(*times_ms: int | None) -> pa.Table:
    return pa.table(
        {
            "value": pa.array([b"v"] * len(times_ms), pa.binary()),
            "timestamp": pa.array(times_ms, pa.timestamp("ms", "UTC")),
        }
    )


@pytest.mark.parametrize("at_ms", [NOW_MS - 5000, NOW_MS, NOW_MS + 1000, None, -1])
def test_timestamps_within_the_limits_and_none_at_all_are_taken(log, at_ms):
    log.create_topic("orders", config=LIMITS)
    assert log.topic("orders").append(rows(at_ms)) == {0: (0, 0)}


@pytest.mark.parametrize(
    "at_ms, limit", [(NOW_MS - 5001, "5000 ms before"), (NOW_MS + 1001, "1000 ms after"), (-2, "5000 ms before")]
)
def test_a_timestamp_too_far_off_is_refused_with_its_row_and_the_limit(log, at_ms, limit):
    log.create_topic("orders", config=LIMITS)
    with pytest.raises(InvalidOptionError) as caught:
        log.topic("orders").append(rows(NOW_MS, NOW_MS, at_ms))
    for part in ("orders", str(at_ms), limit, str(NOW_MS), "row 2", "message.timestamp."):
        assert part in str(caught.value)
    assert log.topic("orders").offsets() == {0: (0, 0)}


def test_log_append_time_has_no_limits(log):
    log.create_topic("orders", config={**LIMITS, "message.timestamp.type": "LogAppendTime"})
    assert log.topic("orders").append(rows(0)) == {0: (0, 0)}


@pytest.mark.parametrize("at_ms", [0, NOW_MS + 10**12])
def test_without_limits_any_time_is_taken(log, at_ms):
    log.create_topic("orders")
    assert log.topic("orders").append(rows(at_ms)) == {0: (0, 0)}


def test_one_limit_leaves_the_other_side_open(log):
    log.create_topic("orders", config={"message.timestamp.after.max.ms": "1000"})
    assert log.topic("orders").append(rows(0)) == {0: (0, 0)}
    with pytest.raises(InvalidOptionError, match=r"after\.max"):
        log.topic("orders").append(rows(NOW_MS + 1001))
