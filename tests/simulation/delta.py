"""Delta's log in memory with the faults of a seed: where the processes meet, and where the judge learns what was
committed.

As delta-rs does on an object store, a commit first looks whether the version that it was made for is still the latest,
and then asks the store to make the next one, if it is not there. That second request may be carried out and its answer
lost, or be carried out later, or be answered as taken although the commit is its own (a retry of the client).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from spark_segments.errors import StorageError
from spark_segments.log.manifest.delta.delta_log import (
    CommitFailedError,
    CommitNote,
    LogFiles,
    TableVersion,
    VersionTakenError,
)
from spark_segments.log.manifest.row_files import FileChange
from spark_segments.storage import FileInfo, Storage
from tests.log.memory_log import NO_VERSION, MemoryCommit, MemoryVersion
from tests.simulation.store import Store
from tests.simulation.world import SECOND_US, Killed, Process, Violation

T = TypeVar("T")

LATE_SECONDS = 1800.0
"""How late a commit may be carried out: the log keeps its versions for an hour at least."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit that the store carried out: the version, the version before, who sent it, and what it was to do."""

    topic: str
    made: MemoryVersion
    before: MemoryVersion
    note: CommitNote
    change: FileChange
    process: Process | None
    intent: dict[str, Any]

    @property
    def version(self) -> int:
        return self.made.version


@dataclass(slots=True)
class TopicVersions:
    """The log of a topic. `latest` stays where it is when the first versions are dropped."""

    versions: dict[int, MemoryVersion] = field(default_factory=dict)
    checkpoints: dict[int, int] = field(default_factory=dict)
    latest: int = -1


@dataclass(slots=True)
class DeltaLogs:
    """The logs of all topics at a place: an `OpenDeltaLog`. `landed` judges every commit at the moment when it is
    there.
    """

    store: Store
    place: str
    landed: Callable[[Landed], None]
    topics: dict[str, TopicVersions] = field(default_factory=dict)
    commits: int = 0

    def __call__(self, storage: Storage, topic: str) -> SimulatedLog:
        return SimulatedLog(self, self.topics.setdefault(topic, TopicVersions()), topic)


