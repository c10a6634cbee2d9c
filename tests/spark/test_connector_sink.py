"""The Kafka connector's KafkaSinkSuite, case by case, for batch writes.

Numbers are those of docs/design/kafka-connector-cases.md. The data source runs as Spark's
processes call it; what hangs on Spark itself is asked of Spark.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from tests.spark import in_process


@pytest.fixture
def t(log):
    for topic, partitions in (("t", 4), ("other", 1)):
        log.create_topic(topic, partitions=partitions)
    return log


def written(log, topic="t"):
    return in_process.load(log.uri, {"subscribe": topic, "includeHeaders": "true"})


@pytest.mark.parametrize(
    ("case", "columns", "options", "topic"),
    [
        ("129 with topic field", {"topic": ["other"]}, {}, "other"),
        ("130 without topic field, with topic option", {}, {"topic": "other"}, "other"),
        ("131 topic field and topic option", {"topic": ["t"]}, {"topic": "other"}, "other"),
    ],
)
def test_rows_go_to_the_topic(t, case, columns, options, topic):
    in_process.save(t.uri, options, [pa.table({"value": ["1"]} | columns)])
    assert {name: end for name in ("t", "other") for _, end in t.topic(name).offsets().values() if end} == {topic: 1}


def test_case_138_write_to_a_topic_that_is_not_there(t):
    with pytest.raises(UnknownTopicError, match="nothere"):
        in_process.save(t.uri, {"topic": "nothere"}, [pa.table({"value": ["1"]})])
    with pytest.raises(UnknownTopicError, match="nothere"):
        in_process.save(t.uri, {}, [pa.table({"value": ["1"], "topic": ["nothere"]})])
    assert all(end == 0 for _, end in t.topic("t").offsets().values())


def test_case_141_big_data_with_a_small_batch_size(t):
    rows = pa.table({"value": [b"x" * 15_000] * 1000})
    in_process.save(t.uri, {"topic": "other", "kafka.batch.size": "16384"}, [rows])
    assert t.topic("other").offsets() == {0: (0, 1000)}


def test_case_142_batch_write_with_values_and_headers(t):
    headers = [None, [], [("a", b"1")], [("a", b"1"), ("b", None)], [("c", b"1"), ("c", b"2")]]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    lists = [None if one is None else [{"key": key, "value": value} for key, value in one] for one in headers]
    rows = pa.table({"value": [str(number) for number in range(5)], "headers": pa.array(lists, kind)})
    in_process.save(t.uri, {"topic": "other"}, [rows])
    assert [(row["value"], row["headers"]) for row in written(t, "other")] == [
        (str(number).encode(), one or []) for number, one in enumerate(lists)
    ]


def test_case_143_keys_are_spread_over_partitions(t):
    in_process.save(t.uri, {"topic": "t"}, [pa.table({"key": [str(n) for n in range(100)], "value": ["v"] * 100})])
    assert all(end > 0 for _, end in t.topic("t").offsets().values())


def test_case_144_a_partitioner_class_is_told_of_and_not_run(t, caplog):
    options = {"topic": "t", "kafka.partitioner.class": "org.example.Always0"}
    in_process.save(t.uri, options, [pa.table({"key": [str(n) for n in range(100)], "value": ["v"] * 100})])
    assert all(end > 0 for _, end in t.topic("t").offsets().values())
    assert [message.split(" is not")[0] for message in caplog.messages] == ["kafka.partitioner.class"]


def test_case_145_the_partition_column_wins(t):
    columns = {"key": [str(n) for n in range(10)], "value": ["v"] * 10, "partition": pa.array([2] * 10, pa.int32())}
    in_process.save(t.uri, {"topic": "t", "kafka.partitioner.class": "x"}, [pa.table(columns)])
    assert t.topic("t").offsets() == {0: (0, 0), 1: (0, 0), 2: (0, 10), 3: (0, 0)}


def test_case_146_a_null_partition_is_as_if_the_column_were_not_there(t):
    columns = {"key": [str(n) for n in range(100)], "value": ["v"] * 100}
    in_process.save(t.uri, {"topic": "t"}, [pa.table(columns | {"partition": pa.nulls(100, pa.int32())})])
    with_column = {row["key"]: row["partition"] for row in written(t)}
    t.delete_topic("t")
    t.create_topic("t", partitions=4)
    in_process.save(t.uri, {"topic": "t"}, [pa.table(columns)])
    assert {row["key"]: row["partition"] for row in written(t)} == with_column


def test_case_147_a_null_topic_without_the_option(t):
    with pytest.raises(InvalidOptionError, match="topic"):
        in_process.save(t.uri, {}, [pa.table({"value": ["1", "2"], "topic": ["t", None]})])
    assert all(end == 0 for _, end in t.topic("t").offsets().values())


@pytest.mark.parametrize(("case", "mode"), [("148", "ignore"), ("149", "overwrite"), ("149 default", "errorifexists")])
def test_save_modes_that_are_not_supported(spark, t, case, mode):
    frame = spark.sql("select 'a' as value")
    with pytest.raises((AnalysisException, PySparkException), match=r"(?i)append"):
        frame.write.format("segments").mode(mode).option("topic", "t").save(t.uri)
    assert all(end == 0 for _, end in t.topic("t").offsets().values())


def test_case_150_to_json_of_a_struct_is_a_value(spark, t):
    frame = spark.range(3).selectExpr("to_json(struct(*)) as value")
    frame.write.format("segments").mode("append").option("topic", "other").save(t.uri)
    assert sorted(row["value"] for row in written(t, "other")) == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
