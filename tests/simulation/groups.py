"""Readers in groups, and the logs of the groups' tables in memory, with the faults of a seed.

A position is swapped against the one that its reader began at: at every commit the judge looks whether it was. What a
reader gets from its position on is what comes next in the log, and an error that it cannot go on has a cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import OffsetOutOfRangeError, StorageError
from spark_segments.log.groups.group_log import GroupVersion, PositionsFile, group_directory
from spark_segments.log.groups.group_table import Rows, rows_of
from spark_segments.log.groups.positions import Committed, TopicPartition
from spark_segments.log.manifest.delta.delta_log import CommitFailedError, LogFiles, VersionTakenError
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.storage import FileInfo, Storage
from tests.maintenance.long_runs.scenario import Record
from tests.simulation.delta import compare_and_swap
from tests.simulation.judge import view
from tests.simulation.readers import attempt_read, log_bounds
from tests.simulation.scenario import IMPORTED, WRITTEN, Simulation
from tests.simulation.store import Store
from tests.simulation.world import Process, Violation

GROUP = "audit"
GROUP_TOPICS = ("orders", IMPORTED)
"""Few, and a partition of each: so its readers meet."""


@dataclass(frozen=True, slots=True)
class MemoryGroupVersion:
    """See `GroupVersion`."""

    version: int
    file: PositionsFile
    actions: list[dict[str, Any]]
    made_ms: int


@dataclass(slots=True)
class GroupVersions:
    """The log of a group. `latest` stays where it is when the first versions are dropped."""

    versions: dict[int, MemoryGroupVersion] = field(default_factory=dict)
    checkpoints: dict[int, int] = field(default_factory=dict)
    latest: int = -1
    rows: Rows = field(default_factory=dict)


@dataclass(slots=True)
class GroupLogs:
    """The logs of all groups at a place: an `OpenGroupLog`, and their judge."""

    store: Store
    place: str
    groups: dict[str, GroupVersions] = field(default_factory=dict)
    commits: int = 0

    def __call__(self, storage: Storage, group: str) -> SimulatedGroupLog:
        return SimulatedGroupLog(self, self.groups.setdefault(group, GroupVersions()), group)

    def rows(self, group: str, file: PositionsFile) -> Rows:
        """The positions of a file, past the faults."""
        path = f"{self.place}/{group_directory(group)}/{file.path}"
        return rows_of(pa.py_buffer(self.store.files[path].data), path)


class SimulatedGroupLog:
    """See `GroupLog`."""

    def __init__(self, logs: GroupLogs, log: GroupVersions, group: str) -> None:
        self._logs, self._log, self._group = logs, log, group
        self._store, self._world = logs.store, logs.store.world

    def open(self) -> MemoryGroupVersion | None:
        return self._look("open", lambda: self._log.versions.get(self._log.latest))  # type: ignore[no-any-return]

    def commit_on(self, base: GroupVersion | None, file: PositionsFile, commit_id: str) -> None:
        assert base is None or isinstance(base, MemoryGroupVersion), "a version that this log opened"
        version = 0 if base is None else base.version + 1
        process = self._world.current
        intent = process.intent if process is not None else {}
        try:
            latest = self._look("latest", lambda: self._log.latest)
        except StorageError as error:
            raise CommitFailedError(str(error)) from error
        if latest >= version:
            raise VersionTakenError(f"version {version} is there")

        def effect() -> None:
            log = self._log
            if log.latest >= version:
                raise VersionTakenError(f"version {version} is there")
            removed = [] if base is None else [{"remove": {"path": base.file.path}}]
            actions = [{"commitInfo": {"commitId": commit_id}}, {"add": {"path": file.path}}, *removed]
            log.versions[version] = MemoryGroupVersion(version, file, actions, self._world.now_ms)
            log.latest = version
            self._logs.commits += 1
            self._world.note("group", self._group, version, commit_id, process.name if process else "")
            self._judge(file, intent)

        compare_and_swap(self._store, self._group, commit_id, effect)

    def _judge(self, file: PositionsFile, intent: dict[str, Any]) -> None:
        """Looks whether a commit is the swap that its process had set out to do."""
        world, log = self._world, self._log
        if world.failure is not None:
            return
        try:
            with world.outside():
                before, log.rows = log.rows, self._logs.rows(self._group, file)
                swap: Swap | None = intent.get("swap")
                if swap is not None:
                    assert not intent.get("refused"), f"it was refused: {intent.get('refused')}"
                    intent["calls"].append((self._group, log.latest))
                    assert len(intent["calls"]) == 1, "a commit is there twice"
                    swap.check(before, log.rows)
        except Exception as error:
            world.failure = Violation(f"group {self._group} of {self._logs.place} at {log.latest}: {error!r}")
            world.failure.__cause__ = error

    def actions(self, version: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            if version not in self._log.versions:
                raise FileNotFoundError(2, "no such version", f"{self._group}/{version}")
            return self._log.versions[version].actions

        return self._look("actions", found)  # type: ignore[no-any-return]

    def checkpoint(self) -> None:
        def effect() -> None:
            self._log.checkpoints[self._log.latest] = self._world.now_ms

        self._ask("checkpoint", self._group, effect)

    def log_files(self) -> LogFiles:
        def found() -> LogFiles:
            log = self._log
            commits = {at: FileInfo(f"commit/{at}", 1, one.made_ms) for at, one in sorted(log.versions.items())}
            checkpoints = {at: [FileInfo(f"checkpoint/{at}", 1, made_ms)] for at, made_ms in log.checkpoints.items()}
            return LogFiles(commits, checkpoints, [])

        return self._look("log files", found)  # type: ignore[no-any-return]

    def delete(self, files: Iterable[FileInfo]) -> None:
        for file in files:
            kind, _, version = file.path.partition("/")
            there: dict[int, Any] = self._log.versions if kind == "commit" else self._log.checkpoints
            self._ask("delete", f"{self._group}/{file.path}", lambda at=int(version), there=there: there.pop(at, None))

    def _ask(self, kind: str, path: str, effect: Any) -> None:
        try:
            self._store.ask(kind, path, lambda: effect() and None)
        except OSError as error:
            raise StorageError(str(error), path=path) from error

    def _look(self, kind: str, effect: Any) -> Any:
        try:
            return self._store.look(kind, self._group, effect)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(str(error), path=self._group) from error


@dataclass(frozen=True, slots=True)
class Swap:
    """What a commit of a reader is to do: the positions that it began at, and the offsets that it moves them to; None:
    it deletes the group.
    """

    began: Committed
    moved: dict[TopicPartition, int] | None

    def check(self, before: Rows, after: Rows) -> None:
        """Raises AssertionError where a commit did anything else."""
        if self.moved is None:
            assert not after, "the group is deleted"
            return
        for key, offset in self.moved.items():
            assert before.get(key) == self.began.positions.get(key), f"another reader moved {key} to {before.get(key)}"
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
    began: Committed
    first: int
    last: int
    records: list[tuple[int, Record]]
    stop: OffsetOutOfRangeError | None = None

    @property
    def key(self) -> TopicPartition:
        return self.snapshot.topic, self.number


def read_on(log: LogDir, group: str, topic: str, number: int, random: Random) -> Portion:
    """Reads on from a group's position in a partition, or from the log start."""
    began, snapshot = log.committed(group), log.snapshot(topic)
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

    def work() -> Committed:
        topic, number = done.key
        return log.commit_offsets(done.group, {topic: {number: done.last}}, after=done.began, snapshots=[done.snapshot])

    swap = Swap(done.began, {done.key: done.last})
    found, error = simulation.attempt(process, work, is_one_commit=True, swap=swap)
    if error is not None:
        return False
    there = found.positions[done.key]
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
            swap = Swap(Committed(GROUP, {}), None)
            simulation.attempt(process, lambda: log.delete_group(GROUP), is_one_commit=True, swap=swap)
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
    position = done.began.positions.get(done.key)
    if position is None:
        raise Violation(f"{done.key}: a group without a position cannot begin: {done.stop!r}")
    is_same = position.topic_id == done.snapshot.topic_id and start <= position.offset <= end
    if is_same and done.snapshot.topic in WRITTEN:  # an import takes over the leader epochs of its directory
        raise Violation(f"{done.key}: a group is told that it cannot go on from {position}: {done.stop!r}")
