"""The commit protocol: read, plan, write files, swap; after any failure first look whether the commit happened.

All tries of a commit share an id. By that id the protocol finds a commit whose reply was lost, or that the store
carried out late. It looks before it makes the plan again, so nothing is ever added twice, and before an error says
that nothing happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from spark_segments.errors import (
    CommitConflictError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.log.manifest.commit.change import Change, ChangeWriter
from spark_segments.log.manifest.files.delta.actions import CommitNote
from spark_segments.log.manifest.files.delta.delta_log import DeltaLog
from spark_segments.log.manifest.files.delta.delta_rs import CommitNotSentError, TableVersion, VersionTakenError
from spark_segments.log.manifest.files.row_files import FileChange, NamedFile
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.recovery.loss import check_none_lost
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog, delta_transactions
from spark_segments.log.manifest.transaction import AnyTransaction, Transaction, checked
from spark_segments.storage.delta import reason

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
        rows = self.snapshot_before.partition_rows
        if self.change is not None:
            rows += Partition.of_table(Partition.raised(self.change.partitions))
        return {row.partition: (row.log_start_offset, row.log_end_offset) for row in rows}


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


@dataclass(frozen=True, slots=True)
class _Try:
    """A request that was sent to the store: the state that it builds upon, its change, and the log that it went to."""

    state: TableState
    change: Change
    delta: DeltaLog


@dataclass(slots=True)
class _Tries:
    """The tries of a commit that were sent to the store.

    A try asks for the version after its state. While that version is free, the store may still carry the request out
    late. Once another commit has the version, the try can no longer happen. `followed`: what the commits say of
    themselves that were read on the way, by version.
    """

    log: TopicLog
    commit_id: str
    sent: list[_Try] = field(default_factory=list)
    noted: str = ""  # the path of the last note, relative to the log directory
    followed: dict[int, Mapping[str, object]] = field(default_factory=dict)

    def note(self, versions: Iterable[TableVersion]) -> None:
        """Notes commits that were read."""
        self.followed |= {table.version: table.commit_info for table in versions if table.commit_info}

    def found(self, latest: int) -> Commit | None:
        """The commit, where a version up to `latest` was made by any of the tries; else None."""
        if not self.sent:
            return None
        # The first try asked for the version after its state, a later try for that one or a higher one. Lower versions
        # were there before the first try was sent.
        versions = range(self.sent[0].state.version + 1, latest + 1)
        version_and_try = self.log.find(self.commit_id, versions, self.followed)
        if version_and_try is None:
            return None
        version, attempt = version_and_try
        made = self.sent[attempt]
        made.delta.check_kept(made.state.table)
        self.log.mark_made(version, CommitNote(self.commit_id, attempt, made.change.operation))
        return Commit(version, made.state.snapshot, made.change)

    def may_happen(self, latest: int) -> bool:
        """Whether a try can still happen that no version up to `latest` was made by."""
        # A try built upon version 6 asks for version 7, and for nothing else:
        #
        #   latest 6    … 4 5 6 |7 is free|     the store may still carry the request out
        #   latest 7    … 4 5 6 7               7 was made by another: the request can only be refused
        #
        # The last try asked for the highest version: where that is taken, so are the versions of all tries before it.
        return bool(self.sent) and self.sent[-1].state.version + 1 > latest


class Committing:
    """A commit on its way: see `Manifest.commit`. `missing`: the plan may see a topic that was never made, at version
    -1.
    """

    def __init__(
        self, log: TopicLog, plan: Plan, txn: AnyTransaction | None = None, *, deleted: bool, missing: bool = False
    ) -> None:
        self.log, self.plan, self.deleted, self.missing = log, plan, deleted, missing
        self.txn = None if txn is None else checked(txn)
        self.tries = _Tries(log, uuid.uuid4().hex)

    def run(self, given: TableState | None = None) -> Commit:
        """Tries until the commit is made. `given`: the state that the first try builds upon."""
        log, tries = self.log, self.tries
        writer = ChangeWriter(log.store)
        attempts = failures = 0
        failure: Exception | None = None
        deadline = time.monotonic() + SECONDS
        try:
            state = given or self._first_state()
            planned = self._planned_afresh(state) if state.is_trusted else (state, self._planned(state))
            while True:
                state, decided = planned
                if isinstance(decided, Commit) and (decided.repeated or not tries.may_happen(state.version)):
                    return decided
                attempts += 1
                if isinstance(decided, Change):  # else an earlier try may still happen, so look again
                    try:
                        return self._sent(state, decided, writer)
                    except SegmentsError:
                        raise
                    except CommitNotSentError as error:
                        # It can never happen. Kept, it would turn a plain failure into an unknown outcome.
                        tries.sent.pop()
                        with contextlib.suppress(
                            SegmentsError
                        ):  # the next try, of the same number, writes its own note
                            self.log.store.storage.delete(tries.noted)
                        failure = error
                    except Exception as error:  # no other error proves that the commit did not happen
                        failure = error

                # Look first, then count, then plan: a commit that happened is no failure, however many came before it,
                # and a plan that is made again beside its own commit would add the same records twice.
                _pause(attempts)
                before, state = state, _read_again(log, tries, state, failure)
                made = tries.found(state.version)
                if made is not None:
                    return _on_disk(log, made)
                # Where others commit meanwhile, the store works, and this one only lost a race: that has its own limits
                # below. Counted without a reset, a busy topic would look like a store that is broken.
                failures = failures + 1 if state.version == before.version else 0
                if failures >= FAILURES:
                    hint = "Nothing was committed" if not tries.sent else None
                    raise StorageError(
                        f"The commit failed: {reason(failure)}", path=log.location, hint=hint
                    ) from failure
                if attempts >= TRIES or time.monotonic() > deadline:
                    raise _lost(log, attempts, failure) from failure
                planned = state, self._planned(state)
        except UnknownOutcomeError:
            raise
        except Exception as error:  # a try that was sent may have happened
            if not tries.sent:
                raise
            return _found_after(log, tries, self.txn, error)

    def _first_state(self) -> TableState:
        try:
            return self.log.state()
        except UnknownTopicError:
            if not self.missing or self.log.deleted_by_force_ms() is not None:
                raise
            return self.log.state_to_create_on()

    def _planned_afresh(self, given: TableState) -> tuple[TableState, Change | Commit]:
        """A state, and what is planned of it. What does not end in a request rests on a look at the log."""
        error: Exception | None = None
        try:
            planned = self._planned(given)
            if isinstance(planned, Change):
                return given, planned
        except SegmentsError as raised:
            error = raised
        state = self.log.state_after(given)
        if state.table.files is not given.table.files:
            return state, self._planned(state)
        if error is not None:
            raise error
        return state, planned

    def _planned(self, state: TableState) -> Change | Commit:
        """What is to be committed on a state, or the outcome where nothing is."""
        log, txn, snapshot = self.log, self.txn, state.snapshot
        if snapshot.deleted_ms is not None and not self.deleted:
            raise log.unknown("It was deleted")
        if txn is not None and log.holds(state, txn):
            # Who committed it may have died before it reached the disk.
            log.durable(snapshot.config).prepare(state.table, ())
            return Commit(snapshot.version, snapshot, None, repeated=True)
        change = self.plan(snapshot)
        if change is None:
            return Commit(snapshot.version, snapshot, None)
        snapshot.role.check(snapshot.topic, change.operation)
        if txn is None:
            return change
        sent = txn if txn.key is None else dataclasses.replace(txn, version=log.store.storage.now_ms())
        return dataclasses.replace(change, transactions=(*change.transactions, sent))

    def _sent(self, state: TableState, change: Change, writer: ChangeWriter) -> Commit:
        """Writes the files of a change and asks the store for the next version."""
        snapshot, tries = state.snapshot, self.tries
        config = _config_after(snapshot, change)
        delta = self.log.durable(snapshot.config, config)
        keys_from_ms = self.log.keys_from_ms(config) if change.transactions else 0
        files = writer.planned(snapshot, state.files, change, keys_from_ms)
        note = CommitNote(tries.commit_id, len(tries.sent), change.operation)
        noted = self._noted(state, change, files, note, writer.contents)
        tries.noted = noted[0]
        looks = [] if state.is_trusted or state.version < 0 else [partial(check_none_lost, self.log, state)]
        self.log.storage.at_once(lambda work: work(), [*looks, partial(writer.write, [noted])])
        delta.prepare(state.table, [*map(self.log.store.path, files.added), noted[0]])
        tries.sent.append(_Try(state, change, delta))
        by_id = delta_transactions(change.transactions, snapshot.topic_id)
        table = delta.commit_on(state.table, files, note, by_id)
        self.log.mark_made(table.version, note)
        return Commit(table.version, snapshot, change, table=table)

    def _noted(
        self, state: TableState, change: Change, files: FileChange, note: CommitNote, contents: Mapping[str, pa.Buffer]
    ) -> NamedFile:
        """The note of a try. Where a topic takes the place of one of which nothing is left, it names all files of its
        version, as that of a topic's first commit does: vacuum takes the notes and copies from before.
        """
        before = state.files
        if change.topic is not None and change.topic.deleted_ms is None and state.is_gone:
            taken = {file.path for file in files.removed}
            kept = [file for file in before if file.path not in taken]
            contents = {**contents, **{file.path: self.log.store.content(file) for file in kept}}
            before, files = (), FileChange([*kept, *files.added], [])
        return self.log.note_of(state.version + 1, before, files, note, contents)


def _found_after(log: TopicLog, tries: _Tries, txn: Transaction | None, error: Exception) -> Commit:
    """The commit, where a try happened after all. Raises `error` where no try can happen, else UnknownOutcomeError."""
    state = tries.sent[-1].state
    # One look is not enough: the request may be carried out after it. It is enough once the version is taken.
    for attempt in range(1, FAILURES + 1):
        _pause(attempt)
        try:
            versions = log.following(state.table)
            tries.note(versions)
            latest = versions[-1].version
            made = tries.found(latest)
        except (SegmentsError, OSError) as unreadable:
            failure: Exception = unreadable
            continue
        if made is not None:
            return _on_disk(log, made)
        if not tries.may_happen(latest):
            raise error
        failure = error
    operation = tries.sent[-1].change.operation
    if tries.sent[-1].state.version < 0:
        what, hint = f"Topic {log.topic} may have been made, or may be made yet", _CREATED
    else:
        what = f"The {operation} may have happened, or may happen yet (commit id {tries.commit_id})"
        hint = _SENT_AGAIN if txn is not None else _APPENDED if operation == Operation.APPEND else _RUN_AGAIN
    raise UnknownOutcomeError(
        f"{what}: {_why(error)}" + ("" if failure is error else f"; then {_why(failure)}"),
        path=log.location,
        hint=hint,
    ) from error


_CREATED = "Create it again: a TopicExistsError says that it was made"
_SENT_AGAIN = "Send it again with the same transaction or key: it is added once"
_APPENDED = "Look whether the records are there before sending them again; with once or a txn that is not needed"
_RUN_AGAIN = "Run it again: it is planned from what is there then"


def _on_disk(log: TopicLog, made: Commit) -> Commit:
    """A commit that was found in the log. Where the topic is forced, it has reached the disk, or this raises."""
    assert made.change is not None
    delta = log.durable(made.snapshot_before.config, _config_after(made.snapshot_before, made.change))
    try:
        delta.force()  # the files that it adds were forced before it was sent
    except StorageError as error:
        raise UnknownOutcomeError(
            f"The {made.change.operation} was made, and nobody knows whether it has reached the disk: {error}",
            path=log.location,
            hint="Look whether it is there once the disk is sound",
        ) from error
    return made


def _config_after(snapshot: Snapshot, change: Change) -> Mapping[str, str]:
    """The topic's own settings after a change."""
    if change.config is not None:
        return change.config
    return snapshot.config if change.topic is None else change.topic.config


def _why(error: Exception | None) -> str:
    """The error's text without its hint. The hint may say to run again, which is wrong after a commit was sent."""
    text = reason(error)
    return text.removesuffix(f". {error.hint}") if isinstance(error, SegmentsError) else text


def _read_again(log: TopicLog, tries: _Tries, state: TableState, failure: Exception | None) -> TableState:
    for attempt in range(1, FAILURES + 1):
        try:
            versions = log.following(state.table)
            tries.note(versions)
            return log.state_after(state, versions)
        except StorageError as error:
            failure = error
        _pause(attempt)
    raise StorageError(
        f"The log cannot be read after a commit that failed: {_why(failure)}", path=log.location
    ) from failure


def _lost(log: TopicLog, tries: int, failure: Exception | None) -> SegmentsError:
    if isinstance(failure, VersionTakenError):
        return CommitConflictError(
            f"Other commits to topic {log.topic} came first, {tries} times", path=log.location, hint="Run it again"
        )
    return StorageError(f"The commit failed, {tries} times: {reason(failure)}", path=log.location)


def _pause(tries: int) -> None:
    time.sleep(random.uniform(0, min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (tries - 1))))
