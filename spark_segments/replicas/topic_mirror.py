"""The mirror of a topic: version by version, each a copy of files and then one commit at the follower.

A follower that is many versions behind, or whose leader no longer has the versions in between, jumps to the newest
version as one difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from spark_segments.config import topic_config
from spark_segments.errors import InvalidOptionError, LogDirError, StorageError
from spark_segments.execution import run_tasks
from spark_segments.log import (
    Erasure,
    LeaderEpochs,
    LogDirectory,
    Manifest,
    Partition,
    Segment,
    Snapshot,
    TopicRow,
)
from spark_segments.progress import Progress
from spark_segments.replicas.copies import CopiedSet, Copier, copy_tasks, file_sets, partitions_with_producers
from spark_segments.replicas.divergence import Copy, diverged, foreign_tails, has_new_role, tails_of_follower
from spark_segments.replicas.follower import FollowerVersion, deletes_files
from spark_segments.replicas.leader import BEGAN_ANEW, Leader, LeaderVersion, Lineage
from spark_segments.replicas.role import role_of
from spark_segments.signed_lists.file_checksum import FileChecksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


MOST_STEPS = 500
"""A follower that is more versions behind jumps: the versions in between would take longer than the newest."""

TOPICS_AT_A_TIME = 8
"""With small topics a mirror, and a promotion, is mostly waiting for the stores."""

_TRIES = 10


@dataclass(slots=True)
class TopicMirror:
    """Brings a follower in step with its leader. `counts`: commits, jumps, files, records, bytes_read, bytes."""

    source: LogDirectory
    target: LogDirectory
    topic: str
    spark: SparkSession | None = None
    progress: Progress | None = None
    counts: Counter[str] = field(default_factory=Counter)
    copied: dict[str, CopiedSet] = field(default_factory=dict)  # by the leader's path, until their commit
    files: list[FileChecksum] = field(default_factory=list)  # all that were copied, or found to be copied
    reached: tuple[int, int] | None = None  # (the leader's version, the version here) that were found equal last
    not_told: StorageError | None = None  # why the leader does not know of this follower
    is_deleting: bool = False  # whether a commit brought an erasure whose files must not wait for a reader
    lineage: tuple[int, Lineage] | None = None  # (the version here, its place at the leader) that was checked last

    def run(self) -> LeaderVersion:
        """Mirrors up to the version that is the leader's newest at the start, and returns that version.

        Raises UnknownTopicError where the leader has no such table, LogDirError where the topic here is no follower of
        it, FileNotFoundError where the leader's vacuum is quicker again and again.
        """
        leader = Leader(self.source.manifest(self.topic), self.source.uri)
        for attempt in range(_TRIES):
            latest: LeaderVersion | None = None
            try:
                # The follower first: another mirror may bring it to a version that the leader did not have before.
                follower = FollowerVersion.of(self._manifest)
                latest = leader.latest()
                self._reach(leader, follower, latest, jump=attempt > 0)
                self._forget_erased(follower.snapshot)
            except (FileNotFoundError, InvalidOptionError):
                # Vacuum has taken files of a version that was under way. Those of the newest version it leaves alone: a
                # further try jumps there. Where the newest itself lacks files, no try helps.
                is_newest = attempt > 0 and latest is not None and leader.newest() == latest.snapshot.version
                if is_newest or attempt == _TRIES - 1:
                    raise
            else:
                return latest
        raise AssertionError("the last try returns or raises")

    def _reach(self, leader: Leader, follower: FollowerVersion, latest: LeaderVersion, *, jump: bool) -> None:
        self.lineage = None
        lineage = self._checked_lineage(leader, follower, latest.snapshot)
        version = None if jump or lineage is None else lineage.version
        for step, is_jump in self._steps(leader, latest, version):
            while not self._step(leader, step, is_jump=is_jump, is_last=step is latest):
                pass

    def _checked_lineage(
        self, leader: Leader, follower: FollowerVersion, latest: Snapshot | None = None
    ) -> Lineage | None:
        """The place of the follower at the leader, None for no follower. Raises as `Leader.check_lineage` does."""
        here = follower.snapshot
        if here is None or not follower.is_follower:
            return None
        if self.lineage is None or self.lineage[0] != here.version:  # it may follow another leader by now
            if latest is None:
                latest = leader.manifest.snapshot(deleted=True)
            self.lineage = (here.version, leader.check_lineage(here, latest))
        return self.lineage[1]

    def _steps(
        self, leader: Leader, latest: LeaderVersion, version: int | None
    ) -> Iterator[tuple[LeaderVersion, bool]]:
        """The versions after `version` up to `latest`, `latest` alone where these are too many, or not there; and
        whether each is a jump.
        """
        newest = latest.snapshot.version
        if version is not None and version != BEGAN_ANEW and newest - version <= MOST_STEPS:
            for number in range(version + 1, newest):
                try:
                    step = leader.at(number)
                except InvalidOptionError:
                    break  # the leader no longer has it: the newest version has all its rows that are left
                if step is not None:
                    yield step, False
                elif self.reached is not None and self.reached[0] == number - 1:
                    # A version that changed nothing of the log: the follower equals it, too.
                    self.reached = (number, self.reached[1])
            else:
                yield latest, False
                return
        self.counts["jumps"] += 1
        yield latest, True

    def _step(self, leader: Leader, version: LeaderVersion, *, is_jump: bool, is_last: bool) -> bool:
        """Makes the follower the leader's version. False where another commit came first: it is planned again then."""
        follower = FollowerVersion.of(self._manifest)
        lineage = self._checked_lineage(leader, follower)
        if _has(follower, version, lineage):
            self.copied.clear()  # another mirror was quicker, and its files may be on their way out again
            return True
        self._check_follower(follower, version.snapshot, lineage, is_jump=is_jump)
        if is_jump:
            version = replace(version, returned=_returned(leader, follower, version.snapshot, lineage))
        among = self._changed_partitions(leader, follower, version.snapshot)
        self._copy(version, follower, among)
        paths = {path: done.path for path, done in self.copied.items()}
        change, is_more = follower.plan(version, paths, self.target.storage.now_ms(), among)
        # A commit would say only which version the follower equals. Of many such versions the last one is committed.
        if not is_more and not is_last:
            self.reached = (
                version.snapshot.version,
                -1 if follower.snapshot is None else follower.snapshot.version,
            )
            return True
        follower_version = follower.commit(self._manifest, change)
        if follower_version is None:
            return False
        self.reached = (version.snapshot.version, follower_version)
        self.lineage = (follower_version, Lineage(version.snapshot.version, is_certain=True))
        self.is_deleting |= deletes_files(change)
        self._tell_leader()
        self.counts["commits"] += 1
        self.counts["records"] += sum(row.records for row in Segment.of_table(change.add))
        self.copied.clear()
        return True

    def _forget_erased(self, before: Snapshot | None) -> None:
        """Takes what the leader has erased out of the indexes of keys here. Asked in each run, also of one that has
        nothing else to do: the run before it may have been killed here. `before`: the follower when the run began.
        """
        here = self._manifest.snapshot(deleted=True) if self.counts["commits"] else before
        erasures = [] if here is None else Erasure.of(here)
        if erasures:
            at_once = any(erasure.history for erasure in erasures)
            self.target.key_offsets.forget_erased(self.topic, at_once=at_once, version=erasures[-1].version)

    def _tell_leader(self) -> None:
        """Leaves a note at the leader by the first commit of a run, if the store lets it: it may be read-only here."""
        if not self.counts["commits"]:
            try:
                self.source.note_follower(self.topic, self.target.uri)
            except StorageError as error:
                self.not_told = error

    def _changed_partitions(self, leader: Leader, follower: FollowerVersion, snapshot: Snapshot) -> set[int] | None:
        """The partitions whose segments can differ, None for all. They are the partitions of a single commit, if this
        run has found the follower equal to the leader right before it, and no program has changed the follower since.
        """
        if follower.snapshot is None or self.reached != (snapshot.version - 1, follower.snapshot.version):
            return None
        return leader.changed_partitions(snapshot.version)

    @property
    def _manifest(self) -> Manifest:
        return self.target.manifest(self.topic)

    def _check_follower(
        self, follower: FollowerVersion, leader: Snapshot, lineage: Lineage | None, *, is_jump: bool
    ) -> None:
        """Raises LogDirError for a topic that follows no other, and DivergedLogError, with the first differing offset,
        where it has records that the leader does not have.
        """
        here = follower.snapshot
        if here is None or not follower.is_there:
            return
        is_same_topic = here.topic_id == leader.topic_id
        if follower.is_follower and not is_same_topic:
            return
        if is_same_topic:
            if not follower.is_follower:
                # The version to mirror may be of before the promotion.
                newest = self.source.manifest(self.topic).snapshot(deleted=True)
                if self._is_former(newest, here):
                    raise self._promoted_over(here)
            self._check_tails(here, leader, lineage, is_jump=is_jump)
            if follower.is_follower:
                return
        raise LogDirError(
            f"Topic {self.topic} is there already, and follows no other",
            path=self.target.uri,
            expected=f"no topic of this name, or a follower of {self.source.uri}",
            found=role_of(here).name,
            hint="Mirror into an empty log directory",
        )

    def _check_tails(self, here: Snapshot, leader: Snapshot, lineage: Lineage | None, *, is_jump: bool) -> None:
        """Raises DivergedLogError where the follower has records that the leader does not have."""
        own = Copy(here, self.target.storage)
        theirs = Copy(leader, self.source.storage)
        if lineage is None:
            tails = foreign_tails(own, theirs, self.spark)
        else:
            # A follower of a certain lineage is a past state of the leader, but after a jump over a change of roles:
            # another topic may have led in between, and replaced records that the follower has.
            is_past = lineage.is_certain and not (is_jump and has_new_role(here, leader))
            tails = tails_of_follower(own, theirs, self.spark, is_past=is_past)
        if tails:
            raise diverged(self.topic, tails, self.target.uri, self.source.uri)

    def _is_former(self, leader: Snapshot, here: Snapshot) -> bool:
        """Whether the topic here was promoted over the leader, which is fenced since, or follows it by now."""
        role = role_of(leader)
        if role.source is not None:
            return role.source.uri == self.target.uri
        return role.is_fenced and role.fence_token == role_of(here).fence_token

    def _promoted_over(self, here: Snapshot) -> LogDirError:
        """The error for a topic here that was promoted over the leader. It is known without reading a file."""
        first = Partition.of_table(here.partitions.slice(0, 1))[0]
        epoch, offset = LeaderEpochs.of(first).entries[-1]
        return LogDirError(
            f"Topic {self.topic} was promoted over the topic in {self.source.uri}, and leads in epoch {epoch} from "
            f"offset {offset} of {self.topic}-{first.partition} on: there is nothing to mirror",
            path=self.target.uri,
            hint=f"End this mirror. To have a copy of {self.target.uri} again, mirror it into an empty log directory",
        )

    def _copy(self, leader: LeaderVersion, follower: FollowerVersion, among: set[int] | None) -> None:
        """Copies what the follower lacks of a version and no try before has copied."""
        missing, used = follower.missing(leader, among)
        imported = partitions_with_producers(leader.snapshot)
        sets = [
            files for files in file_sets(Segment.of_table(missing), used, imported) if files.path not in self.copied
        ]
        tasks = copy_tasks(sets, on_spark=self.spark is not None)
        forced = topic_config(leader.snapshot.config, self.target.defaults).forced
        copier = Copier(self.source.storage, self.target.storage, forced)
        for several in run_tasks(copier, tasks, self.spark, progress=self.progress):
            for done in several:
                self.copied[done.source_path] = done
                self.files += done.files
                self.counts["files"] += len(done.files)
                self.counts["bytes_read"] += done.bytes_read
                self.counts["bytes"] += sum(file.size for file in done.files)


def _returned(leader: Leader, follower: FollowerVersion, latest: Snapshot, lineage: Lineage | None) -> frozenset[str]:
    """The paths that a jump to `latest` may bring back to a follower whose vacuum has taken them."""
    here = follower.snapshot
    if here is None or lineage is None:
        return frozenset()
    if here.topic_id != latest.topic_id and TopicRow.REBUILT_FROM not in latest.states:
        return frozenset()  # a topic made again has other files
    if not any(end for _, end in here.offset_bounds().values()):
        return frozenset()  # it never had a file
    return leader.returned_since(lineage.version, latest)


def _has(follower: FollowerVersion, version: LeaderVersion, lineage: Lineage | None) -> bool:
    """Whether the follower is the leader's version, or a later one. A topic that was deleted needs no follower."""
    if follower.snapshot is None:
        return version.snapshot.deleted_ms is not None
    if lineage is None:
        return False
    if follower.snapshot.topic_id == version.snapshot.topic_id:
        return lineage.version >= version.snapshot.version
    # Another mirror may have brought the topic that was made after this one. Where nobody knows that, the same
    # version may be in another table.
    return lineage.version > version.snapshot.version
