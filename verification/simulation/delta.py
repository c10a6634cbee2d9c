"""The logs of all topics in the played store, and the moment when a commit is there: the judge learns of it then.

Delta's log is the package's own, over the store: its conditional put may be carried out and its answer lost, or be
carried out later, or be answered as taken although the commit is its own (a retry of the client).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_segments.log.manifest.files.delta.actions import CommitNote, added_file, decoded
from spark_segments.log.manifest.files.delta.delta_rs import TableVersion
from spark_segments.quantities import Moment
from spark_segments.storage import Storage
from spark_segments.storage.delta import Action, commit_info, paths_of
from verification.simulation.store import Store
from verification.simulation.world import Process, Violation
from verification.world.opened import DeltaLog
from verification.world.stores.memory_store import replayed
from verification.world.stores.played_log import FileChange, no_table

_COMMIT = re.compile(r"_manifest/([^/]+)/_delta_log/(\d{20})\.json")


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit that the store carried out: the version, the version before, who sent it, and what it was to do."""

    topic: str
    made: TableVersion
    before: TableVersion
    actions: list[Action]
    committed_ms: int
    note: CommitNote
    change: FileChange
    process: Process | None
    intent: dict[str, Any]

    @property
    def version(self) -> int:
        return self.made.version


@dataclass(slots=True)
class DeltaLogs:
    """The logs of all topics at a place: an `OpenDeltaLog`. `landed` judges every commit at the moment when it is
    there. `topics`: the latest version of each.
    """

    store: Store
    place: str
    landed: Callable[[Landed], None]
    counts: Counter[str] = field(default_factory=Counter)
    topics: dict[str, TableVersion] = field(default_factory=dict)
    commits: int = 0

    def __post_init__(self) -> None:
        self.store.watchers.append(self.made)

    def __call__(self, storage: Storage, topic: str) -> SimulatedLog:
        return SimulatedLog(self, storage, topic)

    def made(self, path: str, content: bytes, process: Process | None, intent: dict[str, Any]) -> None:
        """A file was made that was not there. The look at a commit is judged, too, whatever it meets, and ends the
        simulation: the product would take an error for a failed commit.
        """
        found = _COMMIT.fullmatch(path.removeprefix(f"{self.place}/"))
        world = self.store.world
        if found is None or world.failure is not None:
            return
        topic, version = found.group(1), int(found.group(2))
        actions = decoded(content, path)
        info = commit_info(actions)
        where = f"{self.place}'s {topic} at version {version} ({info.get('change')}, {info.get('commitId')})"
        try:
            with world.outside():
                self._judge(topic, version, actions, process, intent)
        except Exception as error:
            world.failure = Violation(f"{where}: {error!r}")
            world.failure.__cause__ = error

    def _judge(
        self, topic: str, version: int, actions: list[Action], process: Process | None, intent: dict[str, Any]
    ) -> None:
        before = self.topics.get(topic) or no_table()
        assert version == before.version + 1, f"the number is given again, or before its time, after {before.version}"
        made = before.after(actions, Moment.now())
        self.topics[topic] = made
        self.commits += 1
        info, world = commit_info(actions), self.store.world
        note = CommitNote(info["commitId"], info["attempt"], info["change"])
        world.note("commit", topic, version, note.operation, note.commit_id, process.name if process else "")
        gone = set(paths_of(actions, "remove"))
        there = {file.path: file for file in before.files}
        assert gone <= there.keys(), "it removes files of the version before"
        added = [added_file(action["add"]) for action in actions if "add" in action]
        for file in added:
            path = f"{self.place}/_manifest/{topic}/{file.path}"
            assert path in self.store.files and self.store.files[path].is_whole, (
                f"it adds {file.path}, which is not there"
            )
        change = FileChange(added, [there[path] for path in gone])
        self.landed(Landed(topic, made, before, actions, world.now_ms, note, change, process, intent))


class SimulatedLog(DeltaLog):
    """Delta's log over the played store. The store loses no power."""

    def __init__(self, logs: DeltaLogs, storage: Storage, topic: str) -> None:
        super().__init__(storage, topic, replayed)
        self._logs = logs

    def durable(self, is_forced: bool) -> SimulatedLog:
        return self

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> TableVersion:
        made = super().commit_on(base, change, note, transactions, data_change=data_change)
        self._logs.counts["commits on a commit that was not opened again"] += bool(base.commit_info)
        return made
