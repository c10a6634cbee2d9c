"""Delta's actions as JSON: their only writer here, and the rules for actions that other programs may have written.

docs/format/manifest.md has both as a table.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from deltalake import Schema

from spark_segments.errors import FormatVersionError, LogDirError
from spark_segments.log.manifest.files.row_files import STATISTICS, UNBOUNDED, UNKNOWN_ROWS, RowFile
from spark_segments.log.manifest.schemas import KIND, TABLE_SCHEMA
from spark_segments.quantities import wall_ms
from spark_segments.storage.delta import Action, commit_info

READER_VERSION = 1
WRITER_VERSION = 2

REBUILD = "rebuild"
"""The operation of the commit that rebuilds a table."""

REBUILD_FENCE = "fence"
"""The operation of the commits, without any other action, that use up versions before a table is rebuilt."""

REBUILD_HINT = "segments verify --repair rebuilds the manifest"

_TABLE_PROPERTIES = {
    # upkeep.py alone deletes files: it knows how long snapshots must stay readable.
    "delta.enableExpiredLogCleanup": "false",
    # Delta's tombstones serve nobody here, and every checkpoint would carry them along.
    "delta.deletedFileRetentionDuration": "interval 0 seconds",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}

# The members of actions that are used, each with its type, and whether the action must have it.
_MEMBERS: dict[str, dict[str, tuple[type, bool]]] = {
    "commitInfo": {
        "timestamp": (int, False),
        "commitId": (str, False),
        "attempt": (int, False),
        "change": (str, False),
    },
    "add": {
        "path": (str, True),
        "partitionValues": (dict, False),
        "size": (int, False),
        "modificationTime": (int, False),
        "stats": (str, False),
    },
    "remove": {"path": (str, True)},
    "txn": {"appId": (str, True), "version": (int, True)},
}

_FOLLOWED = frozenset(("commitInfo", "add", "remove", "txn"))
"""The actions of almost every commit. Others change what the table is."""


@dataclass(frozen=True, slots=True)
class CommitNote:
    """A commit's entry about itself in Delta's log: its id, the number of the try (from 0), its operation."""

    commit_id: str
    attempt: int
    operation: str


# Writing


def note_action(note: CommitNote) -> Action:
    """A commit's entry about itself, as delta-rs writes it."""
    # Every commit is called WRITE, as delta-rs does; userMetadata is the column of Delta's own history that names ours.
    info = {
        "timestamp": wall_ms(),
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps([KIND])},
        "engineInfo": "spark-segments",
        "commitId": note.commit_id,
        "attempt": note.attempt,
        "change": note.operation,
        "userMetadata": note.operation,
    }
    return {"commitInfo": info}


def fence_action(fence_id: str) -> Action:
    """The only action of a commit that uses up its version. `fence_id`: of the rebuild that makes it, so that two
    rebuilds at once know their own fences. It is the id of no commit.
    """
    info = {"timestamp": wall_ms(), "operation": "WRITE", "change": REBUILD_FENCE, "rebuild": fence_id}
    return {"commitInfo": info}


def table_actions(topic: str) -> list[Action]:
    """The actions that make a table: the protocol that it asks for, and what it is."""
    metadata = {
        "id": str(uuid.uuid4()),
        "name": topic,
        "description": None,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(TABLE_SCHEMA).to_json(),
        "partitionColumns": [KIND],
        "createdTime": wall_ms(),
        "configuration": _TABLE_PROPERTIES,
    }
    protocol = {"minReaderVersion": READER_VERSION, "minWriterVersion": WRITER_VERSION}
    return [{"protocol": protocol}, {"metaData": metadata}]


def file_actions(added: Iterable[RowFile], removed: Iterable[RowFile], *, data_change: bool) -> list[Action]:
    """The actions that add files of rows, and the actions that remove files from the table, now."""
    now_ms = wall_ms()
    adds = [
        {
            "path": quote(file.path, "/="),
            "partitionValues": {KIND: file.kind},
            "size": file.size,
            "modificationTime": file.modified_ms,
            "dataChange": data_change,
            "stats": file.statistics,
        }
        for file in added
    ]
    removes = [
        {
            "path": quote(file.path, "/="),
            "dataChange": data_change,
            "deletionTimestamp": now_ms,
            "extendedFileMetadata": True,
            "partitionValues": {KIND: file.kind},
            "size": file.size,
        }
        for file in removed
    ]
    return [*({"add": add} for add in adds), *({"remove": remove} for remove in removes)]


def transaction_actions(transactions: Mapping[str, int]) -> list[Action]:
    """The actions that say what the last versions of application ids are."""
    return [{"txn": {"appId": name, "version": version}} for name, version in transactions.items()]


