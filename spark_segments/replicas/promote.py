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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_segments.config import selected_topics
from spark_segments.errors import InvalidOptionError, NotLeaderError, SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks
from spark_segments.extensions import observed_job
from spark_segments.log import Change, LeaderEpochs, LogDirectory, Operation, Partition, Report, Snapshot
from spark_segments.progress import Progress
from spark_segments.replicas.divergence import Tail
from spark_segments.replicas.former_leader import (
    OUT_OF_REACH,
    FormerLeader,
    PromotionOptions,
    check_former,
    is_fenced_for_another,
)
from spark_segments.replicas.groups import copy_positions
from spark_segments.replicas.role import Role, role_of, with_role
from spark_segments.replicas.topic_mirror import TOPICS_AT_A_TIME, TopicMirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FENCE = "fence"
STEPS = ("begin", FENCE, "copy", "open")

_NOT_FENCED = (
    "The topic leads here since a forced promotion, and its former leader is not fenced. Run this again once it can be "
    "reached. If it is gone for good, no writer can append there, and there is nothing to do: name the topics that are "
    "to be promoted"
)


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

    A topic's line in the report has what a `PromotionResult` says. A topic that fails has its error there, and the
    others go on. Raises InvalidOptionError where no topic is to be promoted.
    """
    report = Report("promote", dry_run)
    options = PromotionOptions(former, storage_options or {}, force, dry_run, spark)

    def run(topic: str) -> PromotionResult | Exception | None:
        promotion = Promotion(log, topic, options)
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
        _add(report, topic, result)
    return report.finish()


def _add(report: Report, topic: str, result: PromotionResult | Exception | None) -> None:
    """Adds a topic's line to the report; of a topic without a result there is nothing to say."""
    if isinstance(result, Exception):
        report.add(topic, None, Report.FAILED, error=str(result))
    elif result is not None:
        report.add(topic, None, result.action, **result.to_dict())
        for warning in result.warnings:
            report.warn(f"{topic}: {warning}")


def _has_former_leader(role: Role) -> bool:
    """Whether a topic follows a leader, or was promoted over one."""
    return role.is_follower or role.former_uri is not None


@dataclass(frozen=True, slots=True)
class PromotionResult:
    """What a promotion did, or in a dry run would do.

    `former_uri`: the log directory of the former leader. `steps`: the STEPS that were done, now or before. `is_fenced`:
    whether the former leader takes no commit any more; False where it was out of reach. `leader_epochs`: {partition:
    (leader epoch, its first offset)}. `left_behind`: records of the former leader that the new leader does not have, as
    far as it could be asked. `source_version`, `source_committed_ms`: the newest commit of the former leader that a
    follower had when the promotion began. `warnings`: why the former leader was out of reach.
    """

    former_uri: str
    steps: tuple[str, ...]
    is_fenced: bool
    leader_epochs: Mapping[int, tuple[int, int]]
    left_behind: Sequence[Tail]
    source_version: int | None
    source_committed_ms: int | None
    warnings: Sequence[str]

    @property
    def action(self) -> str:
        """The action of the topic's line in a report."""
        if not self.steps:
            return Role.LEADER
        return "promoted" if len(self.steps) > 1 else "fenced"

    def to_dict(self) -> dict[str, Any]:
        """What was done as plain values, ready for JSON: all but what the report has, too."""
        epochs = [
            {"partition": number, "leader_epoch": epoch, "start_offset": start}
            for number, (epoch, start) in self.leader_epochs.items()
        ]
        names = ("former_uri", "steps", "is_fenced", "source_version", "source_committed_ms")
        tails = [dataclasses.asdict(tail) for tail in self.left_behind]
        return {name: getattr(self, name) for name in names} | {"leader_epochs": epochs, "left_behind": tails}


