"""The actions of a commit in delta-rs's types, and what a commit says of itself."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from deltalake import CommitProperties, Transaction
from deltalake.transaction import AddAction, RemoveAction

from spark_segments.log.manifest.delta.delta_log import CommitNote
from spark_segments.log.manifest.row_files import RowFile
from spark_segments.log.manifest.schemas import KIND


def _metadata(note: CommitNote) -> dict[str, Any]:
    # Every commit is called WRITE, as delta-rs does; userMetadata is the column of Delta's own history that names ours.
    return {
        "commitId": note.commit_id,
        "attempt": note.attempt,
        "change": note.operation,
        "userMetadata": note.operation,
    }


def own_commit_info(note: CommitNote) -> dict[str, Any]:
    """The entry of a commit about itself, as delta-rs writes it."""
    return {
        "timestamp": time.time_ns() // 1_000_000,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps([KIND])},
        "engineInfo": "spark-segments",
        **_metadata(note),
    }


def properties_of(note: CommitNote, transactions: Mapping[str, int]) -> CommitProperties:
    """What a commit is given beside its files: what it says of itself, and the last version of each application id."""
    actions = [Transaction(application_id, version) for application_id, version in transactions.items()]
    # Without retries a commit is a compare-and-swap; with retries delta-rs would rebase it in silence.
    return CommitProperties(custom_metadata=_metadata(note), max_commit_retries=0, app_transactions=actions or None)


def add_action(file: RowFile, *, data_change: bool) -> AddAction:
    """The action that adds a file of rows."""
    return AddAction(file.path, file.size, {KIND: file.kind}, file.modified_ms, data_change, file.statistics)


def remove_action(file: RowFile, *, data_change: bool) -> RemoveAction:
    """The action that takes a file of rows out of the table, now."""
    return RemoveAction(file.path, data_change, time.time_ns() // 1_000_000, file.size, {KIND: file.kind})
