"""The commit protocol: read, plan, write files, swap; after any failure first look whether the commit happened.

All requests of a commit share an id. By that id the protocol finds a commit whose reply was lost, or that the store
carried out late. It looks before it makes the plan again, so nothing is ever added twice, and before an error says
that nothing happened. The states of a request, and the loop of tries, are numbered_swap.py's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import operator
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from spark_segments.errors import (
    CommitConflictError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.commit.change_writer import ChangeWriter
from spark_segments.log.manifest.files.commit_notes import notes_of
from spark_segments.log.manifest.files.delta.actions import CommitNote
from spark_segments.log.manifest.files.delta.delta_rs import CommitNotSentError, TableVersion, VersionTakenError
from spark_segments.log.manifest.files.row_files import FileChange, NamedFile
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.recovery.loss import check_none_lost
from spark_segments.log.manifest.recovery.missing_notes import write_missing_notes
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog, delta_transactions
from spark_segments.log.manifest.transaction import AnyTransaction, checked
from spark_segments.storage.delta import reason
from spark_segments.storage.numbered_swap import NoEntry, NumberedSwap, Reply, RequestOutcome, SentEntry, SwapLimits

TRIES = 50
SECONDS = 60.0
FAILURES = 5
"""How many tries in a row may fail while no other commit comes first."""

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0

LONGEST_TURN_SECONDS = 1.0
BETWEEN_TURNS_SECONDS = 0.1
"""How long a writer leaves the log to others after its turn: they have to read it before they can commit."""

Plan = Callable[[Snapshot], Change | None]


@dataclass(frozen=True, slots=True)
class Commit:
    """The outcome of a commit.

    `version`: the topic's version after the commit, or the version that was read where nothing was committed.
    `change`: the change that was committed on top of `snapshot_before`. None where the plan had nothing to do, and
    where the transaction had been committed before (`repeated`). `table`: the version after the commit, where it
    is known without another look at the log.
    """

    version: int
    snapshot_before: Snapshot
    change: Change | None
    repeated: bool = False
    table: TableVersion | None = None

    def bounds(self) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, log end offset)} right after the commit.

        Callers answer from the commit. Another look at the log could fail, and a commit that happened must not look
        like a failure.
        """
        rows = [*self.snapshot_before.partition_rows, *self.partition_rows]
        return {row.partition: (row.log_start_offset, row.log_end_offset) for row in rows}

    @property
    def partition_rows(self) -> list[Partition]:
        """The rows of the partitions that the commit has changed."""
        return [] if self.change is None else Partition.of_table(row_tables.raised(self.change.partitions))


@dataclass(slots=True)
class Turn:
    """A writer's turn: the time in which it commits again and again on what its last commit left.

    Whoever has to read the log first, a job for example, comes too late each time. So a turn ends.
    """

    began_seconds: float = -math.inf
    last_seconds: float = -math.inf

    def go_on(self) -> None:
        """To be called before each commit on what the last one left. Waits where the turn has been long enough."""
        now = time.monotonic()
        if now - self.last_seconds >= BETWEEN_TURNS_SECONDS:  # others had time
            self.began_seconds = now
        elif now - self.began_seconds >= LONGEST_TURN_SECONDS:
            time.sleep(BETWEEN_TURNS_SECONDS)
            now = self.began_seconds = time.monotonic()
        self.last_seconds = now


