"""Writes of DataFrames that name a transaction."""

from __future__ import annotations

import pytest

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options import write_options


def test_a_version_above_64_bits_is_refused_before_spark_does_anything():
    given = {"path": "/data/log", "txnAppId": "app", "txnVersion": str(2**63)}
    with pytest.raises(InvalidOptionError, match=f"txnVersion.*at most {2**63 - 1}"):
        write_options(given)
    assert write_options(given | {"txnVersion": str(2**63 - 1)}).txn == ("app", 2**63 - 1)


@pytest.mark.cases(1)
@pytest.mark.parametrize("tasks", [0, 3])
def test_a_write_of_no_rows_records_its_transaction(spark, log, tasks):
    log.create_topic("orders")
    empty = spark.createDataFrame(spark.sparkContext.parallelize([], tasks or 1), "value string")
    if not tasks:
        empty = spark.createDataFrame(spark.sparkContext.emptyRDD(), "value string")
        assert empty.rdd.getNumPartitions() == 0
    for frame in (empty, spark.sql("select 'late' as value")):
        options = {"topic": "orders", "txnAppId": "app", "txnVersion": "7"}
        frame.write.format("segments").mode("append").options(**options).save(log.uri)
    assert log.topic("orders").offsets() == {0: (0, 0)}
    spark.sql("select 'next' as value").write.format("segments").mode("append").options(
        topic="orders", txnAppId="app", txnVersion="8"
    ).save(log.uri)
    assert log.topic("orders").offsets() == {0: (0, 1)}
