"""The manifest as delta-rs sees it: open a version, commit at an exact version, look into Delta's log.

The only module that talks to delta-rs. What the rows say is rows.py's business, when to commit and when to try again
commit.py's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError
from deltalake.transaction import create_table_with_add_actions

from spark_segments.errors import InvalidOptionError, LogDirError, StorageError, UnknownOutcomeError, UnknownTopicError
from spark_segments.log.manifest.forced_deletion import deleted_by_force_ms
from spark_segments.log.manifest.row_files import STATISTICS, FileChange, RowFile, RowFiles, concat, files_of
from spark_segments.log.manifest.rows import (
    FORMAT_VERSION,
    KIND,
    MANIFEST_SCHEMA,
    PARTITION_KIND,
    SEGMENT_KIND,
    TOPIC_KIND,
    topic_of,
)
from spark_segments.log.manifest.snapshot import SegmentFiles, Snapshot
from spark_segments.storage import FileInfo, Storage

MANIFEST_DIRECTORY = "_manifest"

_TABLE_PROPERTIES = {
    # Only our own vacuum cleans up: it knows for how long snapshots must stay readable.
    "delta.enableExpiredLogCleanup": "false",
    # Tombstones, which every checkpoint would carry along, serve nobody here.
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS),
}
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
_DRAWING = re.compile(r"\x1b\[[0-9;]*m|↳")
_COMMIT_NAME = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT_NAME = re.compile(r"^(\d{20})\.checkpoint(\..*)?\.parquet$")


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of the table: delta-rs's own view, its files, and what they say."""

    table: DeltaTable
    files: list[RowFile]
    snapshot: Snapshot

    @property
    def version(self) -> int:
        return self.snapshot.version

    def last_transaction(self, application: str) -> int | None:
        """The version of the application's last transaction on this topic id."""
        return self.table.transaction_version(_application_id(application, self.snapshot.topic_id))


@dataclass(frozen=True, slots=True)
class CommitNote:
    """What a commit says of itself in Delta's log: its id, which try of it this is, what it is for."""

    commit_id: str
    attempt: int
    operation: str

    def properties(self, transactions: list[Transaction] | None = None) -> CommitProperties:
        metadata = {"commitId": self.commit_id, "attempt": self.attempt, "change": self.operation}
        # Without retries a commit is a compare-and-swap; with them delta-rs would rebase it in silence.
        return CommitProperties(custom_metadata=metadata, max_commit_retries=0, app_transactions=transactions)


