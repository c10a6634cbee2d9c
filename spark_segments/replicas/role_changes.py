"""What commits that change the role of a topic check and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from spark_segments.errors import NotLeaderError
from spark_segments.log import Change, LeaderEpochs, Partition, Snapshot
from spark_segments.replicas.divergence import check_same_topic
from spark_segments.replicas.role import Role, role_of


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
        epoch = max(epochs.entries[-1][0] + 1, row.leader_epoch + 1, least_epochs.get(row.partition, 0))
        entries = followed_by(epochs.entries, epoch, row.log_end_offset)
        rows.append(dataclasses.replace(row, leader_epoch=epoch, leader_epochs=entries))
    return rows


def followed_by(entries: Sequence[tuple[int, int]], epoch: int, offset: int) -> tuple[tuple[int, int], ...]:
    """The entries of leader epochs and a new epoch from an offset on. An epoch that holds no record below the offset
    goes.
    """
    return (*(entry for entry in entries if entry[1] < offset), (epoch, offset))


def with_role(operation: str, snapshot: Snapshot, role: Role) -> Change:
    """The change that gives a topic a role."""
    return Change(operation, topic=dataclasses.replace(snapshot.topic_row, states=role.given_to(snapshot.states)))
