"""Mirrors killed at random moments while their leader is written, rolled, cleaned, retained, restored and vacuumed.

Two mirrors run at once, each a process that kills itself after a random number of writes and commits. At every moment
each follower has to be what its leader was at the version that it names; in the end, what the leader is.

By hand: python -m verification.kills mirrors --trials 30
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import random
import signal
import time
import traceback
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, LogDirError, UnknownTopicError
from spark_segments.log.manifest.files.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.maintenance import compact, mirror, restore, retain, roll, vacuum
from verification.kills.crashes import Countdown
from verification.world.followers import assert_in_step, source_version, state_of, transactions
from verification.world.manifest_rows import Snapshot

MIRRORS = 2
LIFE = 150
"""After how many writes, deletions and commits a mirror is killed, at the most."""

CONFIG = {
    "cleanup.policy": "compact,delete",
    "segment.bytes": "3000",
    "compression.type": "uncompressed",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
PARTITIONS = {"orders": 2, "prices": 6}
LATER_MS = 8 * 86_400_000


def act(source: str, target: str, seed: int, notes: str) -> None:
    """The life of a mirror."""
    random_ = random.Random(seed)
    Countdown(random_.randint(1, LIFE), random_.choice([0, random_.uniform(0, 0.03)]))
    try:
        while True:
            report = mirror(LogDir.open(target), leader=LogDir.open(source))
            found = {"commits": report.details["commits"], "jumps": report.details["jumps"]}
            with open(notes, "a") as file:
                file.write(json.dumps({**found, "failed": report.failed, "warnings": report.warnings}) + "\n")
            time.sleep(0.01)
    except BaseException:
        with open(notes, "a") as file:
            file.write(json.dumps({"failed": [traceback.format_exc()]}) + "\n")
        raise


class Leader:
    """The leader's log directory, what is done to it, and what each of its versions was."""

    def __init__(self, uri: str, random_: random.Random) -> None:
        self.log = LogDir.create(uri)
        self.states: dict[tuple[str, int], str] = {}
        self.done: Counter[str] = Counter()
        self._random = random_
        self._written = 0
        self._txn = 0
        for topic in PARTITIONS:
            self._create(topic)
            self.note(topic)

    def change(self) -> None:
        """Does anything to a topic."""
        works = {
            self.append: 12, self.roll: 3, self.compact: 3, self.retain: 2, self.delete_records: 1, self.alter: 1,
            self.restore: 2, self.vacuum: 2, self.make_again: 1,
        }  # fmt: skip
        [work] = self._random.choices([*works], [*works.values()])
        topic = self._random.choice([*PARTITIONS])
        work(topic)
        self.done[work.__name__] += 1
        self.note(topic)

    def append(self, topic: str) -> None:
        count, partitions = self._random.randint(1, 12), PARTITIONS[topic]
        numbers = range(self._written, self._written + count)
        self._written += count
        rows = pa.table(
            {
                "key": [b"%d" % self._random.randrange(9) for _ in numbers],
                "value": [None if self._random.random() < 0.1 else (b"%d " % n).ljust(90, b".") for n in numbers],
                "partition": pa.array([n % partitions for n in numbers], pa.int32()),
            }
        )
        self._txn += 1
        self.log.topic(topic).append(rows, txn=("writer", self._txn) if self._random.random() < 0.3 else None)

    def roll(self, topic: str) -> None:
        roll(self.log, topics=[topic], now_ms=self._later())

    def compact(self, topic: str) -> None:
        assert not compact(self.log, topics=[topic], now_ms=self._later(), force=True).failed

    def retain(self, topic: str) -> None:
        self.log.topic(topic).alter({"retention.bytes": str(self._random.choice([2000, 6000]))})
        assert not retain(self.log, topics=[topic]).failed

    def delete_records(self, topic: str) -> None:
        for number, (start, end) in self.log.topic(topic).offsets().items():
            self.log.topic(topic).delete_records({number: self._random.randint(start, end)})

    def alter(self, topic: str) -> None:
        self.log.topic(topic).alter(
            {"retention.bytes": None, "max.message.bytes": str(self._random.randint(9000, 9999))}
        )

    def restore(self, topic: str) -> None:
        version = self.log.topic(topic).snapshot.version
        if self._random.random() < 0.3:
            self.log.delete_topic(topic)
        try:
            restore(self.log, topics=[topic], version=max(0, version - self._random.randint(1, 6)))
        except (LogDirError, InvalidOptionError, UnknownTopicError):  # vacuum has taken it, or it had no topic
            if topic not in self.log.topics():
                self._create(topic)

    def vacuum(self, topic: str) -> None:
        assert not vacuum(self.log, topics=[topic], now_ms=self._later()).failed

    def make_again(self, topic: str) -> None:
        self.log.delete_topic(topic)
        self._create(topic)

    def note(self, topic: str) -> None:
        """Remembers what the versions were that came since the last note."""
        manifest = self.log.topic(topic).manifest
        for version in manifest.log.versions():
            if (topic, version) not in self.states:
                self.states[topic, version] = digest(self.log, manifest.snapshot(version, deleted=True))

    def _create(self, topic: str) -> None:
        self.log.create_topic(topic, PARTITIONS[topic], CONFIG)

    def _later(self) -> int:
        return self.log.storage.now_ms() + LATER_MS


