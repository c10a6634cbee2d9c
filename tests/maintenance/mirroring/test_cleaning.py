"""Followers that lag beyond delete.retention.ms get what the leader's cleaner decided, and decide nothing themselves.

Kafka's replicas clean each by themselves. Four ways are known in which a replica that lags then differs from its
leader for good: a tombstone that was gone before it came, aborted data that turned committed, committed data that
turned aborted, and a last stable offset that stood still. Each test makes sure first that what could go wrong is there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, roll
from verification.world.followers import assert_in_step, followers_of, mirrored, source_version
from verification.world.kafka_bytes import golden_files
from verification.world.topics import DAY_MS, contents, later, topic_with

CLEANED_MS = 1_700_000_080_851  # when Kafka's cleaner ran first over the golden directory
RETENTION_MS = 600_000
CONFIG = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(RETENTION_MS),
    "min.cleanable.dirty.ratio": "0.0",
    "segment.bytes": "16384",
    "file.delete.delay.ms": str(30 * DAY_MS),
}
TRANSACTIONAL = "txnc"


@pytest.fixture(params=["steps", "jump"])
def way(request, limits) -> str:
    """The follower takes the leader's commits one by one, or all as one difference."""
    if request.param == "jump":
        limits(MOST_STEPS=0)
    return request.param


def golden(tmp_path: Path, segments: int | None = None) -> str:
    """The directory of a topic with transactions, or its first segments, as a broker had it then."""
    source = golden_files.GOLDEN / "txn-compact" / "dirty" / f"{TRANSACTIONAL}-0"
    target = tmp_path / f"kafka-{segments}" / source.name
    bases = sorted(path.stem for path in source.glob("*.log"))
    kept = bases if segments is None else bases[: segments + 1]
    target.mkdir(parents=True)
    for path in source.iterdir():
        is_snapshot_at_end = segments is not None and path.stem == kept[-1] and path.suffix != ".snapshot"
        if path.stem in kept and not is_snapshot_at_end:
            shutil.copy(path, target)
    for name in ("partition.metadata", "leader-epoch-checkpoint"):
        shutil.copy(source / name, target)
    return str(target.parent)


@pytest.fixture
def leader(log) -> LogDir:
    return log


def cleaned_until_all_markers_are_gone(leader: LogDir, topic: str) -> None:
    """Cleans again and again, each time after a roll, far beyond delete.retention.ms and the expiry of producers."""
    for days in (0, 1, 2, 40, 41, 42):
        now_ms = CLEANED_MS + days * DAY_MS
        leader.topic(topic).append(pa.table({"key": [b"last"], "value": [b"%d" % days]}))
        roll(leader, topics=[topic], now_ms=later(leader))
        leader.topic(topic).append(pa.table({"key": [b"active"], "value": [b"%d" % days]}))
        assert not compact(leader, topics=[topic], now_ms=now_ms, force=True).failed


def committed(log: LogDir, topic: str, version: int | None = None) -> dict[int, tuple[bytes | None, bytes | None]]:
    rows = [
        row
        for batch in log.topic(topic, version=version).scan(isolation="read_committed").batches()
        for row in batch.to_pylist()
    ]
    return {row["offset"]: (row["key"], row["value"]) for row in rows}


def table(log: LogDir, topic: str) -> dict[bytes | None, bytes | None]:
    """The newest value of each key, as a reader of committed records has it."""
    return dict(committed(log, topic).values())


def markers(log: LogDir) -> int:
    every = contents(log, TRANSACTIONAL, include_control=True)
    return len(every) - len(contents(log, TRANSACTIONAL))


def assert_every_version_is_the_leaders(leader: LogDir, follower: LogDir, topic: str) -> None:
    for version in range(follower.topic(topic).snapshot.version + 1):
        there = source_version(follower.topic(topic, version).snapshot)
        assert committed(follower, topic, version) == committed(leader, topic, there)
    assert_in_step(leader, follower, topic)


