"""What a topic is among the topics that are mirrored from each other, and who may commit to it.

The states lie in the topic's row, so that a fence is a commit like any other: of an append and a fence at the same
time, either the append comes first, or its next try sees the fence.
"""

from __future__ import annotations

from spark_segments.errors import NotLeaderError
from spark_segments.log.manifest.change import DEMOTE, MIRROR
from spark_segments.log.manifest.snapshot import Snapshot

# The names of the states. A topic without a role stands alone, as a leader does.
ROLE = "role"
ROLE_EPOCH = "role_epoch"  # number of the promotion that gave the role; rises with each
PROMOTION_TOKEN = "promotion_token"  # identifies the promotion of this topic that has begun and is not done yet
FENCE_TOKEN = "fence_token"  # identifies the promotion that fenced this topic, or that made it the leader
FENCE_VERSION = "fence_version"  # of a fenced topic: the version that fenced it; what came before is all it ever has
LEADER_URI = "leader_uri"  # of a fenced topic: the log directory where a topic was promoted in its place
FORMER_URI = "former_uri"  # of a leader that was promoted: the log directory of the leader before it
SOURCE_URI = "source_uri"  # of a follower: the log directory that it mirrors
SOURCE_VERSION = "source_version"  # of a follower: the last version of the leader's manifest that is mirrored
SOURCE_COMMIT_ID = "source_commit_id"  # of a follower: the commit id of that version
SOURCE_COMMITTED_MS = "source_committed_ms"  # of a follower: when the leader committed it
DEMOTED = "demoted"  # "yes" for a follower that nobody has mirrored since it was demoted: its files may be the leader's
ERASURES = "erasures"  # of any topic: the erasures that it remembers (erasures.py)
REBUILT_FROM = "rebuilt_from"  # ids, by commas, that the topic had before its manifest was rebuilt: in shared objects

# Roles.
LEADER = "leader"
FOLLOWER = "follower"
FENCED = "fenced"

# The operations that a role does not stop.
PROMOTE = "promote"
FENCE = "fence"
VACUUM = "vacuum"

_ALLOWED = {FOLLOWER: {MIRROR, PROMOTE, FENCE, DEMOTE, VACUUM}, FENCED: {PROMOTE, DEMOTE, VACUUM}}


def role_of(snapshot: Snapshot) -> str:
    """The topic's role. A topic that stands alone is a leader."""
    return snapshot.states.get(ROLE, LEADER)


def role_epoch_of(snapshot: Snapshot) -> int:
    """The number of the promotion that gave the topic its role, 0 where there was none."""
    return int(snapshot.states.get(ROLE_EPOCH, 0))


def check_role(snapshot: Snapshot, operation: str) -> None:
    """Raises NotLeaderError where the topic's role does not take a commit of this operation.

    Every try of a commit asks this. Whatever writes much before its commit asks it before that, too.
    """
    role = role_of(snapshot)
    if role == LEADER or operation in _ALLOWED.get(role, ()):
        return
    states = snapshot.states
    source, leader = (states.get(name, "another log directory") for name in (SOURCE_URI, LEADER_URI))
    hints = {
        FOLLOWER: f"Its leader is in {source}: write there, or promote this topic (segments promote)",
        FENCED: f"The topic in {leader} was promoted in its place: write there",
    }
    if role == FOLLOWER and PROMOTION_TOKEN in states:
        hints[FOLLOWER] = "Its promotion has begun: finish it with segments promote, then write here"
    raise NotLeaderError(
        f"Topic {snapshot.topic} takes no {operation}: it is no leader",
        expected=f"{ROLE} {LEADER}",
        found=role,
        hint=hints.get(role, "A newer spark-segments may know this role"),
    )
