"""How long a record stays at most: known answers, and settings for a limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import InvalidOptionError
from spark_segments.maintenance.explanation.retention_bounds import RetentionBounds, bounds_for_deletion_within
from tests.maintenance.explained import NOW_MS, explained
from tests.maintenance.rows import chunk

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    "bounds, maximum_ms",
    [
        (RetentionBounds(HOUR_MS, DAY_MS), 25 * HOUR_MS),
        (RetentionBounds(DAY_MS, DAY_MS), 2 * DAY_MS),
        *((RetentionBounds(days * DAY_MS, DAY_MS), (days + 1) * DAY_MS) for days in (3, 7, 30)),
        (
            RetentionBounds(10 * MINUTE_MS, fill_ms=7 * MINUTE_MS, every_ms=5 * MINUTE_MS, delay_ms=MINUTE_MS),
            23 * MINUTE_MS,
        ),
    ],
)
def test_the_real_maximum_of_settings(bounds, maximum_ms):
    assert bounds.maximum_ms == maximum_ms == bounds.to_dict()["maximum_ms"]


def test_every_job_adds_its_interval():
    bounds = RetentionBounds(10 * MINUTE_MS, fill_ms=7 * MINUTE_MS, every_ms=5 * MINUTE_MS, delay_ms=MINUTE_MS)
    assert (bounds.readable_ms, bounds.deleted_ms) == (22 * MINUTE_MS, 28 * MINUTE_MS)
    # A roll that comes later than retention.ms are over is what a record waits for.
    assert RetentionBounds(MINUTE_MS, DAY_MS, every_ms=HOUR_MS).readable_ms == DAY_MS + 2 * HOUR_MS


@given(*[st.integers(0, 10_000)] * 4, st.none() | st.integers(0, 10_000))
def test_the_largest_segment_ms_is_found_that_keeps_a_limit(limit_ms, retention_ms, every_ms, delay_ms, fill_ms):
    intervals = {"every_ms": every_ms, "delay_ms": delay_ms}
    if RetentionBounds(retention_ms, 1, **intervals).deleted_ms > limit_ms:
        with pytest.raises(InvalidOptionError, match="Nothing is gone within"):
            bounds_for_deletion_within(limit_ms, retention_ms, fill_ms=fill_ms, **intervals)
        return
    found = bounds_for_deletion_within(limit_ms, retention_ms, fill_ms=fill_ms, **intervals)
    assert found.retention_ms == retention_ms and found.deleted_ms <= limit_ms
    assert RetentionBounds(retention_ms, found.segment_ms + 1, **intervals).deleted_ms > limit_ms


@pytest.mark.parametrize("wrong", [{"retention_ms": -1}, {"segment_ms": 0}, {"every_ms": -1}, {"fill_ms": -1}])
def test_a_plan_wants_durations(wrong):
    with pytest.raises(InvalidOptionError, match="too short"):
        RetentionBounds(**{"retention_ms": 1, **wrong})


@pytest.mark.slow
@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 500), st.integers(0, 5000))
def test_a_plan_is_what_the_first_record_of_a_segment_is_told(retention_ms, segment_ms, every_ms, delay_ms):
    bounds = RetentionBounds(retention_ms, segment_ms, every_ms=every_ms, delay_ms=delay_ms)
    one = explained(
        [chunk(0, 10, max_timestamp_ms=NOW_MS, created_ms=NOW_MS)],
        every_ms=every_ms,
        **{"file.delete.delay.ms": delay_ms} | bounds.settings(),
    )
    # Each rule wants a ms more than its setting.
    assert 0 <= one.leaves_log.latest_ms - NOW_MS - bounds.readable_ms <= 1
    assert 1 <= one.files_deleted.latest_ms - NOW_MS - bounds.deleted_ms <= 2
