"""The commit protocol: read, plan, write files, swap; after any failure first look whether the commit happened.

A commit has one id for all of its tries. A reply that was lost, or a request that a store carries out late, is found by
that id before the plan is made again, so nothing is ever added twice; and before an error says that nothing happened.
"""

from __future__ import annotations

import operator
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
)
from spark_segments.log.manifest.change import APPEND, Change, ChangeWriter, partition_rows
from spark_segments.log.manifest.delta_log import CommitNote, VersionTakenError, reason
from spark_segments.log.manifest.rows import partitions_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.topic_log import TableState, TopicLog

TRIES = 50
SECONDS = 60.0
FAILURES = 5
"""How often in a row a commit may fail without another commit having come first."""

FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 1.0

Plan = Callable[[Snapshot], Change | None]


@dataclass(frozen=True, slots=True)
class Commit:
    """What became of a commit: `version` is the topic's after it, or as it was read where nothing was to do.

    `change` is what was committed on top of `snapshot_before`. It is None where the plan had nothing to do, and where
    the transaction had been committed before (`repeated`).
    """

    version: int
    snapshot_before: Snapshot
    change: Change | None
    repeated: bool = False

    def bounds(self) -> dict[int, tuple[int, int]]:
        """{partition: (log start offset, log end offset)} right after the commit.

        What a caller answers with is taken from the commit: another look at the log could fail, and what was committed
        must not look as if it had not been.
        """
        rows = partitions_of(self.snapshot_before.partitions)
        if self.change is not None:
            rows += partitions_of(partition_rows(self.change.partitions))
        return {row.partition: (row.log_start_offset, row.log_end_offset) for row in rows}


@dataclass(slots=True)
class _Tries:
    """The tries of one commit that were sent to the store, each with the snapshot and the change that it was made of.

    A try asks for the version after its snapshot. While nothing has that version, a request that the store carries out
    late can still make the try the commit; once something else has it, the try cannot happen any more.
    """

    log: TopicLog
    commit_id: str
    sent: list[tuple[Snapshot, Change]] = field(default_factory=list)

    def found(self, latest: int) -> Commit | None:
        """The commit that one of the tries became, in the versions up to `latest`."""
        if not self.sent:
            return None
        found = self.log.find(self.commit_id, range(self.sent[0][0].version + 1, latest + 1))
        return None if found is None else Commit(found[0], *self.sent[found[1]])

    def may_happen(self, latest: int) -> bool:
        """Whether a try that was not found in the versions up to `latest` can still become the commit."""
        return bool(self.sent) and self.sent[-1][0].version + 1 > latest


def commit(
    log: TopicLog, plan: Plan, txn: tuple[str, int] | None, *, deleted: bool, state: TableState | None = None
) -> Commit:
    """See `Manifest.commit`."""
    if txn is not None:
        check_transaction(txn)
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
    txn: tuple[str, int] | None,
    tries: _Tries,
    state: TableState | None,
    *,
    deleted: bool,
) -> Commit:
    """Tries until one of them counts. Whatever this raises, a try that was sent may have happened."""
    writer = ChangeWriter(log.store)
    attempts = failures = 0
    failure: Exception | None = None
    deadline = time.monotonic() + SECONDS
    state = log.state() if state is None else state
    while True:
        snapshot = state.snapshot
        if snapshot.deleted_ms is not None and not deleted:
            raise log.unknown("It was deleted")
        last = state.last_transaction(txn[0]) if txn is not None else None
        if txn is not None and last is not None and last >= txn[1]:
            return Commit(snapshot.version, snapshot, None, repeated=True)
        change = plan(snapshot)
        if change is None and not tries.may_happen(snapshot.version):
            return Commit(snapshot.version, snapshot, None)

        attempts += 1
        if change is not None:  # else an earlier try decides: another look
            try:
                files = writer.write(snapshot, state.files, change)
                note = CommitNote(tries.commit_id, len(tries.sent), change.operation)
                transactions = {**change.transactions, **(dict([txn]) if txn is not None else {})}
                tries.sent.append((snapshot, change))
                log.commit_on(state, files, note, transactions)
                return Commit(snapshot.version + 1, snapshot, change)
            except SegmentsError:
                raise
            except Exception as error:  # whatever it is, it does not say that the commit did not happen
                failure = error

        _pause(attempts)
        state = _read_again(log, failure)
        found = tries.found(state.version)
        if found is not None:
            return found
        failures = failures + 1 if state.version == snapshot.version else 0
        if failures >= FAILURES:
            raise StorageError(f"The commit failed: {reason(failure)}", path=log.location) from failure
        if attempts >= TRIES or time.monotonic() > deadline:
            raise _lost(log, attempts, failure) from failure


def _found_after(log: TopicLog, tries: _Tries, txn: tuple[str, int] | None, error: Exception) -> Commit:
    """The commit, where a try has become it after all. Raises `error` where no try can, else UnknownOutcomeError."""
    for attempt in range(1, FAILURES + 1):
        _pause(attempt)
        try:
            latest = max(log.versions(), default=-1)
            found = tries.found(latest)
        except (SegmentsError, OSError) as unreadable:
            failure: Exception = unreadable
            continue
        if found is not None:
            return found
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


def _why(error: Exception | None) -> str:
    """What went wrong, without the hint: that may be to run it again, for want of a commit that was sent."""
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


def check_transaction(txn: tuple[str, int]) -> None:
    """Raises InvalidOptionError for a version that Delta's log, which has 64 bits for it, cannot keep."""
    application, version = txn
    try:
        fits = 0 <= operator.index(version) < 1 << 63
    except TypeError:
        fits = False
    if not fits:
        raise InvalidOptionError(
            f"The version of a transaction of {application} is out of range",
            expected=f"a whole number from 0 to {(1 << 63) - 1}",
            found=version,
            hint="Number an application's writes from 0 on, or by a batch id or a time in ms",
        )


def _pause(tries: int) -> None:
    time.sleep(random.uniform(0, min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (tries - 1))))
