"""Delta's log in memory: what a simulation stands on. The rows' files lie in the storage, as ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_segments.log.manifest.delta.delta_log import CommitNote, LogFiles, TableVersion, VersionTakenError
from spark_segments.log.manifest.row_files import FileChange, RowFile
from spark_segments.storage import FileInfo, Storage


@dataclass(frozen=True, slots=True)
class MemoryVersion:
    """A version with all of its files and transactions, and the commit that made it."""

    version: int
    files: list[RowFile]
    transactions: dict[str, int]
    commit: list[dict[str, Any]]
    committed_ms: int

    def last_transaction(self, application_id: str) -> int | None:
        return self.transactions.get(application_id)

    def last_transactions(self) -> dict[str, int]:
        return dict(self.transactions)

    def after(
        self, change: FileChange, note: CommitNote, transactions: Mapping[str, int], *, host_ms: int, store_ms: int
    ) -> MemoryVersion:
        """The next version. `host_ms`, `store_ms`: the time by the clocks of who commits, and of the store."""
        gone = {file.path for file in change.removed}
        info = {"timestamp": host_ms, "commitId": note.commit_id, "attempt": note.attempt, "change": note.operation}
        return MemoryVersion(
            self.version + 1,
            [file for file in self.files if file.path not in gone] + change.added,
            {**self.transactions, **transactions},
            [
                {"commitInfo": info},
                *({"txn": {"appId": name, "version": version}} for name, version in transactions.items()),
                *({"add": {"path": file.path}} for file in change.added),
                *({"remove": {"path": file.path}} for file in change.removed),
            ],
            store_ms,
        )

    def committed(self, latest: Callable[[], MemoryVersion]) -> MemoryCommit:
        """The version as its commit returns it. `latest`: opens the latest version of its log."""
        return MemoryCommit(self.version, self.files, self.transactions, self.commit, self.committed_ms, latest)


@dataclass(frozen=True, slots=True)
class MemoryCommit(MemoryVersion):
    """See `CommittedVersion`."""

    latest: Callable[[], MemoryVersion]

    def is_latest(self) -> bool:
        return self.latest().commit == self.commit


NO_VERSION = MemoryVersion(-1, [], {}, [], 0)
"""What the first version comes after."""


@dataclass(slots=True)
class MemoryLogs:
    """The logs of all topics: an `OpenDeltaLog`."""

    versions: dict[str, dict[int, MemoryVersion]] = field(default_factory=dict)
    checkpoints: dict[str, dict[int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, storage: Storage, topic: str) -> MemoryLog:
        return MemoryLog(self, storage, topic)


class MemoryLog:
    """See `DeltaLog`."""

    def __init__(self, logs: MemoryLogs, storage: Storage, topic: str) -> None:
        self._logs, self._storage = logs, storage
        self._versions = logs.versions.setdefault(topic, {})
        self._checkpoints = logs.checkpoints.setdefault(topic, {})

    def open(self, version: int | None = None) -> MemoryVersion:
        wanted = max(self._versions, default=-1) if version is None else version
        if wanted not in self._versions:
            raise FileNotFoundError(f"version {version}")
        return self._versions[wanted]

    def create(self, change: FileChange, note: CommitNote) -> None:
        self._commit(NO_VERSION, change, note, {})

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> MemoryCommit:
        assert isinstance(base, MemoryVersion)
        return self._commit(base, change, note, transactions).committed(self.open)

    def _commit(
        self, base: MemoryVersion, change: FileChange, note: CommitNote, transactions: Mapping[str, int]
    ) -> MemoryVersion:
        now_ms = self._storage.now_ms()
        made = base.after(change, note, transactions, host_ms=now_ms, store_ms=now_ms)
        with self._logs.lock:
            if made.version in self._versions:
                raise VersionTakenError(f"version {made.version} is there")
            self._versions[made.version] = made
        return made

    def checkpoint(self) -> None:
        self._checkpoints[self.open().version] = self._storage.now_ms()

    def log_files(self) -> LogFiles:
        commits = {at: FileInfo(f"commit/{at}", 1, one.committed_ms) for at, one in sorted(self._versions.items())}
        checkpoints = {at: [FileInfo(f"checkpoint/{at}", 1, made_ms)] for at, made_ms in self._checkpoints.items()}
        return LogFiles(commits, checkpoints, [])

    def actions(self, version: int) -> list[dict[str, Any]]:
        if version not in self._versions:
            raise FileNotFoundError(f"version {version}")
        return self._versions[version].commit

    def forced(self) -> MemoryLog:
        return self

    def force(self) -> None:
        """Memory has no disk."""

    def delete(self, files: Iterable[FileInfo]) -> None:
        for file in files:
            kind, _, version = file.path.partition("/")
            (self._versions if kind == "commit" else self._checkpoints).pop(int(version), None)
