"""A topic as one with its table, in Spark: its own Parquet scan, and the source's tail."""

from __future__ import annotations

import math
import struct

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from verification.kills.table_rows import update, with_orders
from verification.world.topics import append

TYPED = {"value.format": "json", "value.schema": "n int"}


def rows(frame):
    found = [row.asDict(recursive=True) for row in frame.collect()]
    for row in found:
        for name in ("key", "value"):
            if isinstance(row[name], bytearray):
                row[name] = bytes(row[name])
        row["headers"] = row["headers"] or []
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def check(spark, log, **options):
    """The DataFrame, once its rows and its columns are those of the log alone."""
    topic = log.topic("orders")
    frame = topic.to_spark(spark, **options)
    expected = topic.to_spark(spark, **options, tables=False)
    assert frame.dtypes == expected.dtypes
    assert rows(frame) == rows(expected)
    assert frame.count() == expected.count()
    return frame._jdf.queryExecution().executedPlan().toString()


def reads_files(plan):
    return "FileScan parquet" in plan


def reads_log(plan):
    return "segments" in plan.lower() and "BatchScan" in plan


@pytest.mark.parametrize("kind", [{}, {"view": "latest"}], ids=["plain", "latest"])
def test_spark_reads_files_and_the_tail(spark, log, tmp_path, kind):
    with_orders(log, partitions=2)
    uri = str(tmp_path / "a [1] table")
    update(log, uri, **kind)
    plan = check(spark, log, **kind)
    assert reads_files(plan) and not reads_log(plan)
    append(log, (b"a", b"2"), (b"z", b"1"), (b"b", None))
    plan = check(spark, log, **kind)
    assert reads_files(plan) and reads_log(plan)
    if not kind:
        assert reads_files(check(spark, log, view="latest"))
        check(spark, log, view="latest", include_tombstones=False)
        log.topic("orders").delete_records({0: 1})
        assert reads_files(check(spark, log))


def test_spark_reads_typed_tables_for_typed_queries(spark, log, tmp_path):
    log.create_topic("orders")
    append(log, (b"1", b'{"n": 1}'))
    update(log, str(tmp_path / "table"), formats=TYPED)
    append(log, (b"2", b'{"n": 2}'), (b"3", None))
    assert reads_files(check(spark, log, formats=TYPED))
    assert not reads_files(check(spark, log))


def test_spark_finds_nan_and_both_zeros_in_the_files_of_a_table(spark, log, tmp_path):
    numbers = (1.0, math.nan, 2.0, -0.0)
    log.create_topic("orders")
    update(log, str(tmp_path / "table"), formats={"value.format": "double"})
    for number in numbers * 9:  # so many that the column has a dictionary
        log.topic("orders").append([{"key": b"k", "value": struct.pack(">d", number)}])
    uri = str(tmp_path / "table")
    for _ in range(2):
        update(log, uri, optimize_from=2)
        frame = log.topic("orders").to_spark(spark, formats={"value.format": "double"})
        assert reads_files(frame._jdf.queryExecution().executedPlan().toString())
        for condition in ("value > 5", "value = double('NaN')", "NOT value <= 2"):
            assert {row.offset % 4 for row in frame.where(condition).collect()} == {1}, condition
        for condition in ("value = 0", "value <= 0", "value < 0.5", "NOT value > 0"):
            assert {row.offset % 4 for row in frame.where(condition).collect()} == {3}, condition
        assert math.isnan(frame.agg({"value": "max"}).first()[0])


def test_spark_looks_again_where_a_file_of_the_table_is_gone(spark, log, tmp_path, caplog):
    with_orders(log)
    uri = str(tmp_path / "table")
    update(log, uri)
    for file in (tmp_path / "table").glob("*.parquet"):
        file.unlink()
    assert not reads_files(check(spark, log))
    (warning,) = [message for message in caplog.messages if "read by its log alone" in message]
    assert ".parquet" in warning


def test_a_file_that_goes_after_the_plan_is_an_error_whatever_the_session_ignores(spark, log, tmp_path):
    with_orders(log)
    update(log, str(tmp_path / "table"))
    names = ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles")
    for name in names:
        spark.conf.set(name, "true")
    try:
        frame = log.topic("orders").to_spark(spark)
        (file,) = (tmp_path / "table").glob("*.parquet")
        content = file.read_bytes()
        file.write_bytes(content[:-9])
        with pytest.raises((PySparkException, Py4JJavaError), match=file.name):
            frame.collect()
        frame = log.topic("orders").to_spark(spark)
        file.unlink()
        with pytest.raises((PySparkException, Py4JJavaError), match=file.name):
            frame.collect()
    finally:
        for name in names:
            spark.conf.unset(name)
