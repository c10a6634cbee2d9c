"""Typed keys and values in DataFrames: reader, writer, and functions of columns."""

from __future__ import annotations

import datetime
import decimal
import functools
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_segments import LogDir
from spark_segments.cli import main
from spark_segments.values import decode, encode
from verification.spark.queries import ran

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
DDL = "id bigint, tags array<string>, m map<string,double>, at timestamp_ntz, price decimal(10,2), sub struct<x: int>"
ROWS = [
    {
        **{"id": 1, "tags": ["a", None], "m": {"k": 1.5}, "at": AT, "price": decimal.Decimal("1.25"), "sub": {"x": 1}},
    },
    {"id": 2, "tags": None, "m": None, "at": None, "price": None, "sub": None},
]


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", partitions=2)
    return log


@pytest.fixture
def formats(tmp_path: Path) -> dict[str, str]:
    return {"key.format": "long", "value.format": "avro", "schema.registry": str(tmp_path / "registry")}


@pytest.fixture
def written(spark: SparkSession, log: LogDir, formats: dict[str, str]) -> DataFrame:
    """ROWS as the DataFrame that was written to orders."""
    schema = StructType.fromDDL(f"key bigint, value struct<{DDL}>")
    frame = spark.createDataFrame([(row["id"], row) for row in ROWS], schema)
    options = {**formats, "topic": "orders"}
    frame.write.format("segments").mode("append").options(**options).save(log.uri)
    return frame


def read(spark: SparkSession, log: LogDir, formats: dict[str, str], topics: str = "orders") -> DataFrame:
    return spark.read.format("segments").options(**formats).option("subscribe", topics).load(log.uri)


