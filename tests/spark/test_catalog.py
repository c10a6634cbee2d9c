"""Topics as tables and views of Spark's catalog."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.tables import METADATA_KEY, table_options
from verification.world.topics import append


@pytest.fixture
def orders(spark, log):
    log.create_topic("orders")
    append(log, ("a", "A"), ("b", "B"), ("c", "C"))
    yield log
    for name in ("orders", "made"):
        spark.sql(f"drop table if exists {name}")
    spark.sql("drop view if exists orders_view")


def _keys(frame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("string(key)").collect())


def test_a_table_made_without_columns_keeps_its_options(spark, orders):
    spark.sql(f"create table orders using segments options (path '{orders.uri}', subscribe 'orders')")
    assert _keys(spark.table("orders")) == ["a", "b", "c"]
    append(orders, ("d", "D"))
    assert _keys(spark.sql("select * from orders where offset > 0")) == ["b", "c", "d"]
    limited = 'select * from orders with (startingOffsets=\'{"orders":{"0":2}}\')'
    assert _keys(spark.sql(limited)) == ["c", "d"]


def test_a_table_of_one_topic_is_inserted_into(spark, orders):
    spark.sql(f"create table orders using segments options (path '{orders.uri}', topic 'orders')")
    spark.sql("insert into orders (key, value) select cast('d' as binary), cast('D' as binary)")
    assert _keys(spark.table("orders")) == ["a", "b", "c", "d"]
    with pytest.raises(PySparkException, match="Topics are appended to, never overwritten"):
        spark.sql("insert overwrite orders (key, value) select cast('d' as binary), cast('D' as binary)")


def test_an_insert_of_a_query_with_the_columns_of_the_table_says_what_works(spark, orders):
    spark.sql(f"create table orders using segments options (path '{orders.uri}', topic 'orders')")
    row = "cast('d' as binary) key, cast('D' as binary) value, 'orders' topic, 0 partition, 5L offset"
    with pytest.raises(PySparkException, match=r"Name the columns of an insert: INSERT INTO t \(key, value\)"):
        spark.sql(f"insert into orders select {row}, current_timestamp() timestamp, 0 timestampType")
    assert orders.topic("orders").offsets() == {0: (0, 3)}


def test_a_location_is_the_path_of_a_table(spark, orders):
    spark.sql(f"create table orders using segments options (subscribe 'orders') location '{orders.uri}'")
    assert spark.table("orders").count() == 3


def test_a_table_of_a_topic_that_is_not_there_fails_at_once(spark, orders):
    with pytest.raises(PySparkException, match="UnknownTopicError: Unknown topic 'nothere'"):
        spark.sql(f"create table made using segments options (path '{orders.uri}', subscribe 'nothere')")


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "statement",
    [
        "create table made (value binary) using segments options (path '{path}', subscribe 'orders')",
        "create table made using segments options (path '{path}', topic 'orders') as select cast('a' as binary) value",
    ],
)
def test_a_table_whose_options_spark_drops_says_what_works(spark, orders, statement):
    with pytest.raises(PySparkException, match=r"No option reaches the data source.*WITH.*VIEW|VIEW.*WITH"):
        spark.sql(statement.format(path=orders.uri))
        spark.table("made").collect()
    assert orders.topic("orders").offsets() == {0: (0, 3)}


def test_save_as_table_appends_and_what_it_makes_says_what_works(spark, orders):
    frame = spark.sql("select cast('d' as binary) as key, cast('D' as binary) as value")
    frame.write.format("segments").options(path=orders.uri, topic="orders").saveAsTable("made")
    assert orders.topic("orders").offsets() == {0: (0, 4)}
    with pytest.raises(PySparkException, match="No option reaches the data source"):
        spark.table("made").collect()
    read = spark.sql(f"select * from made with (path='{orders.uri}', subscribe='orders')")
    assert _keys(read) == ["a", "b", "c", "d"]


def test_options_of_a_query_reach_a_table_that_has_none(spark, orders):
    spark.sql("create table made (key binary, value binary) using segments")
    assert _keys(spark.read.options(path=orders.uri, subscribe="orders").table("made")) == ["a", "b", "c"]


def test_a_temporary_view_has_its_options(spark, orders):
    statement = "create temporary view orders_view using segments options (path '{}', subscribe 'orders')"
    spark.sql(statement.format(orders.uri))
    assert spark.sql("select count(*) from orders_view").head()[0] == 3


def test_a_frame_of_a_table_is_written_where_it_is_told_to(spark, orders):
    orders.create_topic("copy")
    spark.sql(f"create table orders using segments options (path '{orders.uri}', subscribe 'orders')")
    frame = spark.table("orders").selectExpr("key", "value", "'copy' as topic")
    assert METADATA_KEY in frame.schema["key"].metadata
    frame.write.format("segments").mode("append").save(orders.uri)
    assert orders.topic("copy").offsets() == {0: (0, 3)} and orders.topic("orders").offsets() == {0: (0, 3)}


def test_a_table_keeps_no_credentials():
    with pytest.raises(InvalidOptionError, match=r"cannot keep storage\.aws_secret_access_key"):
        table_options({"provider": "segments", "owner": "me", "path": "/x", "storage.aws_secret_access_key": "s"})


def test_a_table_of_one_topic_names_it_once():
    made = {"provider": "segments", "owner": "me", "path": "/x", "option.subscribe": "a"}
    assert table_options(made | {"subscribe": "a"}) == {"path": "/x", "subscribe": "a", "topic": "a"}
    assert table_options(made | {"topic": "a"}) == {"path": "/x", "subscribe": "a", "topic": "a"}
    assert table_options(made | {"subscribe": "a,b"}) == {"path": "/x", "subscribe": "a,b"}
    assert table_options({"path": "/x", "subscribe": "a"}) is None
