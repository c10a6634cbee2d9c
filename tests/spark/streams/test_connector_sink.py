"""The Kafka connector's KafkaSinkSuite, case by case, for streaming writes.

Numbers are those of the list of cases that docs/coming-from-kafka.md speaks of. The stream writer runs as Spark's
processes call it; case 140 is asked of Spark.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from tests.spark.streams import batches


@pytest.fixture
def t(log):
    for topic, partitions in (("t", 4), ("other", 1)):
        log.create_topic(topic, partitions=partitions)
    return log


def records(log):
    return {name: end for name in ("t", "other") for _, end in log.topic(name).offsets().values() if end}


@pytest.mark.parametrize(
    ("case", "columns", "options", "topic"),
    [
        ("129 with topic field", {"topic": ["other"]}, {}, "other"),
        ("130 without topic field, with topic option", {}, {"topic": "other"}, "other"),
        ("131 topic field and topic option", {"topic": ["t"]}, {"topic": "other"}, "other"),
    ],
)
def test_rows_go_to_the_topic(t, case, columns, options, topic):
    batches.run(t.uri, options, [pa.table({"value": ["1"]} | columns)], batch=0)
    assert records(t) == {topic: 1}


@pytest.mark.parametrize(
    ("case", "columns", "options", "named"),
    [
        ("132 no topic", {"value": ["1"]}, {}, "topic"),
        ("133 no value", {"key": ["1"]}, {"topic": "t"}, "value"),
        ("134 topic int", {"value": ["1"], "topic": [1]}, {}, "topic"),
        ("135 value int", {"value": [1]}, {"topic": "t"}, "value"),
        ("136 key int", {"value": ["1"], "key": [1]}, {"topic": "t"}, "key"),
        ("137 partition string", {"value": ["1"], "partition": ["1"]}, {"topic": "t"}, "partition"),
        ("139 key serializer", {"value": ["1"]}, {"topic": "t", "kafka.key.serializer": "x"}, "kafka.key.serializer"),
        (
            "139 value serializer",
            {"value": ["1"]},
            {"topic": "t", "kafka.value.serializer": "x"},
            "kafka.value.serializer",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_before_a_task_starts(t, case, columns, options, named):
    with pytest.raises(InvalidOptionError, match=named):
        batches.write(t.uri, options, [pa.table(columns)], "q1", 0)
    assert records(t) == {}


def test_case_138_write_to_a_topic_that_is_not_there(t):
    with pytest.raises(UnknownTopicError, match="nothere"):
        batches.run(t.uri, {"topic": "nothere"}, [pa.table({"value": ["1"]})], batch=0)
    with pytest.raises(UnknownTopicError, match="nothere"):
        batches.run(t.uri, {}, [pa.table({"value": ["1"], "topic": ["nothere"]})], batch=0)
    assert records(t) == {}


@pytest.mark.proof
def test_case_140_sink_progress_is_produced(spark, t, tmp_path):
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "1.txt").write_text("1\n2\n3\n")
    stream = spark.readStream.text(str(tmp_path / "lines")).writeStream.format("segments")
    query = stream.options(topic="t", checkpointLocation=str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = query.start(t.uri)
    query.awaitTermination()
    assert [progress["sink"]["numOutputRows"] for progress in query.recentProgress] == [3]


def test_case_141_big_data_with_a_small_batch_size(t):
    rows = pa.table({"value": [b"x" * 15_000] * 1000})
    batches.run(t.uri, {"topic": "other", "kafka.batch.size": "16384"}, [rows], batch=0)
    assert records(t) == {"other": 1000}