def plain(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(
        (row.asDict(recursive=True) for row in frame.select("value").collect()), key=lambda r: r["value"]["id"]
    )


def test_a_frame_comes_back_typed(spark, log, formats, written):
    frame = read(spark, log, formats)
    assert frame.schema["key"].dataType.simpleString() == "bigint"
    assert frame.schema["value"].dataType == written.schema["value"].dataType
    assert plain(frame) == [{"value": row} for row in ROWS]
    assert sorted(row.key for row in frame.select("key").collect()) == [1, 2]


def test_without_spark_the_same_columns_are_read(log, formats, written):
    table = pa.Table.from_batches(log.topic("orders").scan(formats=formats).batches()).sort_by("key")
    assert [{**row, "m": row["m"] and dict(row["m"])} for row in table["value"].to_pylist()] == ROWS


def test_a_schema_of_ones_own_is_a_projection_of_the_typed_columns(spark, log, formats, written):
    reader = spark.read.format("segments").options(**formats).option("subscribe", "orders")
    kind = written.schema["value"].dataType.simpleString()
    frame = reader.schema(f"offset bigint, value {kind}").load(log.uri)
    assert frame.columns == ["offset", "value"]
    assert plain(frame) == [{"value": row} for row in ROWS]


def test_an_error_of_a_task_says_where_the_value_is(spark, log, written):
    frame = read(spark, log, {"value.format": "json", "value.schema": "id bigint"})
    with pytest.raises(PySparkException, match=r"topic orders, partition \d, offset 0: expected json, found Confluent"):
        frame.collect()


def test_what_cannot_be_read_is_null_with_its_bytes_beside_it(spark, log):
    log.topic("orders").append(pa.table({"value": [b'{"id": 1}', b"no"], "partition": pa.array([0, 0], pa.int32())}))
    given = {"value.format": "json", "value.schema": "id int", "value.errors": "null", "value.raw.column": "raw"}
    rows = read(spark, log, given).select("offset", "value.id", "raw").orderBy("offset").collect()
    assert [tuple(row) for row in rows] == [(0, 1, None), (1, None, bytearray(b"no"))]


def test_topics_of_one_type_are_read_together(spark, log, formats, written):
    log.create_topic("more")
    options = {**formats, "topic": "more"}
    written.write.format("segments").mode("append").options(**options).save(log.uri)
    assert read(spark, log, formats, "orders,more").count() == 4
    log.create_topic("longs")
    log.topic("longs").append(pa.table({"value": pa.array([1])}), formats=formats)
    with pytest.raises(PySparkException, match="another type"):
        read(spark, log, formats, "orders,longs")


def test_a_time_of_day_is_microseconds_in_spark(spark, log, formats):
    times = pa.table({"value": pa.array([{"id": 1, "t": datetime.time(0, 0, 1)}])})
    log.topic("orders").append(times, formats=formats)
    assert read(spark, log, formats).select("value.t").collect()[0].t == 1_000_000


@pytest.mark.proof
def test_a_timestamp_is_the_same_moment_in_every_time_zone(spark, log, formats):
    moment_us = 1_767_225_600_123_456
    frame = spark.range(1).select(F.struct(F.timestamp_micros(F.lit(moment_us)).alias("at")).alias("value"))
    for name in ("avro", "json", "csv"):
        log.create_topic(name)
        given = {"value.format": name, "schema.registry": formats["schema.registry"], "value.schema": "at timestamp"}
        frame.write.format("segments").mode("append").options(**given, topic=name).save(log.uri)
        (batch,) = log.topic(name).scan(columns=["value"], formats=given).batches()
        assert batch.column("value").field("at").cast(pa.int64()).to_pylist() == [moment_us]
        found = read(spark, log, given, name).select(F.unix_micros("value.at")).collect()
        assert found[0][0] == moment_us
        options = {"registry": formats["schema.registry"], "topic": name} if name == "avro" else {}
        typed = read(spark, log, {}, name).select(decode("value", name, "at timestamp", **options).alias("v"))
        assert typed.select(F.unix_micros("v.at")).collect()[0][0] == moment_us
        again = typed.select(encode("v", name, "at timestamp", **options).alias("b")).collect()
        assert bytes(again[0].b) == next(iter(log.topic(name).scan().batches())).column("value")[0].as_py()


@pytest.mark.proof
def test_a_stream_and_the_latest_view_have_the_same_columns(spark, log, formats, written, tmp_path):
    log.create_topic("copy", partitions=2)
    source = spark.readStream.format("segments").options(**formats, subscribe="orders", startingOffsets="earliest")
    frame = source.load(log.uri)
    assert frame.schema == read(spark, log, formats).schema
    for turn in range(2):  # each query copies all rows: the keys repeat
        sink = frame.select("key", "value").writeStream.format("segments").options(**formats, topic="copy")
        writer = sink.option("checkpointLocation", str(tmp_path / f"{turn}")).trigger(availableNow=True)
        ran(functools.partial(writer.start, log.uri))
    assert read(spark, log, formats, "copy").count() == 4
    latest = read(spark, log, {**formats, "view": "latest"}, "copy")
    assert latest.schema == frame.schema
    assert plain(latest) == [{"value": row} for row in ROWS]


def test_an_option_that_is_misspelt_is_named(spark, log):
    with pytest.raises(PySparkException, match=r"Did you mean value\.format"):
        read(spark, log, {"value.fromat": "json"})


def test_functions_of_columns_decode_and_encode(spark, log, formats, written):
    raw = read(spark, log, {})
    registry = formats["schema.registry"]
    typed = raw.select(decode("value", "avro", registry=registry, topic="orders").alias("value"))
    assert plain(typed) == [{"value": row} for row in ROWS]
    kind = typed.schema["value"].dataType.simpleString()
    again = typed.select(encode("value", "avro", registry=registry, topic="orders", type=kind).alias("value"))
    stored = {bytes(row.value) for row in raw.collect()}
    assert {bytes(row.value) for row in again.collect()} == stored
    texts = typed.select(encode(F.col("value.sub"), "json", type="struct<x:int>").cast("string").alias("j")).collect()
    assert {row.j for row in texts} == {'{"x":1}', None}


def test_the_command_appends_rows_in_a_format(spark, log, formats, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text("".join(json.dumps({"id": n, "name": f"n{n}"}) + "\n" for n in range(5)))
    with pytest.raises(SystemExit) as exit_info:
        main(
            [
                *("append", log.uri, "orders", "--input", str(file), "--key-column", "id", "--key-format", "long"),
                *("--value-format", "avro", "--schema-registry", formats["schema.registry"]),
            ]
        )
    assert not exit_info.value.code
    rows = read(spark, log, formats).select("key", "value.id", "value.name").orderBy("key").collect()
    assert [tuple(row) for row in rows] == [(n, n, f"n{n}") for n in range(5)]
