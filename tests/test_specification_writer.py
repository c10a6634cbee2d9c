"""A log directory written by hand, from docs/format alone, is read, rolled and appended to by this package."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import roll, verify
from verification.specification.specification_reader import ManagedLog
from verification.specification.specification_writer import START_MS, TOPIC_ID, Batch, Record, Topic

VALUES = [b"tea", b"rice", None]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log directory with topic orders: one partition, one run of three records that stands at offset 100."""
    batch = Batch([Record(at, value, b"%d" % at, START_MS + at) for at, value in enumerate(VALUES)])
    topic = Topic(tmp_path / "log")
    topic.shared({0: (100, [batch])})
    topic.topic["states"] = {"role": "leader"}
    transaction = {"topic_id": TOPIC_ID, "application_id": "feed", "version": 7, "committed_ms": START_MS}
    topic.transactions.append(transaction)
    topic.partition(start=100)
    topic.commit(more=[{"txn": {"appId": f"feed@{TOPIC_ID}", "version": 7}}])
    return topic.log


def _read(log: LogDir) -> list[tuple[int, bytes | None]]:
    batches = log.topic("orders").scan(columns=["offset", "value"]).batches()
    return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]


def test_it_is_read_and_has_no_fault(directory):
    log = LogDir.open(str(directory))

    assert log.topics() == ["orders"] and log.topic("orders").offsets() == {0: (100, 103)}
    assert _read(log) == [(100, b"tea"), (101, b"rice"), (102, None)]
    assert log.topic("orders").offsets_for_times(START_MS + 1) == {0: (101, START_MS + 1)}
    assert verify(log, deep=True).errors == 0


def test_it_is_appended_to_and_rolled(directory):
    log, table = LogDir.open(str(directory)), pa.table({"key": [b"k"], "value": [b"figs"]})

    assert log.topic("orders").append(table, txn=("feed", 7)) == {}
    assert log.topic("orders").append(table, txn=("feed", 8)) == {0: (103, 103)}
    assert ManagedLog(directory).snapshot("orders").transactions[f"feed@{TOPIC_ID}"] == 8
    roll(log, now_ms=START_MS + 10**12)
    assert _read(log) == [(100, b"tea"), (101, b"rice"), (102, None), (103, b"figs")]
    assert verify(log, deep=True).errors == 0
    assert {segment["state"] for segment in ManagedLog(directory).snapshot("orders").segments[0]} == {"sealed"}
