"""A version of a topic's table: what a commit builds upon."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spark_segments.log.manifest.delta.actions import Action, added_file, commit_info, metadata_with_columns, paths_of
from spark_segments.log.manifest.row_files import RowFile
from spark_segments.log.manifest.schemas import table_schema


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment by the two clocks of this machine: the one that stands still with it, and the one that may jump."""

    monotonic: float
    wall: float

    @staticmethod
    def now() -> Moment:
        return Moment(time.monotonic(), time.time())

    @property
    def seconds_ago(self) -> float:
        """How long ago it was, at the most that any of the clocks says."""
        return max(time.monotonic() - self.monotonic, abs(time.time() - self.wall))


@dataclass(frozen=True)
class TableVersion:
    """A version of a table, as it was opened, followed or committed. Never changes.

    `files`: in no particular order. `protocol`, `metadata`: as Delta's actions have them. `opened_transaction`: the
    version of an application id's last transaction, in the version that was opened; `transactions`: those since.
    `latest_at`: a moment at which no later version was there. `commit_info`: what the commit says of itself; empty
    where the version was opened.
    """

    version: int
    files: Sequence[RowFile]
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    opened_transaction: Callable[[str], int | None]
    latest_at: Moment
    transactions: Mapping[str, int] = field(default_factory=dict)
    commit_info: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def columns(self) -> frozenset[str]:
        """The names of the table's columns."""
        return frozenset(one["name"] for one in json.loads(self.metadata["schemaString"])["fields"])

    def with_columns(self, format_version: int) -> Mapping[str, Any]:
        """The table's `metaData` with the columns of a format version; `metadata` itself where it has them."""
        if self.columns.issuperset(table_schema(format_version).names):
            return self.metadata
        return metadata_with_columns(self.metadata, format_version)

    def last_transaction(self, application_id: str) -> int | None:
        """The version of the last transaction of an application id; None where it never committed."""
        found = self.transactions.get(application_id)
        return self.opened_transaction(application_id) if found is None else found

    def after(self, actions: Iterable[Action], latest_at: Moment) -> TableVersion:
        """The version that a commit of these actions makes of this one."""
        actions = list(actions)
        gone = {*paths_of(actions, "remove"), *paths_of(actions, "add")}  # a path that is added again is there once
        added = [added_file(action["add"]) for action in actions if "add" in action]
        txns = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
        metadata = next((action["metaData"] for action in actions if "metaData" in action), self.metadata)
        return dataclasses.replace(
            self,
            version=self.version + 1,
            files=[*(file for file in self.files if file.path not in gone), *added],
            metadata=metadata,
            latest_at=latest_at,
            transactions={**self.transactions, **txns},
            commit_info=commit_info(actions),
        )


NO_TABLE = TableVersion(-1, (), {}, {"schemaString": '{"fields":[]}'}, lambda _: None, Moment(0.0, 0.0))
"""What the first version of a table comes after."""