@pytest.mark.proof
def test_a_value_goes_though_its_tombstone_was_gone_before_the_follower_saw_it(leader, way):
    topic_with(leader, "prices", CONFIG)
    leader.topic("prices").append(pa.table({"key": [b"a", b"b"], "value": [b"1", b"1"]}))
    follower = followers_of(leader)
    mirrored(leader, follower)
    leader.topic("prices").append(pa.table({"key": [b"a"], "value": pa.array([None], pa.binary())}))
    cleaned_until_all_markers_are_gone(leader, "prices")
    assert not any(row["key"] == b"a" for row in contents(leader, "prices"))
    assert table(follower, "prices")[b"a"] == b"1"
    mirrored(leader, follower)
    assert b"a" not in table(follower, "prices") and table(follower, "prices")[b"b"] == b"1"
    assert_every_version_is_the_leaders(leader, follower, "prices")


def golden_records(*, committed: bool) -> dict[int, tuple[bytes | None, bytes | None]]:
    """The records that Kafka's own reader has for committed, or for aborted, by offset."""
    found = LogDir.open(str(golden_files.GOLDEN / "txn-compact" / "dirty"))
    every = {row["offset"]: (row["key"], row["value"]) for row in contents(found, TRANSACTIONAL)}
    rows = golden_files.expected_records("txn-compact/dirty/txnc-0")
    wanted = {row["offset"] for row in rows if not row["isControl"] and row["committed"] == committed}
    return {offset: record for offset, record in every.items() if offset in wanted}


@pytest.mark.proof
def test_aborted_data_stays_aborted_though_its_marker_was_gone_before_the_follower_saw_it(leader, tmp_path, way):
    aborted = golden_records(committed=False)
    leader.import_kafka(golden(tmp_path), config=CONFIG)
    follower = followers_of(leader)
    mirrored(leader, follower)
    uncommitted = {row["offset"] for row in contents(follower, TRANSACTIONAL)}
    assert aborted and aborted.keys() <= uncommitted
    before = markers(leader)
    cleaned_until_all_markers_are_gone(leader, TRANSACTIONAL)
    assert markers(leader) < before / 10
    mirrored(leader, follower)
    assert not aborted.keys() & {row["offset"] for row in contents(follower, TRANSACTIONAL)}
    assert_every_version_is_the_leaders(leader, follower, TRANSACTIONAL)


@pytest.mark.proof
def test_committed_data_stays_committed_though_its_marker_was_gone_before_the_follower_saw_it(leader, tmp_path, way):
    newest: dict[bytes | None, bytes | None] = dict(golden_records(committed=True).values())
    leader.import_kafka(golden(tmp_path), config=CONFIG)
    follower = followers_of(leader)
    mirrored(leader, follower)
    assert table(follower, TRANSACTIONAL) == newest
    before = markers(leader)
    cleaned_until_all_markers_are_gone(leader, TRANSACTIONAL)
    assert markers(leader) < before / 10
    mirrored(leader, follower)
    found = table(follower, TRANSACTIONAL)
    assert {key: value for key, value in newest.items() if value is not None}.items() <= found.items()
    assert_every_version_is_the_leaders(leader, follower, TRANSACTIONAL)


@pytest.mark.cases(1)
def test_the_last_stable_offset_goes_on_though_the_marker_that_ended_a_transaction_was_gone(leader, tmp_path, way):
    leader.import_kafka(golden(tmp_path, segments=2), config=CONFIG)
    follower = followers_of(leader)
    mirrored(leader, follower)
    row = follower.topic(TRANSACTIONAL).snapshot.partition(0)
    assert row.last_stable_offset < row.log_end_offset  # a transaction is open
    leader.import_kafka(golden(tmp_path), config=CONFIG)
    before = markers(leader)
    cleaned_until_all_markers_are_gone(leader, TRANSACTIONAL)
    assert markers(leader) < before / 10
    mirrored(leader, follower)
    row = follower.topic(TRANSACTIONAL).snapshot.partition(0)
    assert row.last_stable_offset == row.log_end_offset
    assert table(follower, TRANSACTIONAL)[b"active"] == b"42"
    assert_every_version_is_the_leaders(leader, follower, TRANSACTIONAL)
