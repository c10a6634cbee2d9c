"""Appending DataFrames to topics, judged by other decoders of Kafka's format."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import StructType

from spark_segments.errors import CommitConflictError
from spark_segments.log.appending.appender import Chunks
from spark_segments.spark import row_writer
from spark_segments.spark.options import write_options
from tests.spark.records import by_aiokafka

START_MS = 1_700_000_000_000


def write(frame, log, topic="orders", **options):
    given = {} if topic is None else {"topic": topic}
    frame.write.format("segments").mode("append").options(**given | options).save(log.uri)


def read(spark, log, topic="orders", **options):
    return spark.read.format("segments").options(subscribe=topic, **options).load(log.uri)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_spark_writes_decodes_elsewhere(spark, log, codec):
    log.create_topic("orders")
    values = [
        (b"k1", b"v1", [("a", b"1"), ("ä", None)], 0),
        (None, b"v2", [], 1),
        (b"", b"", None, 2),
        (b"k4", None, [("", b"")], 3),
        (b"k5", b"x" * 200_000, None, 4),
    ]
    data = [
        (key, value, headers, datetime.datetime.fromtimestamp(START_MS / 1000 + n, datetime.UTC))
        for key, value, headers, n in values
    ]
    schema = "key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp"
    write(spark.createDataFrame(data, schema).coalesce(1), log, **{"compression.type": codec})
    assert by_aiokafka(log, "orders")[0] == [
        (offset, START_MS + n * 1000, 0, key, value, headers or [])
        for offset, (key, value, headers, n) in enumerate(values)
    ]


def test_a_read_of_what_was_written_is_the_same(spark, log):
    log.create_topic("orders", partitions=3)
    frame = spark.range(0, 5000, 1, 4).selectExpr(
        "concat('k', id % 17) as key",
        "concat('v', id) as value",
        "timestamp_millis(1700000000000 + id * 37) as timestamp",
        "array(named_struct('key', 'n', 'value', cast(cast(id as string) as binary))) as headers",
    )
    write(frame, log)
    back = read(spark, log, includeHeaders="true").selectExpr(
        "cast(key as string) key", "cast(value as string) value", "timestamp", "headers"
    )
    assert back.exceptAll(frame).count() == 0 and back.count() == 5000


def test_a_key_goes_to_the_partition_that_kafkas_producer_picks(spark, log):
    log.create_topic("orders", partitions=7)
    write(spark.range(1000).selectExpr("concat('key-', id) as key", "'v' as value"), log)
    for row in read(spark, log).select("key", "partition").collect():
        assert row.partition == (murmur2(bytes(row.key)) & 0x7FFFFFFF) % 7


def test_the_partition_column_beats_the_key(spark, log):
    log.create_topic("orders", partitions=3)
    frame = spark.range(300).selectExpr(
        "'same' as key", "cast(id as string) as value", "cast(id % 3 as int) as partition"
    )
    write(frame, log)
    for row in read(spark, log).selectExpr("int(cast(value as string)) as n", "partition").collect():
        assert row.partition == row.n % 3


def test_rows_without_key_are_spread_in_runs(spark, log):
    log.create_topic("orders", partitions=4)
    write(spark.range(0, 4000, 1, 1).selectExpr("repeat('x', 100) as value"), log, **{"batch.size": "10000"})
    counts = {row.partition: row["count"] for row in read(spark, log).groupBy("partition").count().collect()}
    assert sum(counts.values()) == 4000 and min(counts.values()) > 500


def test_the_option_topic_beats_the_column(spark, log):
    log.create_topic("orders")
    write(spark.createDataFrame([("elsewhere", "v")], "topic string, value string"), log)
    assert read(spark, log).head().topic == "orders"


def test_rows_go_to_the_topics_of_their_column(spark, log):
    log.create_topic("a")
    log.create_topic("b", partitions=2)
    frame = spark.range(0, 100, 1, 2).selectExpr("if(id % 4 = 0, 'a', 'b') as topic", "cast(id as string) as value")
    write(frame, log, topic=None, txnAppId="job", txnVersion="1")
    write(frame, log, topic=None, txnAppId="job", txnVersion="1")
    counts = read(spark, log, "a,b").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"a": 25, "b": 75}


def test_a_repeated_transaction_adds_nothing(spark, log):
    log.create_topic("orders")
    frame = spark.range(10).selectExpr("cast(id as string) as value")
    for version in ("5", "5", "6"):
        write(frame, log, txnAppId="job", txnVersion=version)
    write(frame, log, txnAppId="another", txnVersion="1")
    assert log.topic("orders").offsets() == {0: (0, 30)}


def test_timestamps_are_kept_by_value_and_added_where_there_are_none(spark, log):
    log.create_topic("orders")
    before_ms = log.storage.now_ms()
    frame = spark.sql("select 'a' as value, timestamp '2024-02-29 23:59:59.123456Z' as timestamp").union(
        spark.sql("select 'b', null")
    )
    write(frame.coalesce(1), log)
    first, second = by_aiokafka(log, "orders")[0]
    assert first[1] == 1709251199123
    assert before_ms <= second[1] <= log.storage.now_ms()


def test_a_topic_by_log_append_time_has_the_time_of_the_write(spark, log):
    log.create_topic("orders", config={"message.timestamp.type": "LogAppendTime"})
    before_ms = log.storage.now_ms()
    write(spark.sql("select 'a' as value, timestamp '2024-01-01 00:00:00Z' as timestamp"), log)
    row = read(spark, log).selectExpr("timestampType", "unix_millis(timestamp) as ms").head()
    assert row.timestampType == 1 and before_ms <= row.ms <= log.storage.now_ms()


def test_a_frame_read_from_a_topic_can_be_written_to_another(spark, log):
    log.create_topic("orders")
    log.create_topic("copy")
    write(spark.range(50).selectExpr("cast(id as string) as key", "cast(id as string) as value"), log)
    write(read(spark, log), log, topic="copy")
    columns = ["key", "value", "timestamp"]
    assert read(spark, log, "copy").select(columns).exceptAll(read(spark, log).select(columns)).count() == 0


def test_an_empty_frame_adds_nothing(spark, log):
    log.create_topic("orders")
    write(spark.range(0).selectExpr("cast(id as string) as value"), log)
    assert log.topic("orders").offsets() == {0: (0, 0)}


@pytest.mark.cases(4)
@pytest.mark.parametrize(
    ("select", "options", "message"),
    [
        ("'a' as body", {}, "InvalidOptionError: The data has no column to write: expected a column named value"),
        ("1 as value", {}, "InvalidOptionError: Column value has a type that cannot be written"),
        ("'a' as value, 'x' as partition", {}, "InvalidOptionError: Column partition has a type"),
        ("'a' as value, map('a', 1) as headers", {}, "InvalidOptionError: Column headers has a type"),
        ("'a' as value, 'b' as value", {}, "two columns of the same name"),
        ("'a' as value", {"topic": None}, "InvalidOptionError: The write names no topic"),
        ("'a' as value", {"topic": "nothere"}, "UnknownTopicError: Unknown topic 'nothere'"),
        ("'a' as value", {"compression": "lz4"}, "Did you mean compression.type?"),
        ("'a' as value", {"compression.type": "brotli"}, "InvalidOptionError: Unknown compression.type"),
        ("'a' as value, 5 as partition", {}, "InvalidOptionError: Topic orders has no such partition"),
        ("repeat('a', 2000000) as value", {}, "RecordTooLargeError"),
    ],
)
def test_a_wrong_write_is_one_clear_error_and_leaves_the_log_as_it_was(spark, log, select, options, message):
    log.create_topic("orders")
    with pytest.raises(PySparkException) as caught:
        write(spark.sql(f"select {select}"), log, **{"compression.type": "none"} | options)
    assert message in str(caught.value)
    assert log.topic("orders").offsets() == {0: (0, 0)}


def test_a_topic_is_never_overwritten(spark, log):
    log.create_topic("orders")
    frame = spark.range(1).selectExpr("'a' as value")
    with pytest.raises(PySparkException, match=r"Topics are appended to, never overwritten.*mode\(.append.\)"):
        frame.write.format("segments").mode("overwrite").option("topic", "orders").save(log.uri)
    with pytest.raises(AnalysisException):
        frame.write.format("segments").option("topic", "orders").save(log.uri)


def test_a_kafka_directory_is_not_written_to(spark, tmp_path):
    (tmp_path / "orders-0").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").touch()
    with pytest.raises(PySparkException, match="LogDirError: A Kafka log directory is read-only"):
        frame = spark.range(1).selectExpr("'a' as value")
        frame.write.format("segments").mode("append").option("topic", "orders").save(str(tmp_path))


@pytest.mark.proof
def test_very_many_small_chunks_are_told_of_once(spark, log, caplog, limits):
    limits(MANY_CHUNKS=4)
    log.create_topic("orders", partitions=2)
    write(spark.range(0, 40, 1, 2).selectExpr("concat('k', id) as key", "'v' as value"), log)
    segments = tuple(log.topic("orders").snapshot.live_of(0) + log.topic("orders").snapshot.live_of(1))
    assert len(segments) == 4
    row_writer.warn_of_small_chunks("orders", [Chunks("orders", "id", segments[:3])])
    assert caplog.messages == []
    halves = [Chunks("orders", "id", segments[:3]), Chunks("orders", "id", segments[3:])]
    row_writer.warn_of_small_chunks("orders", halves)
    (message,) = caplog.messages
    assert "left 4 chunks of 0 KiB on average in topic orders" in message and "coalesce" in message


@pytest.mark.cases(1)
@pytest.mark.parametrize("txn", [None, ("app", 1)])
def test_a_write_that_fails_at_a_later_topic_says_which_topics_have_their_rows(log, txn):
    for topic in ("aaa", "bbb", "ccc"):
        log.create_topic(topic)
    transaction = {} if txn is None else {"txnAppId": txn[0], "txnVersion": str(txn[1])}
    options = write_options({"path": log.uri, **transaction})
    driver = row_writer.Writer(options, StructType().add("topic", "string").add("value", "binary"), overwrite=False)
    rows = pa.table({"topic": ["aaa", "bbb", "ccc"], "value": [b"1", b"2", b"3"]})
    message = driver.write(iter(rows.to_batches()))
    log.delete_topic("bbb")
    log.create_topic("bbb")
    expected = "were committed: aaa. Not committed, or not known to be: bbb, ccc"
    with pytest.raises(CommitConflictError, match=expected) as raised:
        driver.commit([message])
    assert ("with the same transaction" in str(raised.value)) == (txn is not None)
    assert [log.topic(topic).offsets()[0][1] for topic in ("aaa", "bbb", "ccc")] == [1, 0, 0]
