"""Delta's log by delta-rs: the implementation of `DeltaLog` behind every real manifest.

Beside it only log/groups/group_log.py talks to delta-rs.

A commit file that gets its name before its bytes are on disk is empty after a power loss in between, and delta-rs takes
an empty file for a commit without actions. So in a log that is forced to disk the bytes are there first. Where delta-rs
makes the file, a table, new columns or a checkpoint, it does so in a scratch log: links to the files of the table's
log, in a temporary directory.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, PostCommitHookProperties, Schema
from deltalake import exceptions as delta_errors
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from spark_segments.errors import LogDirError, SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.log.manifest.delta.actions import add_action, own_commit_info, properties_of, remove_action
from spark_segments.log.manifest.delta.delta_log import (
    FENCED,
    REBUILD_FENCE,
    CommitFailedError,
    CommitNote,
    CommitNotSentError,
    LogFiles,
    TableVersion,
    VersionTakenError,
    damaged_commit,
    manifest_directory,
    read_action,
    reason,
)
from spark_segments.log.manifest.delta.scratch_log import scratch_log
from spark_segments.log.manifest.delta.versions import DeltaRsVersion, LocalVersion
from spark_segments.log.manifest.row_files import STATISTICS, FileChange, RowFile
from spark_segments.log.manifest.schemas import KIND, table_schema
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.local import link_new_file

_TABLE_PROPERTIES = {
    # upkeep.py alone deletes files: it knows how long snapshots must stay readable.
    "delta.enableExpiredLogCleanup": "false",
    # Delta's tombstones serve nobody here, and every checkpoint would carry them along.
    "delta.deletedFileRetentionDuration": "interval 0 seconds",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_COMMIT_NAME = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT_NAME = re.compile(r"^(\d{20})\.checkpoint(\..*)?\.parquet$")
_FAILURES = (delta_errors.DeltaError, OSError, ValueError)
_LAST_CHECKPOINT = "_last_checkpoint"
_LISTINGS = 5
_REFUSED = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES))
"""Errors by which a file system says that it made no file: a full disk leaves no doubt about a commit."""


class DeltaRsLog:
    """See `DeltaLog`, whose methods these are."""

    def __init__(self, storage: Storage, topic: str, *, is_forced: bool = False) -> None:
        self._storage = storage
        self._topic = topic
        self._directory = manifest_directory(topic)
        self._is_forced = is_forced and storage.is_local

    def open(self, version: int | None = None) -> DeltaRsVersion:
        uri, options = self._storage.delta_uri(self._directory)
        location = self._storage.location(self._directory)
        try:
            table = DeltaTable(uri, version=version, storage_options=options or None)
        except delta_errors.TableNotFoundError as error:
            raise FileNotFoundError(self._reason(error)) from error
        except delta_errors.DeltaProtocolError as error:
            raise LogDirError(
                f"The manifest of {self._topic} cannot be read: {self._reason(error)}", path=location
            ) from error
        except _FAILURES as error:
            raise StorageError(f"The manifest cannot be opened: {self._reason(error)}", path=location) from error
        if version is not None and table.version() != version:
            raise FileNotFoundError(f"Version {version} is not there: delta-rs opened {table.version()}")
        self.check_commits(table.version())
        return DeltaRsVersion(table, self)

    def check_commits(self, version: int) -> None:
        """Raises LogDirError where a commit that the version is opened from is an empty file.

        delta-rs takes it for a commit without actions: the log would end where it ended before, and the offsets of
        acknowledged records would be given out again. A power loss leaves such files, of commits that were not forced.
        """
        if not self._storage.is_local:
            return  # an object is there whole
        checkpoint = self._last_checkpoint()
        for number in range(min(checkpoint + 1, version), version + 1):
            with contextlib.suppress(FileNotFoundError):  # vacuum takes commits before a checkpoint
                if not self._storage.size(self._log_file(_commit_name(number))):
                    raise LogDirError(
                        f"A commit file of the manifest of {self._topic} is empty",
                        path=self._storage.location(self._log_file(_commit_name(number))),
                        expected="the actions of a commit",
                        found="0 bytes",
                        hint="A power loss took commits that were not forced to disk (flush.messages). Take this file "
                        "and the commit files after it away: the topic is then what it was before these commits",
                    )

    def has_commit(self, version: int) -> bool:
        """Whether the log has a version's commit."""
        return self._storage.exists(self._log_file(_commit_name(version)))

    def _last_checkpoint(self) -> int:
        """The version of the last checkpoint, as its pointer says; -1 where there is none, or no good one."""
        try:
            pointer = json.loads(self._storage.read(self._log_file(_LAST_CHECKPOINT)).to_pybytes())
            return int(pointer["version"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return -1

    def create(self, change: FileChange, note: CommitNote) -> None:
        try:
            if not self._is_forced:
                self._create(*self._storage.delta_uri(self._directory), change, note, {})
                return
            with scratch_log(self._storage, []) as scratch:
                self._create(scratch.directory, {}, change, note, {})
                self._publish(0, scratch.read(_commit_name(0)))
        except _FAILURES as error:
            raise self._commit_failed(error) from error

    def _create(
        self,
        uri: str,
        options: dict[str, str],
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
    ) -> None:
        create_table_with_add_actions(
            uri,
            Schema.from_arrow(table_schema(change.format_version)),
            [add_action(file, data_change=True) for file in change.added],
            mode="error",
            partition_by=[KIND],
            name=self._topic,
            configuration=_TABLE_PROPERTIES,
            storage_options=options or None,
            commit_properties=properties_of(note, transactions),
            post_commithook_properties=_NO_HOOKS,
        )

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> LocalVersion | None:
        assert isinstance(base, DeltaRsVersion | LocalVersion), "a version that another log opened"
        has_columns = base.columns.issuperset(table_schema(change.format_version).names)
        if self._storage.is_local and has_columns and base.has_known_protocol:
            adds = [file.add_action(data_change=data_change) for file in change.added]
            removes = [file.remove_action(data_change=data_change) for file in change.removed]
            txns = [{"txn": {"appId": name, "version": version}} for name, version in transactions.items()]
            if self._commit_to_disk(base.version, [{"commitInfo": own_commit_info(note)}, *adds, *removes, *txns]):
                gone = {file.path for file in change.removed}
                files = [*(file for file in base.files if file.path not in gone), *change.added]
                return LocalVersion(base.version + 1, files, base.columns, note.commit_id, self)
        if self._is_forced:
            with scratch_log(self._storage, self.log_files().of_version(base.version)) as scratch:
                self._commit(base, DeltaTable(scratch.directory), change, note, transactions, data_change=data_change)
                self._publish(base.version + 1, scratch.read(_commit_name(base.version + 1)))
        else:
            self._commit(base, base.table, change, note, transactions, data_change=data_change)
        return None

    def _commit_to_disk(self, base_version: int, actions: Sequence[Mapping[str, Any]]) -> bool:
        """Commits to a local disk as delta-rs does, by a link of a finished file, but without its listings of the log.

        These take longer than all else of a small append to a topic of many versions. False where the file system has
        no links: nothing was done. The log may have been cut since the base was read, and then its next version may be
        free although it was made once. So the base, which is cut before any later version, must still be there.
        """
        path, _ = self._storage.delta_uri(f"{self._directory}/_delta_log")
        base, name = (f"{path}/{_commit_name(version)}" for version in (base_version, base_version + 1))
        if not os.path.exists(base):
            raise CommitFailedError(f"version {base_version} is not there any more")
        content = "\n".join(map(json.dumps, actions)).encode()
        if self._is_forced:
            self._publish(base_version + 1, content)
            return True
        try:
            return link_new_file(name, content)
        except FileExistsError:
            raise VersionTakenError(f"version {base_version + 1} is there already") from None
        except OSError as error:
            raise (CommitNotSentError if error.errno in _REFUSED else CommitFailedError)(str(error)) from error

    def make_anew(self, version: int, change: FileChange, note: CommitNote, transactions: Mapping[str, int]) -> None:
        """See `DeltaLog.make_anew`. A checkpoint does not say of which version it is: a table of version 0, made in
        another place, gives it.
        """
        with tempfile.TemporaryDirectory() as place:
            try:
                self._create(place, {}, change, note, transactions)
                DeltaTable(place).create_checkpoint()
            except _FAILURES as error:
                raise CommitFailedError(self._reason(error)) from error
            made = Path(place, "_delta_log")
            [checkpoint] = made.glob("*.checkpoint.parquet")
            commit, rows = Path(made, f"{0:020d}.json").read_bytes(), checkpoint.read_bytes()
            last = json.loads(Path(made, _LAST_CHECKPOINT).read_bytes())
        listed = self.log_files()
        last_version = max([*listed.commits, *listed.checkpoints, version - FENCED - 2])
        now_ms = time.time_ns() // 1_000_000
        # Two rebuilds at once: the id tells whose a fence is, where a reply is lost. It is no id of a commit of theirs.
        fence = {"timestamp": now_ms, "operation": "WRITE", "change": REBUILD_FENCE, "rebuild": note.commit_id}
        if last_version + FENCED >= version - 1:
            raise VersionTakenError(f"version {last_version} came meanwhile")
        try:
            numbers = range(last_version + 1, last_version + FENCED + 1)
            content = json.dumps({"commitInfo": fence}).encode()
            self._storage.at_once(
                lambda name: self._storage.publish(self._log_file(name), content), map(_commit_name, numbers)
            )
            # Without its checkpoint the version cannot be opened: the checkpoint is what makes the table.
            names = [_commit_name(version), f"{version:020d}.checkpoint.parquet"]
            self._storage.force(f"{self._directory}/{file.path}" for file in change.added)
            for name, content in zip(names, (commit, rows), strict=True):
                self._storage.publish(self._log_file(name), content)
        except FileExistsError as error:
            raise VersionTakenError(f"{error.filename} is there already") from error
        except SegmentsError as error:
            raise CommitFailedError(str(error)) from error
        self._storage.replace(self._log_file(_LAST_CHECKPOINT), json.dumps({**last, "version": version}).encode())
        self._storage.force(map(self._log_file, [*names, _LAST_CHECKPOINT]))

    def _log_file(self, name: str) -> str:
        return f"{self._directory}/_delta_log/{name}"

    def checkpoint(self) -> None:
        table = self.open().table
        if not self._is_forced:
            table.create_checkpoint()
            return
        version = table.version()
        with scratch_log(self._storage, self.log_files().of_version(version)) as scratch:
            DeltaTable(scratch.directory).create_checkpoint()
            # The pointer comes last: it never names a checkpoint that a power loss could take.
            for name in (f"{version:020d}.checkpoint.parquet", _LAST_CHECKPOINT):
                path = self._log_file(name)
                self._storage.replace(path, scratch.read(name))
                self._storage.force([path])

    def _publish(self, version: int, content: bytes) -> None:
        """Makes a commit of these bytes. Once this returns, it has reached the disk."""
        path = self._log_file(_commit_name(version))
        try:
            self._storage.publish(path, content)
        except FileExistsError as error:
            raise VersionTakenError(f"Version {version} is there") from error
        except StorageError as error:
            if getattr(error.__cause__, "errno", None) in _REFUSED:
                raise CommitNotSentError(str(error)) from error
            raise
        try:
            self._storage.force([path])
        except (StorageError, FileNotFoundError) as error:
            raise UnknownOutcomeError(
                f"The commit was made, and nobody knows whether it has reached the disk: {reason(error)}",
                path=self._storage.location(path),
                hint="Look whether it is there once the disk is sound",
            ) from error

    def forced(self) -> DeltaRsLog:
        return DeltaRsLog(self._storage, self._topic, is_forced=True)

    def force(self) -> None:
        if not self._storage.is_local:
            return
        for _ in range(_LISTINGS):
            files = self.log_files()
            pointers = [info for info in files.others if info.path.endswith(_LAST_CHECKPOINT)]
            needed = [*files.of_version(max(files.commits, default=-1)), *pointers]
            try:
                return self._storage.force(info.path for info in needed)
            except FileNotFoundError:  # vacuum took it: a newer checkpoint stands in its place
                continue
        raise StorageError(
            "Files of the log keep going while they are forced to disk", path=self._storage.location(self._directory)
        )

    def log_files(self) -> LogFiles:
        return log_files(self._storage, self._directory)

    def actions(self, version: int) -> list[dict[str, Any]]:
        path = self._log_file(_commit_name(version))
        content = self._storage.read(path).to_pybytes()
        try:
            return [read_action(line) for line in content.splitlines() if line.strip()]
        except ValueError as error:
            raise damaged_commit(self._storage.location(path), error) from error

    def last_transactions(self, version: int) -> dict[str, int]:
        """See `TableVersion.last_transactions`. delta-rs answers for an application id that it is given only."""
        checkpoints = self.log_files().checkpoints
        start = max((number for number in checkpoints if number <= version), default=-1)
        found = [txn for info in checkpoints.get(start, []) for txn in self._transactions_of_checkpoint(info.path)]
        for number in range(start + 1, version + 1):
            found += [action["txn"] for action in self.actions(number) if "txn" in action]
        return {txn["appId"]: int(txn["version"]) for txn in found}

    def _transactions_of_checkpoint(self, path: str) -> list[dict[str, Any]]:
        file = pq.ParquetFile(pa.BufferReader(self._storage.read(path)))
        if "txn" not in file.schema_arrow.names:
            return []
        found: list[dict[str, Any]] = file.read(columns=["txn"]).column("txn").drop_null().to_pylist()
        return found

    def delete(self, files: Iterable[FileInfo]) -> None:
        self._storage.delete(info.path for info in files)

    def _commit(
        self,
        base: DeltaRsVersion | LocalVersion,
        table: DeltaTable,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool,
    ) -> None:
        """Commits on top of `base` to `table`, which is the table of `base` or a scratch log of the same version."""
        actions: list[AddAction | RemoveAction] = [add_action(file, data_change=data_change) for file in change.added]
        there = table.schema()
        schema = _with_columns(there, change.format_version)
        kinds = None if schema is there else _whole_kinds(base.files, change.removed)
        if kinds is None:
            actions += [remove_action(file, data_change=data_change) for file in change.removed]
        try:
            # delta-rs adds columns in its mode "overwrite" only, where it removes the files that the filters name.
            table.create_write_transaction(
                actions,
                mode="append" if kinds is None else "overwrite",
                schema=schema,
                partition_by=[KIND],
                partition_filters=None if kinds is None else [(KIND, "in", kinds)],
                commit_properties=properties_of(note, transactions),
                post_commithook_properties=_NO_HOOKS,
            )
        except _FAILURES as error:
            raise self._commit_failed(error) from error

    def _reason(self, error: Exception) -> str:
        return self._storage.hidden(reason(error))

    def _commit_failed(self, error: Exception) -> CommitFailedError:
        taken = isinstance(error, delta_errors.CommitFailedError)
        return (VersionTakenError if taken else CommitFailedError)(self._reason(error))


def log_files(storage: Storage, directory: str) -> LogFiles:
    """The files of the log of a table that lies in `directory`."""
    found = LogFiles({}, {}, [])
    for info in storage.list(f"{directory}/_delta_log"):
        name = info.path.rpartition("/")[2]
        if match := _COMMIT_NAME.match(name):
            found.commits[int(match.group(1))] = info
        elif match := _CHECKPOINT_NAME.match(name):
            found.checkpoints.setdefault(int(match.group(1)), []).append(info)
        else:
            found.others.append(info)
    return found


def _commit_name(version: int) -> str:
    return f"{version:020d}.json"


def _with_columns(schema: Schema, format_version: int) -> Schema:
    """The schema of a table with all columns of the format version. The same object where the table has them."""
    there = {field.name for field in schema.fields}
    missing = [field for field in table_schema(format_version) if field.name not in there]
    return Schema([*schema.fields, *Schema.from_arrow(pa.schema(missing)).fields]) if missing else schema


def _whole_kinds(files: Sequence[RowFile], removed: Sequence[RowFile]) -> list[str]:
    """The kinds whose files, all of them, are the removed ones."""
    kinds = sorted({file.kind for file in removed})
    assert kinds and len(removed) == sum(file.kind in kinds for file in files), "new columns come with whole kinds"
    return kinds
