"""The interface between a group's table and Delta's log, and its implementation by delta-rs.

It is small, so that a simulation can play every lost reply and conflict. The rules are those of `DeltaLog`: a commit is
a compare-and-swap on a version number, a version never changes once it is there, and `actions` shows a commit from the
moment that `open` does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema
from deltalake import exceptions as delta_errors
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from spark_segments.errors import StorageError
from spark_segments.log.groups.positions import POSITION_SCHEMA
from spark_segments.log.manifest.delta.delta_log import (
    CommitFailedError,
    LogFiles,
    VersionTakenError,
    read_action,
    reason,
)
from spark_segments.log.manifest.delta.delta_rs import log_files
from spark_segments.storage import FileInfo, Storage

GROUPS_DIRECTORY = "_groups"

_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_PROPERTIES = {"delta.enableExpiredLogCleanup": "false"}
_FAILURES = (delta_errors.DeltaError, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class PositionsFile:
    """The one file of a version: its path relative to the table, its bytes, and how many positions it has."""

    path: str
    size: int
    rows: int


class GroupVersion(Protocol):
    """A version of a group's table, as it was opened. Never changes."""

    @property
    def version(self) -> int: ...

    @property
    def file(self) -> PositionsFile: ...


class GroupLog(Protocol):
    """The log of a group's table, whether or not it exists. Holds no state: every call reads the log afresh."""

    def open(self) -> GroupVersion | None:
        """The latest version; None where there is no table yet. Raises StorageError."""

    def commit_on(self, base: GroupVersion | None, file: PositionsFile, commit_id: str) -> None:
        """Puts `file` in the place of the file of `base`, which `open` gave, as the version right after it.

        Raises VersionTakenError where that version is there already, CommitFailedError for any other failure: the
        commit may have happened then, or may happen yet.
        """

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of a commit as Delta writes them. FileNotFoundError where the log does not have it (any more),
        StorageError where it is damaged.
        """

    def checkpoint(self) -> None:
        """Writes a checkpoint of the latest version. Raises StorageError."""

    def log_files(self) -> LogFiles:
        """The files of the log, with their modification times."""

    def delete(self, files: Iterable[FileInfo]) -> None:
        """Deletes files that `log_files` gave, in the order given. Missing files are no error."""


OpenGroupLog = Callable[[Storage, str], GroupLog]
"""Opens the log of a group's table: (storage, group) → GroupLog."""


def group_directory(group: str) -> str:
    """The directory of a group's table, relative to the log directory."""
    return f"{GROUPS_DIRECTORY}/{group}"


@dataclass(frozen=True, slots=True)
class _Version:
    """See `GroupVersion`."""

    table: DeltaTable
    file: PositionsFile

    @property
    def version(self) -> int:
        return self.table.version()


class DeltaRsGroupLog:
    """See `GroupLog`, whose methods these are."""

    def __init__(self, storage: Storage, group: str) -> None:
        self._storage = storage
        self._group = group
        self._directory = group_directory(group)

    def open(self) -> _Version | None:
        uri, options = self._storage.delta_uri(self._directory)
        location = self._storage.location(self._directory)
        try:
            table = DeltaTable(uri, storage_options=options or None)
        except delta_errors.TableNotFoundError:
            return None
        except _FAILURES as error:
            text = self._storage.hidden(reason(error))
            raise StorageError(f"The positions of group {self._group} cannot be read: {text}", path=location) from error
        # Not pa.table(…), which would import pandas where that is installed.
        actions = pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all().to_pylist()
        if len(actions) != 1:
            raise StorageError("Not a table of positions", path=location, expected="one file", found=len(actions))
        [action] = actions
        return _Version(table, PositionsFile(action["path"], action["size_bytes"], action.get("num_records") or 0))

    def commit_on(self, base: GroupVersion | None, file: PositionsFile, commit_id: str) -> None:
        assert base is None or isinstance(base, _Version), "a version that another log opened"
        now_ms = time.time_ns() // 1_000_000
        added = AddAction(file.path, file.size, {}, now_ms, True, json.dumps({"numRecords": file.rows}))
        # Without retries a commit is a compare-and-swap; with retries delta-rs would rebase it in silence.
        properties = CommitProperties(custom_metadata={"commitId": commit_id}, max_commit_retries=0)
        schema = Schema.from_arrow(POSITION_SCHEMA)
        try:
            if base is None:
                uri, options = self._storage.delta_uri(self._directory)
                create_table_with_add_actions(
                    uri,
                    schema,
                    [added],
                    mode="error",
                    name=self._group,
                    configuration=_PROPERTIES,
                    storage_options=options or None,
                    commit_properties=properties,
                    post_commithook_properties=_NO_HOOKS,
                )
                return
            removed = RemoveAction(base.file.path, True, now_ms, base.file.size, {})
            base.table.create_write_transaction(
                [added, removed],
                mode="append",
                schema=schema,
                commit_properties=properties,
                post_commithook_properties=_NO_HOOKS,
            )
        except _FAILURES as error:
            taken = isinstance(error, delta_errors.CommitFailedError)
            text = self._storage.hidden(reason(error))
            raise (VersionTakenError if taken else CommitFailedError)(text) from error

    def actions(self, version: int) -> list[dict[str, Any]]:
        path = f"{self._directory}/_delta_log/{version:020d}.json"
        content = self._storage.read(path).to_pybytes()
        try:
            return [read_action(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            text = f"A commit of the positions of group {self._group} is damaged ({reason(error)})"
            raise StorageError(text, path=self._storage.location(path)) from error

    def checkpoint(self) -> None:
        if (latest := self.open()) is not None:
            try:
                latest.table.create_checkpoint()
            except _FAILURES as error:
                raise StorageError(reason(error), path=self._storage.location(self._directory)) from error

    def log_files(self) -> LogFiles:
        return log_files(self._storage, self._directory)

    def delete(self, files: Iterable[FileInfo]) -> None:
        self._storage.delete(info.path for info in files)
