"""Comparing a follower with its leader: records, description, rows, transactions and the bytes of files."""

from __future__ import annotations

from typing import Any

from spark_segments import LogDir
from spark_segments.config import topic_config
from spark_segments.errors import SegmentsError
from spark_segments.log.description import describe
from spark_segments.maintenance import mirror, verify
from spark_segments.replicas.role import role_of
from verification.world.manifest_rows import Partition, Segment, Snapshot
from verification.world.topics import records, topic_with

TOPIC = "orders"


def followers_of(leader: LogDir, name: str = "follower") -> LogDir:
    """An empty log directory beside the leader's."""
    return LogDir.create(leader.uri.removesuffix("log") + name)


def mirrored(leader: LogDir, follower: LogDir, *topics: str, **options: Any) -> dict[str, Any]:
    """The report of a run of the mirror without failures."""
    report = mirror(follower, leader=leader, topics=topics or None, **options)
    assert not report.failed, report.failed
    return report.to_dict()


def appended(leader: LogDir, count: int = 10, *, first: int = 0, topic: str = TOPIC, **where: int) -> None:
    """Appends records in one commit, to partition 0 unless `where` says another."""
    partitions = [where.get("partition", 0)]
    table = records(count, first=first, time_ms=leader.storage.now_ms(), partitions=partitions)
    leader.topic(topic).append(table)


def appended_often(leader: LogDir, times: int = 12) -> None:
    """Appends 3 records in each of several commits, so that a roll has chunks to merge."""
    for number in range(times):
        appended(leader, 3, first=3 * number)


def led(leader: LogDir, **config: object) -> LogDir:
    """The leader with a topic of two partitions."""
    own = {"segment.bytes": 2000, "index.interval.bytes": 100, "retention.ms": -1}
    topic_with(leader, TOPIC, own | config, partitions=2)
    return leader


def state_of(log: LogDir, snapshot: Snapshot) -> dict[str, Any]:
    """What a version of a topic is, wherever it lies: the description without its version, and all records."""
    found = describe(snapshot, topic_config(snapshot.config, log.defaults))
    del found["version"]
    rows = [
        batch.to_pylist()
        for batch in log.topic(snapshot.topic, version=snapshot.version).scan(include_control=True).batches()
    ]
    return {"description": found, "records": [row for batch in rows for row in batch]}


def source_version(follower: Snapshot) -> int:
    """The version of its leader that a follower is."""
    source = role_of(follower).source
    assert source is not None
    return source.version


def past_state(leader: LogDir, follower: LogDir, topic: str = TOPIC) -> bool:
    """Whether the follower is what the leader was at the version that it says it is."""
    here = follower.topic(topic).snapshot
    there = leader.topic(topic, source_version(here)).snapshot
    same = transactions(follower, topic) == transactions(leader, topic, there.version)
    return same and state_of(follower, here) == state_of(leader, there)


def assert_in_step(leader: LogDir, follower: LogDir, topic: str = TOPIC, *, same_paths: bool = True) -> None:
    """The follower is the leader's newest version: in records, description, rows, transactions and files."""
    there, here = leader.topic(topic).snapshot, follower.topic(topic).snapshot
    assert source_version(here) == there.version
    assert state_of(follower, here) == state_of(leader, there)
    assert Partition.of_table(here.partitions) == Partition.of_table(there.partitions)
    mine, theirs = Segment.of_table(here.live), Segment.of_table(there.live)
    if same_paths:
        assert mine == theirs
        for row in mine:
            assert follower.storage.read(row.path) == leader.storage.read(row.path)
    assert transactions(follower, topic) == transactions(leader, topic)
    report = verify(follower, topics=[topic], deep=True)
    assert report.ok, report.findings


def transactions(log: LogDir, topic: str, version: int | None = None) -> dict[str, int]:
    found = log.topic(topic).manifest.state(version, deleted=True).last_transactions()
    return {one.application: one.version for one in found}


def is_deleted(log: LogDir, topic: str = TOPIC) -> bool:
    try:
        _ = log.topic(topic).snapshot
    except SegmentsError:
        return True
    return False
