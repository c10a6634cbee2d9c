"""Readers in groups, on the files of a seed's store.

A position is swapped against the one that its reader began at: at every commit the judge looks whether it was. What a
reader gets from its position on is what comes next in the log, and an error that it cannot go on has a cause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from spark_segments import LogDir, Position
from spark_segments.errors import OffsetOutOfRangeError
from spark_segments.log.groups.group_files import GROUPS_DIRECTORY, GroupCommit, GroupRows, group_of, parsed
from spark_segments.log.positions import TopicPartition
from verification.long_runs.scenario import Record
from verification.simulation.judge import view
from verification.simulation.readers import attempt_read, log_bounds
from verification.simulation.scenario import IMPORTED, WRITTEN, Simulation
from verification.simulation.store import Store
from verification.simulation.world import Process, Violation
from verification.world.group_readers import Positions
from verification.world.manifest_rows import Snapshot

GROUP = "audit"
GROUP_TOPICS = ("orders", IMPORTED)
"""Few, and a partition of each: so its readers meet."""


@dataclass(slots=True)
class GroupJudge:
    """Looks at every file of a group that is made at a place. `commits`: the newest commit of each group."""

    store: Store
    place: str
    commits: dict[str, GroupCommit] = field(default_factory=dict)
    again: int = 0

    def __post_init__(self) -> None:
        self.store.watchers.append(self.landed)

    def landed(self, path: str, data: bytes, process: Process | None, intent: dict[str, Any]) -> None:
        """Looks whether a commit is the swap that its process had set out to do."""
        world = self.store.world
        match = re.fullmatch(rf"{self.place}/{GROUPS_DIRECTORY}/([^/]+)/(\d{{20}})\.json", path)
        if match is None or world.failure is not None:
            return
        group, number = group_of(None, match[1]), int(match[2])  # type: ignore[arg-type]  # a short name
        before = self.commits.get(group, GroupCommit(0, "", "", {}))
        if number <= before.number:  # its file was gone, and readers look at the highest number alone
            self.again += 1
            return
        try:
            commit = parsed(group, number, pa.py_buffer(data))
            world.note("group", group, number, commit.commit_id, process.name if process else "")
            assert number == before.number + 1, f"it follows on {before.number}"
            assert commit.after == before.commit_id, "it follows on another commit"
            assert before.lease <= intent.get("lease", commit.lease), f"it follows on one of lease {before.lease}"
            self.commits[group] = commit
            swap: Swap | None = intent.get("swap")
            if swap is not None:
                assert not intent.get("refused"), f"it was refused: {intent.get('refused')}"
                intent["calls"].append((group, number))
                assert len(intent["calls"]) == 1, "a commit is there twice"
                swap.check(before.rows, commit.rows)
        except Exception as error:
            world.failure = Violation(f"group {group} of {self.place} at {number}: {error!r}")
            world.failure.__cause__ = error


@dataclass(frozen=True, slots=True)
class Swap:
    """What a commit of a reader is to do: the positions that it began at, and the offsets that it moves them to; None:
    it deletes the group.
    """

    began: Positions
    moved: dict[TopicPartition, int] | None

    def check(self, before: GroupRows, after: GroupRows) -> None:
        """Raises AssertionError where a commit did anything else."""
        if self.moved is None:
            assert not after, "the group is deleted"
            return
        for key, offset in self.moved.items():
            assert before.get(key) == self.began.get(key), f"another reader moved {key} to {before.get(key)}"
            assert after[key].offset == offset, f"{key} is at {after[key]}, not at {offset}"
        others = {key: one for key, one in before.items() if key not in self.moved}
        assert {key: one for key, one in after.items() if key not in self.moved} == others, "the others stay"


@dataclass(frozen=True, slots=True)
class Portion:
    """What a reader of a group got of a partition: the records at [first, last) of a version, and the positions that it
    began at. `stop`: why the group could not go on; the reader begins anew at the log start then.
    """

    group: str
    snapshot: Snapshot
    number: int
    began: Positions
    first: int
    last: int
    records: list[tuple[int, Record]]
    stop: OffsetOutOfRangeError | None = None

    @property
    def key(self) -> TopicPartition:
        return self.snapshot.topic, self.number


def read_on(log: LogDir, group: str, topic: str, number: int, random: Random) -> Portion:
    """Reads on from a group's position in a partition, or from the log start."""
    began, snapshot = log.group(group).positions(), log.topic(topic).snapshot
    start, end = log_bounds(snapshot, number)
    try:
        first = began.starts(snapshot, [number]).get(number, start)
    except OffsetOutOfRangeError as stop:
        return Portion(group, snapshot, number, began, start, start, [], stop)
    last = min(end, first + random.randint(1, 12))
    records = view(log, topic, snapshot.version, number, first, last)[number] if first < last else []
    return Portion(group, snapshot, number, began, first, last, records)


