"""Spark on an object store: its tasks get the storage options, and put their files where the manifest says."""

from __future__ import annotations

import pyarrow as pa
import pytest
from chispa import assert_df_equality

from spark_segments import LogDir
from spark_segments.maintenance import roll, verify
from tests.log.test_store_life import PLANTED, assert_without_secrets, every
from verification.spark.queries import ran
from verification.world.stores.s3_server import BUCKET
from verification.world.stores.store_proxy import LOSE_REPLY, REFUSE, store_proxy


def test_a_topic_on_s3_is_written_rolled_and_read(spark, s3_options, tmp_path):
    uri = f"s3a://{BUCKET}/{tmp_path.name}/log"
    log = LogDir.create(uri, s3_options)
    log.create_topic("orders", 3, {"segment.ms": "1000"})
    options = {f"storage.{name}": value for name, value in s3_options.items()}
    frame = spark.range(3000).selectExpr(
        "binary(string(id)) as key", "binary(concat('order ', id)) as value", "timestamp_millis(id) as timestamp"
    )
    frame.write.format("segments").mode("append").options(topic="orders", **options).save(uri)
    roll(log, spark=spark, now_ms=log.storage.now_ms() + 2000)
    assert [one["chunks"] for one in log.topic("orders").describe()["partitions"]] == [0, 0, 0]
    found = spark.read.format("segments").options(subscribe="orders", **options).load(uri)
    assert_df_equality(found.select("key", "value", "timestamp"), frame, ignore_row_order=True, ignore_nullable=True)


@pytest.mark.proof
def test_a_stream_between_topics_on_s3_survives_failures_and_shows_no_credentials(spark, s3_options, tmp_path, capsys):
    uri = f"s3a://{BUCKET}/{tmp_path.name}/log"
    with store_proxy({**s3_options, **PLANTED}) as proxy:
        log = LogDir.create(uri, proxy.options)
        for topic in ("orders", "copies"):
            log.create_topic(topic, 2)
        values = [b"%d" % number for number in range(100)]
        log.topic("orders").append(pa.table({"value": values}))
        options = {f"storage.{name}": value for name, value in proxy.options.items()}
        stream = spark.readStream.format("segments").options(subscribe="orders", startingOffsets="earliest", **options)
        orders = stream.load(uri).select("key", "value")
        proxy.play(every(15, LOSE_REPLY))
        writer = orders.writeStream.format("segments").trigger(availableNow=True)
        writer = writer.options(topic="copies", checkpointLocation=str(tmp_path / "checkpoint"), **options)
        query = ran(lambda: writer.start(uri))
        proxy.play(None)
        assert proxy.played[LOSE_REPLY]
        copies = pa.Table.from_batches(log.topic("copies").scan(columns=["value"]).batches())
        assert sorted(copies["value"].to_pylist()) == sorted(values)
        assert verify(log, deep=True).findings == []
        spark.read.format("segments").options(subscribe="copies", **options).load(uri).explain(True)
        query.explain(True)
        assert_without_secrets(capsys.readouterr().out)
        for file in (tmp_path / "checkpoint").rglob("*"):
            if file.is_file():
                assert_without_secrets(file.read_bytes().decode("latin-1"))
        proxy.play(lambda request: REFUSE)
        with pytest.raises(Exception, match=r"ACCESS_DENIED|SignatureDoesNotMatch|does not match") as raised:
            spark.read.format("segments").options(subscribe="copies", **options).load(uri).count()
        assert_without_secrets(str(raised.value))
