"""A topic's manifest version by version: the snapshot of a version, and the commits in Delta's log.

`DeltaLog` (delta_log.py) opens and commits versions, schemas.py says what the rows are, and commit.py decides when to
commit and when to try again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, StorageError, UnknownOutcomeError, UnknownTopicError
from spark_segments.log.manifest.delta.delta_log import (
    CommitNote,
    CommittedVersion,
    DeltaLog,
    OpenDeltaLog,
    TableVersion,
    commit_info,
    manifest_directory,
    openable,
)
from spark_segments.log.manifest.delta.delta_rs import DeltaRsLog
from spark_segments.log.manifest.forced_deletion import deleted_by_force_ms
from spark_segments.log.manifest.row_files import FileChange, RowFile, RowFiles, concat
from spark_segments.log.manifest.schemas import PARTITION_KIND, SEGMENT_KIND, TOPIC_KIND, TRANSACTION_KIND
from spark_segments.log.manifest.snapshot import SegmentFiles, Snapshot, rows_are_gone
from spark_segments.log.manifest.topic_row import FIRST_FORMAT_VERSION, FORMAT_VERSION, NewerFormatError, topic_of
from spark_segments.log.manifest.transaction import Transaction, transactions_of
from spark_segments.storage import Storage

_FLUSH = ("flush.messages", "flush.ms")


@dataclass(frozen=True, slots=True)
class TableState:
    """A version of the table, and the snapshot that is made of its rows."""

    table: TableVersion
    snapshot: Snapshot
    store: RowFiles

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def files(self) -> list[RowFile]:
        return self.table.files

    def last_transaction(self, application: str) -> Transaction | None:
        """The application's last transaction on this topic id, None where it has none."""
        if self.snapshot.format_version > FIRST_FORMAT_VERSION:
            rows = self._transaction_rows()
            found = transactions_of(rows.filter(pc.equal(rows.column("application_id"), application)))
            return found[0] if found else None
        version = self.table.last_transaction(_application_id(application, self.snapshot.topic_id))
        return None if version is None else Transaction(application, version)

    def last_transactions(self) -> list[Transaction]:
        """The last transactions of all applications on this topic id. In format version 1 Delta's log has them."""
        if self.snapshot.format_version > FIRST_FORMAT_VERSION:
            return transactions_of(self._transaction_rows())
        suffix = _application_id("", self.snapshot.topic_id)
        found = self.table.last_transactions()
        return [Transaction(name.removesuffix(suffix), last) for name, last in found.items() if name.endswith(suffix)]

    def _transaction_rows(self) -> pa.Table:
        try:
            tables = self.store.read_all([file for file in self.files if file.kind == TRANSACTION_KIND])
        except FileNotFoundError as error:
            raise rows_are_gone(self.store) from error
        rows = concat(tables, TRANSACTION_KIND)
        return rows.filter(pc.equal(rows.column("topic_id"), self.snapshot.topic_id))


