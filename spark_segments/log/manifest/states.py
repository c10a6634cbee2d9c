"""What a topic is among the topics that are mirrored from each other, and who may commit to it.

The states lie in the topic's row, so that a fence is a commit like any other: of an append and a fence at the same
time, either the append comes first, or its next try sees the fence.
"""

from __future__ import annotations

from spark_segments.errors import NotLeaderError
from spark_segments.log.manifest.change import MIRROR
from spark_segments.log.manifest.snapshot import Snapshot

# The names of the states. A topic without a role stands alone, as a leader does.
ROLE = "role"
ROLE_EPOCH = "role_epoch"  # number of the promotion that gave the role; rises with each
FENCE_TOKEN = "fence_token"  # identifies the promotion that fenced this topic, or that its own promotion goes by
FENCE_VERSION = "fence_version"  # the leader's version at which it was fenced
SOURCE_URI = "source_uri"  # of a follower: the log directory that it mirrors
SOURCE_VERSION = "source_version"  # of a follower: the last version of the leader's manifest that is mirrored
SOURCE_COMMIT_ID = "source_commit_id"  # of a follower: the commit id of that version
SOURCE_COMMITTED_MS = "source_committed_ms"  # of a follower: when the leader committed it
REBUILT_FROM = "rebuilt_from"  # ids, by commas, that the topic had before its manifest was rebuilt: in shared objects

# Roles.
LEADER = "leader"
FOLLOWER = "follower"
FENCED = "fenced"

# The operations that a role does not stop.
PROMOTE = "promote"
VACUUM = "vacuum"

_ALLOWED = {FOLLOWER: {MIRROR, PROMOTE, VACUUM}, FENCED: {PROMOTE, VACUUM}}


def check_role(snapshot: Snapshot, operation: str) -> None:
    """Raises NotLeaderError where the topic's role does not take a commit of this operation."""
    role = snapshot.states.get(ROLE, LEADER)
    if role == LEADER or operation in _ALLOWED.get(role, ()):
        return
    source = snapshot.states.get(SOURCE_URI)
    hints = {
        FOLLOWER: f"Its leader is in {source or 'another log directory'}: write there, or promote this topic",
        FENCED: "Another topic was promoted in its place: write there",
    }
    raise NotLeaderError(
        f"Topic {snapshot.topic} takes no {operation}: it is no leader",
        expected=f"{ROLE} {LEADER}",
        found=role,
        hint=hints.get(role, "A newer spark-segments may know this role"),
    )