class Committing(NumberedSwap[TableState, Change, Commit]):
    """A commit on its way: see `Manifest.commit`. `missing`: the plan may see a topic that was never made, at version
    -1.
    """

    def __init__(
        self, log: TopicLog, plan: Plan, txn: AnyTransaction | None = None, *, deleted: bool, missing: bool = False
    ) -> None:
        limits = SwapLimits(
            tries=TRIES,
            looks=FAILURES,
            failures=FAILURES,
            seconds=SECONDS,
            first_pause_seconds=FIRST_PAUSE_SECONDS,
            longest_pause_seconds=LONGEST_PAUSE_SECONDS,
        )
        super().__init__(limits)
        self.log = log
        self.change_of = plan
        self.deleted = deleted
        self.missing = missing
        self.txn = None if txn is None else checked(txn)
        self.commit_id = uuid.uuid4().hex
        self.writer = ChangeWriter(log.store)
        self.followed: dict[int, Mapping[str, object]] = {}
        """What the commits say of themselves that were read on the way, by version."""

        self.newest_copy: int | None = None
        """The version of the newest recovery copy, as the last look showed it; None without a look."""

        self.lacks_notes = False
        """Whether commits below have no note, and none can be written: a rebuild needs a copy of what follows them."""

        self.other_notes: list[str] = []
        """The notes of other writers' commits that were written before this one."""

    def first_plan(self, state: TableState) -> tuple[TableState, Change | NoEntry[Commit]]:
        """The state that the first try builds upon, and what is planned of it: what `run` begins with."""
        return self._planned_afresh(state) if state.is_trusted else (state, self.plan(state))

    def first_state(self) -> TableState:
        """The newest state; where there is no topic, and the plan may see that, the state before its first commit."""
        try:
            return self.log.state()
        except UnknownTopicError:
            if not self.missing or self.log.deleted_by_force_ms() is not None:
                raise
            return self.log.state_to_create_on()

    def _planned_afresh(self, trusted: TableState) -> tuple[TableState, Change | NoEntry[Commit]]:
        """A state, and what is planned of it. What does not end in a request rests on a look at the log."""
        error: Exception | None = None
        try:
            planned = self.plan(trusted)
            if isinstance(planned, Change):
                return trusted, planned
        except SegmentsError as raised:
            error = raised
        state = self.log.state_after(trusted)
        if state.table.files is not trusted.table.files:
            return state, self.plan(state)
        if error is not None:
            raise error
        return state, planned

    def number_of(self, state: TableState) -> int:
        return state.version

    def newest(self, state: TableState) -> TableState:
        versions = self._following(state)
        return self.log.state_after(state, versions)

    def _following(self, state: TableState) -> Sequence[TableVersion]:
        """The version of a state, and those that were committed since. What they say of themselves is kept."""
        versions = self.log.following(state.table)
        self.followed |= {table.version: table.commit_info for table in versions if table.commit_info}
        return versions

    def plan(self, state: TableState) -> Change | NoEntry[Commit]:
        log = self.log
        txn = self.txn
        snapshot = state.snapshot
        if snapshot.deleted_ms is not None and not self.deleted:
            raise log.unknown("It was deleted")
        if txn is not None and log.holds(state, txn):
            # Who committed it may have died before it reached the disk.
            log.durable(snapshot.config).prepare(state.table, ())
            return NoEntry(Commit(snapshot.version, snapshot, None, repeated=True), is_certain=True)
        change = self.change_of(snapshot)
        if change is None:
            return NoEntry(Commit(snapshot.version, snapshot, None))
        snapshot.check_role(change.operation)
        if txn is None:
            return change
        # A key is forgotten by its age, so by the store's clock: by a machine's that is behind, it would be forgotten
        # early, and an append that is sent again would be added twice.
        sent = txn if txn.key is None else dataclasses.replace(txn, version=log.store.storage.now_ms())
        return dataclasses.replace(change, transactions=(*change.transactions, sent))

    def send(self, state: TableState, change: Change) -> Reply[Commit]:
        """Writes the files of a change and asks the store for the next version. An error before that request says that
        nothing was committed, unless an earlier request may be carried out.
        """
        snapshot = state.snapshot
        config = _config_after(snapshot, change)
        delta = self.log.durable(snapshot.config, config)

        keys_from_ms = self.log.keys_from_ms(config) if change.transactions else 0
        files = self.writer.planned(snapshot, state.files, change, keys_from_ms)
        note = CommitNote(self.commit_id, len(self.sent), change.operation)
        note_file = self._note_file(state, change, files, note)
        steps = self._steps(state, [*self.log.store.named(self.writer.waiting), note_file])
        self.log.storage.at_once(operator.call, steps)
        self.writer.note_written()
        note_path = note_file[0]
        delta.prepare(state.table, [*map(self.log.store.path, files.added), note_path, *self.other_notes])

        by_id = delta_transactions(change.transactions, snapshot.topic_id)
        self.sent.append(SentEntry(state.version + 1, state, change))
        try:
            table = delta.commit_on(state.table, files, note, by_id)
        except CommitNotSentError as error:
            with contextlib.suppress(SegmentsError):  # the next try, of the same number, writes its own note
                self.log.store.storage.delete(note_path)
            return Reply(RequestOutcome.NOT_SENT, failure=error)
        self.log.mark_made(table.version, note)
        return Reply(RequestOutcome.MADE, Commit(table.version, snapshot, change, table=table))

    def _steps(self, state: TableState, files: Sequence[NamedFile]) -> list[Callable[[], object]]:
        """What comes before the request: the `files` that a commit adds, and its note, are written. A state that is not
        this process's own commit may lack the newest commit, where its file was lost: that is looked for meanwhile.
        """
        steps: list[Callable[[], object]] = []
        if not state.is_trusted and state.version >= 0:
            steps.append(partial(self._look_below, state))
        steps.append(partial(self.log.storage.write_all, files, unique=True))
        return steps

    def _look_below(self, state: TableState) -> None:
        """A commit stands on others: none of them may be lost, and each has a note once this one is there."""
        notes = notes_of(self.log.storage, self.log.topic)
        check_none_lost(self.log, state, notes)
        self.newest_copy = notes.newest_copy
        # The first commit of a topic in place of one of which nothing is left needs no notes from before.
        note_paths = [] if state.is_gone else write_missing_notes(self.log, state, notes)
        self.lacks_notes = note_paths is None
        self.other_notes = note_paths or []

    def _note_file(self, state: TableState, change: Change, files: FileChange, note: CommitNote) -> NamedFile:
        """The note of a try. Where a topic takes the place of one of which nothing is left, it names all files of its
        version, as that of a topic's first commit does: vacuum takes the notes and copies from before.
        """
        before = state.files
        contents = self.writer.contents
        if change.topic is not None and change.topic.deleted_ms is None and state.is_gone:
            taken = {file.path for file in files.removed}
            kept = [file for file in before if file.path not in taken]
            contents = {**contents, **{file.path: self.log.store.content(file) for file in kept}}
            before = ()
            files = FileChange([*kept, *files.added], [])
        return self.log.note_of(state.version + 1, before, files, note, contents)

    def find(self, state: TableState) -> Commit | None:
        commit = self._found(state.version)
        return None if commit is None else self._on_disk(commit)

    def _found(self, latest: int) -> Commit | None:
        """The commit, where a version up to `latest` was made by any of the requests; else None."""
        if not self.sent:
            return None
        # The first request asked for the version after its state, a later one for that version or a higher one. Lower
        # versions were there before the first one was sent.
        versions = range(self.sent[0].number, latest + 1)
        version_and_attempt = self.log.find(self.commit_id, versions, self.followed)
        if version_and_attempt is None:
            return None
        version, attempt = version_and_attempt
        state = self.sent[attempt].state
        change = self.sent[attempt].entry
        self.log.delta.check_kept(state.table)
        self.log.mark_made(version, CommitNote(self.commit_id, attempt, change.operation))
        return Commit(version, state.snapshot, change)

    def _on_disk(self, commit: Commit) -> Commit:
        """A commit that was found in the log. Where the topic is forced, it has reached the disk, or this raises."""
        assert commit.change is not None
        config = commit.snapshot_before.config
        delta = self.log.durable(config, _config_after(commit.snapshot_before, commit.change))
        try:
            delta.force()  # the files that it adds were forced before it was sent
        except StorageError as error:
            raise UnknownOutcomeError(
                f"The {commit.change.operation} was made, and nobody knows whether it has reached the disk: {error}",
                path=self.log.location,
                hint="Look whether it is there once the disk is sound",
            ) from error
        return commit

    def give_up(self, tries: int, failures: int, failure: Exception | None) -> Commit:
        location = self.log.location
        if failures >= self.limits.failures:
            hint = None if self.sent else "Nothing was committed"
            raise StorageError(f"The commit failed: {reason(failure)}", path=location, hint=hint) from failure
        if isinstance(failure, VersionTakenError):
            raise CommitConflictError(
                f"Other commits to topic {self.log.topic} came first, {tries} times", path=location, hint="Run it again"
            ) from failure
        raise StorageError(f"The commit failed, {tries} times: {reason(failure)}", path=location) from failure

    def unreadable(self, failure: Exception | None) -> Exception:
        return StorageError(
            f"The log cannot be read after a commit that failed: {_why(failure)}", path=self.log.location
        )

    def settle(self, error: Exception) -> Commit:
        """The commit, where a request was carried out after all. Raises `error` where none can be any more, else
        UnknownOutcomeError.
        """
        # One look is not enough: the request may be carried out after it. It is enough once the version is taken.
        # Versions are listed and not opened: a topic that a newer release has written since can still tell.
        newest = self.sent[-1]
        for attempt in range(1, FAILURES + 1):
            self.pause(attempt)
            try:
                latest = self._following(newest.state)[-1].version
                commit = self._found(latest)
            except (SegmentsError, OSError) as unreadable:
                failure: Exception = unreadable
                continue
            if commit is not None:
                return self._on_disk(commit)
            if newest.number <= latest:
                raise error
            failure = error
        raise self._unknown(error, failure) from error

    def _unknown(self, error: Exception, failure: Exception) -> UnknownOutcomeError:
        """What an `error` leaves open while a request may be carried out. `failure`: of the last look, or `error`."""
        newest = self.sent[-1]
        operation = newest.entry.operation
        if newest.state.version < 0:
            what = f"Topic {self.log.topic} may have been made, or may be made yet"
            hint = _CREATED
        else:
            what = f"The {operation} may have happened, or may happen yet (commit id {self.commit_id})"
            hint = _SENT_AGAIN if self.txn is not None else _APPENDED if operation == Operation.APPEND else _RUN_AGAIN
        then = "" if failure is error else f"; then {_why(failure)}"
        return UnknownOutcomeError(f"{what}: {_why(error)}{then}", path=self.log.location, hint=hint)


_CREATED = "Create it again: a TopicExistsError says that it was made"
_SENT_AGAIN = "Send it again with the same transaction or key: it is added once"
_APPENDED = "Look whether the records are there before sending them again; with once or a txn that is not needed"
_RUN_AGAIN = "Run it again: it is planned from what is there then"


def _config_after(snapshot: Snapshot, change: Change) -> Mapping[str, str]:
    """The topic's own settings after a change."""
    if change.config is not None:
        return change.config
    return snapshot.config if change.topic is None else change.topic.config


def _why(error: Exception | None) -> str:
    """The error's text without its hint. The hint may say to run again, which is wrong after a commit was sent."""
    text = reason(error)
    return text.removesuffix(f". {error.hint}") if isinstance(error, SegmentsError) else text
