"""Positions of groups in the log directory, as far as clients of a server may move them: whose groups these are, how
many there may be, and how long they stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from kio.schema.errors import ErrorCode

from spark_segments.errors import SegmentsError
from spark_segments.kafka_protocol.serving.coordinator import Coordinator
from spark_segments.kafka_protocol.serving.group_members import MemberAt, RefusedError
from spark_segments.kafka_protocol.serving.limits import Budget, Limits
from spark_segments.log import Group, LogDirectory, Position, Positions
from spark_segments.quantities import wall_ms

READ_ONLY = "read-only"
OWN = "own"
ALL = "all"
POLICIES = (READ_ONLY, OWN, ALL)
"""Which groups clients may join, move and delete: none; the groups that clients of a server made; all."""

MADE_BY_SERVE = "serve"
"""Who made a group that clients of `segments serve` were the first to commit to: `made_by` of its commits."""

_COMMITS = 64  # that are under way at a time, of as many groups
_POSITION_BYTES = 96  # in a file, without what a client says of it
_FILES = Group.MOST_FILES  # of a group, at the most
_OF_BEFORE = ""  # the owner of groups that were there when this server began to hold them

_logger = logging.getLogger(__name__)


class CommitUnderWayError(Exception):
    """Another commit of the group has to end first."""


class StoredGroups:
    """The groups of a log directory for the clients of a server. Any number of threads may use it.

    `policy`: one of POLICIES. Groups that clients made have a bound in number and in the bytes of their files, which
    addresses share, and go once nobody has committed to them, nor been a member, for offsets.retention.minutes.
    """

    def __init__(self, log: LogDirectory, coordinator: Coordinator, policy: str, limits: Limits) -> None:
        self._log = log
        self._coordinator = coordinator
        self._policy = policy
        self._limits = limits
        self._committing = [threading.Lock() for _ in range(_COMMITS)]
        self._groups = Budget(limits.groups)
        self._bytes = Budget(limits.group_files_bytes)
        self._sizes: dict[str, tuple[str, int]] = {}  # {group that clients made: (owner, bytes of its files)}
        self._in_use_ms: dict[str, int] = {}  # when a group was last seen to have members
        self._lock = threading.Lock()

    @property
    def are_read_only(self) -> bool:
        """Whether clients may move no group: it takes no lease to show them."""
        return self._policy == READ_ONLY

    def check_may_move(self, group: Group | None, positions: Positions | None = None) -> None:
        """Raises RefusedError where clients may not move a group; None: it keeps no positions. `positions`: its newest,
        if they are known.
        """
        if self.are_read_only:
            raise RefusedError(ErrorCode.group_authorization_failed)
        if self._policy == OWN and group is not None:
            positions = group.positions() if positions is None else positions
            if positions and positions.made_by != MADE_BY_SERVE:
                _logger.warning(
                    "group %s is left alone, for clients of a server did not make it: segments serve --groups all "
                    "lets them move it",
                    group.id,
                )
                raise RefusedError(ErrorCode.group_authorization_failed)

    def commit(
        self,
        group: Group,
        positions: dict[tuple[str, int], Position],
        member: MemberAt,
        owner: str,
    ) -> None:
        """Moves positions of a group, one commit after the other, each by a member or in nobody's group. Raises
        RefusedError, SegmentsError; CommitUnderWayError: try again in a moment.

        The commit says under which lease it was begun. Another server that took the groups since has committed under a
        higher one, and then this commit does not happen: not even where this server slept within it.
        """
        number = self._coordinator.lease_number
        committing = self._lock_of(group)
        if not committing.acquire(blocking=False):
            raise CommitUnderWayError
        try:

            def check(begun: Positions) -> None:
                self._coordinator.check_commit(group.id, member)
                if begun.lease > number:
                    self._coordinator.outnumbered_by(begun.lease, number)
                    raise RefusedError(ErrorCode.not_coordinator)
                self.check_may_move(group, begun)
                if not begun or begun.made_by == MADE_BY_SERVE:
                    self._count(group.id, {**begun, **positions}, owner)

            group.update(lambda rows: rows | positions, check=check, lease=number, made_by=MADE_BY_SERVE)
        finally:
            committing.release()

    def _lock_of(self, group: Group) -> threading.Lock:
        """What the one commit of a group holds that is under way."""
        return self._committing[hash(group.id) % _COMMITS]

    def _count(self, group: str, rows: Mapping[tuple[str, int], Position], owner: str) -> None:
        """Notes how much a group takes once it has these positions. Raises RefusedError where that is too much."""
        size = _bytes_of(group, rows)
        with self._lock:
            owner, before = self._sizes.get(group, (owner, 0))
            if not before and not self._groups.take(owner, 1):
                _logger.warning("no group %s is made: there are too many that clients of %s made", group, owner)
                raise RefusedError(ErrorCode.policy_violation)
            if size > before and not self._bytes.take(owner, size - before):
                if not before:
                    self._groups.give(owner, 1)
                _logger.warning("group %s gets no more positions: those of %s take too many bytes", group, owner)
                raise RefusedError(ErrorCode.policy_violation)
            if size < before:
                self._bytes.give(owner, before - size)
            self._sizes[group] = (owner, size)

    def delete(self, group: Group, chosen: Collection[tuple[str, int]] | None) -> None:
        """Deletes the chosen positions of a group that has no members, (topic, partition) each; None: all of them.
        Raises RefusedError, SegmentsError.

        As in `commit`, a later lease than this server's ends it: another server has the groups, and may have members.
        """
        number = self._coordinator.lease_number

        def check(begun: Positions) -> None:
            # Asked in each try: this server may have slept so long that another has the groups and members of its own.
            if not (self.are_read_only or self._coordinator.holds()):
                raise RefusedError(ErrorCode.not_coordinator)
            if begun.lease > number:
                self._coordinator.outnumbered_by(begun.lease, number)
                raise RefusedError(ErrorCode.not_coordinator)
            self.check_may_move(group, begun)
            if self._coordinator.has_members(group.id):
                raise RefusedError(ErrorCode.non_empty_group)
            if not begun:
                raise RefusedError(ErrorCode.group_id_not_found)

        def without(rows: Mapping[tuple[str, int], Position]) -> dict[tuple[str, int], Position]:
            return {key: row for key, row in rows.items() if chosen is not None and key not in chosen}

        # A commit in between would be counted, and then taken out of the count with the deleted positions.
        with self._lock_of(group):
            left = group.update(without, check=check, lease=number)
            with self._lock:
                owner, size_before = self._sizes.pop(group.id, (_OF_BEFORE, 0))
                size = _bytes_of(group.id, left) if left and size_before else 0
                self._bytes.give(owner, size_before - size)
                if size:
                    self._sizes[group.id] = owner, size
                elif size_before:
                    self._groups.give(owner, 1)

    def expire(self) -> None:
        """Deletes the positions of expired groups, and counts the other groups."""
        if self._log.is_kafka or self.are_read_only or not self._coordinator.holds():
            return
        now_ms = wall_ms()
        number = self._coordinator.lease_number
        stay: dict[str, Positions] = {}
        for group in Group.all(self._log):
            try:
                positions = group.positions()
            except SegmentsError:  # a client that reads this group gets the error
                continue
            if not positions or positions.made_by != MADE_BY_SERVE:
                continue
            if self._coordinator.has_members(group.id):
                self._in_use_ms[group.id] = now_ms
            # By the last commit alone, a group whose members wait for new records would be deleted under them.
            used_ms = max(self._in_use_ms.get(group.id, 0), *(row.committed_ms for row in positions.values()))
            is_in_use = now_ms - used_ms <= self._limits.offsets_retention_minutes * 60_000
            if is_in_use or not self._forget(group, positions.number, number):
                stay[group.id] = positions
        self._recount(stay)

    def _forget(self, group: Group, newest: int, number: int) -> bool:
        """Deletes the positions of a group, unless somebody has come to it meanwhile."""

        def check(begun: Positions) -> None:
            if begun.number != newest or begun.lease > number or self._coordinator.has_members(group.id):
                raise RefusedError(ErrorCode.non_empty_group)

        try:
            group.update(lambda _: {}, check=check, lease=number)
            return True
        except RefusedError:
            return False
        except SegmentsError as error:
            _logger.warning("group %s, which nobody uses, could not be deleted: %s", group.id, error)
            return False

    def _recount(self, stay: Mapping[str, Positions]) -> None:
        with self._lock:
            sizes_before = self._sizes
            self._sizes = {}
            self._groups = Budget(self._limits.groups)
            self._bytes = Budget(self._limits.group_files_bytes)
            for group, rows in stay.items():
                owner = sizes_before.get(group, (_OF_BEFORE, 0))[0]
                size = _bytes_of(group, rows)
                self._sizes[group] = (owner, size)
                self._groups.take(owner, 1, is_there=True)
                self._bytes.take(owner, size, is_there=True)
            self._in_use_ms = {group: ms for group, ms in self._in_use_ms.items() if group in self._sizes}


def _bytes_of(group: str, rows: Mapping[tuple[str, int], Position]) -> int:
    """What the files of a group take at the most, as many as are kept."""
    position_bytes = sum(_POSITION_BYTES + len(topic) + len(row.metadata.encode()) for (topic, _), row in rows.items())
    return _FILES * (_POSITION_BYTES + len(group) + position_bytes)
