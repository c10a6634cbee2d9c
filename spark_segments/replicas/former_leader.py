"""The former leader of a topic that is promoted: whether it can be reached, is followed to its end, and is fenced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

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
from spark_segments.log import Change, LogDirectory, Operation, Snapshot
from spark_segments.replicas.divergence import (
    Copy,
    Tail,
    check_same_topic,
    diverged,
    foreign_tails,
    has_new_role,
    tails_of_follower,
)
from spark_segments.replicas.leader import Leader
from spark_segments.replicas.role import Role, role_of, with_role

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUT_OF_REACH = (StorageError, LogDirError, UnknownTopicError, UnknownOutcomeError, CorruptBatchError, OSError)

_OUT_OF_REACH_HINT = (
    "Promote it again once the former leader can be reached. --force promotes without it: what it committed after the "
    "last mirror is left behind"
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PromotionOptions:
    """How a topic is promoted.

    `former`: the log directory of the former leader, by default the one that the topic's states name;
    `storage_options` are for it. `force` promotes the topic though the former leader is out of reach, is fenced for
    another promotion, or has records that the topic lacks: these stay where they are. Without a fence the former leader
    may go on to take appends: promote the topic once more as soon as it can be reached, which fences it.
    """

    former: LogDirectory | str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    force: bool = False
    dry_run: bool = False
    spark: SparkSession | None = None


@dataclass(slots=True)
class FormerLeader:
    """The leader before the promotion of a topic of `log`. `place`: its log directory, or the name of it.

    `warnings`: why it was out of reach, where that was forced.
    """

    log: LogDirectory
    topic: str
    options: PromotionOptions
    place: LogDirectory | str | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def reached(self) -> LogDirectory:
        """The log directory of the former leader, once it was looked at."""
        assert isinstance(self.place, LogDirectory)
        return self.place

    def uri(self, here: Snapshot) -> str:
        """The address of its log directory, which the role of the topic `here` has if nobody named one. Raises
        NotLeaderError for a leader that was promoted over no other.
        """
        if isinstance(self.place, LogDirectory):
            return self.place.uri
        role = role_of(here)
        uri = self.place or (role.former_uri if role.source is None else role.source.uri)
        if uri is None:
            raise NotLeaderError(
                f"Topic {self.topic} is a leader already, and was promoted over no other",
                path=self.log.uri,
                expected="a follower",
                hint="segments mirror makes one in another log directory",
            )
        return uri

    def look(self, here: Snapshot) -> Snapshot:
        """The newest snapshot of the former leader's topic. The log directory is `reached` from then on."""
        if not isinstance(self.place, LogDirectory):
            self.place = LogDirectory.open(self.uri(here), self.options.storage_options, defaults=self.log.defaults)
        self.place.check_writable()
        if self.place.uri == self.log.uri:
            raise NotLeaderError(f"Topic {self.topic} cannot be promoted over itself", path=self.log.uri)
        theirs = self.place.manifest(self.topic).snapshot(deleted=True)
        if theirs.deleted_ms is not None:
            if not self.options.force:
                raise UnknownTopicError(f"The leader of topic {self.topic} has deleted it", path=self.place.uri)
            self.warnings.append("The leader has deleted the topic: it is promoted as it was mirrored last")
        return theirs

    def can_be_copied(self, here: Snapshot, theirs: Snapshot) -> bool:
        """Whether the follower is a past state of the former leader. Raises LogDirError or DivergedLogError where it is
        not, unless that is forced: nothing can be copied then.
        """
        try:
            leader = Leader(self.reached.manifest(self.topic), self.reached.uri)
            lineage = leader.check_lineage(here, theirs)
            own = Copy(here, self.log.storage)
            other = Copy(theirs, self.reached.storage)
            is_past = lineage.is_certain and not has_new_role(here, theirs)
            tails = self.within_reach(lambda: tails_of_follower(own, other, self.options.spark, is_past=is_past))
            if tails:
                raise diverged(self.topic, tails, self.log.uri, self.reached.uri)
        except (LogDirError, DivergedLogError) as error:
            if not self.options.force:
                error.hint = (
                    "To follow that leader, mirror it into an empty log directory. To promote this topic, and leave "
                    "behind what only the leader has: --force"
                )
                raise
            self.warnings.append(f"Nothing can be copied from the former leader: {error}")
            return False
        return tails is not None  # where the leader is out of reach, nobody knows what would be overwritten

    def fence(self, here: Snapshot, token: str, role_epoch: int) -> Snapshot:
        """Fences the former leader for the promotion of a token, unless that is done. Returns its newest snapshot.

        An append that commits first makes this commit try again: so the version of the fence is behind all appends.
        """

        def plan(former: Snapshot) -> Change | None:
            check_former(here, former, token, force=self.options.force)
            if role_of(former).is_fenced:
                return None
            version = former.version + 1
            role = Role(Role.FENCED, role_epoch, fence_token=token, fence_version=version, leader_uri=self.log.uri)
            return with_role(Operation.FENCE, former, role)

        manifest = self.reached.manifest(self.topic)
        manifest.commit(plan, deleted=True)
        manifest.keep_for_rebuild()
        return manifest.snapshot(deleted=True)

    def left_behind(self, theirs: Snapshot | None) -> list[Tail]:
        """The records that the former leader has and the follower lacks, as far as the leader can be reached."""
        if theirs is None or theirs.deleted_ms is not None:
            return []
        own = Copy(self.log.snapshot(self.topic), self.log.storage)
        other = Copy(theirs, self.reached.storage)
        return self.within_reach(lambda: foreign_tails(other, own, self.options.spark)) or []

    def within_reach(self, step: Callable[[], T], hint: str | None = None) -> T | None:
        """The result of a step that needs the former leader; None where it is out of reach and that is forced. `hint`:
        what an error says is to be done, in place of its own.
        """
        try:
            return step()
        except OUT_OF_REACH as error:
            if self._is_here(error):
                raise
            if self.options.force:
                self.warnings.append(f"The former leader is out of reach: {error}")
                return None
            if isinstance(error, SegmentsError):
                # The hint of a place without a log directory is to make one there: not where a leader has been lost.
                own_hint = None if isinstance(error, LogDirError) else error.hint
                error.hint = hint or own_hint or _OUT_OF_REACH_HINT
            raise

    def _is_here(self, error: SegmentsError | OSError) -> bool:
        """Whether an error is that of a place in this log directory, and so none of the former leader."""
        if not isinstance(self.place, LogDirectory):  # it could not even be opened
            return False
        path = error.path if isinstance(error, SegmentsError) else error.filename
        places = [uri for uri in (self.log.uri, self.place.uri) if f"{path}/".startswith(f"{uri.rstrip('/')}/")]
        return max(places, key=len, default=None) == self.log.uri


def check_former(here: Snapshot, theirs: Snapshot, token: str | None, *, force: bool) -> None:
    """Raises DivergedLogError where the topics are not copies of one topic, NotLeaderError where `theirs` is a follower
    or, unless that is forced, fenced for another promotion than that of the `token`.
    """
    check_same_topic(here, theirs)
    role = role_of(theirs)
    if role.source is not None and not role_of(here).is_leader:
        raise NotLeaderError(
            f"Topic {theirs.topic} is a follower there, too",
            expected="the log directory of its leader",
            found=f"a follower of {role.source.uri}",
            hint="Name its leader: --from",
        )
    if is_fenced_for_another(theirs, token) and not force:
        raise NotLeaderError(
            f"Topic {theirs.topic} is no leader any more: another topic was promoted in its place",
            found=f"role_epoch {role.epoch}, leader_uri {role.leader_uri}",
            hint="Name that log directory as the former leader: --from. Where it is lost: --force",
        )


def is_fenced_for_another(theirs: Snapshot, token: str | None) -> bool:
    """Whether a former leader is fenced for another promotion than that of the `token`."""
    role = role_of(theirs)
    return role.is_fenced and role.fence_token != token
