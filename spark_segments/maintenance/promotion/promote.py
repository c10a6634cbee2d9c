"""Promotion: a follower becomes the leader of its topic, and the leader before it takes no commit any more.

In order: a token in the follower's manifest says that the promotion has begun; a fence in the former leader's manifest,
which every later commit there meets; the copy of all that was committed before the fence; the commit that opens the
topic with a new leader epoch. Each step can be repeated, so a promotion that was killed anywhere goes on where it was.

A fence is a commit like an append: of the two, either the append comes first and is copied, or its next try meets the
fence. So a promotion loses nothing. A forced promotion can, where the former leader is out of reach.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from spark_segments.errors import (
    CorruptBatchError,
    DivergedLogError,
    LogDirError,
    NotLeaderError,
    SegmentsError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicError,
)
from spark_segments.log.directory import LogDirectory, selected
from spark_segments.log.divergence import (
    Copy,
    Tail,
    check_same_topic,
    diverged,
    foreign_tails,
    has_new_role,
    tails_of_follower,
)
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import (
    FENCE_TOKEN,
    FENCE_VERSION,
    FENCED,
    FOLLOWER,
    FORMER_URI,
    LEADER,
    LEADER_URI,
    PROMOTION_TOKEN,
    SOURCE_COMMITTED_MS,
    SOURCE_URI,
    SOURCE_VERSION,
    role_epoch_of,
    role_of,
)
from spark_segments.log.report import Report
from spark_segments.maintenance.mirroring.leader import Leader
from spark_segments.maintenance.mirroring.topic_mirror import TopicMirror
from spark_segments.maintenance.promotion.group_positions import copy_positions
from spark_segments.maintenance.promotion.role_changes import (
    begun,
    fenced,
    leader_epochs,
    new_leader_epochs,
    opened,
    replaced,
)
from spark_segments.maintenance.selection import each_topic
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The steps of a promotion, in order.
STEPS = BEGIN, FENCE, COPY, OPEN = ("begin", "fence", "copy", "open")

PROMOTED = "promoted"

_OUT_OF_REACH = (StorageError, LogDirError, UnknownTopicError, UnknownOutcomeError, CorruptBatchError, OSError)

Found = TypeVar("Found")


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
        values = {name: getattr(self, name) for name in names}
        return values | {"leader_epochs": epochs, "left_behind": [dataclasses.asdict(one) for one in self.left_behind]}


def promotable_topics(log: LogDirectory) -> list[str]:
    """The topics of a log directory that are followers, or whose promotion has begun."""
    snapshots = [log.snapshot(name) for name in log.topics()]
    return [one.topic for one in snapshots if role_of(one) == FOLLOWER or PROMOTION_TOKEN in one.states]


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

    `topics`: names or patterns; without any, all that are followers, or whose promotion has begun. `former`: the log
    directory of the former leader, by default the one that is mirrored. `force` promotes without what only the former
    leader has, where that is needed.

    A topic's line in the report has what a `Promotion` says. A topic that fails has its error there, and the others go
    on. Raises InvalidOptionError where no topic is to be promoted.
    """
    report = Report("promote", dry_run)

    def note(one: Promotion) -> None:
        report.add(
            one.topic, None, PROMOTED if len(one.steps) > 1 else "fenced" if one.steps else LEADER, **one.to_dict()
        )
        for warning in one.warnings:
            report.warn(f"{one.topic}: {warning}")

    run = partial(
        promote_topic, log, former=former, storage_options=storage_options, force=force, dry_run=dry_run, spark=spark
    )
    names = promotable_topics(log) if topics is None else selected(log.topics(), topics)
    each_topic(report, names, run, note, progress, lacking="No topic here is a follower")
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
    """Makes a topic the leader, with a new leader epoch, and fences the leader before it.

    After an error, or a kill, run it again: it goes on where it was. Appends to the former leader fail from the fence
    on; appends here succeed from the last step on.

    `former`: the log directory of the former leader, by default the one that the topic's states name;
    `storage_options` are for it. `force` promotes the topic though the former leader is out of reach, or has records
    that the topic lacks. These stay where they are until `demote` cuts them there. Without a fence the former leader
    may go on to take appends: promote the topic once more as soon as it can be reached, which fences it.

    A former leader takes its role back from a follower whose promotion has begun, and with `force` from one that was
    promoted.

    Raises NotLeaderError where `former` is no leader; DivergedLogError where it has records that a topic which is no
    follower lacks, or lacks records that the follower has, or where the two are not copies of one topic; LogDirError
    where the follower is no past state of `former`; where that is out of reach, the error of its storage.
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
        theirs = self._within_reach(lambda: self._look(here))
        if theirs is not None:
            _check_roles(here, theirs)
        if role_of(here) == LEADER and PROMOTION_TOKEN not in here.states:
            if theirs is None or role_of(theirs) != LEADER:
                return self._result(here, theirs, (), leader_epochs(here))
            if role_epoch_of(here) > role_epoch_of(theirs):
                return self._fence_late(here, theirs)
        tails, is_copied = [], False
        if theirs is not None and role_of(here) == FOLLOWER and theirs.deleted_ms is None:
            is_copied = self._can_be_copied(here, theirs)
        if theirs is not None and not is_copied and (role_of(here) != FOLLOWER or theirs.deleted_ms is None):
            tails = self._left_behind(theirs)
        if self.dry_run:
            epochs = new_leader_epochs(
                theirs if is_copied and theirs is not None else here, _least_epochs(here, theirs)
            )
            return self._result(here, theirs, STEPS, epochs, tails)
        return self._promote(here, theirs, is_copied=is_copied)

    def _promote(self, here: Snapshot, theirs: Snapshot | None, *, is_copied: bool) -> Promotion:
        tails: list[Tail] = []
        manifest = self.log.manifest(self.topic)
        manifest.commit(begun(here))
        token = self.log.snapshot(self.topic).states.get(PROMOTION_TOKEN)
        if token is None:
            return self.run()  # another run has promoted the topic since
        role_epoch = 1 + max(role_epoch_of(one) for one in (here, theirs) if one is not None)
        version = None
        if theirs is not None:
            theirs = self._within_reach(lambda: self._fence(here, token, role_epoch))
        if theirs is not None:
            role_epoch = role_epoch_of(theirs) if role_of(theirs) == FENCED else role_epoch
            if is_copied:
                version = self._within_reach(lambda: self._copy(token))
            elif theirs.deleted_ms is None:
                tails = self._left_behind(theirs)  # it may have taken appends until the fence
            self._copy_positions()
        manifest.commit(opened(token, role_epoch, self._former_uri(here), _least_epochs(here, theirs), version))
        manifest.keep_for_rebuild()
        return self._result(here, theirs, STEPS, leader_epochs(self.log.snapshot(self.topic)), tails)

    def _fence_late(self, here: Snapshot, there: Snapshot) -> Promotion:
        """Fences a leader that this topic was promoted over while it was out of reach."""
        tails = foreign_tails(self._copy_of_former(there), Copy(here, self.log.storage), self.spark)
        if not self.dry_run:
            there = self._fence(here, here.states[FENCE_TOKEN], role_epoch_of(here))
            tails = foreign_tails(self._copy_of_former(there), Copy(here, self.log.storage), self.spark)
        return self._result(here, there, (FENCE,), leader_epochs(here), tails)

    # The former leader

    def _former_uri(self, here: Snapshot) -> str:
        if isinstance(self.former, LogDirectory):
            return self.former.uri
        known = (here.states.get(name) for name in (SOURCE_URI, LEADER_URI, FORMER_URI))
        uri = self.former or next(filter(None, known), None)
        if uri is None:
            raise NotLeaderError(
                f"Topic {self.topic} is a leader already, and was promoted over no other",
                path=self.log.uri,
                hint="Name the log directory of the leader that it is to replace: --from",
            )
        return uri

    def _look(self, here: Snapshot) -> Snapshot:
        """The former leader's topic as it is now."""
        former = self.former = self.former if isinstance(self.former, LogDirectory) else self._opened(here)
        former.check_writable()
        if former.uri == self.log.uri:
            raise NotLeaderError(f"Topic {self.topic} cannot be promoted over itself", path=self.log.uri)
        there = former.manifest(self.topic).snapshot(deleted=True)
        if there.deleted_ms is not None:
            if not self.force:
                raise UnknownTopicError(f"The leader of topic {self.topic} has deleted it", path=former.uri)
            self.warnings.append("The leader has deleted the topic: it is promoted as it was mirrored last")
        return there

    def _opened(self, here: Snapshot) -> LogDirectory:
        return LogDirectory.open(self._former_uri(here), self.storage_options, defaults=self.log.defaults)

    def _can_be_copied(self, here: Snapshot, theirs: Snapshot) -> bool:
        """Whether the follower is a past state of the former leader. Raises LogDirError or DivergedLogError where it is
        not, unless that is forced: nothing can be copied then.
        """
        assert isinstance(self.former, LogDirectory)
        hint = (
            f"To follow the leader there first: segments demote {self.log.uri} {self.topic} --leader "
            f"{self.former.uri}. To leave behind what only it has: --force"
        )
        try:
            lineage = Leader(self.former.manifest(self.topic), self.former.uri).check_lineage(here.states, here, theirs)
            copies = Copy(here, self.log.storage), self._copy_of_former(theirs)
            is_past = lineage.is_certain and not has_new_role(here, theirs)
            tails = self._within_reach(lambda: tails_of_follower(*copies, self.spark, is_past=is_past))
            if tails is None:  # nobody knows what would be overwritten
                return False
            if tails:
                raise diverged(self.topic, tails, self.log.uri, self.former.uri, hint)
        except (LogDirError, DivergedLogError) as error:
            if not self.force:
                error.hint = hint
                raise
            self.warnings.append(f"Nothing can be copied from the former leader: {error}")
            return False
        return True

    def _fence(self, here: Snapshot, token: str, role_epoch: int) -> Snapshot:
        assert isinstance(self.former, LogDirectory)
        manifest = self.former.manifest(self.topic)
        manifest.commit(fenced(here, token, role_epoch, self.log.uri), deleted=True)
        manifest.keep_for_rebuild()
        return manifest.snapshot(deleted=True)

    def _copy(self, token: str) -> int:
        """Mirrors all that the former leader committed before the fence. Returns the version that fenced it."""
        assert isinstance(self.former, LogDirectory)
        try:
            TopicMirror(self.former, self.log, self.topic, self.spark).run()
        except SegmentsError:
            here = self.log.snapshot(self.topic)
            if role_of(here) != LEADER or here.states.get(FENCE_TOKEN) != token:
                raise
            # Another run of this promotion was quicker, and has opened the topic.
        theirs = self.former.manifest(self.topic).snapshot(deleted=True)
        if theirs.states.get(FENCE_TOKEN) != token:
            raise NotLeaderError(
                f"The former leader of topic {self.topic} has taken its role back while it was copied",
                path=self.former.uri,
                found=role_of(theirs),
                hint="Promote it again, if it is to be the leader still",
            )
        return int(theirs.states[FENCE_VERSION])

    def _copy_positions(self) -> None:
        """Brings the positions of groups here. Without them readers choose where they go on, so it is no failure."""
        assert isinstance(self.former, LogDirectory)
        try:
            _, errors = copy_positions(self.former, self.log, self.topic)
        except (SegmentsError, OSError) as error:
            self.warnings.append(f"Positions of groups were not brought from the former leader: {error}")
            return
        for group, why in errors.items():
            self.warnings.append(f"The positions of group {group} were not brought from the former leader: {why}")

    def _copy_of_former(self, there: Snapshot) -> Copy:
        assert isinstance(self.former, LogDirectory)
        return Copy(there, self.former.storage)

    def _left_behind(self, there: Snapshot) -> list[Tail]:
        """What the former leader has and this topic does not. Raises DivergedLogError unless that is forced."""
        here = self.log.snapshot(self.topic)
        former = self._copy_of_former(there)
        found = self._within_reach(lambda: foreign_tails(former, Copy(here, self.log.storage), self.spark))
        tails = found or []
        if tails and not self.force:
            hint = (
                "To keep those records, leave the role to that topic, and cut this one: segments demote. To leave them "
                "behind: --force"
            )
            raise diverged(self.topic, tails, former.storage.uri, self.log.uri, hint)
        return tails

    def _within_reach(self, step: Callable[[], Found]) -> Found | None:
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
        found = error.path if isinstance(error, SegmentsError) else error.filename
        places = [one for one in (self.log.uri, self.former.uri) if f"{found}/".startswith(f"{one.rstrip('/')}/")]
        return max(places, key=len, default=None) == self.log.uri

    def _result(
        self,
        here: Snapshot,
        there: Snapshot | None,
        steps: tuple[str, ...],
        epochs: Mapping[int, tuple[int, int]],
        tails: Sequence[Tail] = (),
    ) -> Promotion:
        is_fenced = there is not None and (self.dry_run or role_of(there) != LEADER)
        states = here.states
        version, committed_ms = (states.get(name) for name in (SOURCE_VERSION, SOURCE_COMMITTED_MS))
        return Promotion(
            topic=self.topic,
            dry_run=self.dry_run,
            former_uri=self._former_uri(here),
            steps=steps,
            is_fenced=is_fenced,
            leader_epochs=epochs,
            left_behind=tuple(tails),
            source_version=None if version is None else int(version),
            source_committed_ms=None if committed_ms is None else int(committed_ms),
            warnings=tuple(self.warnings),
        )


