"""The data source and the jobs on Sail. on_sail.py runs all of Spark's tests that apply there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark_segments import LogDir
from spark_segments.maintenance import compact, retain, roll, table, vacuum
from verification.spark.sail_server import sail_session
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.kafka_bytes.segment_bytes import RECORD_SCHEMA

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def sail(tmp_path_factory):
    with sail_session(tmp_path_factory.mktemp("sail")) as session:
        yield session


def load(sail, uri, topic, schema=None, **options):
    reader = sail.read.format("segments").option("subscribe", topic).option("includeHeaders", "true")
    return (reader.schema(schema) if schema else reader).options(**options).load(uri)


def write(frame, uri, topic, **options):
    frame.write.format("segments").mode("append").option("topic", topic).options(**options).save(uri)


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])


@pytest.mark.proof
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_golden_directories_read_as_without_spark(sail, isolation_level):
    log = LogDir.open(str(GOLDEN))
    for topic in log.topics():
        expected = pa.Table.from_batches(
            list(log.topic(topic).scan(isolation=isolation_level).batches()), RECORD_SCHEMA
        )
        options = {"isolation.level": isolation_level, "maxPartitionBytes": "20000"}
        found = load(sail, str(GOLDEN), topic, **options).toArrow()
        zoned = found.schema.field("timestamp").type.tz
        assert zoned is not None
        assert in_order(found.cast(RECORD_SCHEMA)) == expected, topic


def test_rows_are_written_exactly_once_with_their_moments(sail, log):
    log.create_topic("t", 2)
    frame = sail.sql(
        """SELECT 'k' AS key, 'v' AS value, timestamp '2024-07-01 12:00:00 UTC' AS timestamp, 1 AS partition,
                  array(struct('h' AS key, cast('x' AS binary) AS value)) AS headers"""
    )
    for _ in range(2):
        write(frame, log.uri, "t", txnAppId="nightly", txnVersion="7")
    assert log.topic("t").offsets() == {0: (0, 0), 1: (0, 1)}
    (row,) = next(log.topic("t").scan().batches()).to_pylist()
    assert (row["key"], row["value"], row["timestamp"].isoformat()) == (b"k", b"v", "2024-07-01T12:00:00+00:00")
    assert row["headers"] == [{"key": "h", "value": b"x"}]
    again = load(sail, log.uri, "t").toArrow().cast(RECORD_SCHEMA)
    assert again.to_pylist() == [row]


def test_a_schema_is_a_projection_in_the_time_zone_of_the_session(sail, log):
    log.create_topic("t")
    log.topic("t").append(
        pa.table({"value": ["a"], "timestamp": pa.array([1_719_835_200_000_000], pa.timestamp("us", "UTC"))})
    )
    found = load(sail, log.uri, "t", "timestamp timestamp, value binary")
    assert found.selectExpr("unix_micros(timestamp)", "string(value)").collect() == [(1_719_835_200_000_000, "a")]


def test_options_choose_offsets_and_partitions(sail, log):
    log.create_topic("t", 2)
    log.topic("t").append(
        pa.table({"value": [str(n) for n in range(20)], "partition": pa.array([0, 1] * 10, pa.int32())})
    )
    starts, ends = '{"t": {"0": 3, "1": -2}}', '{"t": {"0": -1, "1": 4}}'
    found = load(sail, log.uri, "t", startingOffsets=starts, endingOffsets=ends, minPartitions="5")
    assert sorted((row.partition, row.offset) for row in found.collect()) == [
        *((0, offset) for offset in range(3, 10)),
        *((1, offset) for offset in range(4)),
    ]
    assert found.where("partition = 0 AND offset > 5").count() == 4
    assert found.where("offset < 2").count() == 2


def test_the_jobs_run_on_its_session_and_the_latest_view_merges_into_a_delta_table(sail, log, tmp_path):
    log.create_topic("t", 2, {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0"})
    for step in range(4):
        write(sail.range(100).selectExpr("string(id % 10) AS key", f"string(id + {step}) AS value"), log.uri, "t")
    reports = [job(log, spark=sail).to_dict() for job in (roll, compact, retain, vacuum)]
    assert not any(report["failed"] for report in reports)
    latest = load(sail, log.uri, "t", view="latest", includeTombstones="false")
    expected = {row["key"]: row["value"] for batch in log.topic("t").scan().batches() for row in batch.to_pylist()}
    assert {bytes(row.key): row.value for row in latest.collect()} == expected  # bytearrays, before PySpark 4.1
    assert sail.sql(f"SELECT count(*) FROM delta.`{log.uri}/_manifest/t`").head()[0] > 0
    sail.sql(f"CREATE TABLE prices (key STRING, value STRING) USING delta LOCATION '{tmp_path}/prices'")
    latest.selectExpr("string(key) AS key", "string(value) AS value").createOrReplaceTempView("newest")
    for _ in range(2):
        sail.sql(
            """MERGE INTO prices USING newest ON prices.key = newest.key
               WHEN MATCHED THEN UPDATE SET value = newest.value
               WHEN NOT MATCHED THEN INSERT (key, value) VALUES (newest.key, newest.value)"""
        )
    rows = sail.sql("SELECT * FROM prices").collect()
    assert {row.key.encode(): row.value.encode() for row in rows} == expected and len(rows) == 10


def test_a_table_beside_a_topic_is_a_table_of_its_own(sail, log, tmp_path):
    log.create_topic("t", 2)
    log.topic("t").append(
        pa.table({"key": ["a", "b", "c"], "value": ["1", "2", "3"], "partition": pa.array([0, 0, 1])})
    )
    assert table(log, topics=["t"], table_uri=f"{tmp_path}/table", partition_by="day").failed == []
    log.topic("t").delete_records({0: 1})
    assert table(log, topics=["t"], table_uri=f"{tmp_path}/table").failed == []
    columns = ["key", "value", "headers", "partition", "offset", "timestamp"]
    found = sail.sql(f"SELECT {', '.join(columns)} FROM delta.`{tmp_path}/table` ORDER BY partition, offset").toArrow()
    wanted = pa.Table.from_batches(list(log.topic("t").scan(columns=columns).batches()))
    assert found.cast(wanted.schema) == wanted


def test_values_have_their_types(sail, log, tmp_path):
    log.create_topic("t")
    formats = {"key.format": "long", "value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    frame = sail.sql("SELECT 7L AS key, named_struct('id', 1, 'at', timestamp '2024-07-01 12:00:00 UTC') AS value")
    write(frame, log.uri, "t", **formats)
    found = load(sail, log.uri, "t", **formats)
    assert found.selectExpr("key", "value.id", "unix_seconds(value.at)").collect() == [(7, 1, 1_719_835_200)]
    write(sail.sql("SELECT 7L AS key, named_struct('id', 2, 'at', null) AS value"), log.uri, "t", **formats)
    latest = load(sail, log.uri, "t", view="latest", **formats)
    assert latest.selectExpr("key", "value.id", "value.at").collect() == [(7, 2, None)]


def test_a_wrong_option_is_one_clear_error(sail, log):
    log.create_topic("t")
    with pytest.raises(PySparkException, match="Did you mean startingOffsets"):
        load(sail, log.uri, "t", startingOfsets="earliest").count()
    with pytest.raises(PySparkException, match="never overwritten"):
        sail.sql("SELECT 'a' AS value").write.format("segments").mode("overwrite").option("topic", "t").save(log.uri)


def test_filters_choose_what_is_read_and_every_row_that_they_mean_comes(sail, log):
    log.create_topic("t", 2, {"segment.bytes": "2000"})
    for first in range(0, 400, 40):
        numbers = range(first, first + 40)
        rows = [{"value": b"%d" % number, "partition": number % 2, "timestamp": number * 60_000} for number in numbers]
        log.topic("t").append(rows)
    conditions = {
        "offset >= 150": 100, "offset between 10 and 19 and partition = 1": 10, "partition in (1, 7)": 200,
        "offset < 5 and offset > 5": 0, "offset = 3 or partition = 0": 201,
        "timestamp >= timestamp '1970-01-01 05:00:00 UTC'": 100,
        "timestamp < timestamp '1970-01-01 01:00:00 UTC' and timestamp >= timestamp '1970-01-01 00:30:00 UTC'": 30,
    }  # fmt: skip
    frame = load(sail, log.uri, "t")
    assert {condition: frame.where(condition).count() for condition in conditions} == conditions
    damaged = next(path for path in sorted(Path(log.uri).rglob("*.log")) if "-0" in str(path))
    damaged.write_bytes(b"")
    assert frame.where("partition = 1").count() == 200  # of partition 0 nothing is read


@pytest.mark.parametrize("kind", [{}, {"view": "latest"}], ids=["plain", "latest"])
def test_a_topic_and_its_table_are_one(sail, log, tmp_path, kind):
    log.create_topic("t", 2)
    log.topic("t").append([{"key": b"%d" % number, "value": b"%d" % number} for number in range(20)])
    assert not table(log, topics=["t"], table_uri=str(tmp_path / "table"), **kind).failed
    log.topic("t").append([{"key": b"1", "value": b"x"}, {"key": b"new", "value": None}])
    topic = log.topic("t")
    frame = topic.to_spark(sail, **kind)
    assert frame.count() == topic.scan(**kind).to_table().num_rows
    assert in_order(frame.toArrow().cast(RECORD_SCHEMA)) == in_order(topic.scan(**kind).to_table())
