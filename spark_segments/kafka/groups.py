"""Groups of Kafka's: their positions in topics that come here, as groups here.

Whoever copies reads them before the logs: so what a group has read is here once its positions are.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_segments.errors import InvalidOptionError
from spark_segments.kafka.internal_topics.consumer_offsets import GroupOffsets
from spark_segments.log import Group, LogDirectory, PartitionState, Position, Report
from spark_segments.quantities import wall_ms

if TYPE_CHECKING:
    from spark_segments.kafka.directory import KafkaDirectory

_NAMED = 20  # the partitions that a warning names
_HIDDEN = "Brokers hide what a user may not DESCRIBE, and share groups have no positions"


def chosen_groups(existing: Collection[str], patterns: Sequence[str], of: str) -> list[str]:
    """The groups of these names or patterns. `of`: what has them, in words.

    Raises InvalidOptionError for a name, which is no pattern, that is no group there.
    """
    if missing := sorted({name for name in patterns if not {*"*?["} & {*name}} - set(existing)):
        raise InvalidOptionError(f"{of} no group {', '.join(missing)}", hint=_HIDDEN)
    return sorted(name for name in existing if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns))


def keep_groups(
    log: LogDirectory,
    groups: GroupOffsets,
    topics: Collection[str],
    parted: Collection[tuple[str, int]] = (),
) -> tuple[dict[str, list[str]], list[str]]:
    """Gives the groups here Kafka's positions in these topics. Their positions in other topics do not change, and
    neither do positions in `parted` partitions, whose logs are not Kafka's: they have diverged, or were not copied.

    ({topic: groups that have positions in it}, warnings): where Kafka's position is above the log end, the group keeps
    its position here.
    """
    snapshots = {name: log.snapshot(name) for name in topics}
    kept: dict[str, list[str]] = {name: [] for name in topics}
    warnings = []
    for group, offsets in groups.items():
        theirs: dict[tuple[str, int], Position] = {}
        ahead = set(parted)
        for (topic, number), (offset, metadata) in offsets.items():
            if topic not in snapshots or (topic, number) in parted:
                continue
            state = PartitionState.of(snapshots[topic], number)
            if offset > state.log_end:
                warnings.append(
                    f"group {group} is at offset {offset} of {topic}-{number}, which ends at {state.log_end}: the "
                    "position that it has here, if any, stays"
                )
                ahead.add((topic, number))
            elif len(metadata.encode()) > Position.LONGEST_METADATA:
                warnings.append(
                    f"group {group} has metadata of over {Position.LONGEST_METADATA} bytes in {topic}-{number}"
                )
            else:
                theirs[topic, number] = dataclasses.replace(state.position(offset), metadata=metadata)
        for topic in {topic for topic, _ in theirs}:
            kept[topic].append(group)
        Group(log, group).update(partial(_moved, theirs=theirs, topics=snapshots, ahead=ahead))
    return kept, warnings


def import_groups(
    log: LogDirectory, groups: GroupOffsets, source: KafkaDirectory, report: Report, *, all_topics: bool
) -> None:
    """Gives the groups here the positions that they have in the imported partitions of a directory.

    A directory is one of a broker of several: positions in partitions that it does not have stay as they are here, and
    the report has them as `positions_elsewhere`. With `all_topics` so are those in topics that it does not have.
    """
    topics, known = report.topics, set(source.topics())
    imported = {(topic, place.partition) for topic in topics for place in source.sources(topic)}
    elsewhere: list[dict[str, Any]] = []
    for group, offsets in groups.items():
        for (topic, number), (offset, _) in sorted(offsets.items()):
            is_wanted = topic in topics or (all_topics and topic not in known)
            if is_wanted and (topic, number) not in imported:
                elsewhere.append({"group": group, "topic": topic, "partition": number, "offset": offset})
    others = {
        (topic, row.partition)
        for topic in topics
        for row in log.snapshot(topic).partition_rows
        if (topic, row.partition) not in imported
    }
    others |= {(position["topic"], position["partition"]) for position in elsewhere}
    report.details["groups"], warnings = keep_groups(log, groups, topics, others)
    report.details["positions_elsewhere"] = elsewhere
    report.warnings += [*warnings, *_elsewhere(elsewhere)]


def _elsewhere(positions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A warning for each group that has positions in partitions of other brokers."""
    names: dict[str, list[str]] = {}
    for position in positions:
        names.setdefault(position["group"], []).append(f"{position['topic']}-{position['partition']}")
    for group, partitions in names.items():
        yield (
            f"group {group}: its positions in {', '.join(partitions[:_NAMED])}"
            + (f" and {len(partitions) - _NAMED} others" if len(partitions) > _NAMED else "")
            + " are not imported, since the directory lacks these partitions: import the log.dirs that have them"
        )


def _moved(
    rows: dict[tuple[str, int], Position],
    theirs: dict[tuple[str, int], Position],
    topics: Collection[str],
    ahead: Collection[tuple[str, int]],
) -> dict[tuple[str, int], Position] | None:
    now_ms = wall_ms()
    wanted = {key: position for key, position in rows.items() if key[0] not in topics or key in ahead}
    for key, position in theirs.items():
        before = rows.get(key)
        is_same = before is not None and dataclasses.replace(before, committed_ms=0) == position
        wanted[key] = before if is_same and before is not None else dataclasses.replace(position, committed_ms=now_ms)
    return None if wanted == rows else wanted
