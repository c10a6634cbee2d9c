"""Rows that name a topic by another path end a write, and none of its rows is in any topic."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from spark_segments import LogDir
from spark_segments.errors import InvalidTopicError
from spark_segments.maintenance import vacuum
from tests.spark.in_process import load, save
from verification.world.clock import ORPHAN_AGE_MS, PATIENCE_SECONDS, store_clock
from verification.world.opened import opened
from verification.world.topics import values

NAMES = ["u", "./u", "u/"]


@pytest.fixture
def filled(log: LogDir) -> LogDir:
    for topic in ("t", "u"):
        log.create_topic(topic)
        log.topic(topic).append([{"value": topic}])
    return log


def check_a_week_later(log: LogDir) -> None:
    """Vacuum takes what the failed write has left, and nothing else. A task that Spark has given up may write for a
    moment longer: the next run takes that.
    """
    now_ms, deadline = log.storage.now_ms() + ORPHAN_AGE_MS + 60_000, time.monotonic() + PATIENCE_SECONDS
    while True:
        with store_clock(now_ms):
            vacuum(log, now_ms=now_ms)
        left = sum(len(log.storage.list(f"{name}-0")) for name in ("t", "u"))
        if left == 2 * 3 or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    found = {name: values(opened(log), name) for name in log.topics()}
    assert found == {"t": [b"t"], "u": [b"u"]}
    assert left == 2 * 3


@pytest.mark.parametrize("options", [{}, {"txnAppId": "job", "txnVersion": 1}])
def test_a_column_topic_with_another_path_ends_the_write(filled, options):
    rows = pa.table({"topic": ["t", *NAMES] * 3, "value": [b"new"] * 12})
    with pytest.raises(InvalidTopicError, match="Invalid topic name"):
        save(filled.uri, options, [rows])
    check_a_week_later(filled)


@pytest.mark.parametrize("name", NAMES[1:])
def test_an_option_with_another_path_is_an_error(filled, name):
    reads: list[Callable[[], Any]] = [
        lambda: load(filled.uri, {"subscribe": name}),
        lambda: load(filled.uri, {"subscribe": f"t,{name}"}),
        lambda: load(filled.uri, {"assign": f'{{"{name}": [0]}}'}),
        lambda: save(filled.uri, {"topic": name}, [pa.table({"value": [b"new"]})]),
    ]
    for read in reads:
        with pytest.raises(InvalidTopicError):
            read()
    check_a_week_later(filled)


def test_a_stream_of_rows_for_one_topic_by_several_paths_ends(spark, filled, tmp_path):
    source = tmp_path / "rows"
    rows = [(name, f"{name} {number}") for name in ("t", *NAMES) for number in range(3)]
    spark.createDataFrame(rows, "topic string, value string").write.parquet(str(source))
    query = (
        spark.readStream.schema("topic string, value string")
        .parquet(str(source))
        .writeStream.format("segments")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(filled.uri)
    )
    with pytest.raises(PySparkException, match="Invalid topic name"):
        query.awaitTermination()
    check_a_week_later(filled)