class DeltaLog:
    """The Delta table of one topic, whether or not it exists. Holds no state: every call looks afresh."""

    def __init__(self, storage: Storage, topic: str) -> None:
        self.storage = storage
        self.topic = topic
        self.directory = f"{MANIFEST_DIRECTORY}/{topic}"
        self.store = RowFiles(storage, self.directory)

    @property
    def location(self) -> str:
        """The table's address, for errors."""
        return self.storage.location(self.directory)

    # Reading

    def open(self, version: int | None = None) -> DeltaTable:
        """delta-rs's view of a version. UnknownTopicError where there is no table."""
        if version is not None and not 0 <= version < 1 << 63:
            raise self._missing(version)
        uri, options = self.storage.delta_uri(self.directory)
        try:
            table = DeltaTable(uri, version=version, storage_options=options or None)
        except DeltaProtocolError as error:
            raise LogDirError(
                f"The manifest of {self.topic} cannot be read: {reason(error)}", path=self.location
            ) from error
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, TableNotFoundError) and (version is None or not self.versions()):
                raise self.unknown() from error
            if version is not None and version not in self.versions():
                raise self._missing(version) from error
            raise StorageError(f"The manifest cannot be opened: {reason(error)}", path=self.location) from error
        if version is not None and table.version() != version:
            raise self._missing(version)
        return table

    def state(self, version: int | None = None) -> TableState:
        """A version with the snapshot that it is, of a deleted topic too, unless it was deleted by force.

        Raises UnknownTopicError, InvalidOptionError for a version that is not there (any more), LogDirError or
        StorageError for a manifest that cannot be read.
        """
        try:
            return self._state(version)
        except (LogDirError, StorageError) as error:
            if self.deleted_by_force_ms() is not None:
                raise self.unknown("It was deleted by force; vacuum takes its files") from error
            raise

    def deleted_by_force_ms(self) -> int | None:
        """When the topic was deleted by force, which counts only while its manifest cannot be read; else None."""
        return deleted_by_force_ms(self.storage, self.directory)

    def _state(self, version: int | None) -> TableState:
        table = self.open(version)
        files = files_of(table)
        topics, partitions = ([file for file in files if file.kind == kind] for kind in (TOPIC_KIND, PARTITION_KIND))
        if len(topics) != 1:
            raise LogDirError("Not a manifest", path=self.location, expected="one row for the topic", found=len(topics))
        try:
            rows = self.store.read_all([*topics, *partitions])
            topic = topic_of(rows[0])
        except FileNotFoundError as error:
            if version is not None:
                raise self._missing(version) from error
            raise StorageError("A file of the manifest is missing", path=str(error.filename)) from error
        except (KeyError, ValueError) as error:  # a file of other columns or types, or a topic row of another form
            raise LogDirError(f"The manifest of {self.topic} cannot be read: {error}", path=self.location) from error
        if topic.format_version > FORMAT_VERSION:
            raise LogDirError(
                f"Topic {self.topic} was written by a newer version of this package",
                path=self.location,
                expected=f"format.version {FORMAT_VERSION}",
                found=topic.format_version,
                hint="Use a newer spark-segments",
            )
        snapshot = Snapshot(
            topic=self.topic,
            version=table.version(),
            topic_id=topic.topic_id,
            config=dict(topic.config),
            committed_ms=max(file.modified_ms for file in files),
            partitions=concat(rows[1:], PARTITION_KIND).sort_by("partition").combine_chunks(),
            source=SegmentFiles(self.store, [file for file in files if file.kind == SEGMENT_KIND]),
            deleted_ms=topic.deleted_ms,
            deleted_topics=topic.deleted_topics,
        )
        return TableState(table, files, snapshot)

    def unknown(self, why: str = "") -> UnknownTopicError:
        return UnknownTopicError(f"Unknown topic {self.topic!r}", path=self.storage.uri, hint=why or None)

    def _missing(self, version: int) -> InvalidOptionError:
        there = self.versions()
        return InvalidOptionError(
            f"Version {version} of topic {self.topic} is not there (any more)",
            path=self.location,
            hint=f"The last version is {there[-1]}, and vacuum takes old ones" if there else None,
        )

    # Delta's log

    def log_files(self) -> tuple[dict[int, FileInfo], dict[int, list[FileInfo]], list[FileInfo]]:
        """The files of Delta's log: commits by version, checkpoints by version, and all the others."""
        commits: dict[int, FileInfo] = {}
        checkpoints: dict[int, list[FileInfo]] = {}
        others = []
        for info in self.storage.list(f"{self.directory}/_delta_log"):
            name = info.path.rpartition("/")[2]
            if match := _COMMIT_NAME.match(name):
                commits[int(match.group(1))] = info
            elif match := _CHECKPOINT_NAME.match(name):
                checkpoints.setdefault(int(match.group(1)), []).append(info)
            else:
                others.append(info)
        return commits, checkpoints, others

    def versions(self) -> list[int]:
        """The versions that Delta's log can still open, sorted."""
        commits, checkpoints, _ = self.log_files()
        return openable(commits, checkpoints)

    def actions(self, version: int) -> list[dict[str, Any]]:
        """The actions of a commit as Delta wrote them. FileNotFoundError where the log does not have it (any more)."""
        content = self.storage.read(f"{self.directory}/_delta_log/{version:020d}.json").to_pybytes()
        return [json.loads(line) for line in content.splitlines() if line.strip()]

    def transactions(self, topic_id: str, version: int) -> tuple[str | None, dict[str, int]]:
        """What a commit was for, and the transactions that it carries for this topic id: {application: version}.

        Raises LogDirError where the log does not have that version (any more).
        """
        try:
            actions = self.actions(version)
        except FileNotFoundError as error:
            raise LogDirError(
                f"The manifest of {self.topic} lacks version {version}: its transactions are not known",
                path=str(error.filename),
            ) from error
        suffix = _application_id("", topic_id)
        found = [action["txn"] for action in actions if "txn" in action]
        mine = {
            one["appId"].removesuffix(suffix): int(one["version"]) for one in found if one["appId"].endswith(suffix)
        }
        return commit_info(actions).get("change"), mine

    def find(self, commit_id: str, versions: Iterable[int]) -> tuple[int, int] | None:
        """The version among these that a commit with this id made, and which try of it did."""
        for version in versions:
            try:
                info = commit_info(self.actions(version))
            except FileNotFoundError as error:
                raise UnknownOutcomeError(
                    "The log lacks a version, so that nobody can tell whether a commit happened",
                    path=str(error.filename),
                    hint="Look at the topic before it is sent again; an append with a txn is added once",
                ) from error
            if info.get("commitId") == commit_id:
                return version, int(info["attempt"])
        return None

    # Writing. Whatever these raise, the commit may have happened.

    def create(self, change: FileChange, note: CommitNote) -> None:
        """Makes the table at version 0."""
        uri, options = self.storage.delta_uri(self.directory)
        create_table_with_add_actions(
            uri,
            _schema(),
            [file.add_action() for file in change.added],
            mode="error",
            partition_by=[KIND],
            name=self.topic,
            configuration=_TABLE_PROPERTIES,
            storage_options=options or None,
            commit_properties=note.properties(),
            post_commithook_properties=_NO_HOOKS,
        )

    def commit_at(
        self,
        state: TableState,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int] | None = None,
        *,
        data_change: bool = True,
    ) -> None:
        """Commits as the version right after `state`, or raises. `transactions`: {application: its last version}."""
        topic_id = state.snapshot.topic_id
        actions = [Transaction(_application_id(name, topic_id), last) for name, last in (transactions or {}).items()]
        state.table.create_write_transaction(
            [
                *(file.add_action(data_change=data_change) for file in change.added),
                *(file.remove_action(data_change=data_change) for file in change.removed),
            ],
            mode="append",
            schema=_schema(),
            partition_by=[KIND],
            commit_properties=note.properties(actions or None),
            post_commithook_properties=_NO_HOOKS,
        )


