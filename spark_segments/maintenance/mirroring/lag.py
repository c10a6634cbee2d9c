"""How far a follower is behind its leader: in commits, records and time."""

from __future__ import annotations

from dataclasses import dataclass

from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.maintenance.mirroring.leader import Leader


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a follower is behind. What the leader has more would be lost with the leader now.

    `leader_version`, `source_version`: the leader's newest version, and the version that the follower is. `commits`:
    the versions between. `records`: offsets that the follower lacks, over all partitions. `lag_ms`: how long ago the
    first of these commits was made, 0 without any.
    """

    leader_version: int
    source_version: int
    commits: int
    records: int
    lag_ms: int


def lag_of(leader: Leader, follower: Snapshot, now_ms: int) -> Lag:
    """The lag of a follower at `now_ms`, by the clock of the leader's writers.

    Raises UnknownTopicError, and LogDirError where the leader is not the log that the follower has mirrored.
    """
    newest = leader.manifest.snapshot(deleted=True)
    source = follower.role.source
    assert source is not None
    reached = leader.check_lineage(follower, newest).version
    if newest.version == reached:
        return Lag(source.version, source.version, 0, 0, 0)
    first = leader.facts(reached + 1)
    since_ms = source.committed_ms if first is None else first.committed_ms
    bounds = offset_bounds(follower) if newest.topic_id == follower.topic_id else {}
    ends = ((end, bounds.get(number, (0, 0))[1]) for number, (_, end) in offset_bounds(newest).items())
    records = sum(max(0, theirs - ours) for theirs, ours in ends)
    return Lag(newest.version, source.version, newest.version - reached, records, max(0, now_ms - since_ms))
