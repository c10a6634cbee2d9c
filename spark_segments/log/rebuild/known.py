"""All that is known of a topic whose manifest cannot be read: the newest recovery copy, and the commits after it.

Commits are taken up to the first that is missing or cannot be read. What came later may be known from files of the log
alone (later_files.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from spark_segments.errors import LogDirError
from spark_segments.log.manifest.delta.delta_log import REBUILD, LogFiles, commit_info, is_fence
from spark_segments.log.manifest.recovery_copy import (
    UNREADABLE,
    RecoveryCopy,
    read_recovery_copy,
    recovery_directory,
    snapshot_of,
)
from spark_segments.log.manifest.row_files import RowFile, RowFiles
from spark_segments.log.manifest.schemas import KIND
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.topic_log import TopicLog
from spark_segments.log.manifest.topic_row import FIRST_FORMAT_VERSION, NewerFormatError
from spark_segments.log.manifest.transaction import Transaction


@dataclass(frozen=True, slots=True)
class KnownTopic:
    """A topic at the last version that is known.

    `copy_version`: the version of the recovery copy, and `copied_ms` a time at which all that is in it was committed.
    `last_version`: the largest version that the manifest's files, or the copy, name. `is_whole`: Delta's log lists the
    commits from the copy's version to its last without a gap, all are known, and nothing tells of a later commit.
    `lost_versions`: how many commits up to `last_version` are not known; versions that only a rebuild took are none.
    """

    snapshot: Snapshot
    transactions: list[Transaction]
    copy_version: int
    copied_ms: int
    last_version: int
    is_whole: bool
    lost_versions: int


def known_topic(log: TopicLog) -> KnownTopic:
    """What is known. Changes nothing.

    Raises LogDirError where there is no recovery copy; NewerFormatError where a newer package wrote the copy, or a
    commit after it; StorageError.
    """
    copy = read_recovery_copy(log.storage, log.topic)
    listed = log.delta.log_files()
    last_version = max([copy.snapshot.version, *listed.commits, *listed.checkpoints])
    snapshot, transactions, named = _replayed(log, copy)
    is_whole = bool(listed.commits) and snapshot.version == last_version == max(listed.commits)
    is_whole = is_whole and not _has_later_rows(log, named, listed.commits[last_version].mtime_ms)
    # A copy that was itself brought back from elsewhere is younger than what it says.
    copied_ms = min(copy.written_ms, copy.snapshot.committed_ms)
    lost = _lost_versions(log, listed, snapshot.version, last_version)
    return KnownTopic(snapshot, transactions, copy.snapshot.version, copied_ms, last_version, is_whole, lost)


def _replayed(log: TopicLog, copy: RecoveryCopy) -> tuple[Snapshot, list[Transaction], set[str]]:
    """The last version that the copy and the commits right after it lead to, with all of its rows; and the files of
    rows that any of these versions names.
    """
    files = {file.path: file for file in copy.files}
    commits: list[tuple[int, dict[str, RowFile], list[dict[str, Any]]]] = []
    version = copy.snapshot.version + 1
    while True:
        try:
            actions = log.delta.actions(version)
            if is_fence(actions):
                break
            files = _after(files, actions)
        except UNREADABLE:
            break
        commits.append((version, files, actions))
        version += 1
    named = {file.path for file in copy.files}.union(*(files for _, files, _ in commits))
    while commits:
        version, files, _ = commits[-1]
        try:
            snapshot, transactions = _state(log, version, list(files.values()), copy)
        except NewerFormatError:
            raise
        except UNREADABLE:
            commits.pop()
            continue
        if snapshot.format_version == FIRST_FORMAT_VERSION:
            transactions = _with_actions(copy.transactions, [actions for *_, actions in commits], snapshot.topic_id)
        return snapshot, transactions, named
    return copy.snapshot, copy.transactions, named


def _has_later_rows(log: TopicLog, named: Collection[str], since_ms: int) -> bool:
    """Whether there are rows that no known version names and that are not older than the last known commit.

    A commit that was lost has left them, or a writer that failed: nobody can tell.
    """
    prefix = f"{log.directory}/"
    return any(
        info.mtime_ms >= since_ms and info.path.removeprefix(prefix) not in named
        for info in log.storage.list(log.directory, recursive=True)
        if info.path.startswith(f"{prefix}{KIND}=")
    )


def _lost_versions(log: TopicLog, listed: LogFiles, known: int, last: int) -> int:
    """How many commits of (known, last] there were. A rebuild takes versions before its own that are none."""
    taken: set[int] = set()
    for version in (number for number in listed.commits if number > known):
        try:
            actions = log.delta.actions(version)
        except (FileNotFoundError, LogDirError):
            continue
        if is_fence(actions):
            taken.add(version)
        elif commit_info(actions).get("change") == REBUILD:
            taken.add(version - 1)  # stays free
            if version not in listed.checkpoints:
                taken.add(version)  # the rebuild was killed
    return sum(version not in taken for version in range(known + 1, last + 1))


def _after(files: Mapping[str, RowFile], actions: Sequence[Mapping[str, Any]]) -> dict[str, RowFile]:
    """The files of the table after a commit. Raises any of UNREADABLE for actions that are no commit's."""
    found = dict(files)
    for action in actions:
        if "remove" in action:
            del found[unquote(action["remove"]["path"])]
        if "add" in action:
            path = unquote(action["add"]["path"])
            found[path] = RowFile(path, action["add"]["partitionValues"][KIND], 0, 0, 0, {})
    return found


def _state(
    log: TopicLog, version: int, files: Sequence[RowFile], copy: RecoveryCopy
) -> tuple[Snapshot, list[Transaction]]:
    copied = {file.path for file in copy.files}
    committed_ms = max(log.storage.now_ms(), copy.snapshot.committed_ms)
    tables = [_rows(log, file, file.path in copied) for file in files]
    return snapshot_of(log.topic, version, committed_ms, files, tables)


def _rows(log: TopicLog, file: RowFile, is_copied: bool) -> pa.Table:
    if is_copied:
        return RowFiles(log.storage, recovery_directory(log.topic)).read_all([file])[0]
    return log.store.read_all([file])[0]


def _with_actions(
    before: Sequence[Transaction], commits: Sequence[Sequence[Mapping[str, Any]]], topic_id: str
) -> list[Transaction]:
    """The last transactions of a topic of format version 1, which has them in Delta's log alone."""
    suffix = f"@{topic_id}"
    last = {one.application: one for one in before}
    for actions in commits:
        for txn in (action["txn"] for action in actions if "txn" in action):
            if txn["appId"].endswith(suffix):
                name = txn["appId"].removesuffix(suffix)
                last[name] = Transaction(name, int(txn["version"]))
    return list(last.values())
