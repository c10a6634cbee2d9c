"""Members of consumer groups: who is in a group, which generation it is, and what its leader gave each member.

Kafka's classic protocol (KIP-62, KIP-345, KIP-394): members join, the leader assigns, heartbeats keep them. What a
group has read is not kept here but in the log directory, so that a server that begins anew loses no position.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.lease import Lease
from spark_segments.log.groups.group import Group
from spark_segments.log.groups.group_files import SERVE, GroupCommit, GroupRows

EMPTY, JOINING, SYNCING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"

FIRST_MEMBERS_SECONDS = 0.5
"""How long the first members of a group wait for others (group.initial.rebalance.delay.ms)."""

READ_ONLY, OWN, ALL = "read-only", "own", "all"
POLICIES = (READ_ONLY, OWN, ALL)
"""Which groups clients may join and move: none; those that clients of a server made; all."""

MOST_MEMBERS = 1000
MOST_GROUPS = 10_000
_LEAST_SESSION_SECONDS, _LONGEST_SESSION_SECONDS = 1.0, 1800.0
_CHECK_SECONDS = 0.2
_COMMITS = 64  # that are under way at a time, of as many groups

_logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """A request of a member that is answered with an error of Kafka."""

    def __init__(self, code: ErrorCode, member_id: str = "") -> None:
        super().__init__(code.name)
        self.code = code
        self.member_id = member_id


@dataclass(slots=True)
class Member:
    """A member of a group. Times are of time.monotonic(), in seconds."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: Sequence[tuple[str, bytes]]
    seen_seconds: float
    joined: int = -1  # the generation that it asks to be part of
    waiting: int = 0  # requests that wait for others: it is alive
    assignment: bytes = b""

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to a member that joined. `members`: for the leader alone, (member id, instance id, metadata)."""

    generation: int
    protocol_type: str
    protocol: str
    leader: str
    member_id: str
    members: Sequence[tuple[str, str | None, bytes]]


@dataclass(slots=True)
class _Group:
    """A group. `begun_seconds`: when the rebalance began that is under way."""

    condition: threading.Condition = field(default_factory=threading.Condition)
    state: str = EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    begun_seconds: float = 0.0
    is_first: bool = True
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, float] = field(default_factory=dict)  # ids that were given out, and when they end

    def rebalance(self) -> None:
        if self.state in (EMPTY, SYNCING, STABLE):
            self.is_first = self.state == EMPTY
            self.state, self.begun_seconds = JOINING, time.monotonic()
        self.condition.notify_all()

    def rename(self, member: Member, member_id: str) -> None:
        if self.leader == member.id:
            self.leader = member_id
        renamed = replace(member, id=member_id, waiting=0)  # whoever waits as the one before is gone
        self.members = {one.id: one for one in (renamed if one is member else one for one in self.members.values())}
        self.condition.notify_all()

    def remove(self, member_id: str) -> None:
        del self.members[member_id]
        if self.members:
            self.rebalance()
        else:
            self.state, self.leader = EMPTY, ""
            self.generation += 1
            self.condition.notify_all()

    def expire(self) -> None:
        """Removes members whose session is over, and completes a rebalance that is due."""
        now = time.monotonic()
        for one in [one for one in self.members.values() if not one.waiting]:
            if now - one.seen_seconds > one.session_seconds:
                self.remove(one.id)
        self.pending = {name: end for name, end in self.pending.items() if end > now}
        if self.state != JOINING:
            return
        absent = [one for one in self.members.values() if one.joined <= self.generation]
        waited = now - self.begun_seconds
        longest = max((one.rebalance_seconds for one in self.members.values()), default=0.0)
        if (not absent and not (self.is_first and waited < FIRST_MEMBERS_SECONDS)) or waited >= longest:
            self._complete(absent)

    def _complete(self, absent: Sequence[Member]) -> None:
        for one in absent:
            del self.members[one.id]
        self.generation += 1
        if not self.members:
            self.state, self.leader = EMPTY, ""
        else:
            self.state = SYNCING
            self.protocol = self.chosen()
            if self.leader not in self.members:
                self.leader = next(iter(self.members))
            for one in self.members.values():
                one.assignment = b""
        self.condition.notify_all()

    def chosen(self) -> str:
        """The protocol that all members know and most of them like best."""
        common = self.common()
        votes = [next(name for name, _ in one.protocols if name in common) for one in self.members.values()]
        return max(sorted(set(votes)), key=votes.count)

    def common(self) -> set[str]:
        names = [{name for name, _ in one.protocols} for one in self.members.values()]
        return set.intersection(*names) if names else set()


class Coordinator:
    """The groups of a server, while it holds them. Any number of threads may use it; a request that waits keeps its
    thread. `lease`: None where no other server can have the groups. `policy`: one of POLICIES.
    """

    def __init__(self, lease: Lease | None, policy: str = OWN) -> None:
        self._policy = policy
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()
        self._lease = lease
        self._committing = [threading.Lock() for _ in range(_COMMITS)]
        self._stopped = False

    def stop(self) -> None:
        """Ends all requests that wait, and lets another server have the groups."""
        self._stopped = True
        self._wake()
        if self._lease is not None:
            self._lease.end()

    def _wake(self) -> None:
        for group in list(self._groups.values()):
            with group.condition:
                group.condition.notify_all()

    def holds(self) -> bool:
        """Whether this server has the groups, for now. Who only reads them needs no lease."""
        return self._lease is None or self._policy == READ_ONLY or self._lease.is_held()

    def take(self) -> bool:
        """Takes the groups if no other server has them. Who takes them anew begins without members."""
        with self._lock:
            if self.holds():
                return True
            self._groups = {}
        assert self._lease is not None
        return self._lease.keep()

    def check_may_move(self, group: Group | None, commit: GroupCommit | None = None) -> None:
        """Raises RefusedError where clients may not move a group; None: it keeps no positions. `commit`: its newest, if
        that is known.
        """
        if self._policy == READ_ONLY:
            raise RefusedError(ErrorCode.group_authorization_failed)
        if self._policy == OWN and group is not None:
            commit = commit or group.positions().last
            if commit.rows and commit.made_by != SERVE:
                _logger.warning(
                    "group %s is left alone, for clients of a server did not make it: segments serve --groups all "
                    "lets them move it",
                    group.id,
                )
                raise RefusedError(ErrorCode.group_authorization_failed)

    def commit(self, group: Group, moved: GroupRows, generation: int, member_id: str, instance_id: str | None) -> None:
        """Moves positions of a group, one commit after the other, each by a member of this generation, or in nobody's
        group. Raises RefusedError, SegmentsError.

        The commit says under which lease it was begun. Another server that took the groups since has committed under a
        higher one, and then this commit does not happen: not even where this server slept within it.
        """
        number = 0 if self._lease is None else self._lease.number
        with self._committing[hash(group.id) % _COMMITS]:

            def check(begun: GroupCommit) -> None:
                self.check_commit(group.id, generation, member_id, instance_id)
                if begun.lease > number:
                    if self._lease is not None and number == self._lease.number:
                        self._lease.give_up(begun.lease)
                    raise RefusedError(ErrorCode.not_coordinator)
                self.check_may_move(group, begun)

            group.update(lambda rows: rows | moved, check=check, lease=number, made_by=SERVE)

    def _check_held(self) -> None:
        if not self.holds():
            raise RefusedError(ErrorCode.not_coordinator)

    def _group(self, name: str, *, make: bool = False) -> _Group:
        self._check_held()
        with self._lock:
            if name not in self._groups:
                if not make:
                    raise RefusedError(ErrorCode.unknown_member_id)
                if len(self._groups) >= MOST_GROUPS:
                    self._groups = {one: group for one, group in self._groups.items() if group.members}
                if len(self._groups) >= MOST_GROUPS:
                    raise RefusedError(ErrorCode.coordinator_not_available)
                self._groups[name] = _Group()
            return self._groups[name]

    def join(
        self,
        name: str,
        member_id: str,
        instance_id: str | None,
        protocol_type: str,
        protocols: Sequence[tuple[str, bytes]],
        *,
        session_seconds: float,
        rebalance_seconds: float,
        client: tuple[str, str],
        asks_twice: bool,
        is_gone: Callable[[], bool],
    ) -> Joined:
        """Adds a member, or one that is there to the next generation, and waits for that. Raises RefusedError.

        `client`: (client id, host). `asks_twice`: a new member gets its id first (KIP-394), and asks again with it.
        `is_gone`: whether nobody waits for the answer any more; the member then stays for its session alone.
        """
        if not _LEAST_SESSION_SECONDS <= session_seconds <= _LONGEST_SESSION_SECONDS:
            raise RefusedError(ErrorCode.invalid_session_timeout, member_id)
        if not protocols or not protocol_type:
            raise RefusedError(ErrorCode.inconsistent_group_protocol, member_id)
        group = self._group(name, make=True)
        with group.condition:
            group.expire()
            is_new = not member_id
            leader = group.leader
            member_id = self._id_of(group, member_id, instance_id, client[0], session_seconds, asks_twice)
            known = group.members.get(member_id)
            others = {one for other in group.members.values() if other is not known for one in dict(other.protocols)}
            shared = set.intersection(
                *({one for one, _ in other.protocols} for other in group.members.values() if other is not known),
                {one for one, _ in protocols},
            )
            if (others and not shared) or (group.members and others and group.protocol_type != protocol_type):
                raise RefusedError(ErrorCode.inconsistent_group_protocol, member_id)
            if known is None and len(group.members) >= MOST_MEMBERS:
                raise RefusedError(ErrorCode.group_max_size_reached, member_id)
            group.protocol_type = protocol_type
            member = known or Member(member_id, instance_id, *client, session_seconds, rebalance_seconds, (), 0.0)
            is_same = known is not None and list(known.protocols) == list(protocols)
            member.protocols, member.seen_seconds = protocols, time.monotonic()
            member.session_seconds, member.rebalance_seconds = session_seconds, rebalance_seconds
            group.members[member_id] = member
            group.pending.pop(member_id, None)
            if is_new and known is not None and group.state == STABLE and group.chosen() == group.protocol:
                # A static member that began anew keeps what it has. Whoever led is told its id of before, so that it
                # does not assign (KIP-345).
                return replace(self._joined(group, member), leader=leader, members=[])
            if is_same and group.state in (SYNCING, STABLE) and group.leader != member_id:
                return self._joined(group, member)  # its answer was lost, or it joins again without a change
            group.rebalance()
            member.joined = group.generation + 1
            self._wait(group, member, is_gone, lambda: group.generation < member.joined)
            if member_id not in group.members:
                raise RefusedError(ErrorCode.unknown_member_id, member_id)
            return self._joined(group, member)

    def _id_of(
        self,
        group: _Group,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        session_seconds: float,
        asks_twice: bool,
    ) -> str:
        now = time.monotonic()
        static = next((one for one in group.members.values() if instance_id and one.instance_id == instance_id), None)
        if not member_id:
            made = f"{instance_id or client_id or 'member'}-{uuid.uuid4()}"
            if static is not None:  # the instance began anew: its place is the same, the id before is fenced
                group.rename(static, made)
            elif asks_twice and instance_id is None:
                if len(group.pending) >= MOST_MEMBERS:
                    group.pending.pop(next(iter(group.pending)))
                group.pending[made] = now + session_seconds
                raise RefusedError(ErrorCode.member_id_required, made)
            return made
        if static is not None and static.id != member_id:
            raise RefusedError(ErrorCode.fenced_instance_id, member_id)
        if member_id not in group.members and member_id not in group.pending:
            raise RefusedError(ErrorCode.unknown_member_id, member_id)
        return member_id

    def _joined(self, group: _Group, member: Member) -> Joined:
        is_leader = group.leader == member.id
        members = [(one.id, one.instance_id, one.metadata(group.protocol)) for one in group.members.values()]
        return Joined(
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader,
            member.id,
            members if is_leader else [],
        )

    def _wait(self, group: _Group, member: Member, is_gone: Callable[[], bool], goes_on: Callable[[], bool]) -> None:
        member.waiting += 1
        try:
            while member.id in group.members and goes_on():
                if self._stopped:
                    raise RefusedError(ErrorCode.coordinator_not_available, member.id)
                self._check_held()
                if is_gone():
                    raise RefusedError(ErrorCode.unknown_member_id, member.id)
                group.expire()
                if member.id in group.members and goes_on():
                    group.condition.wait(_CHECK_SECONDS)
        finally:
            member.waiting -= 1
            member.seen_seconds = time.monotonic()

    def sync(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        given: Mapping[str, bytes],
        *,
        is_gone: Callable[[], bool],
    ) -> tuple[str, str, bytes]:
        """(protocol type, protocol, assignment) of a member, once the leader has given all. Raises RefusedError."""
        group = self._group(name)
        with group.condition:
            member = self._checked(group, generation, member_id, instance_id)
            if group.state == JOINING:
                raise RefusedError(ErrorCode.rebalance_in_progress)
            if group.state == SYNCING and group.leader == member_id:
                for one in group.members.values():
                    one.assignment = given.get(one.id, b"")
                group.state = STABLE
                group.condition.notify_all()
            self._wait(group, member, is_gone, lambda: group.state == SYNCING and group.generation == generation)
            self._checked(group, generation, member_id, instance_id)
            if group.state != STABLE:
                raise RefusedError(ErrorCode.rebalance_in_progress)
            return group.protocol_type, group.protocol, member.assignment

    def heartbeat(self, name: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Keeps a member. Raises RefusedError: rebalance_in_progress where it is to join again."""
        group = self._group(name)
        with group.condition:
            self._checked(group, generation, member_id, instance_id)
            if group.state == JOINING:
                raise RefusedError(ErrorCode.rebalance_in_progress)

    def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        """Removes a member; the others share what it had. Raises RefusedError."""
        group = self._group(name)
        with group.condition:
            if not member_id and instance_id:
                member_id = next((one.id for one in group.members.values() if one.instance_id == instance_id), "")
            if group.pending.pop(member_id, None) is not None:
                return
            if member_id not in group.members:
                raise RefusedError(ErrorCode.unknown_member_id)
            group.remove(member_id)
            group.expire()

    def check_commit(self, name: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Whether a commit of positions counts: of a member of this generation, or of nobody's group. Raises
        RefusedError.
        """
        self._check_held()
        with self._lock:
            group = self._groups.get(name)
        if generation < 0 and not member_id:
            if group is not None:
                with group.condition:
                    group.expire()
                    if group.members:
                        raise RefusedError(ErrorCode.unknown_member_id)
            return
        if group is None:
            raise RefusedError(ErrorCode.illegal_generation)
        with group.condition:
            self._checked(group, generation, member_id, instance_id)

    def _checked(self, group: _Group, generation: int, member_id: str, instance_id: str | None) -> Member:
        group.expire()
        static = next((one for one in group.members.values() if instance_id and one.instance_id == instance_id), None)
        if static is not None and static.id != member_id:
            raise RefusedError(ErrorCode.fenced_instance_id)
        member = group.members.get(member_id)
        if member is None:
            raise RefusedError(ErrorCode.unknown_member_id)
        if generation != group.generation:
            raise RefusedError(ErrorCode.illegal_generation)
        member.seen_seconds = time.monotonic()
        return member

    def groups(self) -> dict[str, tuple[str, str]]:
        """{group: (protocol type, state)} of the groups that have members."""
        groups = {}
        for name, group in list(self._groups.items()):
            with group.condition:
                group.expire()
                if group.members:
                    groups[name] = (group.protocol_type, group.state)
        return groups

    def describe(self, name: str) -> tuple[str, str, str, list[Member]]:
        """(state, protocol type, protocol, members) of a group; `Dead` where this server knows none of its name."""
        with self._lock:
            group = self._groups.get(name)
        if group is None:
            return DEAD, "", "", []
        with group.condition:
            group.expire()
            is_stable = group.state == STABLE
            return group.state, group.protocol_type, group.protocol if is_stable else "", list(group.members.values())
