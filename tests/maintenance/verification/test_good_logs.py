"""Verify is silent on good logs: new, worked over, written with other settings, and Kafka's."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.maintenance import compact, retain, roll, verify
from tests.log.golden_reads import tree
from tests.maintenance.verification.topics import LATER_MS, NOW_MS, rows
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, GOLDEN, LEGACY_DIRECTORIES


def test_a_good_log_directory_has_no_findings(log, directory):
    before = tree(directory)
    report = verify(log, deep=True)
    assert report.ok, [str(finding) for finding in report.findings]
    assert verify(log).ok
    assert report.topics == ["latest", "multiappend", "orders", "txn"]
    assert report.bytes_in == sum(path.stat().st_size for path in _live_logs(log, directory))
    assert tree(directory) == before


def _live_logs(log: LogDir, directory: Path) -> list[Path]:
    return [
        directory / path for topic in log.topics() for path in log.topic(topic).snapshot.live.column("path").to_pylist()
    ]


def test_a_log_that_jobs_have_been_over_has_no_findings(log):
    log.topic("orders").delete_records({0: 300})
    log.topic("orders").alter({"index.interval.bytes": "1000"}, partitions=3)
    log.topic("orders").append(rows(random.Random(5), NOW_MS + 90_000), options=ProducerOptions(batch_bytes=700))
    log.topic("orders").alter({"index.interval.bytes": "20000"})
    roll(log, topics=["orders"], now_ms=LATER_MS)
    retain(log, topics=["orders"], now_ms=LATER_MS)
    log.topic("latest").append(rows(random.Random(6), NOW_MS + 90_000), options=ProducerOptions(batch_bytes=700))
    roll(log, topics=["latest"], now_ms=LATER_MS + 8 * 86_400_000)
    compact(log, topics=["latest"], now_ms=LATER_MS + 8 * 86_400_000)
    log.create_topic("empty", partitions=2)
    report = verify(log, deep=True)
    assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.cases(3)
@pytest.mark.parametrize("before", [{}, {"segment.index.bytes": "96"}, {"index.interval.bytes": "0"}])
@pytest.mark.parametrize(
    "after",
    [
        {"segment.index.bytes": "60"},
        {"segment.index.bytes": "1048576"},
        {"index.interval.bytes": "0"},
        {"index.interval.bytes": "100000"},
        {"index.interval.bytes": "1000", "segment.index.bytes": "36"},
    ],
    ids=str,
)
def test_indexes_that_were_right_when_they_were_written_are_right(tmp_path, before, after):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", config={"segment.bytes": "32768", **before})
    for number in range(3):
        data = rows(random.Random(number), NOW_MS + number * 10_000)
        log.topic("orders").append(data, options=ProducerOptions(batch_bytes=700))
    roll(log, now_ms=NOW_MS)
    # A chunk of few bytes has no entry at all.
    log.topic("orders").append(
        rows(random.Random(4), NOW_MS + 90_000).slice(0, 20), options=ProducerOptions(batch_bytes=300)
    )
    assert verify(log, deep=True).ok
    log.topic("orders").alter(after)
    report = verify(log, deep=True)
    assert report.ok, [str(finding) for finding in report.findings]


@pytest.mark.parametrize(
    "name", [*CLEAN_DIRECTORIES, *LEGACY_DIRECTORIES, "live-0", "broker-data", "tiered/kafka-tiered-storage"]
)
def test_directories_of_kafka_have_no_findings(name):
    log = LogDir.open(str(GOLDEN / name))
    for deep in (False, True):
        report = verify(log, deep=deep)
        assert report.ok, [str(finding) for finding in report.findings]


def test_the_time_0_is_no_tail_of_zeros(log):
    """A time index whose only entry is (0, 0) is 12 bytes of zeros."""
    log.create_topic("epoch")
    log.topic("epoch").append(pa.table({"value": [b"a"], "timestamp": pa.array([0], pa.timestamp("us", tz="UTC"))}))
    [row] = log.topic("epoch").snapshot.live_of(0)
    assert log.storage.read(row.time_index_path).to_pybytes() == bytes(12)
    assert verify(log, deep=True).ok


def test_a_deleted_topic_is_not_looked_at(log):
    log.delete_topic("txn")
    report = verify(log, deep=True)
    assert report.ok
    assert "txn" not in report.topics
