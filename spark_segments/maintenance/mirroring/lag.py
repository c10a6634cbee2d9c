"""How far a follower is behind its leader: in commits, records and time."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import SOURCE_COMMITTED_MS, SOURCE_VERSION
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
    """The lag of a follower at `now_ms`, by the clock of the leader's writers. Raises UnknownTopicError."""
    newest = leader.manifest.snapshot(deleted=True)
    version = int(follower.states[SOURCE_VERSION])
    if newest.version == version:
        return Lag(version, version, 0, 0, 0)
    first = leader.facts(version + 1)
    since_ms = int(follower.states[SOURCE_COMMITTED_MS]) if first is None else first.committed_ms
    same = newest.topic_id == follower.topic_id
    records = _end(newest) - (_end(follower) if same else 0)
    return Lag(newest.version, version, newest.version - version, records, max(0, now_ms - since_ms))


def _end(snapshot: Snapshot) -> int:
    return int(pc.sum(snapshot.partitions.column("log_end_offset")).as_py() or 0)
