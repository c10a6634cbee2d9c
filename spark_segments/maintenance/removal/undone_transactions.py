"""The transactions that a restore undoes, and what the manifest has to remember of their applications afterwards.

A transaction is an application id and a version that came with an append. A transaction whose version is not above the
application's last version adds nothing. A restore takes the records of transactions out of the log, but the manifest
still remembers the transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_segments.errors import LogDirError
from spark_segments.log.manifest.change import CREATE, ERASE, RESTORE
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.topic_log import TopicLog
from spark_segments.log.manifest.transaction import FORGOTTEN, Transaction

_THREADS = 8


@dataclass(frozen=True, slots=True)
class UndoneTransactions:
    """The transactions of an application whose records are not in the log after a restore.

    `versions`: the versions of these transactions, rising. `kept_version`: the application's last version whose records
    are in the log; None if there is none.
    """

    app_id: str
    versions: tuple[int, ...]
    kept_version: int | None


@dataclass(slots=True)
class _Application:
    """What an application sent after a version of the manifest, and what the manifest remembers as its last.

    `kept`: its last transaction at that version, None if there is none.
    """

    kept: Transaction | None
    last_version: int
    versions: list[int] = field(default_factory=list)

    def follow(self, operation: str | None, version: int) -> None:
        """Counts the next commit that has a transaction of the application."""
        self.last_version = version
        if operation == RESTORE:  # it made the manifest forget later versions, or remember them again
            self.versions = [one for one in self.versions if one <= version]
        if version > (FORGOTTEN if self.kept is None else self.kept.version) and version not in self.versions:
            self.versions.append(version)


@dataclass(frozen=True, slots=True)
class RestoredTransactions:
    """What a restore does to the transactions of writers.

    `undone`: those whose records leave the log, by application id. `again`: the last transactions to be remembered
    again, because records that were forgotten come back. `forgotten`: the last transactions that the manifest must
    remember so that the undone ones can be sent again. `erased`: the versions after the restored one whose commits
    erased keys.
    """

    undone: Sequence[UndoneTransactions]
    again: Sequence[Transaction]
    forgotten: Sequence[Transaction]
    erased: Sequence[int]


def transactions_since(log: TopicLog, wanted: Snapshot, current: Snapshot) -> RestoredTransactions:
    """What a restore of `wanted` on top of `current` does to transactions.

    Raises LogDirError where the topic was deleted and made again since, by an import with the same topic id.
    """
    versions = range(wanted.version + 1, current.version + 1)
    with ThreadPoolExecutor(_THREADS) as pool:
        commits = list(pool.map(lambda version: log.transactions(current.topic_id, version), versions))
    made_again = [version for version, (operation, _) in zip(versions, commits, strict=True) if operation == CREATE]
    if made_again:
        raise LogDirError(
            f"Version {wanted.version} is of another topic of the name {current.topic}",
            path=log.location,
            expected=f"a version from {made_again[-1]} on, when the topic was made again with the id of Kafka's",
            found=wanted.version,
        )
    applications_of: dict[str, _Application] = {}
    state = log.state(wanted.version) if any(transactions for _, transactions in commits) else None
    for operation, transactions in commits:
        for app_id, version in transactions.items():
            assert state is not None
            if app_id not in applications_of:
                kept = state.last_transaction(app_id)
                applications_of[app_id] = _Application(
                    None if kept is None or kept.version == FORGOTTEN else kept, version
                )
            applications_of[app_id].follow(operation, version)
    applications = sorted(applications_of.items())
    undone = [
        UndoneTransactions(name, tuple(one.versions), None if one.kept is None else one.kept.version)
        for name, one in applications
        if one.versions
    ]
    again = [one.kept for _, one in applications if one.kept is not None and one.last_version < one.kept.version]
    forgotten = [one.kept or Transaction(name, FORGOTTEN) for name, one in applications if one.versions]
    erased = [version for version, (operation, _) in zip(versions, commits, strict=True) if operation == ERASE]
    return RestoredTransactions(undone, again, forgotten, erased)