def commit(simulation: Simulation, process: Process, log: LogDir, done: Portion) -> bool:
    """Commits where a portion ends. Whether that was done; what is told of it is true."""

    def work() -> Positions:
        topic, number = done.key
        position = Position.at(done.snapshot, number, done.last)
        return log.group(done.group).commit(done.began, {topic: {number: position}})

    swap = Swap(done.began, {done.key: done.last})
    calls: list[tuple[str, int]] = []
    found, error = simulation.attempt(process, work, is_one_commit=True, swap=swap, calls=calls)
    if error is not None:
        return False
    if not calls:
        raise Violation(f"{process.name}: {done.key} is told to be at {done.last}, and no commit is there")
    there = found[done.key]
    if (there.offset, there.topic_id) != (done.last, done.snapshot.topic_id):
        raise Violation(f"{process.name}: {done.key} is to be at {done.last} of {done.snapshot.topic_id}: {there}")
    return True


def consume(simulation: Simulation, process: Process) -> None:
    """Reads topics in a group that another process reads in, too, and commits where it has come to."""
    random, judge = simulation.random, simulation.judge
    log = simulation.open()
    while True:
        simulation.think(process, 150)
        if random.random() < 0.01:
            swap = Swap(Positions(GROUP, GroupCommit(0, "", "", {})), None)
            simulation.attempt(process, lambda: log.group(GROUP).delete(), is_one_commit=True, swap=swap)
            continue
        topic, number = random.choice(GROUP_TOPICS), 0
        done, error = attempt_read(
            simulation,
            process,
            topic,
            judge.newest(topic),
            lambda topic=topic, number=number: read_on(log, GROUP, topic, number, random),
        )
        if error is not None:
            continue
        at = judge.topic(topic).versions.get(done.snapshot.version)
        if done.stop is not None:
            check_stop(done)
            judge.counts["groups that could not go on"] += 1
        elif at is None:
            continue
        else:
            there = at.partitions[number]
            wanted = [(at, there.placed[at]) for at in sorted(there.sure) if done.first <= at < done.last]
            if done.records != wanted:
                raise Violation(f"{process.name}: {done.key} from {done.first} to {done.last}: {done.records[:3]}")
        judge.counts["positions committed"] += commit(simulation, process, log, done)


def check_stop(done: Portion) -> None:
    """A reader cannot go on only where records are gone that it has not read, or where the log is another one."""
    start, end = log_bounds(done.snapshot, done.number)
    position = done.began.get(done.key)
    if position is None:
        raise Violation(f"{done.key}: a group without a position cannot begin: {done.stop!r}")
    is_same = position.topic_id == done.snapshot.topic_id and start <= position.offset <= end
    if is_same and done.snapshot.topic in WRITTEN:  # an import takes over the leader epochs of its directory
        raise Violation(f"{done.key}: a group is told that it cannot go on from {position}: {done.stop!r}")
