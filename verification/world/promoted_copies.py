"""A topic in two log directories: one leads, the other follows it. Its records are numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog
from spark_segments.log.manifest.rows import Partition
from spark_segments.maintenance import mirror, verify
from spark_segments.replicas.former_leader import PromotionOptions
from spark_segments.replicas.promote import STEPS, Promotion, PromotionResult
from spark_segments.replicas.topic_mirror import TopicMirror
from verification.world.opened import opened

__all__ = [
    "LATER_MS",
    "STEPS",
    "TOPIC",
    "TopicMirror",
    "add",
    "assert_equal",
    "contents",
    "epochs",
    "followed",
    "in_step",
    "led",
    "mirrored_again",
    "numbers",
    "played",
    "promote_topic",
    "taken_away",
]

TOPIC = "orders"
LATER_MS = 2_000_000_000_000


def add(log: LogDir, numbers: Iterable[int], partition: int = 0, txn: tuple[str, int] | None = None) -> None:
    """Appends records with these values, in one commit."""
    values = [str(number).encode() for number in numbers]
    log.topic(TOPIC).append(
        pa.table({"value": values, "partition": pa.array([partition] * len(values), pa.int32())}), txn=txn
    )


def numbers(log: LogDir, partition: int = 0, version: int | None = None) -> list[int]:
    """The values of a partition, in the order of their offsets."""
    batches = log.topic(TOPIC, version=version).scan(partition=partition, columns=["value"]).batches()
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def contents(log: LogDir) -> list[dict[str, Any]]:
    """All records of the topic, control records included."""
    return [row for batch in log.topic(TOPIC).scan(include_control=True).batches() for row in batch.to_pylist()]


def led(directory: Path) -> LogDir:
    """A log directory with a topic of two partitions: numbers 0 to 9 in partition 0, and 50 in partition 1."""
    leader = LogDir.create(str(directory / "leader"))
    leader.create_topic(TOPIC, 2, {"retention.ms": "-1"})
    add(leader, range(6))
    add(leader, range(6, 10))
    add(leader, [50], partition=1)
    return leader


def followed(leader: LogDir, name: str = "follower") -> LogDir:
    """A log directory that mirrors the leader's topic."""
    follower = LogDir.create(str(Path(leader.uri).parent / name))
    in_step(leader, follower)
    return follower


def in_step(leader: LogDir, follower: LogDir) -> None:
    """Mirrors what the follower lacks."""
    TopicMirror(leader, follower, TOPIC).run()


def assert_equal(leader: LogDir, follower: LogDir) -> None:
    """Both have the same records, offsets and leader epochs, and no fault."""
    there, here = leader.topic(TOPIC).snapshot, follower.topic(TOPIC).snapshot
    assert Partition.of_table(here.partitions) == Partition.of_table(there.partitions)
    assert contents(follower) == contents(leader)
    for log in (leader, follower):
        report = verify(log, topics=[TOPIC], deep=True)
        assert report.ok, report.findings


def epochs(log: LogDir, partition: int = 0) -> tuple[tuple[int, int], ...]:
    """The leader epochs of a partition, each with its first offset."""
    return log.topic(TOPIC).snapshot.partition(partition).leader_epochs


def promote_topic(log: LogDir, topic: str, former: LogDir | str | None = None, **options: Any) -> PromotionResult:
    """Promotes a topic of a log directory."""
    return Promotion(log, topic, PromotionOptions(former, **options)).run()


def taken_away(log: LogDir) -> Path:
    """Puts a log directory out of reach; renamed back, it is as it was."""
    path = Path(log.uri)
    return path.rename(path.with_name("out-of-reach"))


def played(log: LogDir, play: object = DeltaLog) -> LogDir:
    """The same log directory over a Delta log whose outcomes a test plays."""
    return opened(log.uri, open_delta_log=play)


def mirrored_again(leader: LogDir, follower: LogDir) -> str | None:
    """The error of a mirror, None where there is none."""
    failed = mirror(follower, leader=leader, topics=[TOPIC]).failed
    return failed[0]["error"] if failed else None
