"""Restoring a topic's segments as an earlier version had them, while vacuum has not taken their files.

A transaction is an application id and a version that came with an append. A transaction whose version is not above the
application's last version adds nothing. A restore takes the records of transactions out of the log, but the manifest
still remembers the transactions.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import SegmentLimits
from spark_segments.errors import ErasedRecordsError, InvalidOptionError, LogDirError
from spark_segments.extensions import observed_job
from spark_segments.format.batches import scan_batches
from spark_segments.format.single_batch import empty_batches
from spark_segments.log.appending.appender import NO_LEADER_EPOCH
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Erasure
from spark_segments.log.manifest.state.topic_log import TableState, TopicLog
from spark_segments.log.manifest.transaction import FORGOTTEN, Transaction
from spark_segments.log.report import Report
from spark_segments.log.segment.writer import SegmentWriter
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.retention.retention_plan import expired_records
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_ROW = ["base_offset", "next_offset", "file_base_offset", "state"]
"""The columns of a row that can change while its file is in the log."""

_SHOWN_ERASURES = 3
"""How many erasures an error names."""


@observed_job("restore")
def restore(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    version: int,
    forget_transactions: bool = False,
    including_erased: bool = False,
) -> Report:
    """Gives a topic the records of `version` again, in one commit, while the files of that version exist. `topics`
    names the one topic.

    Records that were appended after that version leave the log. Their offsets are not reused: the log end does not go
    back. The log start may go back: records that retention removed are in the log again. The configuration does not
    change. A deleted topic exists again.

    The transactions whose records leave the log stay remembered, so that repeating them adds nothing.
    `forget_transactions` lets them be sent again: each application goes back to its last version in the log. A second
    restore of the same version can ask for that, too.

    `including_erased`: files of before an erasure may come back, and with them what they have of the erased keys.

    The job moves no data: it takes `spark` and `progress` because all jobs do, and uses neither.

    A partition's line in the report has its `log_start_offset` and `log_end_offset`, and as [first offset, end) what is
    `leaving` (records appended after that version) and `returning` (records that retention or delete-records took).
    The details: `version`; `records` of that version, and `expired_records` in its segments older than retention.ms;
    `transactions` (app_id, versions, kept_version) and `once`, idempotency keys, whose records leave the log;
    `erasures` after that version, whose records are in the log again as far as they were in its files.

    Raises LogDirError where vacuum has taken a file of that version, or where the topic was deleted and made again
    since; ErasedRecordsError where files of before an erasure would come back; NotLeaderError for a follower;
    InvalidOptionError for none or several topics.
    """
    job = Job.of(Operation.RESTORE, log, topics, spark, dry_run, progress)
    if topics is None or isinstance(topics, str) or len(topics) != 1:
        raise InvalidOptionError("A version is of one topic", expected="one name in topics", found=repr(topics))
    restoring = _Restore(job, topics[0], version, forget_transactions, including_erased)
    if dry_run:
        before = restoring.manifest.snapshot(deleted=True)
        plan = restoring.plan(before)
        bounds = {row.partition: (row.log_start_offset, row.log_end_offset) for row in plan.partitions}
    else:
        commit = restoring.manifest.commit(restoring.change, deleted=True)
        # The last try is the one that landed: an earlier plan was for a snapshot that another commit has followed.
        plan = restoring.plans[-1]
        before = commit.snapshot_before
        bounds = commit.bounds()
    for line in _lines(bounds, restoring.target, before):
        job.report.add(topics[0], **line)
    job.report.details |= {
        "version": version,
        "records": pc.sum(plan.rows.column("records")).as_py() or 0,
        # The clock of before the commit: an error of the store would say that nothing was committed.
        "expired_records": expired_records(plan.rows, job.config(before), job.now_ms),
        "transactions": [dataclasses.asdict(undone) for undone in plan.transactions.undone],
        "once": plan.transactions.undone_keys,
        "transactions_forgotten": forget_transactions,
        "erasures": [dataclasses.asdict(erasure) for erasure in plan.erasures],
    }
    return job.report.finish()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The changes of a restore to a snapshot: the `rows` of the version, the `returning` ones among them, which have
    left the log or changed since, the new rows of partitions, the transactions and erasures that it undoes.
    """

    rows: pa.Table
    returning: pa.Table
    partitions: list[Partition]
    transactions: RestoredTransactions
    erasures: list[Erasure]