def openable(commits: Collection[int], checkpoints: Collection[int]) -> list[int]:
    """The versions, sorted, that commits without a gap lead to from the first commit of all or from a checkpoint."""
    versions = sorted(commits)
    gaps = [at for at in range(1, len(versions)) if versions[at] != versions[at - 1] + 1]
    versions = versions[gaps[-1] :] if gaps else versions
    if not versions or versions[0] == 0:
        return versions
    first = min((version for version in checkpoints if version >= versions[0] - 1), default=versions[-1] + 1)
    return [version for version in versions if version >= first]


def reason(error: BaseException | None) -> str:
    """What went wrong in one line: delta-rs draws trees in colour."""
    text = _DRAWING.sub("", str(error))
    return " ".join(text.split()) or type(error).__name__


def commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What a commit says of itself: its timestamp, its id, its operation."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def paths_of(actions: Iterable[dict[str, Any]], action: str) -> Iterator[str]:
    """The paths that a commit's `add` or `remove` actions name, relative to the table."""
    return (entry[action]["path"] for entry in actions if action in entry)


def _application_id(application: str, topic_id: str) -> str:
    # A topic that is made again under its name starts with no transactions, although the table lives on.
    return f"{application}@{topic_id}"


def _schema() -> Schema:
    return Schema.from_arrow(MANIFEST_SCHEMA)
