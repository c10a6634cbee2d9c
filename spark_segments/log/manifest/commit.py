"""The commit protocol: read, plan, write files, swap; after any failure first look whether the commit happened.

All tries of a commit share an id. By that id the protocol finds a commit whose reply was lost, or that the store
carried out late. It looks before it makes the plan again, so nothing is ever added twice, and before an error says
that nothing happened.
"""

from __future__ import annotations

import dataclasses
import math
import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_segments.errors import (
    CommitConflictError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
)
from spark_segments.log.manifest.change import APPEND, Change, ChangeWriter, partition_rows
from spark_segments.log.manifest.delta.delta_log import (
    CommitNote,
    CommitNotSentError,
    CommittedVersion,
    VersionTakenError,
    reason,
)
from spark_segments.log.manifest.rows import partitions_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role
from spark_segments.log.manifest.topic_log import TableState, TopicLog
from spark_segments.log.manifest.transaction import AnyTransaction, Transaction, checked, is_repeat

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
    table: CommittedVersion | None = None

    def bounds(self) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, log end offset)} right after the commit.

        Callers answer from the commit. Another look at the log could fail, and a commit that happened must not look
        like a failure.
        """
        rows = partitions_of(self.snapshot_before.partitions)
        if self.change is not None:
            rows += partitions_of(partition_rows(self.change.partitions))
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


@dataclass(slots=True)
class _Tries:
    """The tries of a commit that were sent to the store, each with its snapshot and its change.

    A try asks for the version after its snapshot. While that version is free, the store may still carry the request out
    late. Once another commit has the version, the try can no longer happen.
    """

    log: TopicLog
    commit_id: str
    sent: list[tuple[Snapshot, Change]] = field(default_factory=list)

    def found(self, latest: int) -> Commit | None:
        """The commit, where a version up to `latest` was made by any of the tries; else None."""
        if not self.sent:
            return None
        found = self.log.find(self.commit_id, range(self.sent[0][0].version + 1, latest + 1))
        return None if found is None else Commit(found[0], *self.sent[found[1]])

    def may_happen(self, latest: int) -> bool:
        """Whether a try can still happen that no version up to `latest` was made by."""
        return bool(self.sent) and self.sent[-1][0].version + 1 > latest


def commit(
    log: TopicLog, plan: Plan, txn: AnyTransaction | None, *, deleted: bool, state: TableState | None = None
) -> Commit:
    """See `Manifest.commit`."""
    txn = None if txn is None else checked(txn)
    tries = _Tries(log, uuid.uuid4().hex)
    try:
        return _commit(log, plan, txn, tries, state, deleted=deleted)
    except UnknownOutcomeError:
        raise
    except Exception as error:
        if not tries.sent:
            raise
        return _found_after(log, tries, txn, error)


def _commit(
    log: TopicLog,
    plan: Plan,
    txn: Transaction | None,
    tries: _Tries,
    state: TableState | None,
    *,
    deleted: bool,
) -> Commit:
    """Tries until the commit is made. Whatever this raises, a try that was sent may have happened."""
    writer = ChangeWriter(log.store)
    attempts = failures = 0
    failure: Exception | None = None
    deadline = time.monotonic() + SECONDS
    state = log.state() if state is None else state
    while True:
        snapshot = state.snapshot
        if snapshot.deleted_ms is not None and not deleted:
            raise log.unknown("It was deleted")
        forced = log.is_forced(snapshot.config)
        if txn is not None and is_repeat(txn, state.last_transaction(txn.application), log.topic):
            if forced:  # who committed it may have died before it reached the disk
                log.force(state)
            return Commit(snapshot.version, snapshot, None, repeated=True)
        change = plan(snapshot)
        if change is None and not tries.may_happen(snapshot.version):
            return Commit(snapshot.version, snapshot, None)

        if change is not None:
            check_role(snapshot, change.operation)
        if change is not None and txn is not None:
            change = dataclasses.replace(change, transactions=(*change.transactions, txn))

        attempts += 1
        if change is not None:  # None: an earlier try may still happen, so look again
            try:
                files = writer.write(snapshot, state.files, change)
                forced = forced or log.is_forced(_config_after(snapshot, change))
                if forced:
                    log.force(state, files.added)
                note = CommitNote(tries.commit_id, len(tries.sent), change.operation)
                tries.sent.append((snapshot, change))
                table = log.commit_on(state, files, note, change.transactions, forced=forced)
                return Commit(snapshot.version + 1, snapshot, change, table=table)
            except SegmentsError:
                raise
            except CommitNotSentError as error:
                tries.sent.pop()
                failure = error
            except Exception as error:  # no other error proves that the commit did not happen
                failure = error

        _pause(attempts)
        state = _read_again(log, failure)
        found = tries.found(state.version)
        if found is not None:
            return _on_disk(log, found)
        failures = failures + 1 if state.version == snapshot.version else 0
        if failures >= FAILURES:
            hint = "Nothing was committed" if not tries.sent else None
            raise StorageError(f"The commit failed: {reason(failure)}", path=log.location, hint=hint) from failure
        if attempts >= TRIES or time.monotonic() > deadline:
            raise _lost(log, attempts, failure) from failure


def _found_after(log: TopicLog, tries: _Tries, txn: Transaction | None, error: Exception) -> Commit:
    """The commit, where a try happened after all. Raises `error` where no try can happen, else UnknownOutcomeError."""
    for attempt in range(1, FAILURES + 1):
        _pause(attempt)
        try:
            latest = max(log.versions(), default=-1)
            found = tries.found(latest)
        except (SegmentsError, OSError) as unreadable:
            failure: Exception = unreadable
            continue
        if found is not None:
            return _on_disk(log, found)
        if not tries.may_happen(latest):
            raise error
        failure = error
    if txn is not None:
        hint = "Send it again with the same transaction: it is added once"
    elif tries.sent[-1][1].operation == APPEND:
        hint = "Look whether the records are there before sending them again; with a txn that is not needed"
    else:
        hint = "Run it again: it is planned from what is there then"
    raise UnknownOutcomeError(
        f"The {tries.sent[-1][1].operation} may have happened, or may happen yet (commit id {tries.commit_id}): "
        f"{_why(error)}" + ("" if failure is error else f"; then {_why(failure)}"),
        path=log.location,
        hint=hint,
    ) from error


def _on_disk(log: TopicLog, found: Commit) -> Commit:
    """A commit that was found in the log. Where the topic is forced, it has reached the disk, or this raises."""
    assert found.change is not None
    configs = (found.snapshot_before.config, _config_after(found.snapshot_before, found.change))
    if any(map(log.is_forced, configs)):
        try:
            log.delta.force()  # the files that it adds were forced before it was sent
        except StorageError as error:
            raise UnknownOutcomeError(
                f"The {found.change.operation} was made, and nobody knows whether it has reached the disk: {error}",
                path=log.location,
                hint="Look whether it is there once the disk is sound",
            ) from error
    return found


def _config_after(snapshot: Snapshot, change: Change) -> Mapping[str, str]:
    """The topic's own settings after a change."""
    if change.config is not None:
        return change.config
    return snapshot.config if change.topic is None else change.topic.config


def _why(error: Exception | None) -> str:
    """The error's text without its hint. The hint may say to run again, which is wrong after a commit was sent."""
    text = reason(error)
    return text.removesuffix(f". {error.hint}") if isinstance(error, SegmentsError) else text


def _read_again(log: TopicLog, failure: Exception | None) -> TableState:
    for attempt in range(1, FAILURES + 1):
        try:
            return log.state()
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
