"""A topic's manifest: the Delta table that says which files are the topic's log, and the only way to change it.

The table has four kinds of rows (schemas.py): a row of the topic, a row for each partition, a row for each run of the
log in a file, a row for each writer's last transaction. The topic's id and settings are a row, not properties of the
table. So making or altering a topic is a commit like any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import weakref
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_segments.config import check_new_topic_name
from spark_segments.errors import (
    InvalidOptionError,
    LogDirError,
    SegmentsError,
    StorageError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.commit.change import ORPHAN_AGE_MS, Change
from spark_segments.log.manifest.commit.committing import Commit, Committing, Plan, Turn
from spark_segments.log.manifest.commit.swap import RowSwap, live_by_identity, not_as_read, swapped
from spark_segments.log.manifest.commit.upkeep import DroppedVersions, checkpoint, drop_old_versions, merge_files
from spark_segments.log.manifest.files.commit_notes import CommitTraces, notes_of
from spark_segments.log.manifest.files.delta.delta_log import TRUSTED_SECONDS, DeltaLog, OpenDeltaLog
from spark_segments.log.manifest.files.delta.delta_rs import TableVersion
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.recovery.loss import LostManifest
from spark_segments.log.manifest.rows import Partition, Segment
from spark_segments.log.manifest.state.removals import operations_out_of_log
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import CommitFacts, TableState, TopicLog, record_forced_deletion
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.manifest.transaction import AnyTransaction
from spark_segments.quantities import iso
from spark_segments.storage import Storage
from spark_segments.storage.delta import commit_info

MERGE_VERSIONS = 100
"""After how many versions the table's small files are merged."""

CHECKPOINT_VERSIONS = 20
"""After how many versions a checkpoint is written: opening the table reads every commit since the last checkpoint."""

_logger = logging.getLogger(__name__)


