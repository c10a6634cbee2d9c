"""A consumer group that a server has in memory: its members, its generation, and what its leader gave each member.

Kafka's classic protocol (KIP-62, KIP-345, KIP-394): members join, the leader assigns, heartbeats keep them.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
               ^  members join       the leader assigns     |
               +---- a member comes, goes or falls silent --+
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from weakref import WeakSet

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.serving.limits import Budget

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.api_call import Call

EMPTY = "Empty"
JOINING = "PreparingRebalance"
SYNCING = "CompletingRebalance"
STABLE = "Stable"
DEAD = "Dead"
"""The states of a group, in Kafka's words."""

FIRST_MEMBERS_SECONDS = 0.5
"""How long the first members of a group wait for others (group.initial.rebalance.delay.ms)."""

MOST_MEMBERS = 1000
GROUP_BYTES = 2048
_MEMBER_BYTES = 2048  # both without what a client says of them
_LEAST_SESSION_SECONDS = 1.0
_LONGEST_SESSION_SECONDS = 1800.0
_CHECK_SECONDS = 5.0


class RefusedError(Exception):
    """A request of a member that is answered with an error of Kafka."""

    def __init__(self, code: ErrorCode, member_id: str = "") -> None:
        super().__init__(code.name)
        self.code = code
        self.member_id = member_id


@dataclass(slots=True)
class Member:
    """A member of a group. Times are of time.monotonic(), in seconds. `owner`: whose memory it takes."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    owner: str
    session_seconds: float
    rebalance_seconds: float
    protocols: Sequence[tuple[str, bytes]]
    seen_seconds: float
    joined: int = -1  # the generation that it asks to be part of
    waiting: int = 0  # requests that wait for others: it is alive
    assignment: bytes = b""

    @property
    def size_bytes(self) -> int:
        return _MEMBER_BYTES + len(self.assignment) + sum(len(name) + len(data) for name, data in self.protocols)

    def metadata(self, protocol: str) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(frozen=True, slots=True)
class MemberAt:
    """Who a request says that it comes from: the member of an id at a generation; "" and -1: of no group."""

    generation: int
    id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A client's request to join a group. `member_id`: "" for a new member. `asks_twice`: a new member gets its id
    first (KIP-394), and joins again with it.
    """

    member_id: str
    instance_id: str | None
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    session_seconds: float
    rebalance_seconds: float
    client_id: str
    client_host: str
    asks_twice: bool

    def check(self) -> None:
        """Raises RefusedError for what no group takes."""
        if not _LEAST_SESSION_SECONDS <= self.session_seconds <= _LONGEST_SESSION_SECONDS:
            raise RefusedError(ErrorCode.invalid_session_timeout, self.member_id)
        if not self.protocols or not self.protocol_type:
            raise RefusedError(ErrorCode.inconsistent_group_protocol, self.member_id)

    def member(self, member_id: str, existing: Member | None, owner: str) -> Member:
        """The member as it is from now on. An existing one keeps whose memory it takes, and its assignment."""
        member = existing
        if member is None:
            member = Member(
                member_id,
                self.instance_id,
                self.client_id,
                self.client_host,
                owner,
                self.session_seconds,
                self.rebalance_seconds,
                (),
                0.0,
            )
        return replace(
            member,
            protocols=self.protocols,
            seen_seconds=time.monotonic(),
            session_seconds=self.session_seconds,
            rebalance_seconds=self.rebalance_seconds,
        )


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
class ServedGroup:
    """A group, as long as it has members, or ids were given out for some. `owner`: who made it. `begun_seconds`: when
    the rebalance began that is under way. `waiting`: whose requests wait for a change.
    """

    name: str
    owner: str
    kept: Budget
    lock: threading.Lock = field(default_factory=threading.Lock)
    state: str = EMPTY
    generation: int = 0
    protocol_type: str = ""
    protocol: str = ""
    leader: str = ""
    begun_seconds: float = 0.0
    is_first: bool = True
    is_dropped: bool = False
    members: dict[str, Member] = field(default_factory=dict)
    pending: dict[str, tuple[float, str]] = field(default_factory=dict)  # {id that was given out: (its end, owner)}
    waiting: WeakSet[Call] = field(default_factory=WeakSet)

    def static(self, instance_id: str | None) -> Member | None:
        """The static member of an instance id, which keeps its assignment when it restarts (KIP-345)."""
        if not instance_id:
            return None
        return next((member for member in self.members.values() if member.instance_id == instance_id), None)

    def changed(self) -> None:
        waiting = self.waiting
        self.waiting = WeakSet()
        for call in waiting:
            call.wake()

    def put(self, member: Member) -> None:
        """Adds a member, or another version of it. Raises RefusedError where its owner has no memory left for it."""
        before = self.members.get(member.id)
        more = member.size_bytes - (0 if before is None else before.size_bytes)
        if more > 0 and not self.kept.take(member.owner, more):
            raise RefusedError(ErrorCode.group_max_size_reached, member.id)
        if more < 0:
            self.kept.give(member.owner, -more)
        self.members[member.id] = member

    def take_out(self, member_id: str) -> None:
        member = self.members.pop(member_id)
        self.kept.give(member.owner, member.size_bytes)

    def assign(self, assignments: Mapping[str, bytes]) -> None:
        """Gives each member what the leader says. Raises RefusedError where there is no memory for it."""
        for member in list(self.members.values()):
            self.put(replace(member, assignment=assignments.get(member.id, b"")))

    def offer(self, member_id: str, until_seconds: float, owner: str) -> None:
        """Notes an id that a member was given to join with."""
        if len(self.pending) >= MOST_MEMBERS:
            self.withdraw(next(iter(self.pending)))
        if not self.kept.take(owner, _MEMBER_BYTES):
            raise RefusedError(ErrorCode.group_max_size_reached)
        self.pending[member_id] = (until_seconds, owner)

    def withdraw(self, member_id: str) -> bool:
        """Whether such an id was given out. It is not, any more."""
        pending = self.pending.pop(member_id, None)
        if pending is None:
            return False
        self.kept.give(pending[1], _MEMBER_BYTES)
        return True

    def rebalance(self) -> None:
        if self.state in (EMPTY, SYNCING, STABLE):
            self.is_first = self.state == EMPTY
            self.state = JOINING
            self.begun_seconds = time.monotonic()
        self.changed()

    def rename(self, member: Member, member_id: str) -> None:
        if self.leader == member.id:
            self.leader = member_id
        renamed = replace(member, id=member_id, waiting=0)  # the client that waits under the id before is gone
        members = [renamed if other is member else other for other in self.members.values()]
        self.members = {other.id: other for other in members}
        self.changed()

    def remove(self, member_id: str) -> None:
        self.take_out(member_id)
        if self.members:
            self.rebalance()
        else:
            self.state = EMPTY
            self.leader = ""
            self.generation += 1
            self.changed()

    def expire(self) -> None:
        """Removes members whose session is over, and completes a rebalance that is due."""
        now = time.monotonic()
        for member in [member for member in self.members.values() if not member.waiting]:
            if now - member.seen_seconds > member.session_seconds:
                self.remove(member.id)
        for member_id in [member_id for member_id, (end, _) in self.pending.items() if end <= now]:
            self.withdraw(member_id)
        if self.state == JOINING and now >= self._complete_seconds():
            self._complete()

    def _absent(self) -> list[Member]:
        return [member for member in self.members.values() if member.joined <= self.generation]

    def _complete_seconds(self) -> float:
        """When the rebalance that is under way ends, should nobody come any more."""
        if self._absent():
            return self.begun_seconds + max(member.rebalance_seconds for member in self.members.values())
        return self.begun_seconds + (FIRST_MEMBERS_SECONDS if self.is_first else 0.0)

    def next_seconds(self) -> float:
        """When the group changes, should nobody do anything, or is to be looked at all the same."""
        ends = [member.seen_seconds + member.session_seconds for member in self.members.values() if not member.waiting]
        if self.state == JOINING:
            ends.append(self._complete_seconds())
        return min([time.monotonic() + _CHECK_SECONDS, *ends])

    def _complete(self) -> None:
        for member in self._absent():
            self.take_out(member.id)
        self.generation += 1
        if not self.members:
            self.state = EMPTY
            self.leader = ""
        else:
            self.state = SYNCING
            self.protocol = self.chosen()
            if self.leader not in self.members:
                self.leader = next(iter(self.members))
            self.assign({})
        self.changed()

    def chosen(self) -> str:
        """The protocol that all members know and most of them like best."""
        common = self.common()
        votes = [next(name for name, _ in member.protocols if name in common) for member in self.members.values()]
        return max(sorted(set(votes)), key=votes.count)

    def common(self) -> set[str]:
        names = [{name for name, _ in member.protocols} for member in self.members.values()]
        return set.intersection(*names) if names else set()


