"""The commit protocol: read, plan, write files, swap; after any failure first look whether the commit happened.

A commit has one id for all of its tries. A reply that was lost, or a request that a store carries out late, is found by
that id before the plan is made again, so nothing is ever added twice.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from deltalake.exceptions import CommitFailedError

from spark_segments.errors import CommitConflictError, SegmentsError, StorageError
from spark_segments.log.manifest.change import Change, ChangeWriter
from spark_segments.log.manifest.delta_log import CommitNote, DeltaLog, TableState, reason
from spark_segments.log.manifest.snapshot import Snapshot

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


def commit(log: DeltaLog, plan: Plan, txn: tuple[str, int] | None, *, deleted: bool) -> Commit:
    """See `Manifest.commit`."""
    note = CommitNote(uuid.uuid4().hex, 0, "")
    writer = ChangeWriter(log.store)
    tries: list[tuple[Snapshot, Change]] = []
    failures = 0
    deadline = time.monotonic() + SECONDS
    state = log.state()
    while True:
        snapshot = state.snapshot
        if snapshot.deleted_ms is not None and not deleted:
            raise log.unknown("It was deleted")
        last = state.last_transaction(txn[0]) if txn is not None else None
        if txn is not None and last is not None and last >= txn[1]:
            return Commit(snapshot.version, snapshot, None, repeated=True)
        change = plan(snapshot)
        if change is None:
            return Commit(snapshot.version, snapshot, None)

        note = replace(note, attempt=len(tries), operation=change.operation)
        tries.append((snapshot, change))
        try:
            files = writer.write(snapshot, state.files, change)
            transactions = {**change.transactions, **(dict([txn]) if txn is not None else {})}
            log.commit_at(state, files, note, transactions)
            return Commit(snapshot.version + 1, snapshot, change)
        except SegmentsError:
            raise  # nothing was sent to the log by this try, and the ones before it did not happen
        except Exception as error:  # delta-rs raises many classes, and none of them says that the commit did not happen
            failure = error

        _pause(len(tries))
        state = _read_again(log, failure)
        found = log.find(note.commit_id, range(tries[0][0].version + 1, state.version + 1))
        if found is not None:
            version, attempt = found
            return Commit(version, *tries[attempt])
        failures = failures + 1 if state.version == snapshot.version else 0
        if failures >= FAILURES:
            raise StorageError(f"The commit failed: {reason(failure)}", path=log.location) from failure
        if len(tries) >= TRIES or time.monotonic() > deadline:
            raise _lost(log, len(tries), failure) from failure


def _read_again(log: DeltaLog, failure: Exception) -> TableState:
    for attempt in range(1, FAILURES + 1):
        try:
            return log.state()
        except StorageError as error:
            failure = error
        _pause(attempt)
    raise StorageError(
        f"The log cannot be read after a commit, which may have happened: {reason(failure)}",
        path=log.location,
        hint="With a txn the same append can be sent again: it is added once",
    ) from failure


def _lost(log: DeltaLog, tries: int, failure: Exception) -> SegmentsError:
    if isinstance(failure, CommitFailedError):
        return CommitConflictError(
            f"Other commits to topic {log.topic} came first, {tries} times", path=log.location, hint="Run it again"
        )
    return StorageError(f"The commit failed, {tries} times: {reason(failure)}", path=log.location)


def _pause(tries: int) -> None:
    time.sleep(random.uniform(0, min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (tries - 1))))