# Reading


def decoded(content: bytes, location: str) -> list[Action]:
    """The actions of a commit's file. Raises LogDirError for a file that is none, an empty one included."""
    if not content.strip():
        # An empty file of a version is a commit without actions to Delta's readers: the log would end where it ended
        # before, and the offsets of acknowledged records would be given out again.
        raise LogDirError(
            "A commit file of the manifest is empty",
            path=location,
            expected="the actions of a commit",
            found="0 bytes",
            hint=f"A power loss took commits that were not forced to disk (flush.messages). {REBUILD_HINT}: "
            "it has each commit that can be proved",
        )
    try:
        return [_action(line) for line in content.splitlines() if line.strip()]
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise LogDirError(
            f"A commit of the manifest is damaged ({reason})", path=location, hint=REBUILD_HINT
        ) from error


def _action(line: bytes) -> Action:
    action = json.loads(line)
    if not isinstance(action, dict) or not all(isinstance(value, dict) for value in action.values()):
        raise ValueError("an action is no JSON object of objects")
    for name, members in _MEMBERS.items():
        if name not in action:
            continue
        for member, (kind, is_needed) in members.items():
            value = action[name].get(member)
            if not isinstance(value, kind) and (is_needed or value is not None):
                raise ValueError(f"{name} has no {member} of type {kind.__name__}")
    return action


def added_file(add: Mapping[str, Any]) -> RowFile:
    """The file of an `add`. Raises ValueError for statistics that are none."""
    stats = json.loads(add.get("stats") or "{}")
    least, greatest = stats.get("minValues") or {}, stats.get("maxValues") or {}
    return RowFile(
        unquote(add["path"]),
        (add.get("partitionValues") or {}).get(KIND) or "",
        rows_or_unknown(stats.get("numRecords")),
        add.get("size") or 0,
        add.get("modificationTime") or 0,
        {name: bounds(least.get(name), greatest.get(name)) for name in STATISTICS},
    )


def bounds(least: int | None, greatest: int | None) -> tuple[int, int]:
    """The bounds of a column. A file without statistics may hold anything."""
    return (UNBOUNDED[0] if least is None else least, UNBOUNDED[1] if greatest is None else greatest)


def rows_or_unknown(rows: int | None) -> int:
    """The number of a file's rows, where its statistics say it."""
    return UNKNOWN_ROWS if rows is None else rows


def is_followed(actions: Sequence[Action]) -> bool:
    """Whether a version is the one before it but for the files and transactions of these actions."""
    return not is_fence(actions) and all(_FOLLOWED.issuperset(action) for action in actions)


def is_fence(actions: Sequence[Action]) -> bool:
    """Whether a commit only takes its version away: see `DeltaLog.make_anew`."""
    return len(actions) == 1 and commit_info(actions).get("change") == REBUILD_FENCE


# What a table asks of its readers and writers


def check_readable(protocol: Mapping[str, Any], location: str) -> None:
    """Raises FormatVersionError for a table that asks its readers for more than this package knows."""
    version = protocol.get("minReaderVersion", 1)
    features = protocol.get("readerFeatures") or []
    if version > READER_VERSION or features:
        raise _unknown("read", "minReaderVersion", READER_VERSION, version, features, location)


def check_writable(protocol: Mapping[str, Any], metadata: Mapping[str, Any], location: str) -> None:
    """Raises FormatVersionError for a table that asks its writers for what this package does not do."""
    version = protocol.get("minWriterVersion", 1)
    features = protocol.get("writerFeatures") or []
    if version > WRITER_VERSION or features:
        raise _unknown("written", "minWriterVersion", WRITER_VERSION, version, features, location)
    # Version 2 of the protocol includes two features, which a table turns on in its metaData.
    table_features = ["appendOnly"] if (metadata.get("configuration") or {}).get("delta.appendOnly") == "true" else []
    table_features += ["invariants"] if "delta.invariants" in metadata["schemaString"] else []
    if table_features:
        raise _unknown("written", "minWriterVersion", WRITER_VERSION, version, table_features, location)


def _unknown(
    what: str, name: str, newest: int, version: int, features: Sequence[str], location: str
) -> FormatVersionError:
    return FormatVersionError(
        f"The manifest cannot be {what} by this package: its Delta table asks for more than it knows",
        path=location,
        expected=f"{name} {newest} and no features",
        found=f"{name} {version}" + (f" and {', '.join(sorted(features))}" if features else ""),
        hint="Another program has changed the table. Only this package may write below a log directory",
    )
