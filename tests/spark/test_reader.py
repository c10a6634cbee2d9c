"""Reading topics as DataFrames: columns, options, snapshots and errors."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from chispa import assert_df_equality
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_segments import LogDir, ProducerOptions
from spark_segments.maintenance import roll, vacuum

START_MS = 1_700_000_000_000
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
KAFKA_SCHEMA = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)


def rows(numbers, partition=None):
    """Record n: key k<n mod 5>, value v<n>, a timestamp n seconds after the start, a header for every third."""
    numbers = list(numbers)
    columns = {
        "key": [f"k{n % 5}".encode() for n in numbers],
        "value": [f"v{n}".encode() for n in numbers],
        "timestamp": pa.array([(START_MS + n * 1000) * 1000 for n in numbers], pa.timestamp("us", tz="UTC")),
        "headers": pa.array(
            [[{"key": "n", "value": str(n).encode()}] if n % 3 == 0 else [] for n in numbers],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(numbers), pa.int32())
    return pa.table(columns)


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """Topic orders: offsets 0 to 99 in partition 0 (log start 10), 0 to 19 in partition 1. Topic other: five rows."""
    log = LogDir.create(str(tmp_path_factory.mktemp("reader") / "log"))
    log.create_topic("orders", partitions=2)
    for start in range(0, 100, 25):
        log.topic("orders").append(
            rows(range(start, start + 25), partition=0), options=ProducerOptions(batch_bytes=200)
        )
    log.topic("orders").append(rows(range(20), partition=1))
    log.topic("orders").delete_records({0: 10})
    log.create_topic("other")
    log.topic("other").append(rows(range(5)))
    return log


@pytest.fixture
def load(spark, orders):
    def load(**options):
        chosen = {"subscribe": "orders"} if not {"assign", "subscribePattern"} & options.keys() else {}
        return spark.read.format("segments").options(**chosen | options).load(orders.uri)

    return load


def offsets(frame):
    """{partition: offsets read}"""
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").toArrow().to_pylist():
        found.setdefault(row["partition"], []).append(row["offset"])
    return {partition: sorted(numbers) for partition, numbers in found.items()}


def test_the_schema_is_that_of_sparks_kafka_source(load):
    assert load().schema == KAFKA_SCHEMA
    assert load(includeHeaders="true").schema == StructType([*KAFKA_SCHEMA.fields, StructField("headers", HEADERS)])


def test_records_come_whole(spark, load):
    frame = load(assign='{"orders":[1]}', includeHeaders="true").where("offset < 4")
    expected = spark.createDataFrame(
        [
            (
                bytearray(f"k{n}".encode()),
                bytearray(f"v{n}".encode()),
                "orders",
                1,
                n,
                datetime.datetime.fromtimestamp(START_MS / 1000 + n, datetime.UTC),
                0,
                [("n", bytearray(str(n).encode()))] if n % 3 == 0 else [],
            )
            for n in range(4)
        ],
        frame.schema,
    )
    assert_df_equality(frame, expected, ignore_row_order=True)


def test_everything_above_the_log_start_is_read(load):
    assert offsets(load()) == {0: list(range(10, 100)), 1: list(range(20))}


def test_records_of_a_partition_come_by_offset(load):
    read = [row.offset for row in load(assign='{"orders":[0]}').select("offset").collect()]
    assert read == list(range(10, 100))


def test_a_schema_is_a_projection_in_any_order(spark, orders):
    def project(ddl):
        return spark.read.format("segments").schema(ddl).option("subscribe", "other").load(orders.uri)

    frame = project("timestamp timestamp, value binary, headers array<struct<key:string,value:binary>>, offset long")
    assert frame.columns == ["timestamp", "value", "headers", "offset"]
    row = frame.where("offset = 3").head()
    assert row.value == b"v3" and row.headers[0].value == b"3"
    assert row.timestamp.timestamp() * 1000 == START_MS + 3000
    assert sorted(bytes(row.value) for row in project("value binary").collect()) == [b"v0", b"v1", b"v2", b"v3", b"v4"]
    assert project("offset bigint not null").selectExpr("sum(offset)").head()[0] == 10


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("body binary", "A topic has no column body: expected some of key binary, value binary"),
        ("value string", "Column value has another type in a topic: expected binary, found string"),
        ("value binary not null", "Column value can be null"),
    ],
)
def test_a_schema_that_is_no_projection_is_an_error(spark, orders, ddl, message):
    frame = spark.read.format("segments").schema(ddl).option("subscribe", "other").load(orders.uri)
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    assert f"InvalidOptionError: {message}" in str(caught.value)


def test_offsets_by_partition_bound_a_read(load):
    frame = load(startingOffsets='{"orders":{"0":40,"1":-2}}', endingOffsets='{"orders":{"0":43,"1":-1}}')
    assert offsets(frame) == {0: [40, 41, 42], 1: list(range(20))}


def test_times_bound_a_read(load):
    frame = load(startingTimestamp=str(START_MS + 15_001), endingTimestamp=str(START_MS + 18_000))
    assert offsets(frame) == {0: [16, 17], 1: [16, 17]}


def test_times_are_exactly_those_of_the_records(load):
    start, end = START_MS + 20_000, START_MS + 25_000
    frame = load(subscribe="orders", times=f"{start}..{end}", minPartitions=3)
    everything = load(subscribe="orders")
    moment = "cast(timestamp as double) * 1000"
    assert_df_equality(frame, everything.where(f"{moment} >= {start} and {moment} < {end}"), ignore_row_order=True)
    assert frame.count() > 0


def test_several_topics_by_name_and_by_pattern(load):
    counts = load(subscribePattern="o.*").groupBy("topic").count().collect()
    assert {row.topic: row["count"] for row in counts} == {"orders": 110, "other": 5}
    assert load(subscribe="other,orders").count() == 115
    assert load(subscribePattern="nothing.*").count() == 0


def test_partitions_are_split_to_the_number_asked_for(load):
    few = load()
    assert few.rdd.getNumPartitions() == 2
    many = load(minPartitions="10")
    assert 9 <= many.rdd.getNumPartitions() <= 11
    assert offsets(many) == offsets(few)
    limited = load(maxRecordsPerPartition="30")
    assert limited.rdd.getNumPartitions() == 4
    assert offsets(limited) == offsets(few)
    small = load(maxPartitionBytes="1k")
    assert small.rdd.getNumPartitions() > 4
    assert offsets(small) == offsets(few)


def test_a_dataframe_reads_the_log_of_its_load_whatever_is_appended_later(spark, log):
    log.create_topic("orders")
    log.topic("orders").append(rows(range(3)))
    frame = spark.read.format("segments").option("subscribe", "orders").load(log.uri)
    log.topic("orders").append(rows(range(3, 5)))
    assert [frame.count(), frame.where("offset > 0").count(), frame.union(frame).count()] == [3, 2, 6]


def test_a_dataframe_with_a_schema_reads_the_log_of_its_first_action(spark, log):
    log.create_topic("orders")
    log.topic("orders").append(rows(range(3)))
    frame = spark.read.format("segments").schema("offset long").option("subscribe", "orders").load(log.uri)
    assert frame.count() == 3
    log.topic("orders").append(rows(range(3, 5)))
    assert [frame.count(), frame.where("offset > 0").count(), frame.union(frame).count()] == [3, 2, 6]


def test_an_earlier_version_can_be_read(spark, log):
    log.create_topic("orders")
    log.topic("orders").append(rows(range(3)))
    version = log.topic("orders").describe()["version"]
    log.topic("orders").append(rows(range(3, 5)))
    reader = spark.read.format("segments").option("subscribe", "orders")
    assert reader.option("versionAsOf", version).load(log.uri).count() == 3


def test_an_empty_topic_is_an_empty_frame(spark, log):
    log.create_topic("orders", partitions=3)
    frame = spark.read.format("segments").option("subscribe", "orders").load(log.uri)
    assert frame.count() == 0 and frame.schema == KAFKA_SCHEMA


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "nothere"}, "UnknownTopicError: Unknown topic 'nothere'"),
        ({"subscribe": ""}, "InvalidOptionError: A reader needs to know its topics"),
        ({"startingOffset": "earliest"}, "Did you mean startingOffsets?"),
    ],
)
def test_a_wrong_load_fails_at_once_with_one_clear_error(load, options, message):
    with pytest.raises(AnalysisException) as caught:
        load(**options)
    lines = str(caught.value).splitlines()
    assert any(message in line for line in lines[:8])  # below what Spark says of itself, and no traceback of ours


def test_a_location_that_is_no_log_directory_is_an_error(spark, tmp_path):
    with pytest.raises(AnalysisException, match="LogDirError: Not a log directory"):
        spark.read.format("segments").option("subscribe", "orders").load(str(tmp_path))


def test_offsets_that_are_gone_fail_unless_data_loss_is_allowed(load):
    gone = {"assign": '{"orders":[0]}', "startingOffsets": '{"orders":{"0":3}}'}
    with pytest.raises(PySparkException, match=r"OffsetOutOfRangeError.*expected 10 to 100, found 3"):
        load(**gone).collect()
    assert offsets(load(**gone, failOnDataLoss="false")) == {0: list(range(10, 100))}


def test_damaged_bytes_fail_with_their_file_and_position(spark, log):
    log.create_topic("orders")
    log.topic("orders").append(rows(range(100)))
    (path,) = log.topic("orders").snapshot.live.column("path").to_pylist()
    frame = spark.read.format("segments").option("subscribe", "orders").load(log.uri)
    file = f"{log.uri}/{path}"
    with open(file, "r+b") as stream:
        stream.seek(80)
        stream.write(b"\0\0\0\0")
    with pytest.raises(PySparkException, match=f"CorruptBatchError.*{path}.*position 0"):
        frame.collect()


def test_a_frame_that_is_older_than_the_delete_delay_says_so(spark, tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"segment.bytes": "600", "file.delete.delay.ms": "60000"})
    for start in range(0, 60, 5):
        log.topic("orders").append(rows(range(start, start + 5)))
    frame = spark.read.format("segments").option("subscribe", "orders").load(log.uri)
    assert frame.count() == 60
    roll(log)
    (line,) = vacuum(log, now_ms=log.storage.now_ms() + 120_000).partitions
    assert line["removed_segments"] > 0
    with pytest.raises(PySparkException, match=r"(?s)MissingFileError.*file\.delete\.delay\.ms .*Load the topic again"):
        frame.count()
    assert spark.read.format("segments").option("subscribe", "orders").load(log.uri).count() == 60
