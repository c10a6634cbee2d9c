"""The commits that change the role of a topic: plans for `Manifest.commit`, each checked anew in every try.

Each of them finds out by itself whether it was made before, so that a promotion can be repeated from any step on.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Mapping

from spark_segments.errors import NotLeaderError
from spark_segments.log import Change, LeaderEpochs, Operation, Partition, Role, Snapshot
from spark_segments.replicas.divergence import check_same_topic

Plan = Callable[[Snapshot], Change | None]


def begun(role: Role) -> Plan:
    """Gives a follower the token of a promotion, unless it has one, or has changed its `role` since it was found."""

    def plan(here: Snapshot) -> Change | None:
        if here.role.promotion_token is not None or (here.role.name, here.role.epoch) != (role.name, role.epoch):
            return None
        return _with_role(Operation.PROMOTE, here, dataclasses.replace(here.role, promotion_token=uuid.uuid4().hex))

    return plan


def fenced(successor: Snapshot, token: str, role_epoch: int, leader_uri: str, *, force: bool) -> Plan:
    """Fences a leader for the promotion with this token, of `successor` in the log directory `leader_uri`.

    The plan raises as `check_former` does.
    """

    def plan(former: Snapshot) -> Change | None:
        check_former(successor, former, token, force=force)
        if former.role.is_fenced:
            return None
        version = former.version + 1
        role = Role(Role.FENCED, role_epoch, fence_token=token, fence_version=version, leader_uri=leader_uri)
        return _with_role(Operation.FENCE, former, role)

    return plan


def opened(token: str, role_epoch: int, former_uri: str, least_epochs: Mapping[int, int], version: int | None) -> Plan:
    """Makes a topic the leader: the last step of the promotion with this token. Every partition gets a new epoch.

    `least_epochs`: {partition: the lowest epoch that it may get}. `version`: the version of the former leader that the
    follower must have mirrored, None where it need not. The plan raises NotLeaderError where the topic is not the
    follower any more that began the promotion.
    """

    def plan(here: Snapshot) -> Change | None:
        role = here.role
        if role.is_leader and role.fence_token == token:
            return None
        if role.source is None or role.promotion_token != token:
            raise NotLeaderError(
                f"Topic {here.topic} is not the follower any more whose promotion had begun",
                expected=f"promotion token {token}",
                found=role.promotion_token or f"a {role.name} without one",
            )
        if version is not None and role.source.version < version:
            raise NotLeaderError(
                f"Topic {here.topic} does not have all that its leader committed before the fence",
                expected=f"version {version} of the leader",
                found=role.source.version,
                hint="Promote it again: the rest is copied then",
            )
        leader = Role(Role.LEADER, role_epoch, fence_token=token, former_uri=former_uri)
        return dataclasses.replace(
            _with_role(Operation.PROMOTE, here, leader), partitions=partitions_in_new_epochs(here, least_epochs)
        )

    return plan


def check_former(here: Snapshot, theirs: Snapshot, token: str | None, *, force: bool) -> None:
    """Raises DivergedLogError where the topics are not copies of one topic, NotLeaderError where `theirs` is a follower
    or, unless that is forced, fenced for another promotion than that of the `token`.
    """
    check_same_topic(here, theirs)
    role = theirs.role
    if role.source is not None and not here.role.is_leader:
        raise NotLeaderError(
            f"Topic {theirs.topic} is a follower there, too",
            expected="the log directory of its leader",
            found=f"a follower of {role.source.uri}",
            hint="Name its leader: --from",
        )
    if role.is_fenced and role.fence_token != token and not force:
        raise NotLeaderError(
            f"Topic {theirs.topic} is no leader any more: another topic was promoted in its place",
            found=f"role_epoch {role.epoch}, leader_uri {role.leader_uri}",
            hint="Name that log directory as the former leader: --from. Where it is lost: --force",
        )


def leader_epochs(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """{partition: (its last leader epoch, the offset from which on)}"""
    return {row.partition: LeaderEpochs.of(row).entries[-1] for row in Partition.of_table(snapshot.partitions)}


def least_epochs(here: Snapshot, theirs: Snapshot | None, token: str | None) -> dict[int, int]:
    """{partition: the lowest leader epoch that no other leader of the topic has given it, as far as `theirs` tells}

    Where that is fenced for another promotion than that of the `token`, the topic promoted there has its next epoch.
    """
    is_others = theirs is not None and theirs.role.is_fenced and theirs.role.fence_token != token
    return {number: epoch + 1 + is_others for number, (epoch, _) in leader_epochs(theirs or here).items()}


def partitions_in_new_epochs(here: Snapshot, least_epochs: Mapping[int, int]) -> list[Partition]:
    """The rows of a topic's partitions in the leader epochs that a promotion gives them, each from its log end on."""
    rows = []
    for row in Partition.of_table(here.partitions):
        epochs = LeaderEpochs.of(row)
        epoch = max(epochs.entries[-1][0] + 1, row.leader_epoch + 1, least_epochs.get(row.partition, 0))
        entries = epochs.followed_by(epoch, row.log_end_offset).entries
        rows.append(dataclasses.replace(row, leader_epoch=epoch, leader_epochs=entries))
    return rows


def _with_role(operation: str, snapshot: Snapshot, role: Role) -> Change:
    return Change(operation, topic=dataclasses.replace(snapshot.topic_row, states=role.given_to(snapshot.states)))
