"""Reading a topic as it was at a version or at a time."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from spark_segments.errors import InvalidOptionError, UnknownTopicError


@pytest.fixture
def orders(log):
    """Five commits after the one that makes the topic, each of a record; and their times."""
    log.create_topic("orders")
    for number in range(5):
        log.topic("orders").append(pa.table({"value": [b"%d" % number]}))
    return log, [commit["committed_ms"] for commit in log.topic("orders").manifest.history()]


def test_a_time_gives_the_last_version_that_was_committed_by_then(orders):
    log, times = orders
    for version, committed_ms in enumerate(times):
        last = max(number for number, other in enumerate(times) if other <= committed_ms)
        assert log.topic("orders", timestamp=committed_ms).snapshot.version == last >= version
    assert log.topic("orders", timestamp=times[-1] + 1_000_000).snapshot.version == len(times) - 1


def test_a_time_before_the_topic_was_made_is_an_error(orders):
    log, times = orders
    first, before = (
        f"{datetime.datetime.fromtimestamp(0, datetime.UTC) + datetime.timedelta(milliseconds=at):%FT%T.%f}"[:-3] + "Z"
        for at in (times[0], times[0] - 1)
    )
    with pytest.raises(InvalidOptionError, match=f"a time from {first} on, found {before}"):
        _ = log.topic("orders", timestamp=times[0] - 1).snapshot
    with pytest.raises(UnknownTopicError):
        _ = log.topic("nothere", timestamp=times[0]).snapshot


def test_timestamp_as_of_reads_what_was_there_then(spark, orders):
    log, times = orders
    reader = spark.read.format("segments").option("subscribe", "orders")
    counts = {when: reader.option("timestampAsOf", when).load(log.uri).count() for when in (times[0], times[-1] + 1)}
    assert counts == {times[0]: log.topic("orders", timestamp=times[0]).snapshot.version, times[-1] + 1: 5}
