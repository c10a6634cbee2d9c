"""The groups of a server: which it holds, and what their members ask.

Committed positions are in the log directory and not here, so a restart of the server loses none.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from spark_segments.kafka_protocol.serving.group_members import (
    DEAD,
    GROUP_BYTES,
    JOINING,
    MOST_MEMBERS,
    STABLE,
    SYNCING,
    Joined,
    JoinRequest,
    Member,
    MemberAt,
    RefusedError,
    ServedGroup,
    check_protocols,
    member_id_of,
)
from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.kafka_protocol.serving.limits import Budget, Limits

if TYPE_CHECKING:
    from spark_segments.kafka_protocol.serving.api_call import Call


class Coordinator:
    """The groups of a server, while it holds them. Any number of threads may use it, and none waits in it.

    `lease`: None where no other server can have the groups. `kept`: memory for members.
    """

    def __init__(self, lease: Lease | None, kept: Budget | None = None) -> None:
        self._kept = kept or Budget(Limits().kept_bytes)
        self._groups: dict[str, ServedGroup] = {}
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
            groups = self._groups
            self._groups = {}
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
    ) -> Iterator[ServedGroup]:
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

    def _group(self, name: str, owner: str | None, missing: ErrorCode) -> ServedGroup:
        """The group of a name, not locked; a new one where there is none, if it has an owner. Raises RefusedError."""
        with self._lock:
            group = self._groups.get(name)
            if group is None:
                if owner is None:
                    raise RefusedError(missing)
                if not self._kept.take(owner, GROUP_BYTES + len(name)):
                    raise RefusedError(ErrorCode.group_max_size_reached)
                group = ServedGroup(name, owner, self._kept)
                self._groups[name] = group
            return group

    def _drop_if_empty(self, group: ServedGroup) -> None:
        """Drops a group that is locked and has neither members nor ids that were given out."""
        if group.members or group.pending:
            return
        with self._lock:
            if self._groups.get(group.name) is group:
                del self._groups[group.name]
        self._drop(group)

    def _drop(self, group: ServedGroup) -> None:
        """Lets a group go that is locked, and the memory that it has."""
        if not group.is_dropped:
            group.is_dropped = True
            for member_id in list(group.members):
                group.take_out(member_id)
            for member_id in list(group.pending):
                group.withdraw(member_id)
            self._kept.give(group.owner, GROUP_BYTES + len(group.name))
            group.changed()

    def join(self, name: str, request: JoinRequest, call: Call) -> Callable[[], Joined | float]:
        """Adds a new member, or an existing member to the next generation. Raises RefusedError.

        The returned function gives the result, or until when (time.monotonic()) to wait for the other members, unless
        `call` is woken before.
        """
        request.check()
        with self._opened(name, call.owner) as group:
            leader = group.leader
            member_id = member_id_of(group, request, call.owner)
            existing = group.members.get(member_id)
            check_protocols(group, request, existing, member_id)
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

    def _after_join(self, group: ServedGroup, member_id: str, generation: int, call: Call) -> Joined | float:
        with group.lock:
            member = self._waiting(group, member_id, call, lambda: group.generation < generation)
            return member if isinstance(member, float) else self._joined(group, member)

    def _waiting(self, group: ServedGroup, member_id: str, call: Call, goes_on: Callable[[], bool]) -> Member | float:
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

    def _joined(self, group: ServedGroup, member: Member) -> Joined:
        is_leader = group.leader == member.id
        shown = group.members.values() if is_leader else ()
        members = [(member.id, member.instance_id, member.metadata(group.protocol)) for member in shown]
        return Joined(group.generation, group.protocol_type, group.protocol, group.leader, member.id, members)

    def sync(
        self, name: str, asker: MemberAt, assignments: Mapping[str, bytes], *, call: Call
    ) -> Callable[[], tuple[str, str, bytes] | float]:
        """What is returned says the protocol type, the protocol and the assignment of a member, once the leader has
        given all, or how long to wait, as of `join`. Raises RefusedError.
        """
        with self._opened(name) as group:
            member = _checked(group, asker)
            if group.state == JOINING:
                raise RefusedError(ErrorCode.rebalance_in_progress)
            if group.state == SYNCING and group.leader == asker.id:
                group.assign(assignments)
                group.state = STABLE
                group.changed()
                member = group.members[asker.id]
            member.waiting += 1
            return partial(self._after_sync, group, asker, call)

    def _after_sync(self, group: ServedGroup, asker: MemberAt, call: Call) -> tuple[str, str, bytes] | float:
        def goes_on() -> bool:
            return group.state == SYNCING and group.generation == asker.generation

        with group.lock:
            waited = self._waiting(group, asker.id, call, goes_on)
            if isinstance(waited, float):
                return waited
            member = _checked(group, asker)
            if group.state != STABLE:
                raise RefusedError(ErrorCode.rebalance_in_progress)
            return group.protocol_type, group.protocol, member.assignment

    def heartbeat(self, name: str, asker: MemberAt) -> None:
        """Keeps a member. Raises RefusedError: rebalance_in_progress where it is to join again."""
        with self._opened(name) as group:
            _checked(group, asker)
            if group.state == JOINING:
                raise RefusedError(ErrorCode.rebalance_in_progress)

    def leave(self, name: str, member_id: str, instance_id: str | None) -> None:
        """Removes a member; the others share what it had. Raises RefusedError."""
        with self._opened(name) as group:
            static = group.static(instance_id)
            if not member_id and static is not None:
                member_id = static.id
            if group.withdraw(member_id):
                return
            if member_id not in group.members:
                raise RefusedError(ErrorCode.unknown_member_id)
            group.remove(member_id)
            group.expire()

    def check_commit(self, name: str, asker: MemberAt) -> None:
        """Whether a commit of positions counts: of a member of this generation, or of nobody's group. Raises
        RefusedError.
        """
        is_member = asker.generation >= 0 or bool(asker.id)
        try:
            with self._opened(name, missing=ErrorCode.illegal_generation) as group:
                if is_member:
                    _checked(group, asker)
                elif group.members:
                    raise RefusedError(ErrorCode.unknown_member_id)
        except RefusedError as error:
            # A group without members is nobody's: a client without one may commit to it.
            if is_member or error.code is not ErrorCode.illegal_generation:
                raise

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


def _checked(group: ServedGroup, asker: MemberAt) -> Member:
    """The member that asks. Raises RefusedError: a member of an earlier generation has lost its partitions to others,
    and would commit over them.
    """
    static = group.static(asker.instance_id)
    if static is not None and static.id != asker.id:
        raise RefusedError(ErrorCode.fenced_instance_id)
    member = group.members.get(asker.id)
    if member is None:
        raise RefusedError(ErrorCode.unknown_member_id)
    if asker.generation != group.generation:
        raise RefusedError(ErrorCode.illegal_generation)
    member.seen_seconds = time.monotonic()
    return member