class _Restore:
    """A restore under way. `plans`: one for each try of the commit."""

    def __init__(self, job: Job, topic: str, version: int, forget_transactions: bool, including_erased: bool) -> None:
        self.manifest = job.log.manifest(topic)
        self.target = self.manifest.snapshot(version)
        self.plans: list[_Plan] = []
        self._job = job
        self._fillers = _Fillers(job, topic)
        self._forget_transactions = forget_transactions
        self._including_erased = including_erased

    def plan(self, current: Snapshot) -> _Plan:
        """Raises where the rows of the version cannot be, or may not be, the log of `current`."""
        target = self.target
        version = target.version
        current.check_role(Operation.RESTORE)
        if target.topic_id != current.topic_id:
            raise LogDirError(
                f"Version {version} belongs to another topic of the name {current.topic}",
                expected=f"topic id {current.topic_id}",
                found=target.topic_id,
            )
        rows = target.live
        _check_files(current, rows, version)
        returning = rows.filter(pc.invert(_as_they_are(current, rows)))
        transactions = transactions_since(self.manifest.log, target, current)
        erasures: list[Erasure] = []
        if returning.num_rows:
            erasures = _erasures_since(self.manifest, current, version, transactions.erased)
        if erasures and not self._including_erased:
            raise _erased(current.topic, version, erasures)
        return _Plan(rows, returning, _partitions_again(target, current), transactions, erasures)

    def change(self, current: Snapshot) -> Change:
        """The commit of the restore."""
        plan = self.plan(current)
        self.plans.append(plan)
        leaving = row_tables.without(current.live, plan.rows)
        transactions = plan.transactions
        return Change(
            Operation.RESTORE,
            add=self._fillers.after(plan.rows, current),
            replace=pa.concat_tables([plan.returning, row_tables.removed(leaving, self._job.storage.now_ms())]),
            partitions=plan.partitions,
            topic=None if current.deleted_ms is None else dataclasses.replace(current.topic_row, deleted_ms=None),
            transactions=[*transactions.again, *(transactions.forgotten if self._forget_transactions else ())],
        )


def _lines(bounds: Mapping[int, tuple[int, int]], target: Snapshot, before: Snapshot) -> Iterator[dict[str, Any]]:
    """A line for each partition: its offsets after the restore, what leaves the log, and what returns to it."""
    then = {row.partition: row.log_end_offset for row in target.partition_rows}
    now = {row.partition: row for row in before.partition_rows}
    for number, (start, end) in bounds.items():
        line: dict[str, Any] = {"partition": number, "action": Operation.RESTORE}
        line |= {"log_start_offset": start, "log_end_offset": end}
        row = now[number]
        end_then = then.get(number, 0)
        # At the version:   |start ············ end then|
        # Before:                   |log start ··········· log end|
        #                   |returns|                   |leaves   |
        leaving_from = max(end_then, row.log_start_offset)
        if leaving_from < row.log_end_offset:
            line["leaving"] = [leaving_from, row.log_end_offset]
        returning_to = min(row.log_start_offset, end_then)
        if start < returning_to:
            line["returning"] = [start, returning_to]
        yield line


def _erasures_since(manifest: Manifest, current: Snapshot, version: int, erased: Sequence[int]) -> list[Erasure]:
    """The erasures after a version: the erasures that the topic remembers, and the last of the commits that erased keys
    and left no such note.

    `erased`: the versions after `version` whose commits erased keys.
    """
    erasures = [erasure for erasure in Erasure.of(current) if erasure.version > version]
    if erased and (not erasures or erased[-1] > erasures[-1].version):
        erasures.append(Erasure("", erased[-1], manifest.committed_ms(erased[-1]), None))
    return erasures


def _erased(topic: str, version: int, erasures: Sequence[Erasure]) -> ErasedRecordsError:
    shown = ", ".join(map(str, erasures[-_SHOWN_ERASURES:]))
    return ErasedRecordsError(
        f"A restore of version {version} of {topic} brings records back that were erased since",
        expected=f"version {erasures[-1].version} or a later one",
        found=f"{len(erasures)} later erasures: {shown}" if len(erasures) > 1 else f"a later erasure: {shown}",
        hint="With --including-erased (including_erased=True) they come back: erase their keys again afterwards",
    )