class Manifest:
    """The manifest of a topic, whether or not it exists yet.

    Every call looks at the log afresh, and reads what came since the version that this object saw last; the table is
    opened once. `state_for_commit` alone rests on what the last commit left.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        open_delta_log: OpenDeltaLog = DeltaLog,
        defaults: Mapping[str, str] | None = None,
    ) -> None:
        """`open_delta_log`: opens the Delta log that versions are read from and committed to. `defaults`: configuration
        values for what the topic does not set itself.
        """
        self.storage = storage
        self.topic = topic
        self.log = TopicLog(storage, topic, open_delta_log, defaults)
        self._seen: TableVersion | None = None  # the latest version, when this object looked last
        # A version that was seen and its snapshot, as long as somebody has it: rows of a large topic are not held here.
        self._seen_snapshot: tuple[TableVersion, weakref.ref[Snapshot]] | None = None
        self._committed: TableVersion | None = None  # by the last commit of this object
        self._copied = -1  # the version of the newest recovery copy, when this object looked last
        self._turn = Turn()

    def exists(self) -> bool:
        """Whether the topic is there: made, and not deleted since."""
        try:
            return self.log.is_there(seen=self._seen)
        except UnknownTopicError:
            return False

    def snapshot(self, version: int | None = None, *, deleted: bool = False) -> Snapshot:
        """The topic at a version of its manifest, by default the latest.

        Raises UnknownTopicError where there is no topic (`deleted` gives a deleted topic, too),
        InvalidOptionError for a version that is not there (any more), LogDirError for a format that this package cannot
        read.
        """
        return self.state(version, deleted=deleted).snapshot

    def state(self, version: int | None = None, *, deleted: bool = False, reopened: bool = False) -> TableState:
        """As `snapshot`, together with the opened table: a commit on top of it need not open the table again.

        `reopened`: the table is opened again. A job that deletes files must not rely on a version that this object has
        seen, and that can no longer be opened.
        """
        state = self._same_state() if version is None and not reopened else None
        if state is None:
            state = self.log.state(version, seen=None if reopened else self._seen)
        if version is None:
            self._seen = state.table
            self._seen_snapshot = state.table, weakref.ref(state.snapshot)
        if state.snapshot.deleted_ms is not None and not deleted:
            raise self.log.unknown("It was deleted")
        return state

    def _same_state(self) -> TableState | None:
        """The latest state, of the snapshot that was seen last if it is still that one; None where nobody has it.

        The table is compared, and not its number: a topic that this object made in another's place begins at 0 again.
        """
        if self._seen is None or self._seen_snapshot is None:
            return None
        table, held = self._seen_snapshot
        snapshot = held()
        if snapshot is None or table is not self._seen:
            return None
        return self.log.state_after(TableState(table, snapshot, self.log.store, self.log.delta))

    def state_for_commit(self, *, is_latest: bool = False) -> TableState:
        """As `state`, for a commit on top of it: where the last commit was made here, the table is not opened again.

        On an object store the state may be some seconds old, unless `is_latest`: a look would cost as much as the
        commit, which is a compare-and-swap all the same. Whatever else rests on the state asks `newer_state` before
        it is said. A writer that goes on so for long waits a little now and then; see `Turn`.
        """
        if self._committed is None:
            return self.state()
        self._turn.go_on()
        if is_latest or self.storage.is_local or self._committed.latest_at.seconds_ago > TRUSTED_SECONDS:
            return self.state()
        try:
            state = dataclasses.replace(self.log.state_of(self._committed), is_trusted=True)
        except (InvalidOptionError, StorageError):  # a file of rows was merged since
            return self.state()
        return state if state.snapshot.deleted_ms is None else self.state()

    def newer_state(self, state: TableState) -> TableState | None:
        """The latest state, where `state` was trusted and is not the latest."""
        latest = self.log.state_after(state) if state.is_trusted else state
        return None if latest.table.files is state.table.files else latest

    def history(self) -> list[dict[str, Any]]:
        """The commits that the log still has, oldest first: version, committed_ms, operation, commit_id."""
        versions = self.log.versions()
        infos = self.storage.at_once(lambda version: commit_info(self.log.delta.actions(version)), versions)
        return [
            {
                "version": version,
                "committed_ms": info.get("timestamp"),
                "operation": info.get("change", info.get("operation")),
                "commit_id": info.get("commitId"),
            }
            for version, info in zip(versions, infos, strict=True)
        ]

    def version_at(self, timestamp_ms: int) -> int:
        """The last version that was committed at or before a time, by the clocks of the machines that committed.

        Raises UnknownTopicError where there is no topic, InvalidOptionError for a time before the first version that
        is still there.
        """
        versions = self.log.versions()
        if not versions:
            raise self.log.unknown()

        after = bisect_right(versions, timestamp_ms, key=self.committed_ms)
        if after == 0:
            raise InvalidOptionError(
                f"Topic {self.topic} has no version of that time (any more)",
                path=self.log.location,
                expected=f"a time from {iso(self.committed_ms(versions[0]))} on",
                found=iso(timestamp_ms) or timestamp_ms,
            )
        return versions[after - 1]

    def committed_ms(self, version: int) -> int:
        """When a version was committed, by the clock of the machine that did, in ms."""
        return int(commit_info(self.log.delta.actions(version)).get("timestamp", 0))

    def facts(self, version: int) -> CommitFacts | None:
        """The commit that made a version, None where Delta's log does not have it (any more)."""
        return self.log.facts(version)

    def changed_rows(self, version: int, topic_id: str | None = None) -> tuple[pa.Table, pa.Table] | None:
        """(the segment rows that a commit took out, the segment rows that it brought), of all topic ids or of one; None
        where nobody knows.
        """
        return self.log.changed_rows(version, topic_id)

    def operations_out_of_log(self, since_version: int) -> dict[str, str | None]:
        """{path without its suffix: the operation that took it out of the log}, of the commits after a version; None
        where a commit does not say it.
        """
        return operations_out_of_log(self.log, since_version)

    def keys_from_ms(self, config: Mapping[str, str]) -> int:
        """The time, by the store's clock, from which on a topic of this configuration remembers idempotency keys."""
        return self.log.keys_from_ms(config)

    def create(self, topic: TopicRow, partitions: Sequence[Partition], segments: Sequence[Segment] = ()) -> None:
        """Makes the topic with these rows in a single commit. Of several creators at once, no two succeed.

        Raises InvalidTopicError for a reserved name; TopicExistsError where there is a topic, or files of a topic that
        was deleted by force, or a topic whose name differs in case alone on a disk that ignores case; LogDirError where
        the manifest of a topic is lost; UnknownOutcomeError where the store failed and the topic may have been made. A
        deleted topic of this name leaves its rows to vacuum.
        """
        self.create_by(Change(Operation.CREATE, add=segments, partitions=partitions, topic=topic))

    def create_by(self, change: Change) -> None:
        """As `create`, by a change with a whole topic row."""
        check_new_topic_name(self.topic, ())
        traces = CommitTraces(are_any=False, are_listed=False)

        def plan(snapshot: Snapshot) -> Change:
            if snapshot.version >= 0 and snapshot.deleted_ms is None:
                raise TopicExistsError(f"Topic {self.topic} is already there", path=self.storage.uri)
            nonlocal traces
            if snapshot.version < 0:
                traces = CommitTraces.of(self.storage, self.topic)
            # Vacuum would take the files of a topic that the new one knows nothing of.
            if traces.are_listed:
                raise LostManifest.of(self.log).error(self.log)
            return change

        committing = Committing(self.log, plan, deleted=True, missing=True)
        try:
            state, planned = committing.first_plan(committing.first_state())
            done = committing.run(state, planned)
            # A store takes one commit of a number. So the commits that were made before had no manifest any more.
            if done.version == 0 and traces.are_any:
                raise LostManifest.of(self.log).error(self.log)
            self._done(committing, done)
        except (LogDirError, StorageError, UnknownTopicError) as error:
            if self.log.deleted_by_force_ms() is None:
                raise
            raise TopicExistsError(
                f"Files of a topic {self.topic} that was deleted by force are still there",
                path=self.storage.uri,
                hint="Vacuum takes them once file.delete.delay.ms has passed; choose another name until then",
            ) from error

    def delete(self) -> Commit:
        """Takes the topic out of the log directory: its rows become removed rows, whose files vacuum deletes."""

        def plan(snapshot: Snapshot) -> Change:
            now_ms = self.storage.now_ms()
            topic = dataclasses.replace(snapshot.topic_row, deleted_ms=now_ms)
            return Change(Operation.DELETE, replace=row_tables.removed(snapshot.live, now_ms), topic=topic)

        return self.commit(plan)

    def delete_by_force(self) -> None:
        """As `delete`, also where the manifest cannot be read.

        Then a note beside the manifest records the deletion, and vacuum deletes all files of the topic once the log
        directory's file.delete.delay.ms has passed.
        """
        if not self.storage.list(self.log.directory, recursive=True):
            raise self.log.unknown()
        if self._is_readable():
            self.delete()
            return
        now_ms = self.storage.now_ms()
        # Where only the rows of segments are damaged, a commit can still say that the topic is gone.
        with contextlib.suppress(SegmentsError):
            self.commit(
                lambda at: Change(Operation.DELETE, topic=dataclasses.replace(at.topic_row, deleted_ms=now_ms)),
                state=self.state(deleted=True, reopened=True),
            )
        record_forced_deletion(self.storage, self.log.directory, now_ms)

    def _is_readable(self) -> bool:
        """Whether the rows can be read. Raises UnknownTopicError where there are none."""
        try:
            self.state(deleted=True, reopened=True).snapshot.source.read(None)
        except UnknownTopicError:
            raise
        except SegmentsError:
            return False
        return True

    def commit(
        self,
        plan: Plan,
        *,
        txn: AnyTransaction | None = None,
        deleted: bool = False,
        state: TableState | None = None,
    ) -> Commit:
        """Commits the change that `plan` makes of the latest snapshot, as the version right after that snapshot.

        `plan` is called again with a fresh snapshot whenever another commit came first. It returns None where nothing
        is to do, or where the plan no longer holds. A repeated `txn` adds nothing (transaction.py has the rule).
        `deleted`: the plan may see a deleted topic. `state`: the state that the first try builds upon, where the caller
        has read it already. A stale state costs that try.

        Raises InvalidOptionError for a version of `txn` that is out of range; TransactionOrderError for a `txn` that is
        neither new nor a repeat; UnknownTopicError; the errors of `plan`; CommitConflictError when every try lost its
        race; StorageError when the store failed. After each of these, nothing was committed. UnknownOutcomeError: the
        store failed, and the commit may have happened or may happen yet. Only with a `txn` is it safe to send again.
        """
        committing = Committing(self.log, plan, txn, deleted=deleted)
        begun, planned = committing.first_plan(state or self.state(deleted=True))
        return self._done(committing, committing.run(begun, planned))

    def _done(self, committing: Committing, done: Commit) -> Commit:
        if committing.newest_copy is not None:
            self._copied = committing.newest_copy
        if done.change is not None:
            self._committed = done.table
            self._seen = done.table or self._seen
            if committing.lacks_notes or _is_due(done.version, self._copied):
                self._keep_up(done.version, is_needed=committing.lacks_notes)
        return done

    def _keep_up(self, version: int, *, is_needed: bool) -> None:
        """Writes a checkpoint and a recovery copy, or merges small files, which does both, unless another process has
        done so meanwhile. `is_needed`: whatever there is.
        """
        copied = self._last_kept()
        self._copied = version
        if _is_merge_due(version, copied):
            self._best_effort(self.merge_files)
            self._committed = None
        elif is_needed or _is_due(version, copied):
            self.keep_for_rebuild()

    def _last_kept(self) -> int:
        """The version of the newest checkpoint or of the newest recovery copy, whichever is older; -1 where there is
        none. A topic that was deleted, and of which nothing is left, has no copy.
        """
        try:
            checkpoint = max(self.log.delta.log_files().checkpoints, default=-1)
            copied = notes_of(self.storage, self.topic).newest_copy
            is_gone = copied < checkpoint and self.state(deleted=True).is_gone
        except SegmentsError:
            return -1
        return checkpoint if is_gone else min(checkpoint, copied)

    def swap_rows(
        self,
        operation: str,
        swaps: Sequence[RowSwap],
        *,
        topic_id: str,
        thins: bool = False,
        holds: Callable[[RowSwap, Sequence[Segment]], bool] | None = None,
        topic: Callable[[Snapshot], TopicRow | None] = lambda _: None,
    ) -> list[RowSwap]:
        """Makes the `swaps` whose old rows are in the log unchanged since they were read, in a single commit, and
        returns these swaps: none where the topic of `topic_id` no longer exists. `thins`: whether new rows may lack
        records that the old rows have, as after an erasure.

        Each try asks `holds`, where a swap needs more than that: (swap, the live rows of its
        partition); and `topic` for the topic's row, None where it stays. Raises as `commit` does.
        """
        done: list[RowSwap] = []

        def plan(current: Snapshot) -> Change | None:
            done.clear()
            if current.topic_id != topic_id:
                return None
            live = live_by_identity(current, {swap.partition for swap in swaps})
            for swap in swaps:
                rows = live[swap.partition]
                if not not_as_read(rows, swap.old) and (holds is None or holds(swap, [*rows.values()])):
                    done.append(swap)
            # Readers count their delay from this commit, however long the new files took.
            change = swapped(operation, done, self.storage.now_ms(), thins=thins)
            return None if change is None else dataclasses.replace(change, topic=topic(current))

        self.commit(plan)
        return done

    def keep_for_rebuild(self) -> None:
        """Writes a checkpoint and a recovery copy, if the store lets it: a rebuild goes back to no earlier state."""
        self._best_effort(lambda: checkpoint(self.log, self.state(deleted=True)))

    def merge_files(self) -> bool:
        """Merges small files of the table and writes a checkpoint. Returns whether files were merged."""
        return merge_files(self.log, self.state(deleted=True))

    def drop_old_versions(
        self, retention_ms: int, now_ms: int, *, orphan_age_ms: int = ORPHAN_AGE_MS, dry_run: bool = False
    ) -> DroppedVersions:
        """Sorts the table's rows into few files, then runs `upkeep.drop_old_versions`."""
        if not dry_run:
            self._best_effort(lambda: merge_files(self.log, self.state(deleted=True), all_files=True))
        take = None if dry_run else self.take_next_version
        return drop_old_versions(self.log, self._seen, retention_ms, now_ms, orphan_age_ms=orphan_age_ms, take=take)

    def take_next_version(self) -> int:
        """Commits no change, and returns the version. A commit of this version that another process has planned, and
        not sent because it stands still, cannot happen any more: it is planned again, and its files are checked.
        """
        return self.commit(lambda _: Change(Operation.VACUUM), deleted=True).version

    def _best_effort(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # the commits stand without this work, and a later commit tries it again
            _logger.info("The small files of the manifest of %s were not merged: %s", self.topic, error)


def _is_due(version: int, copied: int) -> bool:
    """Whether a commit of this version, which finds the last recovery copy at `copied`, has to keep the table up. So no
    writer waits for another one's turn.
    """
    return version - max(copied, 0) >= CHECKPOINT_VERSIONS or _is_merge_due(version, copied)


def _is_merge_due(version: int, copied: int) -> bool:
    return version // MERGE_VERSIONS > max(copied, 0) // MERGE_VERSIONS
