"""Positions of groups here that a cluster gets, at the offsets that the records have there."""

from __future__ import annotations

from collections.abc import Mapping

from spark_segments.kafka.group_patterns import chosen_groups
from spark_segments.kafka_protocol.replaying.rehashing import Partitions
from spark_segments.kafka_protocol.replaying.replay_options import ReplayOptions
from spark_segments.kafka_protocol.replaying.replayed_offsets import ReplayedOffsets
from spark_segments.kafka_protocol.replaying.target import TargetCluster
from spark_segments.log import Group, LogDirectory


def groups_to_move(log: LogDirectory, options: ReplayOptions) -> list[str]:
    """The groups here that the cluster is to have. Raises InvalidOptionError for a name that is no group."""
    if not options.groups:
        return []
    groups = [group.id for group in Group.with_positions(log)]
    return chosen_groups(groups, options.groups, "The log has")


def move_groups(
    log: LogDirectory, cluster: TargetCluster, options: ReplayOptions, targets: Mapping[str, str]
) -> dict[str, list[str]]:
    """Gives groups there their positions in the topics; {topic: groups that had none there, and have some now}.

    `targets`: {topic: its name there}.
    """
    moved: dict[str, list[str]] = {name: [] for name in targets}
    groups = groups_to_move(log, options)
    if not groups:
        return moved
    counts = {name: len(topic.ends) for name, topic in cluster.topics(list(targets.values())).items()}
    for group in groups:
        positioned = {topic for topic, _ in cluster.positions(counts, group)}
        positions = Group(log, group).positions()
        offsets: dict[tuple[str, int], tuple[int, str]] = {}
        for name, target in targets.items():
            starts = positions.starts(log.snapshot(name))
            # Where a group has positions there, consumers may have gone on from them: they would be set back.
            if not starts or target in positioned:
                continue
            offset_map = ReplayedOffsets(log.storage, options.name, target)
            if options.partitions is Partitions.REHASH:
                offsets |= _rehashed_offsets(target, counts[target], offset_map, starts)
            else:
                new_offsets = offset_map.new_offsets(starts)
                offsets |= {
                    (target, number): (new_offsets.get(number, 0), positions[name, number].metadata)
                    for number in starts
                }
            moved[name].append(group)
        if offsets:
            cluster.commit_group(group, offsets)
    return moved


def _rehashed_offsets(
    target: str, partitions: int, offset_map: ReplayedOffsets, starts: Mapping[int, int]
) -> dict[tuple[str, int], tuple[int, str]]:
    """{(topic, partition) there: (offset, no metadata)}: a partition there has records of several here, so no metadata
    is of it alone.
    """
    unread = offset_map.unread_offsets(starts)
    return {(target, number): (unread.get(number, 0), "") for number in range(partitions)}
