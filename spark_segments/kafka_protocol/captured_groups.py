"""Groups of a running cluster: their positions in topics that are captured, as groups here.

They are read before the logs: so what a group has read is here once its positions are.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import time
from collections.abc import Collection, Mapping, Sequence

from spark_segments.errors import InvalidOptionError
from spark_segments.kafka_protocol.source import SourceCluster, SourceTopic
from spark_segments.log.groups.group_files import LONGEST_METADATA, Rows
from spark_segments.log.logdir import LogDir
from spark_segments.log.positions import PartitionState, Position, TopicPartition

GroupOffsets = Mapping[str, Mapping[TopicPartition, tuple[int, str]]]
"""{group: {(topic, partition): (next offset to be read, metadata)}}"""


def groups_of(source: SourceCluster, patterns: Sequence[str], topics: Sequence[SourceTopic]) -> GroupOffsets:
    """The positions in these topics of the groups of these names or patterns.

    Raises InvalidOptionError where a name, which is no pattern, is no group that this user may see.
    """
    if not patterns:
        return {}
    there = source.groups()
    missing = sorted({one for one in patterns if not {*"*?["} & {*one}} - there.keys())
    if missing:
        raise InvalidOptionError(
            f"The cluster shows no group {', '.join(missing)}",
            hint="Brokers hide what this user may not DESCRIBE, and share groups have no positions",
        )
    wanted = sorted(one for one in there if any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns))
    return {group: source.positions(group, there[group], topics) for group in wanted}


def keep_groups(log: LogDir, found: GroupOffsets, topics: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Makes the positions in these topics those of the groups here; positions in other topics stay as they are.

    ({topic: groups that have positions in it}, warnings): a position above the log end is left out.
    """
    snapshots = {name: log.topic(name).snapshot for name in topics}
    kept: dict[str, list[str]] = {name: [] for name in topics}
    warnings = []
    for group, offsets in found.items():
        theirs: Rows = {}
        for (topic, number), (offset, metadata) in offsets.items():
            if topic not in snapshots:
                continue
            state = PartitionState.of(snapshots[topic], number)
            if offset > state.log_end:
                warnings.append(
                    f"group {group} is at offset {offset} of {topic}-{number}, which ends at {state.log_end}"
                )
            elif len(metadata.encode()) > LONGEST_METADATA:
                warnings.append(f"group {group} has metadata of over {LONGEST_METADATA} bytes in {topic}-{number}")
            else:
                theirs[topic, number] = dataclasses.replace(state.position(offset), metadata=metadata)
        for topic in {topic for topic, _ in theirs}:
            kept[topic].append(group)
        log.group(group).update(lambda rows, theirs=theirs: _moved(rows, theirs, snapshots))  # type: ignore[misc]
    return kept, warnings


def _moved(rows: Rows, theirs: Rows, topics: Collection[str]) -> Rows | None:
    now_ms = time.time_ns() // 1_000_000
    wanted = {key: position for key, position in rows.items() if key[0] not in topics}
    for key, position in theirs.items():
        before = rows.get(key)
        is_same = before is not None and dataclasses.replace(before, committed_ms=0) == position
        wanted[key] = before if is_same and before is not None else _at(position, now_ms)
    return None if wanted == rows else wanted


def _at(position: Position, now_ms: int) -> Position:
    return dataclasses.replace(position, committed_ms=now_ms)
