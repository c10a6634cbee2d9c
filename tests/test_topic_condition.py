"""What Airflow's sensor waits for; the sensor itself runs in tests/test_examples.py."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.airflow.reached import TopicCondition
from spark_segments.airflow.reports import report_of, summary
from spark_segments.errors import InvalidOptionError, UnknownTopicError

TIME_MS = 1_700_000_000_000


@pytest.fixture
def topic(log: LogDir) -> LogDir:
    """Two partitions: three records up to TIME_MS + 2 in the first, one at TIME_MS in the second."""
    log.create_topic("orders", partitions=2)
    rows = pa.table(
        {
            "value": [b"a", b"b", b"c", b"d"],
            "partition": pa.array([0, 0, 0, 1], pa.int32()),
            "timestamp": pa.array([TIME_MS, TIME_MS + 2, TIME_MS + 1, TIME_MS], pa.timestamp("ms")),
        }
    )
    log.topic("orders").append(rows)
    return log


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ({"end_offsets": {0: 3}}, True),
        ({"end_offsets": {0: 3, 1: 1}}, True),
        ({"end_offsets": {0: 3, 1: 2}}, False),
        ({"timestamp_ms": TIME_MS}, True),
        ({"timestamp_ms": TIME_MS + 1}, False),
        ({"timestamp_ms": TIME_MS + 2, "every_partition": False}, True),
        ({"timestamp_ms": TIME_MS + 3, "every_partition": False}, False),
    ],
)
def test_a_condition_holds_once_the_topic_has_come_so_far(topic, condition, met):
    wanted = TopicCondition(topic.uri, "orders", **condition)
    stored = TopicCondition.from_dict(json.loads(json.dumps(wanted.to_dict())))
    assert stored == wanted
    assert stored.met(stored.open()) == ({0: 3, 1: 1} if met else None)


def test_what_is_stored_of_a_condition_opens_no_storage(topic):
    wanted = TopicCondition(topic.uri, "orders", {0: 3}, storage_options={"AWS_SECRET_ACCESS_KEY": "correct-Horse1"})
    assert "correct" not in json.dumps(wanted.to_dict())
    assert TopicCondition.from_dict(wanted.to_dict(), wanted.storage_options) == wanted


def test_a_look_opens_no_segment(topic):
    for path in Path(topic.uri).glob("orders-*/*"):
        path.unlink()
    for condition in ({"end_offsets": {0: 3}}, {"timestamp_ms": TIME_MS}):
        assert TopicCondition(topic.uri, "orders", **condition).met(LogDir.open(topic.uri)) == {0: 3, 1: 1}


def test_an_empty_partition_has_reached_no_time(log):
    log.create_topic("orders", partitions=1)
    assert TopicCondition(log.uri, "orders", timestamp_ms=0).met(log) is None


def test_a_partition_that_is_not_there_is_an_error_and_no_endless_wait(topic):
    with pytest.raises(UnknownTopicError, match="no partition 2"):
        TopicCondition(topic.uri, "orders", end_offsets={2: 1}).met(topic)


@pytest.mark.parametrize("given", [{}, {"end_offsets": {0: 1}, "timestamp_ms": 1}])
def test_a_sensor_waits_for_offsets_or_for_a_time(given):
    with pytest.raises(InvalidOptionError, match="offsets or for a time"):
        TopicCondition("log", "orders", **given)


def test_a_report_is_found_among_other_lines_and_kept_without_its_partitions():
    report = {"job": "roll", "records_in": 1, "partitions": [{"partition": 0}]}
    assert summary(report_of(json.dumps(report) + "\n")) == {"job": "roll", "records_in": 1}
    assert [report_of(line) for line in ("warning: {", "{broken", '{"other": 1}', "[1]")] == [None] * 4
