"""DataFrames and compacted topics: a row without a key fails the write, and nothing of it is in the log."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_segments.errors import InvalidRecordError


@pytest.fixture
def prices(log):
    log.create_topic("prices", partitions=2, config={"cleanup.policy": "compact"})
    return log


def write(frame, log, **options):
    frame.write.format("segments").mode("append").options(**options).save(log.uri)


def test_a_row_without_a_key_fails_the_write_and_names_row_and_task(spark, prices):
    frame = spark.range(0, 1000, 1, 4).selectExpr("if(id = 600, null, cast(id as string)) as key", "'v' as value")
    with pytest.raises(PySparkException, match=r"(?s)InvalidRecordError.*prices.*task 2.*no key in row 101"):
        write(frame, prices, topic="prices")
    assert prices.topic("prices").offsets() == {0: (0, 0), 1: (0, 0)}


def test_a_topic_column_sends_no_row_without_a_key_to_a_compacted_topic(spark, prices):
    prices.create_topic("clicks")
    rows = [("clicks", None), ("prices", "a"), ("prices", None)]
    frame = spark.createDataFrame(rows, "topic string, key string").selectExpr("*", "'v' as value").coalesce(1)
    with pytest.raises(PySparkException, match=r"(?s)InvalidRecordError.*prices.*no key in row 3"):
        write(frame, prices)
    assert prices.topic("prices").offsets() == {0: (0, 0), 1: (0, 0)} and prices.topic("clicks").offsets() == {
        0: (0, 0)
    }
    write(frame.filter("topic = 'clicks' or key is not null"), prices)
    assert sum(end for _, end in prices.topic("prices").offsets().values()) == 1


def test_a_frame_without_a_key_column_is_refused_before_any_task(spark, prices):
    with pytest.raises((PySparkException, InvalidRecordError), match="expected a column key, found value"):
        write(spark.sql("select 'v' as value"), prices, topic="prices")


@pytest.mark.proof
def test_a_topic_that_becomes_compacted_while_the_tasks_write_refuses_the_commit(spark, log):
    log.create_topic("prices")
    uri = log.uri

    def alter_the_topic(numbers):
        from spark_segments import LogDir

        for number in numbers:
            if number == 900:  # the target was looked up before: what tasks write is for a topic deleted by time
                LogDir.open(uri).topic("prices").alter({"cleanup.policy": "compact"})
            yield (None, str(number))

    rows = spark.sparkContext.parallelize(range(1000), 1).mapPartitions(alter_the_topic)
    with pytest.raises(PySparkException, match=r"(?s)InvalidRecordError.*prices.*no key in row 1"):
        write(spark.createDataFrame(rows, "key string, value string"), log, topic="prices")
    assert log.topic("prices").offsets() == {0: (0, 0)}