class SimulatedLog:
    """See `DeltaLog`."""

    def __init__(self, logs: DeltaLogs, log: TopicVersions, topic: str) -> None:
        self._logs, self._log, self._topic = logs, log, topic
        self._store, self._world = logs.store, logs.store.world

    def open(self, version: int | None = None) -> MemoryVersion:
        def found() -> MemoryVersion:
            wanted = self._log.latest if version is None else version
            if wanted not in self._log.versions:
                raise FileNotFoundError(f"{self._topic} at version {version}")
            self._world.note("open", self._topic, wanted)
            return self._log.versions[wanted]

        return self._look("open", found)  # type: ignore[no-any-return]

    def create(self, change: FileChange, note: CommitNote) -> None:
        self._send(NO_VERSION, change, note, {})

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> MemoryCommit:
        assert isinstance(base, MemoryVersion), "a version that this log opened"
        if self._look("latest", lambda: self._log.latest) > base.version:
            raise VersionTakenError(f"version {base.version + 1} is there")
        return self._send(base, change, note, transactions).committed(self.open)

    def _send(
        self, base: MemoryVersion, change: FileChange, note: CommitNote, transactions: Mapping[str, int]
    ) -> MemoryVersion:
        """Asks the store to make the version after `base`, which may be carried out without an answer."""
        world = self._world
        process = world.current
        intent = process.intent if process is not None else {}
        host_ms = world.clock_us() // 1000

        def effect() -> MemoryVersion:
            return self._make(base, change, note, transactions, process, intent, host_ms)

        return compare_and_swap(self._store, self._topic, note.commit_id, effect)

    def _make(
        self,
        base: MemoryVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        process: Process | None,
        intent: dict[str, Any],
        host_ms: int,
    ) -> MemoryVersion:
        log, world = self._log, self._world
        if base.version < log.latest:
            raise VersionTakenError(f"version {base.version + 1} is there")
        made = base.after(change, note, transactions, host_ms=host_ms, store_ms=world.now_ms)
        log.versions[made.version], log.latest = made, made.version
        self._logs.commits += 1
        world.note("commit", self._topic, made.version, note.operation, note.commit_id, process.name if process else "")
        self._judge(Landed(self._topic, made, base, note, change, process, intent))
        return made

    def _judge(self, landed: Landed) -> None:
        """Has a commit judged. What the look at it meets is a violation, too, whatever it is, and ends the simulation:
        the product would take an error for a failed commit.
        """
        world = self._world
        if world.failure is not None:
            return
        try:
            with world.outside():
                there = {file.path for file in landed.before.files}
                assert {file.path for file in landed.change.removed} <= there, "it removes files of the version before"
                self._logs.landed(landed)
        except Exception as error:
            where = f"{self._logs.place}'s {landed.topic} at version {landed.version}"
            world.failure = Violation(f"{where} ({landed.note.operation}, {landed.note.commit_id}): {error!r}")
            world.failure.__cause__ = error

    def checkpoint(self) -> None:
        def effect() -> None:
            if self._log.latest >= 0:
                self._log.checkpoints[self._log.latest] = self._world.now_ms

        self._store.ask("checkpoint", self._topic, effect)

    def log_files(self) -> LogFiles:
        def found() -> LogFiles:
            log = self._log
            commits = {at: FileInfo(f"commit/{at}", 1, one.committed_ms) for at, one in sorted(log.versions.items())}
            checkpoints = {at: [FileInfo(f"checkpoint/{at}", 1, made_ms)] for at, made_ms in log.checkpoints.items()}
            return LogFiles(commits, checkpoints, [])

        return self._look("log files", found)

    def actions(self, version: int) -> list[dict[str, Any]]:
        def found() -> list[dict[str, Any]]:
            if version not in self._log.versions:
                raise FileNotFoundError(2, "no such version", f"{self._topic}/{version}")
            return self._log.versions[version].commit

        return self._look("actions", found)

    def forced(self) -> SimulatedLog:
        return self

    def force(self) -> None:
        """The store loses no power."""

    def delete(self, files: Iterable[FileInfo]) -> None:
        for file in files:
            kind, _, version = file.path.partition("/")
            there: dict[int, Any] = self._log.versions if kind == "commit" else self._log.checkpoints
            self._ask_to_delete(file.path, there, int(version))

    def _ask_to_delete(self, path: str, there: dict[int, Any], version: int) -> None:
        try:
            self._store.ask("delete", f"{self._topic}/{path}", lambda: there.pop(version, None) and None)
        except OSError as error:
            raise StorageError(str(error), path=path) from error

    def _look(self, kind: str, effect: Callable[[], Any]) -> Any:
        try:
            return self._store.look(kind, self._topic, effect)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(str(error), path=self._topic) from error


def compare_and_swap(store: Store, table: str, commit_id: str, effect: Callable[[], T]) -> T:
    """Asks the store to make the next version of a table, which may be carried out without an answer."""
    world, faults = store.world, store.faults

    def late() -> None:
        try:
            effect()
        except VersionTakenError:
            world.note("too late", table, commit_id)

    def failed(what: str) -> CommitFailedError:
        return CommitFailedError(str(store.failure(what, "commit", table, "connection reset by peer")))

    if world.current is None:
        return effect()
    fate = world.random.random()
    try:
        world.wait(store.latency_us())
    except Killed:
        if not world.is_ending and world.random.random() < 0.5:
            world.later(int(world.random.uniform(0, LATE_SECONDS) * SECOND_US), late)
        raise
    if fate < faults.refused:
        raise failed("refused")
    if fate < faults.refused + faults.late:
        world.later(int(world.random.uniform(0, LATE_SECONDS) * SECOND_US), late)
        raise failed("late commit")
    made = effect()
    if fate < faults.refused + faults.late + faults.lost_reply:
        error = failed("lost commit reply")
        raise VersionTakenError(str(error)) if world.random.random() < 0.3 else error
    return made
