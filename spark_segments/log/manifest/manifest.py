"""A topic's manifest: the Delta table that says which files are its log, and the one way to change it.

Its rows are of three kinds (rows.py): the topic's own, one a partition, one a file of the log. The topic's id and
settings are a row, and not properties of the table, so that making or altering a topic is one commit like any other.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from spark_segments.errors import StorageError, TopicExistsError, UnknownTopicError
from spark_segments.log.manifest.change import Change, ChangeWriter
from spark_segments.log.manifest.commit import FAILURES, Commit, Plan, commit
from spark_segments.log.manifest.delta_log import MANIFEST_DIRECTORY, CommitNote, DeltaLog, commit_info, reason
from spark_segments.log.manifest.rows import PARTITION_SCHEMA, SEGMENT_SCHEMA, Partition, Segment, Topic, removed_rows
from spark_segments.log.manifest.snapshot import SegmentRows, Snapshot
from spark_segments.log.manifest.upkeep import ORPHAN_AGE_MS, Vacuumed, compact, vacuum
from spark_segments.storage import Storage

__all__ = ["MANIFEST_DIRECTORY", "Change", "Commit", "Manifest", "Snapshot"]

COMPACT_VERSIONS = 100
"""After how many versions the table's small files are merged."""

CHECKPOINT_VERSIONS = 20
"""After how many versions a checkpoint is written: opening the table reads every commit since the last one."""

_logger = logging.getLogger(__name__)


class Manifest:
    """The manifest of one topic, whether or not it exists yet. Holds no state: every call reads the table afresh."""

    def __init__(self, storage: Storage, topic: str) -> None:
        self.storage = storage
        self.topic = topic
        self.log = DeltaLog(storage, topic)

    def exists(self) -> bool:
        """Whether the topic is there: made, and not deleted since."""
        try:
            self.snapshot()
        except UnknownTopicError:
            return False
        return True

    def snapshot(self, version: int | None = None, *, deleted: bool = False) -> Snapshot:
        """The topic at a version of its manifest, by default the latest.

        Raises UnknownTopicError where there is no topic (`deleted` gives a deleted one, too), InvalidOptionError for a
        version that is not there (any more), LogDirError for a format that this package cannot read.
        """
        snapshot = self.log.state(version).snapshot
        if snapshot.deleted_ms is not None and not deleted:
            raise self.log.unknown("It was deleted")
        return snapshot

    def history(self) -> list[dict[str, Any]]:
        """The commits that the log still has, oldest first: version, committed_ms, operation, commit_id."""
        versions = self.log.versions()
        with ThreadPoolExecutor(8) as pool:
            infos = pool.map(lambda version: commit_info(self.log.actions(version)), versions)
            return [
                {
                    "version": version,
                    "committed_ms": info.get("timestamp"),
                    "operation": info.get("change", info.get("operation")),
                    "commit_id": info.get("commitId"),
                }
                for version, info in zip(versions, infos, strict=True)
            ]

    def create(
        self,
        topic_id: str,
        config: Mapping[str, str],
        partitions: Sequence[Partition],
        segments: Sequence[Segment] = (),
    ) -> None:
        """Makes the topic with these rows in one commit; of several creators at once one wins.

        Raises TopicExistsError where there is a topic. A deleted one of this name leaves its rows to vacuum.
        """
        change = Change("create", add=segments, partitions=partitions, topic=Topic(topic_id, config))
        note = CommitNote(uuid.uuid4().hex, 0, change.operation)
        failure: Exception | None = None
        for _ in range(FAILURES):
            if self._has_table():
                break
            failure = self._make_table(change, note)
            if failure is None:
                return
        if not self._has_table():
            why = f"Topic {self.topic} could not be made: {reason(failure)}"
            raise StorageError(why, path=self.log.location) from failure
        if failure is None or self.log.find(note.commit_id, [0]) is None:
            self.commit(self._made_again(change), deleted=True)

    def delete(self) -> Commit:
        """Takes the topic out of the log directory: its rows are removed ones from then on, for vacuum to delete."""

        def plan(snapshot: Snapshot) -> Change:
            now_ms = self.storage.now_ms()
            topic = Topic(snapshot.topic_id, snapshot.config, deleted_ms=now_ms)
            return Change("delete", replace=removed_rows(snapshot.live, now_ms), topic=topic)

        return self.commit(plan)

    def commit(self, plan: Plan, *, txn: tuple[str, int] | None = None, deleted: bool = False) -> Commit:
        """Commits what `plan` makes of the latest snapshot, as the version right after it.

        `plan` is called anew with a fresh snapshot whenever another commit came first; None from it means that nothing
        is to do, or that it does not hold any more. `txn` is (application id, version): a version that is not above
        the application's last one on this topic adds nothing. `deleted` shows the plan a deleted topic, too.

        Raises what `plan` raises; UnknownTopicError; CommitConflictError when every try lost its race; StorageError
        when the store failed: the commit may have happened then, and only a `txn` makes it safe to send again.
        """
        done = commit(self.log, plan, txn, deleted=deleted)
        if done.change is not None:
            self._keep_small(done.version)
        return done

    def compact(self) -> bool:
        """Merges small files of the table and writes a checkpoint. Returns whether files were merged."""
        return compact(self.log)

    def vacuum(
        self, retention_ms: int, now_ms: int, *, orphan_age_ms: int = ORPHAN_AGE_MS, dry_run: bool = False
    ) -> Vacuumed:
        """Sorts the table's rows into few files, and deletes what `manifest_upkeep.vacuum` says."""
        if not dry_run:
            self._best_effort(lambda: compact(self.log, all_files=True))
        return vacuum(self.log, retention_ms, now_ms, orphan_age_ms=orphan_age_ms, dry_run=dry_run)

    def _keep_small(self, version: int) -> None:
        if version % COMPACT_VERSIONS == 0:
            self._best_effort(self.compact)
        elif version % CHECKPOINT_VERSIONS == 0:
            self._best_effort(lambda: self.log.open().create_checkpoint())

    def _best_effort(self, work: Callable[[], object]) -> None:
        try:
            work()
        except Exception as error:  # nothing hangs on it: the commits before it stand, and it will be done another time
            _logger.info("The manifest of %s was not compacted: %s", self.topic, error)

    def _has_table(self) -> bool:
        try:
            self.log.open()
        except UnknownTopicError:
            return False
        return True

    def _make_table(self, change: Change, note: CommitNote) -> Exception | None:
        files = ChangeWriter(self.log.store).write(self._nothing(), [], change)
        try:
            self.log.create(files, note)
        except Exception as error:  # another creator came first, or the reply was lost: the log knows
            return error
        return None

    def _made_again(self, change: Change) -> Plan:
        def plan(snapshot: Snapshot) -> Change:
            if snapshot.deleted_ms is None:
                raise TopicExistsError(f"Topic {self.topic} is already there", path=self.storage.uri)
            return change

        return plan

    def _nothing(self) -> Snapshot:
        rows = SegmentRows(SEGMENT_SCHEMA.empty_table())
        return Snapshot(self.topic, -1, "", {}, 0, PARTITION_SCHEMA.empty_table(), rows)