def check_protocols(group: ServedGroup, request: JoinRequest, existing: Member | None, member_id: str) -> None:
    """Raises RefusedError where a member shares no protocol with all of the others: no leader could assign to both."""
    others = [dict(member.protocols) for member in group.members.values() if member is not existing]
    if not any(others):
        return
    shared = {name for name, _ in request.protocols}.intersection(*others)
    if not shared or group.protocol_type != request.protocol_type:
        raise RefusedError(ErrorCode.inconsistent_group_protocol, member_id)


def member_id_of(group: ServedGroup, request: JoinRequest, owner: str) -> str:
    """The id under which a member joins. Raises RefusedError for an id that is not its own, and where a new member is
    to join again with the id that the error has.
    """
    static = group.static(request.instance_id)
    member_id = request.member_id
    if not member_id:
        new_id = f"{request.instance_id or request.client_id or 'member'}-{uuid.uuid4()}"
        if static is not None:  # the instance restarted: it keeps its assignment, and its former id is fenced
            group.rename(static, new_id)
        elif request.asks_twice and request.instance_id is None:
            # A client that hangs up before its answer would else be a member whom all others wait for.
            group.offer(new_id, time.monotonic() + request.session_seconds, owner)
            raise RefusedError(ErrorCode.member_id_required, new_id)
        return new_id
    if static is not None and static.id != member_id:
        raise RefusedError(ErrorCode.fenced_instance_id, member_id)
    if member_id not in group.members and member_id not in group.pending:
        raise RefusedError(ErrorCode.unknown_member_id, member_id)
    return member_id
