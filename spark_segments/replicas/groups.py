"""Positions of groups at a follower: what they were at the leader right before its topics were mirrored.

So a position never lies beyond what the follower has, and a group goes on at the follower once that is promoted. A
promotion brings the positions, too: they lie in the log directory, and a mirror takes them on request.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from spark_segments.errors import SegmentsError
from spark_segments.log import Group, LogDirectory, Position, Snapshot
from spark_segments.replicas.role import role_of

if TYPE_CHECKING:
    from spark_segments.log import Positions


def positions_of_all(log: LogDirectory) -> tuple[dict[str, Positions], dict[str, SegmentsError]]:
    """(the positions of every group of a log directory, none for a deleted group; the errors of groups whose positions
    cannot be read)
    """
    positions: dict[str, Positions] = {}
    errors: dict[str, SegmentsError] = {}
    for group in Group.all(log):
        try:
            positions[group.id] = group.positions()
        except SegmentsError as error:
            errors[group.id] = error
    return positions, errors


def copy_positions(former: LogDirectory, log: LogDirectory, topic: str) -> tuple[int, dict[str, SegmentsError]]:
    """Brings the positions of all groups in a topic to its new leader. Returns (how many were brought, the errors of
    the groups whose positions were not).

    Where a group has a position here already, the one that was committed later counts. A position carries topic id and
    leader epoch, so a reader that was ahead of the new leader learns of it here.
    """
    copied = 0
    groups, errors = positions_of_all(former)
    for group, positions in groups.items():
        theirs = {key: position for key, position in positions.items() if key[0] == topic}
        late: dict[tuple[str, int], Position] = {}

        def newer(
            rows: dict[tuple[str, int], Position],
            theirs: dict[tuple[str, int], Position] = theirs,
            late: dict[tuple[str, int], Position] = late,
        ) -> dict[tuple[str, int], Position] | None:
            # Asked again in each try, for a commit of the group here may come first: what an earlier try chose is void.
            # Of two positions the younger counts, by the clocks of those who committed: nothing else orders commits
            # of two log directories. Of two as young, the one here stays.
            late.clear()
            late.update(
                (key, position)
                for key, position in theirs.items()
                if key not in rows or rows[key].committed_ms < position.committed_ms
            )
            return rows | late if late else None

        if theirs:
            try:
                Group(log, group).update(newer, made_by=positions.made_by)
            except SegmentsError as error:
                errors[group] = error
                continue
            copied += len(late)
    return copied, errors


def mirror_groups(
    target: LogDirectory, positions: Mapping[str, Positions], topics: Collection[str]
) -> tuple[int, dict[str, SegmentsError]]:
    """Gives groups the positions in `topics` that they had at the leader. Returns (the number of changed groups, the
    errors of groups that could not be changed).

    `positions`: read at the leader before the topics were mirrored. Positions in other topics do not change. Neither do
    positions in a topic whose promotion has begun, since its readers go on here.
    """
    topic_snapshots = {topic: target.snapshot(topic) for topic in topics}
    snapshots = {topic: snapshot for topic, snapshot in topic_snapshots.items() if _follows(snapshot)}
    changed: set[str] = set()
    errors: dict[str, SegmentsError] = {}
    for group, rows in positions.items():
        theirs = {
            key: position
            for key, position in rows.items()
            if key[0] in snapshots and _fits(snapshots[key[0]], key[1], position)
        }

        def plan(
            here: dict[tuple[str, int], Position],
            theirs: dict[tuple[str, int], Position] = theirs,
            group: str = group,
        ) -> dict[tuple[str, int], Position] | None:
            mirrored = _mirrored_positions(target, snapshots.keys(), here, theirs)
            changed.discard(group)  # of a try before that another commit outran
            if mirrored is not None:
                changed.add(group)
            return mirrored

        try:
            Group(target, group).update(plan, made_by=rows.made_by)
        except SegmentsError as error:
            errors[group] = error
    return len(changed - errors.keys()), errors


def _mirrored_positions(
    target: LogDirectory,
    topics: Collection[str],
    here: dict[tuple[str, int], Position],
    theirs: dict[tuple[str, int], Position],
) -> dict[tuple[str, int], Position] | None:
    """A group's positions `here` with those of the leader in these topics; None: they do not change.

    The topics are read after the positions: where a topic is promoted later and a reader commits, the positions have
    changed by then, and the plan is made again.
    """
    differ = {key[0] for key in here.keys() | theirs.keys() if here.get(key) != theirs.get(key)}
    moved_topics = {
        topic for topic in differ if topic in topics and _follows(target.manifest(topic).snapshot(deleted=True))
    }
    if not moved_topics:
        return None
    kept = {key: position for key, position in here.items() if key[0] not in moved_topics}
    return kept | {key: position for key, position in theirs.items() if key[0] in moved_topics}


def _follows(snapshot: Snapshot) -> bool:
    """Whether a topic follows a leader, and is not about to be promoted."""
    return role_of(snapshot).is_follower and role_of(snapshot).promotion_token is None


def _fits(snapshot: Snapshot, partition: int, position: Position) -> bool:
    """Whether the follower has the topic and the offsets that a position speaks of."""
    bounds = snapshot.offset_bounds()
    return position.topic_id == snapshot.topic_id and partition in bounds and position.offset <= bounds[partition][1]
