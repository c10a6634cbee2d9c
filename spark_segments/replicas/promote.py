"""Promotion: a follower becomes the leader of its topic, and the leader before it takes no commit any more.

In order: a token in the follower's manifest says that the promotion has begun; a fence in the former leader's manifest,
which every later commit there meets; the copy of all that was committed before the fence; the commit that opens the
topic with a new leader epoch. Each step can be repeated, so a promotion that was killed anywhere goes on where it was.

A fence is a commit like an append: of the two, either the append comes first and is copied, or its next try meets the
fence. So a promotion loses nothing. A forced promotion can, where the former leader is out of reach. A former leader
stays fenced until it is mirrored from the new one.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from spark_segments.config import selected_topics
from spark_segments.errors import (
    CorruptBatchError,
    DivergedLogError,
    InvalidOptionError,
    LogDirError,
    NotLeaderError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.execution import run_tasks
from spark_segments.extensions import observed_job
from spark_segments.log import Change, LogDirectory, Operation, Report, Snapshot
from spark_segments.progress import Progress
from spark_segments.replicas.divergence import Copy, Tail, diverged, foreign_tails, has_new_role, tails_of_follower
from spark_segments.replicas.groups import copy_positions
from spark_segments.replicas.leader import Leader
from spark_segments.replicas.role import Role, role_of
from spark_segments.replicas.role_changes import (
    check_former,
    is_fenced_for_another,
    leader_epochs,
    least_epochs,
    partitions_in_new_epochs,
    with_role,
)
from spark_segments.replicas.topic_mirror import TOPICS_AT_A_TIME, TopicMirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FENCE = "fence"
STEPS = ("begin", FENCE, "copy", "open")

_OUT_OF_REACH = (StorageError, LogDirError, UnknownTopicError, UnknownOutcomeError, CorruptBatchError, OSError)

_OUT_OF_REACH_HINT = (
    "Promote it again once the former leader can be reached. --force promotes without it: what it committed after the "
    "last mirror is left behind"
)
_NOT_FENCED = (
    "The topic leads here since a forced promotion, and its former leader is not fenced. Run this again once it can be "
    "reached. If it is gone for good, no writer can append there, and there is nothing to do: name the topics that are "
    "to be promoted"
)

T = TypeVar("T")


@observed_job("promote")
def promote(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    former: LogDirectory | str | None = None,
    storage_options: Mapping[str, str] | None = None,
    force: bool = False,
) -> Report:
    """Makes followers in `log` the leaders of their topics, and fences the leaders before them.

    `topics`: names or patterns; without any, all followers, and all leaders whose former leader was never fenced, and
    may lead to this day. `former`: the log directory of the former leader, by default the one that is mirrored. `force`
    promotes without what only the former leader has, where that is needed.

    A topic's line in the report has what a `Promotion` says. A topic that fails has its error there, and the others go
    on. Raises InvalidOptionError where no topic is to be promoted.
    """
    report = Report("promote", dry_run)

    def run(topic: str) -> Promotion | Exception | None:
        promotion = Promotion(log, topic, former, storage_options or {}, force, dry_run, spark)
        try:
            if topics is None and not promotion.is_due():
                return None
            return promotion.run()
        except (SegmentsError, OSError) as error:
            return error

    names = selected_topics(log.topics(), topics)
    if topics is None:
        names = [name for name in names if _has_former_leader(role_of(log.snapshot(name)))]
    results = run_tasks(run, names, progress=progress, at_a_time=TOPICS_AT_A_TIME)
    if all(result is None for result in results):
        raise InvalidOptionError("No topic here is a follower", expected="the names of topics", found="none")
    for topic, result in zip(names, results, strict=True):
        if result is None:
            continue
        if isinstance(result, Exception):
            report.add(topic, None, Report.FAILED, error=str(result))
            continue
        action = "promoted" if len(result.steps) > 1 else "fenced" if result.steps else Role.LEADER
        report.add(topic, None, action, **result.to_dict())
        for warning in result.warnings:
            report.warn(f"{topic}: {warning}")
    return report.finish()


def _has_former_leader(role: Role) -> bool:
    """Whether a topic follows a leader, or was promoted over one."""
    return role.is_follower or role.former_uri is not None


@dataclass(slots=True)
class Promotion:
    """Makes a follower the leader, with a new leader epoch, and fences the leader before it. `run` does it.

    After an error, or a kill, run another one: it goes on where this was. Appends to the former leader fail from the
    fence on; appends here succeed from the last step on.

    `former`: the log directory of the former leader, by default the one that the topic's states name;
    `storage_options` are for it. `force` promotes the topic though the former leader is out of reach, is fenced for
    another promotion, or has records that the topic lacks: these stay where they are. Without a fence the former leader
    may go on to take appends: promote the topic once more as soon as it can be reached, which fences it.

    Then it says what was done, or in a dry run would be. `former_uri`: the log directory of the former leader. `steps`:
    the STEPS that were done, now or before. `is_fenced`: whether the former leader takes no commit any more; False
    where it was out of reach. `leader_epochs`: {partition: (leader epoch, its first offset)}. `left_behind`:
    records of the former leader that the new leader does not have, as far as it could be asked. `source_version`,
    `source_committed_ms`: the newest commit of the former leader that a follower had when the promotion began.
    `warnings`: why the former leader was out of reach.
    """

    log: LogDirectory
    topic: str
    former: LogDirectory | str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    force: bool = False
    dry_run: bool = False
    spark: SparkSession | None = None
    former_uri: str = ""
    steps: tuple[str, ...] = ()
    is_fenced: bool = False
    leader_epochs: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    left_behind: Sequence[Tail] = ()
    source_version: int | None = None
    source_committed_ms: int | None = None
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """What was done as plain values, ready for JSON: all but what the report has, too."""
        epochs = [
            {"partition": number, "leader_epoch": epoch, "start_offset": start}
            for number, (epoch, start) in self.leader_epochs.items()
        ]
        names = ("former_uri", "steps", "is_fenced", "source_version", "source_committed_ms")
        tails = [dataclasses.asdict(tail) for tail in self.left_behind]
        return {name: getattr(self, name) for name in names} | {"leader_epochs": epochs, "left_behind": tails}

    def is_due(self) -> bool:
        """Whether a run without names is for this topic: a follower, or a leader whose former leader leads, too. One
        that is out of reach may lead, and `run` says that it cannot be fenced.
        """
        here = self.log.snapshot(self.topic)
        if not role_of(here).is_leader:
            return role_of(here).is_follower
        try:
            theirs = self._look(here)
        except UnknownTopicError:
            return False  # it is deleted there, and takes no appends
        except _OUT_OF_REACH:
            return True
        # A topic that was made again under the name is another topic, and may lead
        return theirs.deleted_ms is None and theirs.topic_id == here.topic_id and role_of(theirs).is_leader

    def run(self) -> Promotion:
        """Promotes the topic.

        Raises NotLeaderError where the topic is a leader that was not promoted over `former`, or is fenced, or where
        `former` is no leader; DivergedLogError where that lacks records that the follower has, or where the two are not
        copies of one topic; LogDirError where the follower is no past state of `former`; where that is out of reach,
        the error of its storage.
        """
        self.log.check_writable()
        here, theirs = self._newest()
        role = role_of(here)
        if theirs is not None:
            check_former(here, theirs, role.token, force=self.force)
        if role.is_leader:
            return self._promoted_before(here, theirs)
        is_copied = theirs is not None and theirs.deleted_ms is None and self._can_be_copied(here, theirs)
        if not self.dry_run:
            return self._promote(here, theirs, is_copied=is_copied)
        tails = [] if is_copied else self._left_behind(theirs)
        after = theirs if is_copied and theirs is not None else here
        rows = partitions_in_new_epochs(after, least_epochs(here, theirs, role.promotion_token))
        return self._done(here, theirs, STEPS, {row.partition: row.leader_epochs[-1] for row in rows}, tails)

    def _newest(self) -> tuple[Snapshot, Snapshot | None]:
        """The newest snapshots of the topic here and of the former leader's, None where that is out of reach."""
        here = self._unfenced()
        # The follower first: a mirror may bring it to a version that the leader did not have before.
        theirs = self._within_reach(lambda: self._look(here), _NOT_FENCED if role_of(here).is_leader else None)
        if theirs is None or not is_fenced_for_another(theirs, role_of(here).token):
            return here, theirs
        # Another run of this promotion may have given the follower its token, and fenced the leader, between the two.
        here = self._unfenced()
        former = self._reached.manifest(self.topic)
        return here, self._within_reach(lambda: former.snapshot(deleted=True))

    def _unfenced(self) -> Snapshot:
        """The newest snapshot of the topic here. Raises NotLeaderError where it is fenced."""
        here = self.log.snapshot(self.topic)
        role = role_of(here)
        if role.is_fenced:
            raise NotLeaderError(
                f"Topic {self.topic} is fenced: a former leader is not promoted again",
                path=self.log.uri,
                expected="a follower",
                found=f"a topic that the one in {role.leader_uri} was promoted in place of",
                hint="Mirror its leader into an empty log directory, and promote the follower there",
            )
        return here

    def _promoted_before(self, here: Snapshot, theirs: Snapshot | None) -> Promotion:
        """The result for a leader. The leader before it is fenced here, if it was out of reach when it was replaced."""
        if theirs is None or not role_of(theirs).is_leader:
            return self._done(here, theirs, (), leader_epochs(here))
        token = role_of(here).fence_token
        if token is None or role_of(here).epoch <= role_of(theirs).epoch:
            raise NotLeaderError(
                f"Topic {self.topic} is a leader already, and was not promoted over the topic in "
                f"{self._former_uri(here)}, which is one, too",
                path=self.log.uri,
                expected="a follower",
                found=f"role_epoch {role_of(here).epoch}, and {role_of(theirs).epoch} there",
                hint="Delete the topic that is not to stay, and mirror the other one into an empty log directory",
            )
        if not self.dry_run:
            theirs = self._fence(here, token, role_of(here).epoch)
        return self._done(here, theirs, (FENCE,), leader_epochs(here), self._left_behind(theirs))

    def _promote(self, here: Snapshot, theirs: Snapshot | None, *, is_copied: bool) -> Promotion:
        manifest = self.log.manifest(self.topic)
        manifest.commit(lambda now: self._begun(role_of(here), now))
        token = role_of(self.log.snapshot(self.topic)).promotion_token
        if token is None:
            return self.run()  # another run has promoted the topic since
        role_epoch = 1 + max(role_of(snapshot).epoch for snapshot in (here, theirs) if snapshot is not None)
        tails, version = [], None
        if theirs is not None:
            theirs = self._within_reach(lambda: self._fence(here, token, role_epoch))
        if theirs is not None:
            role_epoch = role_of(theirs).epoch + is_fenced_for_another(theirs, token)
            if is_copied and self._within_reach(lambda: self._copy(token)):
                version = role_of(theirs).fence_version
            else:
                tails = self._left_behind(theirs)
            self._copy_positions()
        least = least_epochs(here, theirs, token)
        leader = Role(Role.LEADER, role_epoch, fence_token=token, former_uri=self._former_uri(here))
        manifest.commit(lambda now: self._opened(leader, least, version, now))
        manifest.keep_for_rebuild()
        return self._done(here, theirs, STEPS, leader_epochs(self.log.snapshot(self.topic)), tails)

    # Its commits here. Each finds out by itself whether it was made before

    @staticmethod
    def _begun(role: Role, here: Snapshot) -> Change | None:
        """Gives a follower a token, unless it has one, or has changed its `role` since."""
        newest = role_of(here)
        if newest.promotion_token is not None or (newest.name, newest.epoch) != (role.name, role.epoch):
            return None
        return with_role(Operation.PROMOTE, here, dataclasses.replace(newest, promotion_token=uuid.uuid4().hex))

    def _opened(self, leader: Role, least: Mapping[int, int], version: int | None, here: Snapshot) -> Change | None:
        """Makes the topic the `leader`, in new leader epochs, which are not below `least`. `version`: the former
        leader's version that the follower must have mirrored, None where it need not.
        """
        role = role_of(here)
        if role.is_leader and role.fence_token == leader.fence_token:
            return None
        if role.source is None or role.promotion_token != leader.fence_token:
            raise NotLeaderError(
                f"Topic {self.topic} is not the follower any more whose promotion had begun",
                expected=f"promotion token {leader.fence_token}",
                found=role.promotion_token or f"a {role.name} without one",
            )
        if version is not None and role.source.version < version:
            raise NotLeaderError(
                f"Topic {self.topic} does not have all that its leader committed before the fence",
                expected=f"version {version} of the leader",
                found=role.source.version,
                hint="Promote it again: the rest is copied then",
            )
        rows = partitions_in_new_epochs(here, least)
        return dataclasses.replace(with_role(Operation.PROMOTE, here, leader), partitions=rows)

    # The former leader

    @property
    def _reached(self) -> LogDirectory:
        """The log directory of the former leader, once it was looked at."""
        assert isinstance(self.former, LogDirectory)
        return self.former

    def _former_uri(self, here: Snapshot) -> str:
        if isinstance(self.former, LogDirectory):
            return self.former.uri
        role = role_of(here)
        uri = self.former or (role.former_uri if role.source is None else role.source.uri)
        if uri is None:
            raise NotLeaderError(
                f"Topic {self.topic} is a leader already, and was promoted over no other",
                path=self.log.uri,
                expected="a follower",
                hint="segments mirror makes one in another log directory",
            )
        return uri

    def _look(self, here: Snapshot) -> Snapshot:
        """The newest snapshot of the former leader's topic."""
        if not isinstance(self.former, LogDirectory):
            self.former = LogDirectory.open(self._former_uri(here), self.storage_options, defaults=self.log.defaults)
        self.former.check_writable()
        if self.former.uri == self.log.uri:
            raise NotLeaderError(f"Topic {self.topic} cannot be promoted over itself", path=self.log.uri)
        theirs = self.former.manifest(self.topic).snapshot(deleted=True)
        if theirs.deleted_ms is not None:
            if not self.force:
                raise UnknownTopicError(f"The leader of topic {self.topic} has deleted it", path=self.former.uri)
            self.warnings.append("The leader has deleted the topic: it is promoted as it was mirrored last")
        return theirs

    def _can_be_copied(self, here: Snapshot, theirs: Snapshot) -> bool:
        """Whether the follower is a past state of the former leader. Raises LogDirError or DivergedLogError where it is
        not, unless that is forced: nothing can be copied then.
        """
        try:
            leader = Leader(self._reached.manifest(self.topic), self._reached.uri)
            lineage = leader.check_lineage(here, theirs)
            copies = Copy(here, self.log.storage), Copy(theirs, self._reached.storage)
            is_past = lineage.is_certain and not has_new_role(here, theirs)
            tails = self._within_reach(lambda: tails_of_follower(*copies, self.spark, is_past=is_past))
            if tails:
                raise diverged(self.topic, tails, self.log.uri, self._reached.uri)
        except (LogDirError, DivergedLogError) as error:
            if not self.force:
                error.hint = (
                    "To follow that leader, mirror it into an empty log directory. To promote this topic, and leave "
                    "behind what only the leader has: --force"
                )
                raise
            self.warnings.append(f"Nothing can be copied from the former leader: {error}")
            return False
        return tails is not None  # where the leader is out of reach, nobody knows what would be overwritten

    def _fence(self, here: Snapshot, token: str, role_epoch: int) -> Snapshot:
        def plan(former: Snapshot) -> Change | None:
            check_former(here, former, token, force=self.force)
            if role_of(former).is_fenced:
                return None
            version, uri = former.version + 1, self.log.uri
            role = Role(Role.FENCED, role_epoch, fence_token=token, fence_version=version, leader_uri=uri)
            return with_role(Operation.FENCE, former, role)

        manifest = self._reached.manifest(self.topic)
        manifest.commit(plan, deleted=True)
        manifest.keep_for_rebuild()
        return manifest.snapshot(deleted=True)

    def _copy(self, token: str) -> bool:
        """Mirrors all that the former leader committed before the fence."""
        try:
            TopicMirror(self._reached, self.log, self.topic, self.spark).run()
        except SegmentsError:
            role = role_of(self.log.snapshot(self.topic))
            if not role.is_leader or role.fence_token != token:
                raise
            # Another run of this promotion was quicker, and has opened the topic.
        return True

    def _copy_positions(self) -> None:
        """Brings the positions of groups here. Without them readers choose where they go on, so it is no failure."""
        try:
            _, errors = copy_positions(self._reached, self.log, self.topic)
        except (SegmentsError, OSError) as error:
            self.warnings.append(f"Positions of groups were not brought from the former leader: {error}")
            return
        for group, why in errors.items():
            self.warnings.append(f"The positions of group {group} were not brought from the former leader: {why}")

    def _left_behind(self, theirs: Snapshot | None) -> list[Tail]:
        """The records that the former leader has and the follower lacks, as far as the leader can be reached."""
        if theirs is None or theirs.deleted_ms is not None:
            return []
        here = Copy(self.log.snapshot(self.topic), self.log.storage)
        there = Copy(theirs, self._reached.storage)
        return self._within_reach(lambda: foreign_tails(there, here, self.spark)) or []

    def _within_reach(self, step: Callable[[], T], hint: str | None = None) -> T | None:
        """The result of a step that needs the former leader; None where it is out of reach and that is forced. `hint`:
        what an error says is to be done, in place of its own.
        """
        try:
            return step()
        except _OUT_OF_REACH as error:
            if self._is_here(error):
                raise
            if self.force:
                self.warnings.append(f"The former leader is out of reach: {error}")
                return None
            if isinstance(error, SegmentsError):
                # The hint of a place without a log directory is to make one there: not where a leader has been lost.
                own_hint = None if isinstance(error, LogDirError) else error.hint
                error.hint = hint or own_hint or _OUT_OF_REACH_HINT
            raise

    def _is_here(self, error: SegmentsError | OSError) -> bool:
        """Whether an error is that of a place in this log directory, and so none of the former leader."""
        if not isinstance(self.former, LogDirectory):  # it could not even be opened
            return False
        path = error.path if isinstance(error, SegmentsError) else error.filename
        places = [uri for uri in (self.log.uri, self.former.uri) if f"{path}/".startswith(f"{uri.rstrip('/')}/")]
        return max(places, key=len, default=None) == self.log.uri

    def _done(
        self,
        here: Snapshot,
        theirs: Snapshot | None,
        steps: tuple[str, ...],
        epochs: Mapping[int, tuple[int, int]],
        tails: Sequence[Tail] = (),
    ) -> Promotion:
        self.former_uri, self.steps = self._former_uri(here), steps
        self.leader_epochs, self.left_behind = epochs, tuple(tails)
        self.is_fenced = theirs is not None and (self.dry_run or not role_of(theirs).is_leader)
        source = role_of(here).source
        if source is not None:
            self.source_version, self.source_committed_ms = source.version, source.committed_ms
        return self
