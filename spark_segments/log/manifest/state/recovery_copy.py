"""Recovery copies: the contents of a manifest at a version, outside of the manifest, for the day when that is lost.

A copy is the files of the version and an index of them. Files of a manifest never change. So a copy adds only the files
that earlier copies lack, and its cost depends on the commits since then, not on the size of the topic. The index is
written last: a copy without an index is none. Chunks do not have their offsets, and files do not say whether they were
committed, so only a copy can. It lacks the commits after it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_segments.errors import FormatVersionError, LogDirError
from spark_segments.log.manifest.files.commit_notes import recovery_directory, version_of
from spark_segments.log.manifest.files.row_files import RowFile, RowFiles, concat
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.state.snapshot import SegmentRows, Snapshot
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog
from spark_segments.log.manifest.topic_row import topic_of
from spark_segments.log.manifest.transaction import Transaction, transactions_of
from spark_segments.storage import FileInfo, Storage
from spark_segments.storage.numbered_files import NumberedFiles

COPIES_KEPT = 2
"""How many copies of a topic stay. The newest is the one to use; the other is for a crash while that was written."""

UNREADABLE = (FileNotFoundError, LogDirError, ValueError, KeyError, TypeError, AttributeError, pa.ArrowException)
"""The errors for rows, or an index of them, that are missing or damaged. A store that fails is a StorageError."""

_INDEX_VERSION = 1


@dataclass(frozen=True, slots=True)
class RecoveryCopy:
    """A topic as its manifest had it: rows (removed rows and rows of deleted topics too), settings, transactions.

    `files`: the files of the version, relative to `recovery_directory`. `has_notes`: the writer of the copy also writes
    a note of every commit.
    """

    snapshot: Snapshot
    transactions: list[Transaction]
    files: list[RowFile]
    has_notes: bool


def write_recovery_copy(log: TopicLog, state: TableState) -> None:
    """Copies a version that was the latest a moment ago, and deletes what only copies before the last COPIES_KEPT need.

    An existing copy of the version stays. A deleted topic without rows gets no copy.
    """
    storage = log.storage
    directory = recovery_directory(log.topic)
    if state.is_gone:
        return
    copied = {info.path for info in storage.list(directory, recursive=True)}

    def copy(file: RowFile) -> None:
        storage.replace(f"{directory}/{file.path}", storage.read(f"{log.directory}/{file.path}"))

    storage.at_once(copy, [file for file in state.files if f"{directory}/{file.path}" not in copied])
    index: dict[str, Any] = {
        "format.version": _INDEX_VERSION,
        "topic": log.topic,
        "topic_id": state.snapshot.topic_id,
        "version": state.version,
        "committed_ms": state.snapshot.committed_ms,
        "notes": True,
        "files": [{"path": file.path, "kind": file.kind, "rows": file.rows} for file in state.files],
    }
    path = _indexes(storage, directory).path(state.version)
    content = json.dumps(index).encode()
    if path not in copied or storage.read(path).to_pybytes() != content:
        storage.replace(path, content)
    _drop_old_copies(storage, log.topic)


def read_recovery_copy(storage: Storage, topic: str, version: int | None = None) -> RecoveryCopy:
    """The copy of a version, by default the newest copy that is whole.

    Raises LogDirError where there is none, FormatVersionError where a package of another format wrote it.
    """
    directory = recovery_directory(topic)
    versions = sorted(_indexes(storage, directory).listing().numbers, reverse=True)
    damage: Exception | None = None
    for number in versions if version is None else [version]:
        try:
            return _read(storage, directory, number)
        except FormatVersionError:
            raise
        except UNREADABLE as error:
            damage = error
    raise LogDirError(
        f"There is no recovery copy of topic {topic}" + ("" if version is None else f" at version {version}"),
        path=storage.location(directory),
        hint=f"There are copies of versions {sorted(versions)}" if versions else None,
    ) from damage


def has_notes(storage: Storage, topic: str, version: int) -> bool:
    """Whether who wrote the copy of a version also writes a note of every commit. False where there is no such copy."""
    try:
        index = json.loads(storage.read(_indexes(storage, recovery_directory(topic)).path(version)).to_pybytes())
        return index["notes"] is True
    except UNREADABLE:
        return False


def snapshot_of(
    topic: str, version: int, committed_ms: int, files: Sequence[RowFile], tables: Sequence[pa.Table]
) -> tuple[Snapshot, list[Transaction]]:
    """A topic from the rows of all files of its version, and the transactions that these files have.

    Raises any of UNREADABLE for rows that are no manifest's, FormatVersionError for rows of another format.
    """

    def of(kind: str) -> list[pa.Table]:
        return [table for file, table in zip(files, tables, strict=True) if file.kind == kind]

    [row] = of(TOPIC_KIND)
    topic_row = topic_of(row)
    snapshot = Snapshot(
        topic,
        version,
        topic_row.topic_id,
        dict(topic_row.config),
        committed_ms,
        concat(of(PARTITION_KIND), PARTITION_KIND).sort_by("partition").combine_chunks(),
        SegmentRows(concat(of(SEGMENT_KIND), SEGMENT_KIND)),
        topic_row.deleted_ms,
        deleted_topics=topic_row.deleted_topics,
        states=topic_row.states,
    )
    return snapshot, transactions_of(concat(of(TRANSACTION_KIND), TRANSACTION_KIND))


def drop_recovery_copies(storage: Storage, topic: str) -> None:
    """Deletes all copies of a topic."""
    storage.delete([info.path for info in storage.list(recovery_directory(topic), recursive=True)])


def list_copies(log: TopicLog) -> list[FileInfo]:
    """The files of all copies and notes of a topic."""
    return log.storage.list(recovery_directory(log.topic), recursive=True)


def unneeded_copies(log: TopicLog, listed: list[FileInfo], state: TableState, before_ms: int) -> list[FileInfo]:
    """All copies and notes of a deleted topic without rows, save young notes of later commits; else the files that no
    copy has and that are older than `before_ms` by the store's clock. Notes of commits after the first copy stay.

    `listed`: what `list_copies` gave before `state` was read: a file that is written meanwhile is not in the list.
    Where an index cannot be read, the files stay: what it names is unknown.
    """
    directory = recovery_directory(log.topic)
    if state.is_gone:
        # The note of a commit on its way may be that of a creation: the new topic's history begins with it.
        return [info for info in listed if info.mtime_ms < before_ms or not _is_after(info.path, state.version)]
    indexes = {info.path: version for version, info in _indexes(log.storage, directory).listing().numbers.items()}
    first = min(indexes.values(), default=-1)
    old = [
        info
        for info in listed
        if info.mtime_ms < before_ms and info.path not in indexes and not _is_after(info.path, first)
    ]
    if not old:
        return []
    named = {file.path for file in state.files}  # a copy under way may count on existing copies of these
    for version in indexes.values():
        try:
            named |= _paths(log.storage, directory, version)
        except (ValueError, KeyError, TypeError):
            return []
    return [info for info in old if info.path.removeprefix(f"{directory}/") not in named]


def _read(storage: Storage, directory: str, version: int) -> RecoveryCopy:
    path = _indexes(storage, directory).path(version)
    index = json.loads(storage.read(path).to_pybytes())
    try:
        if index["format.version"] > _INDEX_VERSION:
            raise FormatVersionError(
                "A newer version of this package wrote the recovery copy",
                expected=f"format.version {_INDEX_VERSION}",
                found=index["format.version"],
                hint="Use a newer spark-segments",
            )
        files = [RowFile(file["path"], file["kind"], file["rows"], 0, 0, {}) for file in index["files"]]
        tables = RowFiles(storage, directory).read_all(files)
        snapshot, transactions = snapshot_of(index["topic"], index["version"], index["committed_ms"], files, tables)
    except FormatVersionError as error:
        error.path = storage.location(directory)
        raise
    return RecoveryCopy(snapshot, transactions, files, index.get("notes") is True)


def _drop_old_copies(storage: Storage, topic: str) -> None:
    """A file that an old copy and a copy yet to come have is in all copies between: nobody's file is deleted. Notes go
    with the versions up to the first copy that stays.
    """
    directory = recovery_directory(topic)
    indexes = _indexes(storage, directory)
    versions = sorted(indexes.listing().numbers)
    if not versions:  # a listing that is older than the copy
        return
    try:
        paths = {version: _paths(storage, directory, version) for version in versions}
    except UNREADABLE:  # what it names is unknown: everything stays
        return
    kept = [paths[version] for version in versions[-COPIES_KEPT:]]
    for version in versions[:-COPIES_KEPT]:
        doomed = paths[version].difference(*kept)
        storage.delete(indexes.path(version))  # first: a copy whose files are gone must not look whole
        storage.delete(f"{directory}/{file}" for file in sorted(doomed))
    first = versions[-COPIES_KEPT:][0]
    storage.delete(
        info.path
        for info in storage.list(directory)
        if version_of(info.path) is not None and not _is_after(info.path, first)
    )


def _is_after(path: str, version: int) -> bool:
    """Whether this is a note, or a mark, of a commit after a version."""
    noted = version_of(path)
    return noted is not None and noted > version


def _paths(storage: Storage, directory: str, version: int) -> set[str]:
    try:
        index = json.loads(storage.read(_indexes(storage, directory).path(version)).to_pybytes())
    except FileNotFoundError:  # another process has dropped the copy
        return set()
    return {file["path"] for file in index["files"]}


def _indexes(storage: Storage, directory: str) -> NumberedFiles:
    return NumberedFiles(storage, directory, first=0)