def digest(log: LogDir, snapshot: Snapshot) -> str:
    """What a version of a topic is, wherever it lies."""
    if snapshot.deleted_ms is not None:
        return "deleted"
    return hashlib.sha256(repr(state_of(log, snapshot)).encode()).hexdigest()


def check(leader: Leader, follower: LogDir) -> int:
    """Raises AssertionError where a follower is not what its leader was. Returns how many followers there are."""
    topics = follower.storage.directories(MANIFEST_DIRECTORY)
    for topic in topics:
        try:
            snapshot = follower.topic(topic).manifest.snapshot(deleted=True)
        except UnknownTopicError:  # its table is being made
            continue
        version = source_version(snapshot)
        assert digest(follower, snapshot) == leader.states[topic, version], (topic, version, snapshot.version)
    return len(topics)


def run(directory: Path, trials: int, *, seed: int = 1) -> dict[str, Any]:
    """Has so many mirrors killed, and looks at the follower three times as often at least. Raises AssertionError where
    it is not as it has to be at any moment.
    """
    started = time.monotonic()
    random_ = random.Random(seed)
    leader = Leader(str(directory / "leader"), random_)
    follower = LogDir.create(str(directory / "follower"))
    notes = directory / "notes.jsonl"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["verification.kills.mirrors"])
    running: list[Any] = []
    kills = lives = checks = 0
    try:
        while kills < trials or checks < 3 * trials:
            while len(running) < MIRRORS:
                lives += 1
                life = (leader.log.uri, follower.uri, seed * 1_000_000 + lives, str(notes))
                running.append(context.Process(target=act, args=life))
                running[-1].start()
            leader.change()
            if random_.random() < 0.15:
                now_ms = follower.storage.now_ms() + LATER_MS
                assert not vacuum(follower, now_ms=now_ms).failed
            checks += check(leader, follower)
            for ended in wait([process.sentinel for process in running], timeout=0):
                [process] = [process for process in running if process.sentinel == ended]
                process.join()
                running.remove(process)
                assert process.exitcode == -signal.SIGKILL, notes.read_text().splitlines()[-1]
                kills += 1
    finally:
        for process in running:
            process.kill()
            process.join()
    report = mirror(follower, leader=leader.log)
    assert not report.failed, report.failed
    checks += check(leader, follower)
    for topic in PARTITIONS:
        assert_in_step(leader.log, follower, topic, same_paths=False)
        assert transactions(follower, topic) == transactions(leader.log, topic)
    lines = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    failed = [one for line in lines for one in line["failed"]]
    assert not failed, failed[0]
    return {
        "seed": seed,
        "kills": kills,
        "states_compared": checks,
        "versions_of_the_leader": len(leader.states),
        "commits_of_finished_passes": sum(line["commits"] for line in lines),
        "jumps_of_finished_passes": sum(line["jumps"] for line in lines),
        "done_to_the_leader": dict(leader.done),
        "seconds": round(time.monotonic() - started),
    }
