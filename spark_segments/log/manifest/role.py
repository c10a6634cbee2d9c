"""The role of a topic among its copies: a leader takes every commit, a follower its mirror's, a fenced topic none.

A role is a part of the map `states` of the topic's row, and every try of every commit asks it. A fence is a commit like
any other: of an append and a fence at the same time, either the append comes first, or its next try sees the fence.
What a promotion writes beside the role is replicas/role.py's.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_segments.errors import LogDirError, NotLeaderError
from spark_segments.log.manifest.operation import Operation

LEADER, FOLLOWER, FENCED = ROLES = ("leader", "follower", "fenced")

_NUMBERS = ("role_epoch", "fence_version", "source_version", "source_committed_ms")
_OF_FOLLOWER = ("source_uri", "source_version", "source_commit_id", "source_committed_ms")
_ALLOWED = {FOLLOWER: {Operation.MIRROR, Operation.PROMOTE, Operation.VACUUM}, FENCED: {Operation.VACUUM}}


def role_name(states: Mapping[str, str]) -> str:
    """The role that a topic's states say: one of ROLES, or one of a newer version of this package. A topic without any
    stands alone, as a leader does. Raises LogDirError for states that this package does not write.
    """
    role = states.get("role", LEADER)
    try:
        for name in _NUMBERS:
            int(states.get(name, 0))
        if role == FOLLOWER:
            for name in _OF_FOLLOWER:
                states[name]
    except (KeyError, ValueError) as error:
        raise LogDirError(
            "The role of a topic cannot be read", expected="states as docs/format/states.md has them", found=error
        ) from error
    return role


def check_role(topic: str, states: Mapping[str, str], operation: str) -> None:
    """Raises NotLeaderError where a topic of these states does not take a commit of this operation."""
    role = role_name(states)
    if role == LEADER or operation in _ALLOWED.get(role, ()):
        return
    hint = "A newer spark-segments may know this role"
    if role == FENCED:
        place = states.get("leader_uri") or "another log directory"
        hint = f"The topic in {place} was promoted in its place: write there"
    elif "promotion_token" in states:
        hint = "Its promotion has begun: finish it with segments promote, then write here"
    elif role == FOLLOWER:
        hint = f"Its leader is in {states['source_uri']}: write there, or promote this topic (segments promote)"
    raise NotLeaderError(
        f"Topic {topic} takes no {operation}: it is no leader", expected=f"role {LEADER}", found=role, hint=hint
    )