def _check_roles(here: Snapshot, theirs: Snapshot) -> None:
    """Raises DivergedLogError where the topics are not copies of one topic, NotLeaderError where `theirs` is a follower
    as `here` is, or where another promotion has fenced it.
    """
    check_same_topic(here, theirs)
    if role_of(here) == role_of(theirs) == FOLLOWER:
        raise NotLeaderError(
            f"Topic {theirs.topic} is a follower there, too",
            expected="the log directory of its leader",
            found=f"a follower of {theirs.states.get(SOURCE_URI)}",
            hint="Name its leader: --from",
        )
    ours = (here.states.get(PROMOTION_TOKEN), here.states.get(FENCE_TOKEN))
    if role_of(theirs) == FENCED and theirs.states.get(FENCE_TOKEN) not in ours:
        raise replaced(theirs)


def _least_epochs(here: Snapshot, there: Snapshot | None) -> dict[int, int]:
    """{partition: the lowest leader epoch that no other leader of the topic has given it}"""
    if there is not None:
        return {number: epoch + 1 for number, (epoch, _) in leader_epochs(there).items()}
    # A topic that was promoted in the place of a fenced one, and is out of reach, has the next epoch.
    step = 2 if role_of(here) == FENCED else 1
    return {number: epoch + step for number, (epoch, _) in leader_epochs(here).items()}
