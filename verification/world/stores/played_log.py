"""Delta logs where a test plays what becomes of a call: a lost reply, a late commit, a conflict, a log out of reach."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from spark_segments.log.manifest.files.delta.actions import CommitNote
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog, LogFiles
from spark_segments.log.manifest.files.delta.delta_rs import (
    CommitFailedError,
    OpenTable,
    TableVersion,
    VersionTakenError,
    no_table,
    open_table,
)
from spark_segments.log.manifest.files.row_files import FileChange
from spark_segments.storage import FileInfo, Storage

__all__ = [
    "CommitFailedError",
    "CommitNote",
    "FileChange",
    "Late",
    "LogFiles",
    "OpenTable",
    "Play",
    "PlayedLog",
    "TableVersion",
    "VersionTakenError",
    "committed_but_reply_lost",
    "lost_race",
    "no_table",
    "open_table",
    "store_failed",
]

Go = Callable[[], Any]
"""Makes the call as it is. A happening may keep it for later, or never call it."""

Happening = Callable[[Go], Any]
"""What becomes of a call: answers or raises in its place."""


class Play:
    """Opens Delta logs, for `Manifest` and `LogDir`, and says what happens at their calls.

    `calls` counts the calls by the names of `DeltaLog`; `opened` lists the topics of all calls of `open`.
    """

    def __init__(self, open_table: OpenTable = open_table) -> None:
        self.calls: Counter[str] = Counter()
        self.opened: list[str] = []
        self.open_table = open_table
        self._next: dict[str, list[Happening]] = defaultdict(list)
        self._always: dict[str, Callable[[str, Go], Any]] = {}

    def __call__(self, storage: Storage, topic: str) -> PlayedLog:
        return PlayedLog(storage, topic, self)

    def next(self, call: str, *happenings: Happening) -> None:
        """What happens at the next calls of this name, one after the other."""
        self._next[call].extend(happenings)

    def commits(self, *happenings: Happening) -> None:
        """What happens at the next commits on top of a version."""
        self.next("commit_on", *happenings)

    def before_commits(self, *works: Callable[[], object] | None) -> Play:
        """What is done when the next commits have been put together, before they reach the store; None: nothing."""
        for work in works:
            self.commits(lambda go, work=work: (work() if work is not None else None, go())[1])
        return self

    def always(self, call: str, happening: Callable[[str, Go], Any] | None) -> None:
        """What happens, by topic, at every call of this name once `next` has run out; None: nothing any more."""
        if happening is None:
            self._always.pop(call, None)
        else:
            self._always[call] = happening

    def play(self, call: str, topic: str, go: Go) -> Any:
        """Answers a call of a `PlayedLog`."""
        self.calls[call] += 1
        if self._next[call]:
            return self._next[call].pop(0)(go)
        return self._always[call](topic, go) if call in self._always else go()


class PlayedLog(DeltaLog):
    """A `DeltaLog` where `Play` decides about each call."""

    def __init__(self, storage: Storage, topic: str, play: Play, *, is_forced: bool = False) -> None:
        super().__init__(storage, topic, play.open_table, is_forced=is_forced)
        self._play = play

    def durable(self, is_forced: bool) -> PlayedLog:
        return PlayedLog(self._storage, self._topic, self._play, is_forced=is_forced)

    def open(self, version: int | None = None) -> TableVersion:
        self._play.opened.append(self._topic)
        return self._play.play("open", self._topic, lambda: super(PlayedLog, self).open(version))

    def following(self, base: TableVersion) -> list[TableVersion]:
        return self._play.play("following", self._topic, lambda: super(PlayedLog, self).following(base))

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> TableVersion:
        def go() -> TableVersion:
            return super(PlayedLog, self).commit_on(base, change, note, transactions, data_change=data_change)

        return self._play.play("create" if not base.is_there else "commit_on", self._topic, go)

    def checkpoint(self) -> None:
        self._play.play("checkpoint", self._topic, super().checkpoint)

    def log_files(self) -> LogFiles:
        return self._play.play("log_files", self._topic, super().log_files)

    def actions(self, version: int) -> list[dict[str, Any]]:
        return self._play.play("actions", self._topic, lambda: super(PlayedLog, self).actions(version))

    def force(self) -> None:
        if self._is_forced:
            self._play.play("force", self._topic, super().force)

    def delete(self, files: Iterable[FileInfo]) -> None:
        self._play.play("delete", self._topic, lambda: super(PlayedLog, self).delete(files))


def committed_but_reply_lost(go: Go) -> None:
    go()
    raise CommitFailedError("connection reset by peer")


def store_failed(go: Go) -> None:
    raise CommitFailedError("connection refused")


def lost_race(go: Go) -> None:
    raise VersionTakenError("Failed to commit transaction: 0")


class Late:
    """A store that has the request, gives no answer, and carries it out when `land` is called."""

    def __init__(self) -> None:
        self._waiting: list[Go] = []

    def __call__(self, go: Go) -> None:
        self._waiting.append(go)
        raise CommitFailedError("timed out")

    def land(self) -> None:
        """Carries out the request; a second call does nothing."""
        while self._waiting:
            self._waiting.pop()()
