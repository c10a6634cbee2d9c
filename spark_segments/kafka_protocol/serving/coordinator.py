"""Members of consumer groups: who is in a group, which generation it is, and what its leader gave each member.

Kafka's classic protocol (KIP-62, KIP-345, KIP-394): members join, the leader assigns, heartbeats keep them. Committed
positions are in the log directory and not here, so a restart of the server loses none.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.kafka_protocol.serving.limits import Budget, Limits

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.call import Call

EMPTY, JOINING, SYNCING, STABLE, DEAD = "Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"

FIRST_MEMBERS_SECONDS = 0.5
"""How long the first members of a group wait for others (group.initial.rebalance.delay.ms)."""

MOST_MEMBERS = 1000
_MEMBER_BYTES, _GROUP_BYTES = 2048, 2048  # without what a client says of them
_LEAST_SESSION_SECONDS, _LONGEST_SESSION_SECONDS = 1.0, 1800.0
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
class _Group:
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
        waiting, self.waiting = self.waiting, WeakSet()
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
        self.pending[member_id] = until_seconds, owner

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


class Coordinator:
    """The groups of a server, while it holds them. Any number of threads may use it, and none waits in it.

    `lease`: None where no other server can have the groups. `kept`: memory for members.
    """

    def __init__(self, lease: Lease | None, kept: Budget | None = None) -> None:
        self._kept = kept or Budget(Limits().kept_bytes)
        self._groups: dict[str, _Group] = {}
        self._lock = threading.Lock()
        self._lease = lease
        self._stopped = False

    def stop(self) -> None:
        """Ends all requests that wait, and lets another server have the groups."""
        self._stopped = True
        for group in list(self._groups.values()):
            with group.lock:
                group.changed()
        if self._lease is not None:
            self._lease.end()

    def expire(self) -> None:
        """Removes members whose session is over. Who touches a group does that, too; nobody may."""
        for name in list(self._groups):
            with suppress(RefusedError), self._opened(name):
                pass

    def holds(self) -> bool:
        """Whether this server has the groups, for now."""
        return self._lease is None or self._lease.is_held()

    def take(self) -> bool:
        """Takes the groups if no other server has them. A server that takes them begins without members."""
        with self._lock:
            if self.holds():
                return True
            groups, self._groups = self._groups, {}
        for group in groups.values():
            with group.lock:
                self._drop(group)
        assert self._lease is not None
        return self._lease.keep()

    @property
    def lease_number(self) -> int:
        """Under which lease this server has begun to hold the groups; 0: where nobody else can have them, or never."""
        return 0 if self._lease is None else self._lease.number

    def outnumbered_by(self, lease: int, number: int) -> None:
        """A commit under lease `number` has met one under a later `lease`. If this server still holds the groups under
        `number`, the later lease came with a log directory from elsewhere: the server takes the groups again, under a
        lease later than both.
        """
        if self._lease is not None and number == self._lease.number:
            self._lease.give_up(lease)

    def has_members(self, name: str) -> bool:
        """Whether a group has members here, or ids were given out for some."""
        return name in self._groups

    @contextmanager
    def _opened(
        self, name: str, owner: str | None = None, *, missing: ErrorCode = ErrorCode.unknown_member_id
    ) -> Iterator[_Group]:
        """A group, locked, without what has expired. `owner`: who makes it where it is not there; else it is `missing`.
        Raises RefusedError.
        """
        if not self.holds():
            raise RefusedError(ErrorCode.not_coordinator)
        while True:
            group = self._group(name, owner, missing)
            with group.lock:
                # Between the look-up and its lock another thread may have dropped it: then its name has another group.
                if group.is_dropped:
                    continue
                group.expire()
                try:
                    yield group
                finally:
                    self._drop_if_empty(group)
                return

    def _group(self, name: str, owner: str | None, missing: ErrorCode) -> _Group:
        """The group of a name, not locked; a new one where there is none, if it has an owner. Raises RefusedError."""
        with self._lock:
            group = self._groups.get(name)
            if group is None:
                if owner is None:
                    raise RefusedError(missing)
                if not self._kept.take(owner, _GROUP_BYTES + len(name)):
                    raise RefusedError(ErrorCode.group_max_size_reached)
                group = self._groups[name] = _Group(name, owner, self._kept)
            return group

    def _drop_if_empty(self, group: _Group) -> None:
        """Drops a group that is locked and has neither members nor ids that were given out."""
        if group.members or group.pending:
            return
        with self._lock:
            if self._groups.get(group.name) is group:
                del self._groups[group.name]
        self._drop(group)

    def _drop(self, group: _Group) -> None:
        """Lets a group go that is locked, and the memory that it has."""
        if not group.is_dropped:
            group.is_dropped = True
            for member_id in list(group.members):
                group.take_out(member_id)
            for member_id in list(group.pending):
                group.withdraw(member_id)
            self._kept.give(group.owner, _GROUP_BYTES + len(group.name))
            group.changed()

    def join(self, name: str, request: JoinRequest, call: Call) -> Callable[[], Joined | float]:
        """Adds a new member, or an existing member to the next generation. Raises RefusedError.

        The returned function gives the result, or until when (time.monotonic()) to wait for the other members, unless
        `call` is woken before.
        """
        request.check()
        with self._opened(name, call.owner) as group:
            leader = group.leader
            member_id = _id_of(group, request, call.owner)
            existing = group.members.get(member_id)
            _check_protocols(group, request, existing, member_id)
            if existing is None and len(group.members) >= MOST_MEMBERS:
                raise RefusedError(ErrorCode.group_max_size_reached, member_id)
            is_same = existing is not None and list(existing.protocols) == list(request.protocols)
            member = request.member(member_id, existing, call.owner)
            group.put(member)
            group.protocol_type = request.protocol_type
            group.withdraw(member_id)
            is_restart = existing is not None and not request.member_id
            if is_restart and group.state == STABLE and group.chosen() == group.protocol:
                # A restarted static member keeps its assignment. A restarted leader gets its former id as the
                # leader's, so that it does not assign (KIP-345).
                return partial(replace, self._joined(group, member), leader=leader, members=[])
            if is_same and group.state in (SYNCING, STABLE) and group.leader != member_id:
                return partial(self._joined, group, member)  # its answer was lost, or it joins again without a change
            group.rebalance()
            member.joined = group.generation + 1
            member.waiting += 1
            return partial(self._after_join, group, member_id, member.joined, call)

    def _after_join(self, group: _Group, member_id: str, generation: int, call: Call) -> Joined | float:
        with group.lock:
            member = self._waiting(group, member_id, call, lambda: group.generation < generation)
            return member if isinstance(member, float) else self._joined(group, member)

    def _waiting(self, group: _Group, member_id: str, call: Call, goes_on: Callable[[], bool]) -> Member | float:
        """A member whose request waited, or until when it goes on to wait. Raises RefusedError where it waits in vain.

        Once it waits no more, it has its session to say that it is alive.
        """
        code = ErrorCode.coordinator_not_available if self._stopped else ErrorCode.not_coordinator
        is_held = self.holds() and not self._stopped
        if is_held:
            group.expire()
            code = ErrorCode.unknown_member_id
        member = group.members.get(member_id)
        is_fine = is_held and member is not None and not call.is_gone
        if is_fine and goes_on():
            group.waiting.add(call)
            return group.next_seconds()
        if member is not None:
            member.waiting = max(0, member.waiting - 1)
            member.seen_seconds = time.monotonic()
        if member is None or not is_fine:
            raise RefusedError(code, member_id)
        return member

    def _joined(self, group: _Group, member: Member) -> Joined:
        is_leader = group.leader == member.id
        shown = group.members.values() if is_leader else ()
        members = [(member.id, member.instance_id, member.metadata(group.protocol)) for member in shown]
        return Joined(group.generation, group.protocol_type, group.protocol, group.leader, member.id, members)

    def sync(
        self,
        name: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        assignments: Mapping[str, bytes],
        *,
        call: Call,
    ) -> Callable[[], tuple[str, str, bytes] | float]:
        """What is returned says the protocol type, the protocol and the assignment of a member, once the leader has
        given all, or how long to wait, as of `join`. Raises RefusedError.
        """
        with self._opened(name) as group:
            member = self._checked(group, generation, member_id, instance_id)
            if group.state == JOINING:
                raise RefusedError(ErrorCode.rebalance_in_progress)
            if group.state == SYNCING and group.leader == member_id:
                group.assign(assignments)
                group.state = STABLE
                group.changed()
                member = group.members[member_id]
            member.waiting += 1
            return partial(self._after_sync, group, generation, member_id, instance_id, call)

    def _after_sync(
        self, group: _Group, generation: int, member_id: str, instance_id: str | None, call: Call
    ) -> tuple[str, str, bytes] | float:
        def goes_on() -> bool:
            return group.state == SYNCING and group.generation == generation

        with group.lock:
            waited = self._waiting(group, member_id, call, goes_on)
            if isinstance(waited, float):
                return waited
            member = self._checked(group, generation, member_id, instance_id)
            if group.state != STABLE:
                raise RefusedError(ErrorCode.rebalance_in_progress)
            return group.protocol_type, group.protocol, member.assignment

    def heartbeat(self, name: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Keeps a member. Raises RefusedError: rebalance_in_progress where it is to join again."""
        with self._opened(name) as group:
            self._checked(group, generation, member_id, instance_id)
            if group.state == JOINING:
                raise RefusedError(ErrorCode.rebalance_in_progress)

    def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        """Removes a member; the others share what it had. Raises RefusedError."""
        with self._opened(name) as group:
            if not member_id and (static := group.static(instance_id)) is not None:
                member_id = static.id
            if group.withdraw(member_id):
                return
            if member_id not in group.members:
                raise RefusedError(ErrorCode.unknown_member_id)
            group.remove(member_id)
            group.expire()

    def check_commit(self, name: str, generation: int, member_id: str, instance_id: str | None) -> None:
        """Whether a commit of positions counts: of a member of this generation, or of nobody's group. Raises
        RefusedError.
        """
        is_member = generation >= 0 or bool(member_id)
        try:
            with self._opened(name, missing=ErrorCode.illegal_generation) as group:
                if is_member:
                    self._checked(group, generation, member_id, instance_id)
                elif group.members:
                    raise RefusedError(ErrorCode.unknown_member_id)
        except RefusedError as error:
            if is_member or error.code is not ErrorCode.illegal_generation:
                raise

    def _checked(self, group: _Group, generation: int, member_id: str, instance_id: str | None) -> Member:
        static = group.static(instance_id)
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
        for name in list(self._groups):
            with suppress(RefusedError), self._opened(name) as group:
                if group.members:
                    groups[name] = (group.protocol_type, group.state)
        return groups

    def describe(self, name: str) -> tuple[str, str, str, list[Member]]:
        """(state, protocol type, protocol, members) of a group; `Dead` where this server knows none of its name."""
        with suppress(RefusedError), self._opened(name) as group:
            is_stable = group.state == STABLE
            return group.state, group.protocol_type, group.protocol if is_stable else "", list(group.members.values())
        return DEAD, "", "", []


def _check_protocols(group: _Group, request: JoinRequest, existing: Member | None, member_id: str) -> None:
    """Raises RefusedError where a member shares no protocol with all of the others: no leader could assign to both."""
    others = [dict(member.protocols) for member in group.members.values() if member is not existing]
    if not any(others):
        return
    shared = {name for name, _ in request.protocols}.intersection(*others)
    if not shared or group.protocol_type != request.protocol_type:
        raise RefusedError(ErrorCode.inconsistent_group_protocol, member_id)


def _id_of(group: _Group, request: JoinRequest, owner: str) -> str:
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