class Promotion:
    """Makes a follower the leader, with a new leader epoch, and fences the leader before it. `run` does it.

    After an error, or a kill, run another one: it goes on where this was. Appends to the former leader fail from the
    fence on; appends here succeed from the last step on.
    """

    def __init__(self, log: LogDirectory, topic: str, options: PromotionOptions) -> None:
        self._log = log
        self._topic = topic
        self._options = options
        self._former = FormerLeader(log, topic, options, options.former)

    def is_due(self) -> bool:
        """Whether a run without names is for this topic: a follower, or a leader whose former leader leads, too. One
        that is out of reach may lead, and `run` says that it cannot be fenced.
        """
        here = self._log.snapshot(self._topic)
        if not role_of(here).is_leader:
            return role_of(here).is_follower
        try:
            theirs = self._former.look(here)
        except UnknownTopicError:
            return False  # it is deleted there, and takes no appends
        except OUT_OF_REACH:
            return True
        # A topic that was made again under the name is another topic, and may lead
        return theirs.deleted_ms is None and theirs.topic_id == here.topic_id and role_of(theirs).is_leader

    def run(self) -> PromotionResult:
        """Promotes the topic.

        Raises NotLeaderError where the topic is a leader that was not promoted over `former`, or is fenced, or where
        `former` is no leader; DivergedLogError where that lacks records that the follower has, or where the two are not
        copies of one topic; LogDirError where the follower is no past state of `former`; where that is out of reach,
        the error of its storage.
        """
        self._log.check_writable()
        here, theirs = self._newest()
        role = role_of(here)
        if theirs is not None:
            check_former(here, theirs, role.token, force=self._options.force)
        if role.is_leader:
            return self._promoted_before(here, theirs)
        is_copied = theirs is not None and theirs.deleted_ms is None and self._former.can_be_copied(here, theirs)
        if not self._options.dry_run:
            return self._promote(here, theirs, is_copied=is_copied)
        tails = [] if is_copied else self._former.left_behind(theirs)
        after = theirs if is_copied and theirs is not None else here
        rows = partitions_in_new_epochs(after, least_epochs(here, theirs, role.promotion_token))
        return self._done(here, theirs, STEPS, {row.partition: row.leader_epochs[-1] for row in rows}, tails)

    def _newest(self) -> tuple[Snapshot, Snapshot | None]:
        """The newest snapshots of the topic here and of the former leader's, None where that is out of reach."""
        here = self._unfenced()
        # The follower first: a mirror may bring it to a version that the leader did not have before.
        theirs = self._former.within_reach(
            lambda: self._former.look(here), _NOT_FENCED if role_of(here).is_leader else None
        )
        if theirs is None or not is_fenced_for_another(theirs, role_of(here).token):
            return here, theirs
        # Another run of this promotion may have given the follower its token, and fenced the leader, between the two.
        here = self._unfenced()
        former = self._former.reached.manifest(self._topic)
        return here, self._former.within_reach(lambda: former.snapshot(deleted=True))

    def _unfenced(self) -> Snapshot:
        """The newest snapshot of the topic here. Raises NotLeaderError where it is fenced."""
        here = self._log.snapshot(self._topic)
        role = role_of(here)
        if role.is_fenced:
            raise NotLeaderError(
                f"Topic {self._topic} is fenced: a former leader is not promoted again",
                path=self._log.uri,
                expected="a follower",
                found=f"a topic that the one in {role.leader_uri} was promoted in place of",
                hint="Mirror its leader into an empty log directory, and promote the follower there",
            )
        return here

    def _promoted_before(self, here: Snapshot, theirs: Snapshot | None) -> PromotionResult:
        """The result for a leader. The leader before it is fenced here, if it was out of reach when it was replaced."""
        if theirs is None or not role_of(theirs).is_leader:
            return self._done(here, theirs, (), leader_epochs(here))
        token = role_of(here).fence_token
        if token is None or role_of(here).epoch <= role_of(theirs).epoch:
            raise NotLeaderError(
                f"Topic {self._topic} is a leader already, and was not promoted over the topic in "
                f"{self._former.uri(here)}, which is one, too",
                path=self._log.uri,
                expected="a follower",
                found=f"role_epoch {role_of(here).epoch}, and {role_of(theirs).epoch} there",
                hint="Delete the topic that is not to stay, and mirror the other one into an empty log directory",
            )
        if not self._options.dry_run:
            theirs = self._former.fence(here, token, role_of(here).epoch)
        return self._done(here, theirs, (FENCE,), leader_epochs(here), self._former.left_behind(theirs))

    def _promote(self, here: Snapshot, theirs: Snapshot | None, *, is_copied: bool) -> PromotionResult:
        manifest = self._log.manifest(self._topic)
        manifest.commit(lambda now: _begun(role_of(here), now))
        token = role_of(self._log.snapshot(self._topic)).promotion_token
        if token is None:
            return self.run()  # another run has promoted the topic since
        role_epoch = 1 + max(role_of(snapshot).epoch for snapshot in (here, theirs) if snapshot is not None)
        if theirs is not None:
            theirs = self._former.within_reach(partial(self._former.fence, here, token, role_epoch))
        tails: list[Tail] = []
        version: int | None = None
        if theirs is not None:
            # One that is fenced for another promotion, which was forced here, has given that role epoch away.
            role_epoch = role_of(theirs).epoch + is_fenced_for_another(theirs, token)
            if is_copied and self._former.within_reach(lambda: self._copy(token)):
                version = role_of(theirs).fence_version
            else:
                tails = self._former.left_behind(theirs)
            self._copy_positions()
        least = least_epochs(here, theirs, token)
        leader = Role(Role.LEADER, role_epoch, fence_token=token, former_uri=self._former.uri(here))
        manifest.commit(lambda now: self._opened(leader, least, version, now))
        manifest.keep_for_rebuild()
        return self._done(here, theirs, STEPS, leader_epochs(self._log.snapshot(self._topic)), tails)

    # Its commits here. Each finds out by itself whether it was made before

    def _opened(self, leader: Role, least: Mapping[int, int], version: int | None, here: Snapshot) -> Change | None:
        """Makes the topic the `leader`, in new leader epochs, which are not below `least`. `version`: the former
        leader's version that the follower must have mirrored, None where it need not.
        """
        role = role_of(here)
        if role.is_leader and role.fence_token == leader.fence_token:
            return None
        if role.source is None or role.promotion_token != leader.fence_token:
            raise NotLeaderError(
                f"Topic {self._topic} is not the follower any more whose promotion had begun",
                expected=f"promotion token {leader.fence_token}",
                found=role.promotion_token or f"a {role.name} without one",
            )
        if version is not None and role.source.version < version:
            raise NotLeaderError(
                f"Topic {self._topic} does not have all that its leader committed before the fence",
                expected=f"version {version} of the leader",
                found=role.source.version,
                hint="Promote it again: the rest is copied then",
            )
        rows = partitions_in_new_epochs(here, least)
        return dataclasses.replace(with_role(Operation.PROMOTE, here, leader), partitions=rows)

    # What only the former leader has

    def _copy(self, token: str) -> bool:
        """Mirrors all that the former leader committed before the fence."""
        try:
            TopicMirror(self._former.reached, self._log, self._topic, self._options.spark).run()
        except SegmentsError:
            role = role_of(self._log.snapshot(self._topic))
            if not role.is_leader or role.fence_token != token:
                raise
            # Another run of this promotion was quicker, and has opened the topic.
        return True

    def _copy_positions(self) -> None:
        """Brings the positions of groups here. Without them readers choose where they go on, so it is no failure."""
        warnings = self._former.warnings
        try:
            _, errors = copy_positions(self._former.reached, self._log, self._topic)
        except (SegmentsError, OSError) as error:
            warnings.append(f"Positions of groups were not brought from the former leader: {error}")
            return
        for group, why in errors.items():
            warnings.append(f"The positions of group {group} were not brought from the former leader: {why}")

    def _done(
        self,
        here: Snapshot,
        theirs: Snapshot | None,
        steps: tuple[str, ...],
        epochs: Mapping[int, tuple[int, int]],
        tails: Sequence[Tail] = (),
    ) -> PromotionResult:
        source = role_of(here).source
        return PromotionResult(
            self._former.uri(here),
            steps,
            theirs is not None and (self._options.dry_run or not role_of(theirs).is_leader),
            epochs,
            tuple(tails),
            None if source is None else source.version,
            None if source is None else source.committed_ms,
            self._former.warnings,
        )


