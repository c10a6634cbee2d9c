"""Promotion: a follower becomes the leader of its topic, and the leader before it takes no commit any more.

In order: a token in the follower's manifest says that the promotion has begun; a fence in the former leader's manifest,
which every later commit there meets; the copy of all that was committed before the fence; the commit that opens the
topic with a new leader epoch. Each step can be repeated, so a promotion that was killed anywhere goes on where it was.

A fence is a commit like an append: of the two, either the append comes first and is copied, or its next try meets the
fence. So a promotion loses nothing. A forced promotion can, where the former leader is out of reach. A former leader
stays fenced: it is mirrored anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

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
from spark_segments.log import LogDirectory, Report, Role, Snapshot
from spark_segments.progress import Progress
from spark_segments.replicas.divergence import Copy, Tail, diverged, foreign_tails, has_new_role, tails_of_follower
from spark_segments.replicas.groups import copy_positions
from spark_segments.replicas.leader import Leader
from spark_segments.replicas.role_changes import (
    begun,
    check_former,
    fenced,
    leader_epochs,
    least_epochs,
    opened,
    partitions_in_new_epochs,
)
from spark_segments.replicas.topic_mirror import TOPICS_AT_A_TIME, TopicMirror

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The steps of a promotion, in order.
STEPS = BEGIN, FENCE, COPY, OPEN = ("begin", "fence", "copy", "open")

_OUT_OF_REACH = (StorageError, LogDirError, UnknownTopicError, UnknownOutcomeError, CorruptBatchError, OSError)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a promotion of a topic did, or in a dry run would do.

    `former_uri`: the log directory of the former leader. `steps`: those of STEPS that were done, or found done.
    `is_fenced`: whether the former leader takes no commit any more; False where it was out of reach. `leader_epochs`:
    {partition: (leader epoch, the offset from which on)}. `left_behind`: records of the former leader that the new
    leader does not have, as far as it could be asked. `source_version`, `source_committed_ms`: the newest commit of the
    former leader that a follower had when the promotion began. `warnings`: why the former leader was out of reach.
    """

    topic: str
    dry_run: bool
    former_uri: str
    steps: tuple[str, ...]
    is_fenced: bool
    leader_epochs: Mapping[int, tuple[int, int]]
    left_behind: tuple[Tail, ...] = ()
    source_version: int | None = None
    source_committed_ms: int | None = None
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The promotion as plain values, ready for JSON: all but what the report has, too."""
        epochs = [
            {"partition": number, "leader_epoch": epoch, "start_offset": start}
            for number, (epoch, start) in self.leader_epochs.items()
        ]
        names = ("former_uri", "steps", "is_fenced", "source_version", "source_committed_ms")
        tails = [dataclasses.asdict(tail) for tail in self.left_behind]
        return {name: getattr(self, name) for name in names} | {"leader_epochs": epochs, "left_behind": tails}


def promotable_topics(log: LogDirectory) -> list[str]:
    """The topics of a log directory that are followers."""
    return [name for name in log.topics() if log.snapshot(name).role.is_follower]


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

    `topics`: names or patterns; without any, all that are followers. `former`: the log directory of the former leader,
    by default the one that is mirrored. `force` promotes without what only the former leader has, where that is needed.

    A topic's line in the report has what a `Promotion` says. A topic that fails has its error there, and the others go
    on. Raises InvalidOptionError where no topic is to be promoted.
    """
    report = Report("promote", dry_run)

    def run(topic: str) -> Promotion | Exception:
        try:
            return promote_topic(
                log, topic, former, storage_options=storage_options, force=force, dry_run=dry_run, spark=spark
            )
        except (SegmentsError, OSError) as error:
            return error

    names = promotable_topics(log) if topics is None else LogDirectory.selected(log.topics(), topics)
    if not names:
        raise InvalidOptionError("No topic here is a follower", expected="the names of topics", found="none")
    results = run_tasks(run, names, progress=progress, at_a_time=TOPICS_AT_A_TIME)
    for topic, result in zip(names, results, strict=True):
        if isinstance(result, Exception):
            report.add(topic, None, Report.FAILED, error=str(result))
            continue
        action = "promoted" if len(result.steps) > 1 else "fenced" if result.steps else Role.LEADER
        report.add(topic, None, action, **result.to_dict())
        for warning in result.warnings:
            report.warn(f"{topic}: {warning}")
    return report.finish()


