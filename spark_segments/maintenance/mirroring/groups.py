"""Positions of groups at a follower: what they were at the leader right before its topics were mirrored.

So a position never lies beyond what the follower has, and a group goes on at the follower once that is promoted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from spark_segments.log.groups.group_table import GROUPS_DIRECTORY, GroupTable, Rows
from spark_segments.log.groups.positions import Position
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds


def positions_of_all(log: LogDir) -> dict[str, Rows]:
    """The positions of every group of a log directory; none of a group that was deleted."""
    return {group: GroupTable(log.storage, group).positions() for group in log.storage.directories(GROUPS_DIRECTORY)}


def mirror_groups(target: LogDir, positions: Mapping[str, Rows], topics: Collection[str]) -> int:
    """Makes the positions of groups in `topics` what they were at the leader. Returns how many groups that changed.

    `positions`: read there before the topics were mirrored. Positions in other topics stay as they are.
    """
    snapshots = {topic: target.snapshot(topic) for topic in topics}
    changed: set[str] = set()
    for group, rows in positions.items():
        there = {key: one for key, one in rows.items() if key[0] in snapshots and _fits(snapshots[key[0]], key[1], one)}

        def plan(here: Rows, there: Rows = there, group: str = group) -> Rows | None:
            wanted = {key: one for key, one in here.items() if key[0] not in snapshots} | there
            if wanted == here:
                return None
            changed.add(group)
            return wanted

        GroupTable(target.storage, group).commit(plan)
    return len(changed)


def _fits(snapshot: Snapshot, partition: int, position: Position) -> bool:
    """Whether the follower has the topic and the offsets that a position speaks of."""
    bounds = offset_bounds(snapshot)
    return position.topic_id == snapshot.topic_id and partition in bounds and position.offset <= bounds[partition][1]
