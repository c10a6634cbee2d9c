"""Compaction on Spark's executors does what it does in one process."""

from __future__ import annotations

import shutil

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.verify import verify
from spark_segments.maintenance import compact, roll
from tests.maintenance.appending import contents

NOW_MS = 1_700_000_000_000


def test_spark_compacts_as_one_process_does(spark, log, tmp_path):
    for topic in ("prices", "stock"):
        log.create_topic(topic, 3, {"cleanup.policy": "compact", "segment.bytes": "4000"})
        for turn in range(5):
            keys = [f"k{number % 40}" for number in range(200)]
            values = [None if number % 17 == turn else f"{turn}-{number}" for number in range(200)]
            times = pa.array([NOW_MS] * 200, pa.timestamp("ms"))
            log.append(topic, pa.table({"key": keys, "value": values, "timestamp": times}))
    roll(log, now_ms=log.storage.now_ms() + 10 * 86_400_000)
    copy = LogDir.open(shutil.copytree(tmp_path / "log", tmp_path / "copy"))
    there, here = (one.to_dict() for one in (compact(log, spark, now_ms=NOW_MS), compact(copy, now_ms=NOW_MS)))
    assert len(there["partitions"]) == 6
    for line in (*there["partitions"], *here["partitions"]):
        line.pop("seconds", None), line.pop("mb_per_s", None)
    assert there["partitions"] == here["partitions"]
    assert 0 < there["records_out"] < there["records_in"]
    for topic in ("prices", "stock"):
        assert contents(log, topic) == contents(copy, topic)
    assert verify(log, deep=True).ok