class TopicLog:
    """The versions of a topic's manifest, whether or not it exists. Holds no state: every call reads the log afresh."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        open_delta_log: OpenDeltaLog = DeltaRsLog,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        self.storage = storage
        self.topic = topic
        self._defaults = dict(defaults or {})
        self.directory = manifest_directory(topic)
        self.store = RowFiles(storage, self.directory)
        self.delta = open_delta_log(storage, topic)

    @property
    def location(self) -> str:
        """The table's address, for errors."""
        return self.storage.location(self.directory)

    # Reading

    def open(self, version: int | None = None) -> TableVersion:
        """A version of the table, by default the latest. Raises UnknownTopicError where there is no table."""
        if version is not None and not 0 <= version < 1 << 63:
            raise self._missing(version)
        try:
            return self.delta.open(version)
        except (FileNotFoundError, StorageError) as error:
            if isinstance(error, FileNotFoundError) and (version is None or not self.versions()):
                raise self.unknown() from error
            if version is not None and version not in self.versions():
                raise self._missing(version) from error
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"The manifest cannot be opened: {error}", path=self.location) from error

    def state(self, version: int | None = None) -> TableState:
        """A version and its snapshot, also of a deleted topic, unless the topic was deleted by force.

        Raises UnknownTopicError, InvalidOptionError for a version that is not there (any more), LogDirError or
        StorageError for a manifest that cannot be read.
        """
        try:
            return self.state_of(self.open(version), version)
        except (LogDirError, StorageError) as error:
            if self.deleted_by_force_ms() is not None:
                raise self.unknown("It was deleted by force; vacuum takes its files") from error
            raise

    def is_there(self) -> bool:
        """Whether the topic is there and not deleted. Mostly its own row says so, and no row of a partition is read.

        Raises as `state` does.
        """
        if self.deleted_by_force_ms() is None:  # else it counts whether all of the manifest can be read
            with contextlib.suppress(LogDirError, StorageError, FileNotFoundError, KeyError, ValueError):
                [rows] = self.store.read_all([file for file in self.open().files if file.kind == TOPIC_KIND])
                topic = topic_of(rows)
                if topic.format_version <= FORMAT_VERSION:
                    return topic.deleted_ms is None
        return self.state().snapshot.deleted_ms is None

    def deleted_by_force_ms(self) -> int | None:
        """When the topic was deleted by force, else None. That counts only while the manifest cannot be read."""
        return deleted_by_force_ms(self.storage, self.directory)

    def state_of(self, table: TableVersion, version: int | None = None) -> TableState:
        """As `state`, of a version that is open. `version`: the one that was asked for, None for the latest."""
        files = table.files
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
        except (KeyError, ValueError) as error:  # a file of other columns or types, or a malformed topic row
            raise LogDirError(f"The manifest of {self.topic} cannot be read: {error}", path=self.location) from error
        if topic.format_version > FORMAT_VERSION:
            raise NewerFormatError(
                f"Topic {self.topic} was written by a newer version of this package",
                path=self.location,
                expected=f"format.version {FORMAT_VERSION}",
                found=topic.format_version,
                hint="Use a newer spark-segments",
            )
        snapshot = Snapshot(
            topic=self.topic,
            version=table.version,
            topic_id=topic.topic_id,
            config=dict(topic.config),
            committed_ms=max(file.modified_ms for file in files),
            partitions=concat(rows[1:], PARTITION_KIND).sort_by("partition").combine_chunks(),
            source=SegmentFiles(self.store, [file for file in files if file.kind == SEGMENT_KIND]),
            deleted_ms=topic.deleted_ms,
            deleted_topics=topic.deleted_topics,
            format_version=topic.format_version,
            states=topic.states,
        )
        return TableState(table, snapshot, self.store)

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

    def versions(self) -> list[int]:
        """The versions that Delta's log can still open, sorted."""
        files = self.delta.log_files()
        return openable(files.commits, files.checkpoints)

    def transactions(self, topic_id: str, version: int) -> tuple[str | None, dict[str, int]]:
        """A commit's operation, and its transactions for this topic id: {application: version}.

        Raises LogDirError where the log does not have that version (any more).
        """
        try:
            actions = self.delta.actions(version)
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

    def operation(self, version: int) -> str | None:
        """The operation of a commit. Raises FileNotFoundError where the log does not have that version (any more)."""
        found: str | None = commit_info(self.delta.actions(version)).get("change")
        return found

    def find(self, commit_id: str, versions: Iterable[int]) -> tuple[int, int] | None:
        """(version, number of the try) of the commit with this id, where it made any of `versions`; else None.

        Raises UnknownOutcomeError where the log lacks any of `versions` before that.
        """
        for version in versions:
            try:
                info = commit_info(self.delta.actions(version))
            except FileNotFoundError as error:
                raise UnknownOutcomeError(
                    "The log lacks a version, so that nobody can tell whether a commit happened",
                    path=str(error.filename),
                    hint="Look at the topic before it is sent again; an append with a txn is added once",
                ) from error
            if info.get("commitId") == commit_id:
                return version, int(info["attempt"])
        return None

    # Durability

    def is_forced(self, config: Mapping[str, str]) -> bool:
        """Whether commits to a topic of this configuration are forced to disk."""
        given = {**self._defaults, **config}
        return topic_config({name: given[name] for name in _FLUSH if name in given}).forced

    def delta_log(self, forced: bool) -> DeltaLog:
        """The Delta log. `forced`: its commits have reached the disk when they return."""
        return self.delta.forced() if forced else self.delta

    def force(self, state: TableState, added: Sequence[RowFile] = ()) -> None:
        """Returns once a version and all that leads to it have reached the disk, and so have files that are `added`.

        Others may have made the version, and died before they forced it: nothing may stand on it until then.
        """
        with contextlib.suppress(FileNotFoundError):  # merged since: then a commit on top of the version fails
            self.storage.force(f"{self.directory}/{file.path}" for file in state.files)
        self.storage.force(f"{self.directory}/{file.path}" for file in added)
        self.delta.force()

    # Writing. Whatever these raise, the commit may have happened.

    def create(self, change: FileChange, note: CommitNote, *, forced: bool = False) -> None:
        """Makes the table at version 0. `forced`: once this returns, it has reached the disk."""
        if forced:
            self.storage.force(f"{self.directory}/{file.path}" for file in change.added)
        self.delta_log(forced).create(change, note)

    def make_anew(
        self, version: int, topic_id: str, change: FileChange, note: CommitNote, transactions: Iterable[Transaction]
    ) -> None:
        """Makes the table of a lost manifest anew: see `DeltaLog.make_anew`."""
        by_id = {_application_id(one.application, topic_id): one.version for one in transactions}
        self.storage.force(f"{self.directory}/{file.path}" for file in change.added)
        self.delta.make_anew(version, change, note, by_id)
        self.delta.force()  # whatever the topic's settings: it is done once, after a loss

    def commit_on(
        self,
        state: TableState,
        change: FileChange,
        note: CommitNote,
        transactions: Iterable[Transaction],
        *,
        forced: bool = False,
    ) -> CommittedVersion | None:
        """Commits as the version right after `state`, or raises. `transactions` go into Delta's log, too.

        `forced`: once this returns, the commit has reached the disk; `force` was called for `state` before. Returns the
        version, where it is known without another look at the log.
        """
        topic_id = state.snapshot.topic_id
        by_id = {_application_id(one.application, topic_id): one.version for one in transactions}
        return self.delta_log(forced).commit_on(state.table, change, note, by_id)


def _application_id(application: str, topic_id: str) -> str:
    # A topic that is made again under its name starts with no transactions, although the table lives on.
    return f"{application}@{topic_id}"