def _begun(role: Role, here: Snapshot) -> Change | None:
    """Gives a follower a token, unless it has one, or has changed its `role` since."""
    newest = role_of(here)
    if newest.promotion_token is not None or (newest.name, newest.epoch) != (role.name, role.epoch):
        return None
    return with_role(Operation.PROMOTE, here, dataclasses.replace(newest, promotion_token=uuid.uuid4().hex))


def leader_epochs(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """{partition: (its last leader epoch, the offset from which on)}"""
    return {row.partition: LeaderEpochs.of(row).entries[-1] for row in snapshot.partition_rows}


def least_epochs(here: Snapshot, theirs: Snapshot | None, token: str | None) -> dict[int, int]:
    """{partition: the lowest leader epoch that no other leader of the topic has given it, as far as `theirs` shows}

    Where `theirs` is fenced for another promotion than the `token`'s, the topic promoted there has its next epoch.
    """
    is_others = theirs is not None and is_fenced_for_another(theirs, token)
    return {number: epoch + 1 + is_others for number, (epoch, _) in leader_epochs(theirs or here).items()}


def partitions_in_new_epochs(here: Snapshot, least_epochs: Mapping[int, int]) -> list[Partition]:
    """The rows of a topic's partitions in the leader epochs that a promotion gives them, each from its log end on."""
    rows = []
    for row in here.partition_rows:
        epochs = LeaderEpochs.of(row)
        # Above all that anybody has written in: the epochs here, the row's current epoch, which may have no record yet,
        # and what the former leader may have given out. With an epoch of another leader, a reader of that one would go
        # on here at an offset that has another record.
        epoch = max(epochs.entries[-1][0] + 1, row.leader_epoch + 1, least_epochs.get(row.partition, 0))
        entries = followed_by(epochs.entries, epoch, row.log_end_offset)
        # The new epoch begins at the log end. A reader of the former leader that is ahead of it learns from the epochs
        # where the logs part.
        rows.append(dataclasses.replace(row, leader_epoch=epoch, leader_epochs=entries))
    return rows


def followed_by(entries: Sequence[tuple[int, int]], epoch: int, offset: int) -> tuple[tuple[int, int], ...]:
    """The entries of leader epochs and a new epoch from an offset on. An epoch that holds no record below the offset
    goes.
    """
    return (*(entry for entry in entries if entry[1] < offset), (epoch, offset))
