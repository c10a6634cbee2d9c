"""Positions of Kafka's groups in topics that come here, as positions of groups here.

A copy reads them before the logs. Else a group could have a position in records that were not copied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_segments.kafka.internal_topics.consumer_offsets import GroupOffsets
from spark_segments.log import Group, LogDirectory, PartitionState, Position, Report, Snapshot
from spark_segments.quantities import wall_ms

if TYPE_CHECKING:
    from spark_segments.kafka.directory import KafkaDirectory

_NAMED = 20  # the partitions that a warning names


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
    warnings: list[str] = []
    for group, offsets in groups.items():
        positions = _Positions({}, set(parted), snapshots)
        for (topic, number), (offset, metadata) in offsets.items():
            if topic not in snapshots or (topic, number) in parted:
                continue
            warning = positions.add(group, topic, number, offset, metadata)
            if warning is not None:
                warnings.append(warning)
        for topic in {topic for topic, _ in positions.rows}:
            kept[topic].append(group)
        Group(log, group).update(positions.merged)
    return kept, warnings


@dataclass(frozen=True, slots=True)
class _Positions:
    """A group's positions in Kafka: `rows`, for these topics. `unmoved`: partitions in which the group keeps its
    position here.
    """

    rows: dict[tuple[str, int], Position]
    unmoved: set[tuple[str, int]]
    snapshots: Mapping[str, Snapshot]

    def add(self, group: str, topic: str, number: int, offset: int, metadata: str) -> str | None:
        """Adds a position. Returns a warning where it cannot be one here."""
        state = PartitionState.of(self.snapshots[topic], number)
        # A position above the log end would pass over what is appended here up to it.
        if offset > state.log_end:
            self.unmoved.add((topic, number))
            return (
                f"group {group} is at offset {offset} of {topic}-{number}, which ends at {state.log_end}: the "
                "position that it has here, if any, stays"
            )
        if len(metadata.encode()) > Position.LONGEST_METADATA:
            return f"group {group} has metadata of over {Position.LONGEST_METADATA} bytes in {topic}-{number}"
        self.rows[topic, number] = dataclasses.replace(state.position(offset), metadata=metadata)
        return None

    def merged(self, existing: Mapping[tuple[str, int], Position]) -> dict[tuple[str, int], Position] | None:
        """The group's positions after the copy; None: they do not change. A position that stays the same keeps the
        time of its commit. With a new time each repeated copy would commit all groups again.
        """
        now_ms = wall_ms()
        rows = {key: row for key, row in existing.items() if key[0] not in self.snapshots or key in self.unmoved}
        for key, position in self.rows.items():
            before = existing.get(key)
            if before is not None and dataclasses.replace(before, committed_ms=0) == position:
                rows[key] = before
            else:
                rows[key] = dataclasses.replace(position, committed_ms=now_ms)
        return None if rows == existing else rows


def import_groups(
    log: LogDirectory, groups: GroupOffsets, source: KafkaDirectory, report: Report, *, all_topics: bool
) -> None:
    """Gives the groups here the positions that they have in the imported partitions of a directory.

    A directory is one of a broker of several: positions in partitions that it does not have stay as they are here, and
    the report has them as `positions_elsewhere`. With `all_topics` so are those in topics that it does not have.
    """
    topics = report.topics
    imported = {(topic, place.partition) for topic in topics for place in source.sources(topic)}
    # Of a topic that the directory has and that was not chosen, nobody wants the positions.
    reported = set(topics)
    if all_topics:
        directory_topics = set(source.topics())
        reported |= {topic for offsets in groups.values() for topic, _ in offsets if topic not in directory_topics}
    elsewhere: list[dict[str, Any]] = [
        {"group": group, "topic": topic, "partition": number, "offset": offset}
        for group, offsets in groups.items()
        for (topic, number), (offset, _) in sorted(offsets.items())
        if topic in reported and (topic, number) not in imported
    ]
    others = {(position["topic"], position["partition"]) for position in elsewhere}
    for topic in topics:
        partitions = {(topic, row.partition) for row in log.snapshot(topic).partition_rows}
        others |= partitions - imported
    kept, warnings = keep_groups(log, groups, topics, others)
    report.details["groups"] = kept
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
