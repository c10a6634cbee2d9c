"""`segments offsets --group`: positions of a group's reader with their lag, and moving them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log.groups.positions import Position
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.partitions import offset_bounds
from spark_segments.log.topics import Topics

COLUMNS = ["topic", "partition", "offset", "log_end_offset", "lag", "committed_ms"]


def print_positions(
    log: Topics, group: str, topic: str | None, partitions: Collection[int] | None, output: Output
) -> None:
    """Prints the positions of a group, in all topics or in one. A topic that was deleted or made again has no lag."""
    found = log.committed(group)
    snapshots = {name: _snapshot(log, name) for name in found if topic in (None, name)}
    rows = [
        _row(name, number, position, snapshots[name])
        for (name, number), position in sorted(found.positions.items())
        if name in snapshots and (partitions is None or number in partitions)
    ]
    if output is Output.JSON:
        print_json({"group": group, "positions": rows})
    elif rows:
        print_table(COLUMNS, ([row[name] for name in COLUMNS] for row in rows))
    else:
        print(f"Group {group} has no positions{'' if topic is None else f' in topic {topic}'}.")


def reset(log: Topics, group: str, topic: str | None, partitions: Collection[int] | None, to: str) -> None:
    """Moves the positions of a group in a topic, in all partitions or in those given."""
    if topic is None:
        raise InvalidOptionError("Positions are moved topic by topic", expected="TOPIC")
    snapshot = log.snapshot(topic)
    bounds = offset_bounds(snapshot)
    chosen = sorted(bounds if partitions is None else partitions)
    for number in chosen:
        if number not in bounds:
            raise InvalidOptionError(f"Topic {topic} has no such partition", expected=sorted(bounds), found=number)
    moved = {number: _target(to, *bounds[number]) for number in chosen}
    log.commit_offsets(group, {topic: moved}, after=log.committed(group), snapshots=[snapshot])


def _target(to: str, log_start: int, log_end: int) -> int:
    if to in ("earliest", "beginning"):
        return log_start
    if to in ("latest", "end"):
        return log_end
    if not (to.isascii() and to.isdigit()):
        raise InvalidOptionError("The text is no offset", expected="a number, earliest or latest", found=to)
    return int(to)


def _snapshot(log: Topics, topic: str) -> Snapshot | None:
    try:
        return log.snapshot(topic)
    except UnknownTopicError:
        return None


def _row(topic: str, partition: int, position: Position, snapshot: Snapshot | None) -> dict[str, Any]:
    same = snapshot is not None and snapshot.topic_id == position.topic_id
    end = offset_bounds(snapshot)[partition][1] if same and snapshot is not None else None
    return {
        "topic": topic,
        "partition": partition,
        "offset": position.offset,
        "log_end_offset": end,
        "lag": None if end is None else max(0, end - position.offset),
        "committed_ms": position.committed_ms,
    }
