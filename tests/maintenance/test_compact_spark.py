"""Compaction on Spark's executors does what it does in one process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.maintenance import compact, roll, verify
from spark_segments.maintenance.compaction.first_pass import SUFFIX, MapFile
from spark_segments.storage import Storage
from tests.maintenance.upkeep import all_records, assert_maintained, busy_log
from verification.world.rounds import CleanerSettings, RoundTasks, clean_partition
from verification.world.topics import contents, live

NOW_MS = 1_700_000_000_000


def appended(log: LogDir, tmp_path: Path, topic: str, partitions: int) -> LogDir:
    """Some segments to clean in each partition of a new topic. Returns a copy of the whole log."""
    log.create_topic(topic, partitions, {"cleanup.policy": "compact", "segment.bytes": "4000"})
    for turn in range(5):
        keys = [f"k{number % 40}" for number in range(200)]
        values = [None if number % 17 == turn else f"{turn}-{number}" for number in range(200)]
        times = pa.array([NOW_MS] * 200, pa.timestamp("ms"))
        log.topic(topic).append(pa.table({"key": keys, "value": values, "timestamp": times}))
    roll(log, now_ms=log.storage.now_ms() + 10 * 86_400_000)
    return LogDir.open(str(shutil.copytree(tmp_path / "log", tmp_path / f"copy with {topic}")))


def test_spark_compacts_as_one_process_does(spark, log, tmp_path):
    appended(log, tmp_path, "prices", 3)
    copy = appended(log, tmp_path, "stock", 3)
    there, here = (one.to_dict() for one in (compact(log, spark=spark, now_ms=NOW_MS), compact(copy, now_ms=NOW_MS)))
    assert len(there["partitions"]) == 6
    assert there["partitions"] == here["partitions"]
    assert 0 < there["records_out"] < there["records_in"]
    for topic in ("prices", "stock"):
        assert contents(log, topic) == contents(copy, topic)
    assert verify(log, deep=True).ok


def test_a_session_maintains_a_log(spark, log):
    before = all_records(busy_log(log))
    assert_maintained(log, [report.to_dict() for report in log.maintain(spark=spark)], before)
    assert verify(log, deep=True).ok


def test_spark_compacts_a_large_partition_by_many_tasks(spark, log, tmp_path, monkeypatch, limits):
    limits(LARGE_PARTITION_BYTES=0, MIN_SLICE_BYTES=1)
    merged: list[str] = []
    pieces = MapFile.pieces

    def noted(file: MapFile, storage: Storage) -> Iterator[np.ndarray]:
        merged.append(file.path)
        return pieces(file, storage)

    monkeypatch.setattr(MapFile, "pieces", noted)
    copy = appended(log, tmp_path, "prices", 1)
    there = compact(log, spark=spark, now_ms=NOW_MS)
    assert len(merged) == 2, "the driver has merged the maps of two tasks"
    assert there.partitions == compact(copy, now_ms=NOW_MS).partitions
    assert contents(log, "prices") == contents(copy, "prices")
    assert not [file.path for file in log.storage.list(recursive=True) if file.path.endswith(SUFFIX)]
    assert verify(log, deep=True).ok


@pytest.mark.proof
def test_the_map_of_a_task_that_does_not_fit_is_left_to_a_further_round(spark, log, tmp_path, limits):
    """Of 400 keys, each half of the dirty head has 300, and the map holds 330."""
    limits(MIN_SLICE_BYTES=1)
    log.create_topic("prices", 1, {"cleanup.policy": "compact", "segment.bytes": "4000"})
    for turn in range(5):
        keys = [f"k{(100 * turn + number) % 400}" for number in range(200)]
        log.topic("prices").append(pa.table({"key": keys, "value": [f"{turn}-{number}" for number in range(200)]}))
    roll(log, now_ms=log.storage.now_ms() + 10 * 86_400_000)
    log.topic("prices").append(pa.table({"key": ["k0"], "value": ["last"]}))
    copy = LogDir.open(str(shutil.copytree(tmp_path / "log", tmp_path / "copy")))
    map_bytes = 368 * BYTES_PER_SLOT
    topic_id = log.topic("prices").snapshot.topic_id
    settings = CleanerSettings("prices", topic_id, log.defaults, NOW_MS, map_bytes, 0.9)
    clean_round = RoundTasks(2, map_bytes, map_bytes, spark)
    result = clean_partition(log.storage, settings, 0, 1000, clean_round=clean_round)
    assert (result.rounds, result.first_dirty_offset, result.error) == (2, 1000, None)
    compact(copy, now_ms=NOW_MS)
    assert contents(log, "prices") == contents(copy, "prices")
    assert not [info.path for info in log.storage.list("", recursive=True) if info.path.endswith(SUFFIX)]
    assert verify(log, deep=True).ok


@pytest.mark.proof
def test_a_group_that_is_most_of_the_work_is_cleaned_by_threads_of_one_task(spark, log, tmp_path, monkeypatch, limits):
    """The session has two slots: the partition is one group of several segments."""
    limits(LARGE_PARTITION_BYTES=0)
    threads: list[int] = []
    planned = RoundTasks.second_pass

    def noted(*arguments: Any) -> Any:
        tasks = planned(*arguments)
        threads.extend(task.threads for task in tasks)
        return tasks

    monkeypatch.setattr(RoundTasks, "second_pass", noted)
    copy = appended(log, tmp_path, "prices", 1)
    for one in (log, copy):
        one.topic("prices").alter({"segment.bytes": "1000000"})
    there = compact(log, spark=spark, now_ms=NOW_MS)
    assert threads == [min(spark.sparkContext.defaultParallelism, os.cpu_count() or 1)] == [2]
    assert there.partitions == compact(copy, now_ms=NOW_MS).partitions
    assert there.partitions[0]["segments_in"] > there.partitions[0]["segments_out"] == 1
    assert contents(log, "prices") == contents(copy, "prices")
    sealed = [one.storage.read(live(one, "prices")[0].path) for one in (log, copy)]
    assert sealed[0] == sealed[1]
    assert verify(log, deep=True).ok
