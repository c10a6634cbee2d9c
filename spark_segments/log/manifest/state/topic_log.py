"""A topic's manifest version by version: the snapshot of a version, and the commits in Delta's log.

`DeltaLog` (delta_log.py) opens and commits versions, schemas.py says what the rows are, and committing.py decides
when to commit and when to try again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, topic_config, validate_topic_name
from spark_segments.errors import (
    FormatVersionError,
    InvalidOptionError,
    LogDirError,
    StorageError,
    TopicExistsError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.log.manifest.files.commit_notes import NoteName, mark, note_file
from spark_segments.log.manifest.files.delta.actions import REBUILD_HINT, CommitNote
from spark_segments.log.manifest.files.delta.delta_log import (
    MANIFEST_DIRECTORY,
    DeltaLog,
    OpenDeltaLog,
    manifest_directory,
    openable,
)
from spark_segments.log.manifest.files.delta.delta_rs import TableVersion, no_table
from spark_segments.log.manifest.files.row_files import FileChange, NamedFile, RowFile, RowFiles, concat
from spark_segments.log.manifest.rows import PARTITION_SCHEMA, SEGMENT_SCHEMA
from spark_segments.log.manifest.schemas import (
    KIND,
    PARTITION_KIND,
    SCHEMAS,
    SEGMENT_KIND,
    TOPIC_KIND,
    TRANSACTION_KIND,
)
from spark_segments.log.manifest.state.snapshot import SegmentFiles, SegmentRows, Snapshot, rows_are_gone
from spark_segments.log.manifest.topic_row import TopicRow, topic_of
from spark_segments.log.manifest.transaction import Transaction, is_repeat, transactions_of
from spark_segments.quantities import Moment, wall_ms
from spark_segments.storage import Storage
from spark_segments.storage.delta import commit_info, paths_of

_NOTE = "deleted.json"


def record_forced_deletion(storage: Storage, manifest_directory: str, now_ms: int) -> None:
    """Writes the note, unless a note that holds is there."""
    if deleted_by_force_ms(storage, manifest_directory) is not None:
        return
    note = {"deleted_ms": now_ms, "log_files": _digest(storage, manifest_directory)}
    storage.replace(f"{manifest_directory}/{_NOTE}", json.dumps(note).encode())  # there may be a void one


def deleted_by_force_ms(storage: Storage, manifest_directory: str) -> int | None:
    """When the topic was deleted by force, in ms by the store's clock; None where there is no note or it is void."""
    try:
        note = json.loads(storage.read(f"{manifest_directory}/{_NOTE}").to_pybytes())
        deleted_ms = int(note["deleted_ms"])
        log_files = note["log_files"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return deleted_ms if log_files == _digest(storage, manifest_directory) else None


def forced_files(storage: Storage, manifest_directory: str) -> list[str]:
    """All files of the manifest in a safe order of deletion: the note holds until Delta's log is touched."""
    log_prefix = f"{manifest_directory}/_delta_log/"
    note = f"{manifest_directory}/{_NOTE}"
    paths = [info.path for info in storage.list(manifest_directory, recursive=True)]
    return sorted(paths, key=lambda path: (path == note, path.startswith(log_prefix), path))


def _digest(storage: Storage, manifest_directory: str) -> str:
    files = [[info.path, info.size, info.mtime_ms] for info in storage.list(f"{manifest_directory}/_delta_log")]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


_FLUSH = ("flush.messages", "flush.ms")
_KEY_EXPIRATION = "transactional.id.expiration.ms"


@dataclass(frozen=True, slots=True)
class TableState:
    """A version of the table, and the snapshot that is made of its rows.

    `is_trusted`: the version was committed here some seconds ago, and nobody has looked since for a later one.
    """

    table: TableVersion
    snapshot: Snapshot
    store: RowFiles
    delta: DeltaLog
    is_trusted: bool = False

    @property
    def version(self) -> int:
        return self.snapshot.version

    @property
    def files(self) -> Sequence[RowFile]:
        return self.table.files

    @property
    def is_gone(self) -> bool:
        """Whether the topic was deleted, and its last rows are gone as well."""
        if self.snapshot.deleted_ms is None:
            return False
        files = [file for file in self.files if file.kind == SEGMENT_KIND and file.rows]
        return not any(rows.num_rows for rows in self.store.read_all(files))

    def last_transaction(self, application: str) -> Transaction | None:
        """The application's last transaction on this topic id, None where it has none."""
        rows = self._transaction_rows()
        transactions = transactions_of(rows.filter(pc.equal(rows.column("application_id"), application)))
        return transactions[0] if transactions else None

    def last_transactions(self) -> list[Transaction]:
        """The last transactions of all applications on this topic id."""
        return transactions_of(self._transaction_rows())

    def _transaction_rows(self) -> pa.Table:
        try:
            tables = self.store.read_all([file for file in self.files if file.kind == TRANSACTION_KIND])
        except FileNotFoundError as error:
            raise rows_are_gone(self.store) from error
        rows = concat(tables, TRANSACTION_KIND)
        return rows.filter(pc.equal(rows.column("topic_id"), self.snapshot.topic_id))


@dataclass(frozen=True, slots=True)
class CommitFacts:
    """What Delta's log says of a commit."""

    commit_id: str
    committed_ms: int
    operation: str


class TopicLog:
    """The versions of a topic's manifest, whether or not it exists. Holds no state: every call reads the log afresh."""

    def __init__(
        self,
        storage: Storage,
        topic: str,
        open_delta_log: OpenDeltaLog = DeltaLog,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        """Raises InvalidTopicError for a name that no topic can have: every name becomes a topic here."""
        validate_topic_name(topic)
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
        other = self._other_spelling()
        if other is not None:
            raise self.unknown(f"The disk ignores case, and has {other}")
        try:
            return self.delta.open(version)
        except (FileNotFoundError, StorageError) as error:
            if isinstance(error, FileNotFoundError) and (version is None or not self.versions()):
                raise self.unknown() from error
            if version is not None and self._is_gone(version):
                raise self._missing(version) from error
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"The manifest cannot be opened: {error}", path=self.location) from error

    def state(self, version: int | None = None, *, seen: TableVersion | None = None) -> TableState:
        """A version and its snapshot, also of a deleted topic, unless the topic was deleted by force. `seen`: a version
        from which the latest is followed, where that can be done.

        Raises UnknownTopicError, InvalidOptionError for a version that is not there (any more), LogDirError or
        StorageError for a manifest that cannot be read.
        """
        with self._deleted_by_force():
            table = self.open(version) if seen is None or version is not None else self.following(seen)[-1]
            return self.state_of(table, version)

    def following(self, table: TableVersion) -> Sequence[TableVersion]:
        """The table and the versions after it: the last one is the latest. Mostly their commits alone are read. Where
        the table is opened again, it is the only one. Raises as `state` does.
        """
        moment = Moment.now()
        with self._deleted_by_force():
            try:
                return self.delta.following(table)
            except FileNotFoundError:
                if table.is_there:
                    return [self.open()]
            try:
                return [self.open()]
            except UnknownTopicError:
                return [no_table(moment)]

    def state_after(self, state: TableState, versions: Sequence[TableVersion] | None = None) -> TableState:
        """The latest version, as `state` gives it. `versions`: what `following` gave for its table."""
        latest = (self.following(state.table) if versions is None else versions)[-1]
        if latest.files is state.files:  # the same version, seen again
            return dataclasses.replace(state, table=latest, is_trusted=False)
        with self._deleted_by_force():
            return self.state_of(latest)

    @contextlib.contextmanager
    def _deleted_by_force(self) -> Iterator[None]:
        """Where the manifest of a topic that was deleted by force cannot be read, there is no such topic."""
        try:
            yield
        except (LogDirError, StorageError) as error:
            if self.deleted_by_force_ms() is not None:
                raise self.unknown("It was deleted by force; vacuum takes its files") from error
            raise

    def is_there(self, *, seen: TableVersion | None = None) -> bool:
        """Whether the topic is there and not deleted. Mostly its own row says so, and no row of a partition is read.

        `seen`, and what is raised: as of `state`.
        """
        if self.deleted_by_force_ms() is None:  # else it counts whether all of the manifest can be read
            with contextlib.suppress(LogDirError, StorageError, FileNotFoundError, KeyError, ValueError):
                table = self.open() if seen is None else self.following(seen)[-1]
                [rows] = self.store.read_all([file for file in table.files if file.kind == TOPIC_KIND])
                return topic_of(rows).deleted_ms is None
        return self.state().snapshot.deleted_ms is None

    def deleted_by_force_ms(self) -> int | None:
        """When the topic was deleted by force, else None. That counts only while the manifest cannot be read."""
        return deleted_by_force_ms(self.storage, self.directory)

    def state_of(self, table: TableVersion, version: int | None = None) -> TableState:
        """As `state`, of a version that is open. `version`: the one that was asked for, None for the latest."""
        files = table.files
        self._check_kinds(files)
        topic, partitions = self._topic_rows(files, version)
        snapshot = Snapshot(
            topic=self.topic,
            version=table.version,
            topic_id=topic.topic_id,
            config=dict(topic.config),
            committed_ms=max(file.modified_ms for file in files),
            partitions=partitions,
            source=SegmentFiles(self.store, [file for file in files if file.kind == SEGMENT_KIND]),
            deleted_ms=topic.deleted_ms,
            deleted_topics=topic.deleted_topics,
            states=topic.states,
        )
        return TableState(table, snapshot, self.store, self.delta)

    def _check_kinds(self, files: Iterable[RowFile]) -> None:
        """Raises FormatVersionError for files of rows of another kind: they may change what this package reads."""
        unknown = sorted({file.kind for file in files} - SCHEMAS.keys())
        if unknown:
            raise FormatVersionError(
                f"Topic {self.topic} was written by a newer version of this package",
                path=self.location,
                expected=f"kinds of rows {', '.join(SCHEMAS)}",
                found=unknown[0],
                hint="Use a newer spark-segments",
            )

    def _topic_rows(self, files: Sequence[RowFile], version: int | None) -> tuple[TopicRow, pa.Table]:
        """The topic's row and those of its partitions, by one round of requests."""
        topics = [file for file in files if file.kind == TOPIC_KIND]
        partitions = [file for file in files if file.kind == PARTITION_KIND]
        if len(topics) != 1:
            raise LogDirError("Not a manifest", path=self.location, expected="one row for the topic", found=len(topics))
        try:
            topic_table, *partition_tables = self.store.read_all([*topics, *partitions])
            topic = topic_of(topic_table)
        except FileNotFoundError as error:
            if version is not None:
                raise self._missing(version) from error
            raise StorageError("A file of the manifest is missing", path=str(error.filename)) from error
        except (KeyError, ValueError) as error:  # a file of other columns or types, or a malformed topic row
            raise LogDirError(f"The manifest of {self.topic} cannot be read: {error}", path=self.location) from error
        return topic, concat(partition_tables, PARTITION_KIND).sort_by("partition").combine_chunks()

    def state_to_create_on(self) -> TableState:
        """The state of a topic that was never made, for the commit that makes it; or of one that was made just now.
        Raises LogDirError where Delta's log has files all the same: it was lost in part.
        """
        other = self._other_spelling()
        if other is not None:
            raise TopicExistsError(
                f"Topic {self.topic} cannot lie beside {other}: the disk does not tell the two names apart",
                path=self.location,
                hint="Choose a name that differs in more than case",
            )
        moment = Moment.now()
        listed = self.delta.log_files()
        if 0 in listed.commits:
            return self.state()
        if listed.commits or listed.checkpoints:
            raise LogDirError(
                "The manifest cannot be opened, and files of its log are there: it was lost in part",
                path=self.location,
                hint=REBUILD_HINT,
            )
        rows = SegmentRows(SEGMENT_SCHEMA.empty_table())
        nothing = Snapshot(self.topic, -1, "", {}, 0, PARTITION_SCHEMA.empty_table(), rows)
        return TableState(no_table(moment), nothing, self.store, self.delta)

    def _other_spelling(self) -> str | None:
        """The name, in another case, of the topic that the disk gives for this one; None where this is its name.

        A disk that ignores case would return the manifest of `orders` for `Orders`, and vacuum would take files that
        are appended there for files that no row names. Object stores distinguish all names.
        """
        spellings = (self.topic.swapcase(), self.topic)
        if not self.storage.is_local or not all(
            self.storage.exists(manifest_directory(spelling)) for spelling in spellings
        ):
            return None  # as a rule: the look costs a call that finds nothing
        names = [name for name in self.storage.directories(MANIFEST_DIRECTORY) if name.lower() == self.topic.lower()]
        return None if self.topic in names else next(iter(names), None)

    def unknown(self, why: str = "") -> UnknownTopicError:
        return UnknownTopicError(f"Unknown topic {self.topic!r}", path=self.storage.uri, hint=why or None)

    def _is_gone(self, version: int) -> bool:
        versions = self.versions()
        if not versions or version > versions[-1]:  # a listing that lags does not have the newest files
            return not self.delta.has(version)
        return version not in versions

    def _missing(self, version: int) -> InvalidOptionError:
        versions = self.versions()
        return InvalidOptionError(
            f"Version {version} of topic {self.topic} is not there (any more)",
            path=self.location,
            hint=f"The last version is {versions[-1]}, and vacuum takes old ones" if versions else None,
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
        txns = [action["txn"] for action in actions if "txn" in action]
        mine = {txn["appId"].removesuffix(suffix): int(txn["version"]) for txn in txns if txn["appId"].endswith(suffix)}
        return commit_info(actions).get("change"), mine

    def facts(self, version: int) -> CommitFacts | None:
        """The commit that made a version, None where Delta's log does not have it (any more)."""
        try:
            info = commit_info(self.delta.actions(version))
        except FileNotFoundError:
            return None
        return CommitFacts(info.get("commitId", ""), int(info.get("timestamp", 0)), info.get("change", ""))

    def changed_rows(self, version: int, topic_id: str | None = None) -> tuple[pa.Table, pa.Table] | None:
        """(the segment rows that a commit took out, the segment rows that it brought), of all topic ids or of one.

        None where the log does not have the commit (any more), or where the commit may have made another topic and no
        topic id is asked for.
        """
        try:
            actions = self.delta.actions(version)
            removed, added = (paths_of(actions, name) for name in ("remove", "add"))
            if topic_id is None and any(path.startswith(f"{KIND}={TOPIC_KIND}/") for path in added):
                return None
            before = self._segment_rows(removed)
            after = self._segment_rows(added)
        except FileNotFoundError:
            return None
        if topic_id is None:
            return before, after
        own = (rows.filter(pc.equal(rows.column("topic_id"), topic_id)) for rows in (before, after))
        return next(own), next(own)

    def _segment_rows(self, paths: Sequence[str]) -> pa.Table:
        """The rows of the files among `paths` that have segment rows."""
        of_segments = [path for path in paths if path.startswith(f"{KIND}={SEGMENT_KIND}/")]
        files = [RowFile(path, SEGMENT_KIND, 0, 0, 0, {}) for path in of_segments]
        return concat(self.store.read_all(files), SEGMENT_KIND)

    def find(
        self, commit_id: str, versions: Iterable[int], read: Mapping[int, Mapping[str, Any]] = {}
    ) -> tuple[int, int] | None:
        """(version, number of the try) of the commit with this id, where it made any of `versions`; else None.
        `read`: what commits say of themselves that were read already.

        Raises UnknownOutcomeError where the log lacks any of `versions` before that.
        """
        for version in versions:
            try:
                info = read[version] if version in read else commit_info(self.delta.actions(version))
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

    def durable(self, *configs: Mapping[str, str]) -> DeltaLog:
        """The Delta log for a commit to a topic of these configurations: before it, and after. Where any of them sets
        flush.messages or flush.ms, what the log commits has reached the disk once its call returns.
        """
        return self.delta.durable(any(map(self.is_forced, configs)))

    def is_forced(self, config: Mapping[str, str]) -> bool:
        """Whether commits to a topic of this configuration are forced to disk."""
        return self._config(config, *_FLUSH).forced

    def _config(self, config: Mapping[str, str], *names: str) -> TopicConfig:
        """The settings of these names in force for a topic of this configuration. No other setting is looked at."""
        settings = {**self._defaults, **config}
        return topic_config({name: settings[name] for name in names if name in settings})

    def note_of(
        self, version: int, before: Iterable[RowFile], change: FileChange, note: CommitNote, contents: Mapping[str, Any]
    ) -> NamedFile:
        """The note of the commit that makes `version` of a state of the files `before`, to be written with the files
        that the commit adds: `contents`, by path.
        """
        name = NoteName(version, f"{note.commit_id}-{note.attempt}")
        committed_ms = wall_ms()
        paths = [file.path for file in before]
        return note_file(self.topic, name, note.operation, paths, change, contents, committed_ms)

    def holds(self, state: TableState, txn: Transaction) -> bool:
        """Whether the topic of a state has an append already. Raises TransactionOrderError as `is_repeat` does."""
        last = state.last_transaction(txn.application)
        if txn.key is not None and last is not None and last.version < self.keys_from_ms(state.snapshot.config):
            last = None
        return is_repeat(txn, last, self.topic)

    def keys_from_ms(self, config: Mapping[str, str]) -> int:
        """The time, by the store's clock, from which on a topic of this configuration remembers idempotency keys."""
        return self.storage.now_ms() - self._config(config, _KEY_EXPIRATION).transactional_id_expiration_ms

    def mark_made(self, version: int, note: CommitNote) -> None:
        """Marks the note of a commit that was made: see commit_notes.py."""
        mark(self.storage, self.topic, NoteName(version, f"{note.commit_id}-{note.attempt}"))


def _application_id(application: str, topic_id: str) -> str:
    # A topic that is made again under its name starts with no transactions, although the table lives on.
    return f"{application}@{topic_id}"


def delta_transactions(transactions: Iterable[Transaction], topic_id: str) -> dict[str, int]:
    """Delta's txn actions: versions by application id. Delta never forgets one, so idempotency keys have none."""
    return {
        _application_id(transaction.application, topic_id): transaction.version
        for transaction in transactions
        if transaction.key is None
    }