def promote_topic(
    log: LogDirectory,
    topic: str,
    former: LogDirectory | str | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    force: bool = False,
    dry_run: bool = False,
    spark: SparkSession | None = None,
) -> Promotion:
    """Makes a follower the leader, with a new leader epoch, and fences the leader before it.

    After an error, or a kill, run it again: it goes on where it was. Appends to the former leader fail from the fence
    on; appends here succeed from the last step on.

    `former`: the log directory of the former leader, by default the one that the topic's states name;
    `storage_options` are for it. `force` promotes the topic though the former leader is out of reach, is fenced for
    another promotion, or has records that the topic lacks: these stay where they are. Without a fence the former leader
    may go on to take appends: promote the topic once more as soon as it can be reached, which fences it.

    Raises NotLeaderError where the topic is a leader that was not promoted over `former`, or is fenced, or where
    `former` is no leader; DivergedLogError where that lacks records that the follower has, or where the two are not
    copies of one topic; LogDirError where the follower is no past state of `former`; where that is out of reach, the
    error of its storage.
    """
    log.check_writable()
    return _Promotion(log, topic, former, dict(storage_options or {}), force, dry_run, spark).run()


@dataclass(slots=True)
class _Promotion:
    log: LogDirectory
    topic: str
    former: LogDirectory | str | None
    storage_options: Mapping[str, str]
    force: bool
    dry_run: bool
    spark: SparkSession | None
    warnings: list[str] = field(default_factory=list)

    def run(self) -> Promotion:
        here = self.log.snapshot(self.topic)
        role = here.role
        if role.is_fenced:
            raise NotLeaderError(
                f"Topic {self.topic} is fenced: a former leader is not promoted again",
                path=self.log.uri,
                expected="a follower",
                found=f"a topic that the one in {role.leader_uri} was promoted in place of",
                hint="Mirror its leader into an empty log directory, and promote the follower there",
            )
        theirs = self._within_reach(lambda: self._look(here))
        if theirs is not None:
            check_former(here, theirs, role.promotion_token or role.fence_token, force=self.force)
        if role.is_leader:
            return self._promoted_before(here, theirs)
        is_copied = theirs is not None and theirs.deleted_ms is None and self._can_be_copied(here, theirs)
        if not self.dry_run:
            return self._promote(here, theirs, is_copied=is_copied)
        tails = [] if is_copied else self._left_behind(theirs)
        after = theirs if is_copied and theirs is not None else here
        rows = partitions_in_new_epochs(after, least_epochs(here, theirs, role.promotion_token))
        return self._result(here, theirs, STEPS, {row.partition: row.leader_epochs[-1] for row in rows}, tails)

    def _promoted_before(self, here: Snapshot, theirs: Snapshot | None) -> Promotion:
        """The result for a leader. The leader before it is fenced here, if it was out of reach when it was replaced."""
        if theirs is None or not theirs.role.is_leader:
            return self._result(here, theirs, (), leader_epochs(here))
        token = here.role.fence_token
        if token is None or here.role.epoch <= theirs.role.epoch:
            raise NotLeaderError(
                f"Topic {self.topic} is a leader already, and was not promoted over the topic in "
                f"{self._former_uri(here)}, which is one, too",
                path=self.log.uri,
                expected="a follower",
                found=f"role_epoch {here.role.epoch}, and {theirs.role.epoch} there",
                hint="Delete the topic that is not to stay, and mirror the other one into an empty log directory",
            )
        if not self.dry_run:
            theirs = self._fence(here, token, here.role.epoch)
        tails = foreign_tails(self._copy_of_former(theirs), Copy(here, self.log.storage), self.spark)
        return self._result(here, theirs, (FENCE,), leader_epochs(here), tails)

    def _promote(self, here: Snapshot, theirs: Snapshot | None, *, is_copied: bool) -> Promotion:
        manifest = self.log.manifest(self.topic)
        manifest.commit(begun(here.role))
        token = self.log.snapshot(self.topic).role.promotion_token
        if token is None:
            return self.run()  # another run has promoted the topic since
        role_epoch = 1 + max(snapshot.role.epoch for snapshot in (here, theirs) if snapshot is not None)
        tails, version = [], None
        if theirs is not None:
            theirs = self._within_reach(lambda: self._fence(here, token, role_epoch))
        if theirs is not None:
            role_epoch = theirs.role.epoch + (theirs.role.fence_token != token)
            if is_copied and self._within_reach(lambda: self._copy(token)):
                version = theirs.role.fence_version
            else:
                tails = self._left_behind(theirs)
            self._copy_positions()
        least = least_epochs(here, theirs, token)
        manifest.commit(opened(token, role_epoch, self._former_uri(here), least, version))
        manifest.keep_for_rebuild()
        return self._result(here, theirs, STEPS, leader_epochs(self.log.snapshot(self.topic)), tails)

    # The former leader

    @property
    def _reached(self) -> LogDirectory:
        """The log directory of the former leader, once it was looked at."""
        assert isinstance(self.former, LogDirectory)
        return self.former

    def _former_uri(self, here: Snapshot) -> str:
        if isinstance(self.former, LogDirectory):
            return self.former.uri
        uri = self.former or (here.role.former_uri if here.role.source is None else here.role.source.uri)
        if uri is None:
            raise NotLeaderError(
                f"Topic {self.topic} is a leader already, and was promoted over no other",
                path=self.log.uri,
                expected="a follower",
                hint="segments mirror makes one in another log directory",
            )
        return uri

    def _look(self, here: Snapshot) -> Snapshot:
        """The former leader's topic as it is now."""
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
            copies = Copy(here, self.log.storage), self._copy_of_former(theirs)
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
        manifest = self._reached.manifest(self.topic)
        manifest.commit(fenced(here, token, role_epoch, self.log.uri, force=self.force), deleted=True)
        manifest.keep_for_rebuild()
        return manifest.snapshot(deleted=True)

    def _copy(self, token: str) -> bool:
        """Mirrors all that the former leader committed before the fence."""
        try:
            TopicMirror(self._reached, self.log, self.topic, self.spark).run()
        except SegmentsError:
            role = self.log.snapshot(self.topic).role
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

    def _copy_of_former(self, theirs: Snapshot) -> Copy:
        return Copy(theirs, self._reached.storage)

    def _left_behind(self, theirs: Snapshot | None) -> list[Tail]:
        """What the former leader has and the follower does not, as far as it is within reach."""
        if theirs is None or theirs.deleted_ms is not None:
            return []
        here = Copy(self.log.snapshot(self.topic), self.log.storage)
        return self._within_reach(lambda: foreign_tails(self._copy_of_former(theirs), here, self.spark)) or []

    def _within_reach(self, step: Callable[[], T]) -> T | None:
        """The result of a step that needs the former leader; None where it is out of reach and that is forced."""
        try:
            return step()
        except _OUT_OF_REACH as error:
            if self._is_here(error):
                raise
            if self.force:
                self.warnings.append(f"The former leader is out of reach: {error}")
                return None
            if isinstance(error, SegmentsError) and error.hint is None:
                error.hint = (
                    "Promote it again once the former leader can be reached. --force promotes without it: what it "
                    "committed after the last mirror is left behind"
                )
            raise

    def _is_here(self, error: SegmentsError | OSError) -> bool:
        """Whether an error is that of a place in this log directory, and so none of the former leader."""
        if not isinstance(self.former, LogDirectory):  # it could not even be opened
            return False
        path = error.path if isinstance(error, SegmentsError) else error.filename
        places = [uri for uri in (self.log.uri, self.former.uri) if f"{path}/".startswith(f"{uri.rstrip('/')}/")]
        return max(places, key=len, default=None) == self.log.uri

    def _result(
        self,
        here: Snapshot,
        theirs: Snapshot | None,
        steps: tuple[str, ...],
        epochs: Mapping[int, tuple[int, int]],
        tails: Sequence[Tail] = (),
    ) -> Promotion:
        source = here.role.source
        return Promotion(
            topic=self.topic,
            dry_run=self.dry_run,
            former_uri=self._former_uri(here),
            steps=steps,
            is_fenced=theirs is not None and (self.dry_run or not theirs.role.is_leader),
            leader_epochs=epochs,
            left_behind=tuple(tails),
            source_version=None if source is None else source.version,
            source_committed_ms=None if source is None else source.committed_ms,
            warnings=tuple(self.warnings),
        )
