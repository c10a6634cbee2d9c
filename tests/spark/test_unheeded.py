"""What was asked for and cannot be done says so once, and nothing that is asked for is left out in silence."""

from __future__ import annotations

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.spark.options.kafka_settings import is_setting
from spark_segments.spark.schema import record_schema
from spark_segments.spark.source import Source

VALUE = StructType().add("key", "binary").add("value", "binary")


@pytest.fixture
def orders(log):
    log.create_topic("orders")
    return log


def test_limits_of_streams_in_a_batch_read_are_told_of_once(orders, caplog):
    limits = {"maxOffsetsPerTrigger": "10", "minOffsetsPerTrigger": "5", "maxTriggerDelay": "1m"}
    source = Source({"path": orders.uri, "subscribe": "orders"} | limits)
    source.reader(source.schema())
    (message,) = caplog.messages
    assert "maxOffsetsPerTrigger and minOffsetsPerTrigger and maxTriggerDelay" in message


def test_a_partitioner_that_is_not_run_is_told_of_once(orders, caplog):
    options = {"path": orders.uri, "topic": "orders", "kafka.partitioner.class": "com.example.Mine"}
    Source(options).writer(VALUE, overwrite=False)
    (message,) = caplog.messages
    assert message.startswith("kafka.partitioner.class is not run")


def _reader(options):
    source = Source(options | {"subscribe": "orders"})
    return source.reader(source.schema())


def _stream_reader(options):
    source = Source(options | {"subscribe": "orders"})
    return source.stream_reader(source.schema())


def _writer(options):
    return Source(options | {"topic": "orders"}).writer(VALUE, overwrite=False)


def _stream_writer(options):
    return Source(options | {"topic": "orders"}).stream_writer(VALUE, overwrite=False)


@pytest.mark.parametrize(
    ("opened", "name", "meant"),
    [
        (_reader, "kafka.isolation.levl", "isolation.level"),
        (_stream_reader, "kafka.Isolation.Levl", "isolation.level"),
        (_reader, "kafka.value.fromat", "value.format"),
        (_writer, "kafka.compresion.type", "compression.type"),
        (_stream_writer, "kafka.batch.sise", "batch.size"),
    ],
)
def test_a_name_that_is_no_setting_of_kafkas_is_warned_of_with_the_nearest(orders, caplog, opened, name, meant):
    opened({"path": orders.uri, name: "secret"})
    (message,) = caplog.messages
    assert message == (
        f"{name.lower()} is no setting of Kafka's clients, and has no effect. Did you mean kafka.{meant}?"
    )


@pytest.mark.parametrize("opened", [_reader, _stream_reader, _writer])
def test_settings_of_kafkas_clients_and_of_their_plugins_are_no_slips(orders, caplog, opened):
    names = ("bootstrap.servers", "group.id", "sasl.login.mine", "ssl.keystore.key", "acks", "fetch.max.bytes")
    opened({"path": orders.uri} | {f"kafka.{name}": "1" for name in names} | {"kafka.value.format": "string"})
    assert caplog.messages == []


def test_a_setting_that_resembles_none_is_warned_of_without_a_guess(orders, caplog):
    _reader({"path": orders.uri, "kafka.zzz": "1"})
    assert caplog.messages == ["kafka.zzz is no setting of Kafka's clients, and has no effect"]


def test_the_settings_of_another_client_are_known(orders):
    # What kafka-python has beside Kafka's own: objects of Python, and names for files of OpenSSL
    others = {
        "api.version", "bootstrap.timeout.ms", "consumer.timeout.ms", "default.offset.commit.callback",
        "enable.incremental.fetch.sessions", "kafka.client", "metric.group.prefix", "metrics.enabled", "partitioner",
        "proxy.url", "receive.message.max.bytes", "selector", "socket.options", "socks5.proxy",
    }  # fmt: skip
    configs = (KafkaConsumer.DEFAULT_CONFIG, KafkaProducer.DEFAULT_CONFIG, KafkaAdminClient.DEFAULT_CONFIG)
    names = {name.replace("_", ".") for config in configs for name in config}
    assert {name for name in names if not is_setting(name)} == others


def test_columns_that_nobody_reads_are_told_of_once(orders, caplog):
    schema = StructType().add("value", "string").add("amount", "double").add("country", "string")
    Source({"path": orders.uri, "topic": "orders"}).writer(schema, overwrite=False)
    (message,) = caplog.messages
    assert message.startswith("Columns amount, country are not written")


@pytest.mark.parametrize(
    ("name", "meant"),
    [("Key", "key"), ("kye", "key"), ("keys", "key"), ("header", "headers"), ("timestamps", "timestamp")],
)
def test_a_column_that_is_a_slip_for_a_writers_is_an_error(orders, name, meant):
    schema = StructType().add("value", "string").add(name, "string")
    with pytest.raises(InvalidOptionError, match=f"no column '{name}'.*Did you mean {meant}"):
        Source({"path": orders.uri, "topic": "orders"}).writer(schema, overwrite=False)


@pytest.mark.parametrize("name", ["keys", "event_time", "partition_id", "monkey", "value_date"])
def test_a_column_beside_those_of_a_writer_is_no_slip(orders, caplog, name):
    schema = StructType().add("value", "string").add("key", "string").add(name, "string")
    Source({"path": orders.uri, "topic": "orders"}).writer(schema, overwrite=False)
    (message,) = caplog.messages
    assert message.startswith(f"Columns {name} are not written")


@pytest.mark.parametrize("kind", ["date", "timestamp_ntz"])
def test_a_timestamp_without_a_zone_is_an_error_with_the_cast_to_write(orders, kind):
    schema = StructType().add("value", "string").add("timestamp", kind)
    with pytest.raises(InvalidOptionError, match=rf"found {kind.upper()}.*CAST\(timestamp AS TIMESTAMP\)"):
        Source({"path": orders.uri, "topic": "orders"}).writer(schema, overwrite=False)


def test_the_cast_of_a_timestamp_without_a_zone_takes_that_of_the_session(spark, orders):
    frame = spark.sql(
        "select 'a' as value, cast(timestamp_ntz '2026-07-01 12:00:00' as timestamp) as timestamp "
        "union all select 'b', cast(date '2026-07-01' as timestamp)"
    )
    frame.coalesce(1).write.format("segments").mode("append").option("topic", "orders").save(orders.uri)
    expected = [row[0] for row in frame.selectExpr("unix_millis(timestamp)").collect()]
    found = [
        round(moment.timestamp() * 1000) for moment in orders.topic("orders").scan().to_table()["timestamp"].to_pylist()
    ]
    assert found == expected


def test_a_frame_of_a_topic_has_no_column_to_speak_of(orders, caplog):
    Source({"path": orders.uri, "topic": "orders"}).writer(record_schema(True), overwrite=False)
    assert caplog.messages == []


def test_a_write_without_a_mode_says_which_to_add(spark, orders):
    frame = spark.sql("select 'a' as value")
    for mode in (None, "ignore", "error"):
        writer = frame.write.format("segments").option("topic", "orders")
        with pytest.raises(AnalysisException, match='use either the "Append"'):
            (writer if mode is None else writer.mode(mode)).save(orders.uri)


def test_an_error_has_no_fact_that_is_not_known():
    assert str(SegmentsError("Wrong", found=3)) == "Wrong: found 3"
    assert str(SegmentsError("Wrong", expected=2)) == "Wrong: expected 2"
    assert str(SegmentsError("Wrong", expected=2, found=3, hint="Do")) == "Wrong: expected 2, found 3. Do"
