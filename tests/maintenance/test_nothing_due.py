"""What the jobs ask of a log, and of a Spark session, where nothing is due."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog
from spark_segments.log.manifest.files.delta.delta_rs import TableVersion, open_table
from spark_segments.maintenance import roll
from spark_segments.storage import Storage
from verification.world.opened import opened as reopened
from verification.world.topics import records

TOPICS = ("events", "prices")
PARTITIONS = 10
SESSION: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
"""A session of two slots that has no way to start a job."""


@pytest.fixture
def settled(log: LogDir) -> LogDir:
    """Topics of which no job has anything to do."""
    for topic in TOPICS:
        log.create_topic(topic, PARTITIONS, {"cleanup.policy": "compact,delete"})
        log.topic(topic).append(records(PARTITIONS, partitions=range(PARTITIONS)).drop_columns(["timestamp"]))
    return log


def opened(log: LogDir) -> tuple[LogDir, Counter[str]]:
    """The log directory by another handle, and how often that opens the table of each topic."""
    times: Counter[str] = Counter()

    def counted(storage: Storage, directory: str, version: int | None) -> TableVersion:
        times[directory.rpartition("/")[2]] += 1
        return open_table(storage, directory, version)

    return reopened(log, open_delta_log=partial(DeltaLog, open_table=counted)), times


def test_the_table_of_a_topic_is_opened_once_for_all_jobs_and_once_before_anything_may_be_deleted(settled):
    log, times = opened(settled)
    reports = log.maintain()
    assert [report.partitions for report in reports] == [[]] * 4
    assert times == dict.fromkeys(TOPICS, 2)


def test_each_job_sees_what_another_process_has_committed_since_the_job_before(settled):
    log, times = opened(settled)
    later_ms = log.storage.now_ms() + 10 * 86_400_000
    assert len(roll(log, now_ms=later_ms).partitions) == len(TOPICS) * PARTITIONS
    assert not roll(log, now_ms=later_ms).partitions
    settled.topic("events").append(records(PARTITIONS, partitions=range(PARTITIONS)).drop_columns(["timestamp"]))
    assert {line["topic"] for line in roll(log, now_ms=later_ms).partitions} == {"events"}
    assert times == dict.fromkeys(TOPICS, 1)


def test_no_spark_job_starts(settled):
    assert [report.to_dict()["failed"] for report in settled.maintain(spark=SESSION)] == [0] * 4
    with pytest.raises(AttributeError, match="createDataFrame"):  # as it does where something is due
        roll(settled, spark=SESSION, now_ms=settled.storage.now_ms() + 10 * 86_400_000)
