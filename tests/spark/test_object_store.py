"""Spark on an object store: its tasks get the storage options, and put their files where the manifest says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from chispa import assert_df_equality
from pyspark.sql import SparkSession

from spark_segments import LogDir
from spark_segments.maintenance import roll
from tests.s3_server import BUCKET


def test_a_topic_on_s3_is_written_rolled_and_read(
    spark: SparkSession, s3_options: Mapping[str, str], tmp_path: Path
) -> None:
    uri = f"s3a://{BUCKET}/{tmp_path.name}/log"
    log = LogDir.create(uri, s3_options)
    log.create_topic("orders", 3, {"segment.ms": "1000"})
    options = {f"storage.{name}": value for name, value in s3_options.items()}
    frame = spark.range(3000).selectExpr(
        "binary(string(id)) as key", "binary(concat('order ', id)) as value", "timestamp_millis(id) as timestamp"
    )
    frame.write.format("segments").mode("append").options(topic="orders", **options).save(uri)
    roll(log, spark, now_ms=log.storage.now_ms() + 2000)
    assert [one["chunks"] for one in log.describe("orders")["partitions"]] == [0, 0, 0]
    found = spark.read.format("segments").options(subscribe="orders", **options).load(uri)
    assert_df_equality(found.select("key", "value", "timestamp"), frame, ignore_row_order=True, ignore_nullable=True)