class _Fillers:
    """Writes segments without records, for the offsets of the records that leave the log.

    So the log has no gap before its end, and a broker that it is exported to does not give these offsets out again.
    """

    def __init__(self, job: Job, topic: str) -> None:
        self._job = job
        self._topic = topic
        self._written: dict[tuple[int, bytes], Segment] = {}

    def after(self, rows: pa.Table, current: Snapshot) -> list[Segment]:
        """Segments that fill the log of each partition from the end of its last row in `rows` to the log end."""
        partition = rows.column("partition").to_numpy()
        following = rows.column("next_offset").to_numpy()
        last = np.flatnonzero(np.append(partition[1:] != partition[:-1], len(partition) > 0))
        ends = current.partitions.column("log_end_offset").to_numpy()
        return [
            self._fill(current, number, batch)
            for number, start in zip(partition[last].tolist(), following[last].tolist(), strict=True)
            for batch in empty_batches(start, int(ends[number]), NO_LEADER_EPOCH)
        ]

    def _fill(self, current: Snapshot, partition: int, batch: bytes) -> Segment:
        key = (partition, batch)
        if key not in self._written:  # an earlier try of the commit may have written it
            storage = self._job.storage
            limits = SegmentLimits.of(self._job.config(current))
            batches = scan_batches(batch).batches
            writer = SegmentWriter(storage, self._topic, partition, int(batches.base_offset[0]), limits=limits)
            writer.append(pa.py_buffer(batch), batches)
            self._written[key] = writer.close(topic_id=current.topic_id, created_ms=storage.now_ms())
        return self._written[key]


def _check_files(current: Snapshot, rows: pa.Table, version: int) -> None:
    existing = current.segments.filter(pc.not_equal(current.segments.column("state"), Segment.DELETING))
    gone = row_tables.without(rows, existing).column("path")
    if len(gone):
        raise LogDirError(
            f"Version {version} of {current.topic} cannot be restored: vacuum has deleted {len(gone)} of its files",
            path=gone[0].as_py(),
            hint="Restore a newer version; a larger file.delete.delay.ms keeps files longer",
        )


def _as_they_are(current: Snapshot, rows: pa.Table) -> pa.Array:
    """bool[rows]: which rows are in the log now, with the same offsets and state."""
    index = pc.index_in(row_tables.keys(rows), row_tables.keys(current.live))
    current_rows = current.live.take(index)
    same = functools.reduce(pc.and_, (pc.equal(current_rows.column(name), rows.column(name)) for name in _ROW))
    return pc.fill_null(same, False)


def _partitions_again(target: Snapshot, current: Snapshot) -> list[Partition]:
    """All partitions as they were at that version, with the present log ends and leader epochs."""
    before = {row.partition: row for row in target.partition_rows}
    filled = set(pc.unique(target.live.column("partition")).to_pylist())
    rows = []
    for now in current.partition_rows:
        then = before.get(now.partition)
        end = now.log_end_offset
        if then is None or now.partition not in filled:  # it held nothing, and its offsets are not given out again
            rows.append(dataclasses.replace(now, log_start_offset=end, first_dirty_offset=end, last_stable_offset=end))
            continue
        stable = then.last_stable_offset
        rows.append(
            dataclasses.replace(
                now,
                log_start_offset=then.log_start_offset,
                first_dirty_offset=then.first_dirty_offset,
                last_stable_offset=end if stable == then.log_end_offset else stable,
                producer_snapshot=then.producer_snapshot,
            )
        )
    return rows


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
        if operation == Operation.RESTORE:  # it made the manifest forget later versions, or remember them again
            self.versions = [earlier for earlier in self.versions if earlier <= version]
        if version > (FORGOTTEN if self.kept is None else self.kept.version) and version not in self.versions:
            self.versions.append(version)


