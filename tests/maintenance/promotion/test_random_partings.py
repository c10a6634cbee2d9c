"""Two leaders that part at random and are worked on at random: the side that goes becomes the side that stays."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.maintenance import compact, restore, roll, vacuum
from spark_segments.replicas.divergence import Copy, foreign_tails
from verification.world.promoted_copies import (
    LATER_MS,
    TOPIC,
    assert_equal,
    contents,
    in_step,
    mirrored_again,
    promote_topic,
)

CONFIG = {
    "cleanup.policy": "compact,delete",
    "retention.ms": "-1",
    "segment.bytes": "600",
    "min.cleanable.dirty.ratio": "0.01",
    "compression.type": "uncompressed",
}


def work(log: LogDir, chance: random.Random) -> None:
    """One thing that happens to a leader. Keys repeat, so that compaction finds something."""
    match chance.choice(["append"] * 5 + ["roll", "compact", "delete-records", "restore", "vacuum"]):
        case "append":
            count = chance.randint(1, 9)
            keys = [str(chance.randint(0, 5)).encode() for _ in range(count)]
            values = [chance.choice([None, str(chance.random()).encode()]) for _ in range(count)]
            partitions = pa.array([chance.randint(0, 1) for _ in range(count)], pa.int32())
            table = pa.table({"key": keys, "value": pa.array(values, pa.binary()), "partition": partitions})
            application = chance.choice("ab")  # a follower may have fewer versions than its leader: they count nothing
            log.topic(TOPIC).append(table, txn=(application, transactions(log).get(application, -1) + 1))
        case "roll":
            roll(log, now_ms=LATER_MS)
        case "compact":
            compact(log)
        case "delete-records":
            start, end = log.topic(TOPIC).offsets()[0]
            log.topic(TOPIC).delete_records({0: chance.randint(start, end)})
        case "restore":
            restore(log, topics=[TOPIC], version=max(0, log.topic(TOPIC).snapshot.version - chance.randint(0, 1)))
        case "vacuum":
            vacuum(log, now_ms=log.storage.now_ms() + 2 * 86_400_000)


def transactions(log: LogDir) -> dict[str, int]:
    found = {one.application: one.version for one in log.topic(TOPIC).manifest.state().last_transactions()}
    return {name: version for name, version in found.items() if version >= 0}


def part_and_join(directory: Path, seed: int) -> bool:
    """Returns whether the side that goes had anything that the other has not."""
    chance = random.Random(seed)
    old, new = (LogDir.create(str(directory / name)) for name in ("old", "new"))
    old.create_topic(TOPIC, 2, CONFIG)
    for _ in range(chance.randint(2, 8)):
        work(old, chance)
    in_step(old, new)
    for _ in range(chance.randint(0, 3)):
        work(old, chance)  # which the follower misses
    away = Path(old.uri).rename(directory / "away")
    promote_topic(new, TOPIC, force=True)
    away.rename(old.uri)
    for log in (old, new):
        for _ in range(chance.randint(0, 6)):
            work(log, chance)
    assert mirrored_again(old, new) is not None and mirrored_again(new, old) is not None
    stays, goes = old, new
    if chance.random() < 0.5:
        stays, goes = new, LogDir.create(str(directory / "empty"))
        has_parted = bool(promote_topic(new, TOPIC).left_behind)  # fences the old one
    else:
        has_parted = bool(foreign_tails(*(Copy(log.topic(TOPIC).snapshot, log.storage) for log in (new, old))))
        new.delete_topic(TOPIC)
    before = contents(stays), transactions(stays)
    in_step(stays, goes)
    assert_equal(stays, goes)
    assert (contents(stays), transactions(stays)) == (contents(goes), transactions(goes)) == before
    return has_parted


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(6))
def test_the_side_that_goes_becomes_the_side_that_stays(tmp_path, seed):
    part_and_join(tmp_path, seed)