@dataclass(frozen=True, slots=True)
class RestoredTransactions:
    """What a restore does to the transactions of writers.

    `undone`: the transactions whose records leave the log, by application id, and `undone_keys`, sorted. `again`: the
    last transactions to be remembered again, because records that were forgotten come back. `forgotten`: the last
    transactions that the manifest must remember so that the undone ones can be sent again. `erased`: the versions after
    the restored one whose commits erased keys.
    """

    undone: Sequence[UndoneTransactions] = ()
    undone_keys: Sequence[str] = ()
    again: Sequence[Transaction] = ()
    forgotten: Sequence[Transaction] = ()
    erased: Sequence[int] = ()


def transactions_since(log: TopicLog, target: Snapshot, current: Snapshot) -> RestoredTransactions:
    """What a restore of `target` on top of `current` does to transactions.

    Raises LogDirError where the topic was deleted and made again since, by an import with the same topic id.
    """
    versions = range(target.version + 1, current.version + 1)
    commits = log.storage.at_once(lambda version: log.transactions(current.topic_id, version), versions)
    versions_by_operation: dict[str | None, list[int]] = defaultdict(list)
    for version, (operation, _) in zip(versions, commits, strict=True):
        versions_by_operation[operation].append(version)
    creations = versions_by_operation[Operation.CREATE]
    if creations:
        raise LogDirError(
            f"Version {target.version} is of another topic of the name {current.topic}",
            path=log.location,
            expected=f"a version from {creations[-1]} on, when the topic was made again with the id of Kafka's",
            found=target.version,
        )
    state = log.state(target.version)
    applications = _restored_applications(_applications(state, commits))
    keys = _restored_keys(_keys(state), _keys(log.state(current.version)))
    return RestoredTransactions(
        undone=applications.undone,
        undone_keys=keys.undone_keys,
        again=[*applications.again, *keys.again],
        forgotten=[*applications.forgotten, *keys.forgotten],
        erased=versions_by_operation[Operation.ERASE],
    )


def _restored_applications(applications: Mapping[str, _Application]) -> RestoredTransactions:
    """What a restore does to the transactions of applications that count their own versions."""
    undone: list[UndoneTransactions] = []
    again: list[Transaction] = []
    forgotten: list[Transaction] = []
    for app_id, application in sorted(applications.items()):
        kept = application.kept
        if application.versions:
            kept_version = None if kept is None else kept.version
            undone.append(UndoneTransactions(app_id, tuple(application.versions), kept_version))
            # The last one that is in the log: with a later one, a repeat of what was undone would add nothing.
            forgotten.append(kept or Transaction(app_id, FORGOTTEN))
        # An earlier restore made the manifest forget it. Its records come back, so that a repeat must add nothing.
        if kept is not None and application.last_version < kept.version:
            again.append(kept)
    return RestoredTransactions(undone=undone, again=again, forgotten=forgotten)


def _restored_keys(
    target_keys: Mapping[str, Transaction], current_keys: Mapping[str, Transaction]
) -> RestoredTransactions:
    """What a restore does to idempotency keys: those at its version, and those before it. Rows alone tell of keys,
    which no commit takes back but a restore.
    """
    undone_keys = sorted(
        key for key, sent in current_keys.items() if sent.version != FORGOTTEN and target_keys.get(key) != sent
    )
    # A key that was sent at the version, and again since, goes back to what it was then.
    forgotten = [
        target_keys.get(key) or dataclasses.replace(current_keys[key], version=FORGOTTEN) for key in undone_keys
    ]
    again = [
        sent for key, sent in target_keys.items() if key not in current_keys or current_keys[key].version < sent.version
    ]
    return RestoredTransactions(undone_keys=undone_keys, again=again, forgotten=forgotten)


def _applications(
    state: TableState, commits: Iterable[tuple[str | None, Mapping[str, int]]]
) -> dict[str, _Application]:
    """{application id: what it sent by these commits}. `state`: of the manifest before them."""
    applications: dict[str, _Application] = {}
    for operation, transactions in commits:
        for app_id, version in transactions.items():
            if app_id not in applications:
                last = state.last_transaction(app_id)
                kept = None if last is None or last.version == FORGOTTEN else last
                applications[app_id] = _Application(kept, version)
            applications[app_id].follow(operation, version)
    return applications


def _keys(state: TableState) -> dict[str, Transaction]:
    """{idempotency key: its transaction}"""
    return {sent.key: sent for sent in state.last_transactions() if sent.key is not None}
