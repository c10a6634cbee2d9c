"""Positions of a group: the offset that its reader takes next, by topic and partition."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.segment.leader_epochs import LeaderEpochs

LONGEST_NAME = 249
_NAME = re.compile(r"[A-Za-z0-9._-]+")

POSITION_SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("topic_id", pa.string()),
        pa.field("leader_epoch", pa.int32()),
        pa.field("committed_ms", pa.int64()),
    ]
)

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to be read, of the topic with this id.

    `leader_epoch`: that of the record before the position. `committed_ms`: when, by the reader's clock.
    """

    offset: int
    topic_id: str
    leader_epoch: int
    committed_ms: int


class Committed(dict[str, dict[int, int]]):
    """{topic: {partition: the next offset to be read}} of a group, as `LogDir.committed` found it.

    A commit that is made `after` it holds only while the positions are still these.
    """

    def __init__(self, group: str, positions: Mapping[TopicPartition, Position]) -> None:
        super().__init__()
        self.group = group
        self.positions = dict(positions)
        for (topic, partition), position in sorted(self.positions.items()):
            self.setdefault(topic, {})[partition] = position.offset

    def starts(self, snapshot: Snapshot, partitions: Collection[int] | None = None) -> dict[int, int]:
        """{partition: the next offset to be read} of the partitions of a topic, or of those given, in which the group
        has a position.

        Raises OffsetOutOfRangeError where a reader that went on at a position would miss records, or read others than
        those that follow what the group has read.
        """
        found = {}
        for (topic, partition), position in self.positions.items():
            if topic == snapshot.topic and (partitions is None or partition in partitions):
                check_position(snapshot, partition, position, self.group)
                found[partition] = position.offset
        return found


def check_group_name(group: str) -> None:
    """Raises InvalidOptionError unless the name is 1 to 249 of the characters that a topic's name may have."""
    if not _NAME.fullmatch(group) or len(group) > LONGEST_NAME or group in (".", ".."):
        raise InvalidOptionError(
            "The name cannot be a group's",
            expected=f"1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 . _ -",
            found=repr(group[: LONGEST_NAME + 1]),
        )


def new_position(snapshot: Snapshot, partition: int, offset: int, now_ms: int) -> Position:
    """The position at an offset of a partition as it is now.

    Raises UnknownTopicError for a partition that is not there, OffsetOutOfRangeError for an offset above its log end.
    """
    row = snapshot.partition(partition)
    if not 0 <= offset <= row.log_end_offset:
        raise OffsetOutOfRangeError(
            f"No position of {snapshot.topic}-{partition}: the offset is not in the log",
            expected=f"0 to {row.log_end_offset}, the log end",
            found=offset,
        )
    return Position(offset, snapshot.topic_id, LeaderEpochs.of(row).before(offset), now_ms)


def check_position(snapshot: Snapshot, partition: int, position: Position, group: str) -> None:
    """Raises OffsetOutOfRangeError where a reader that went on at the position would miss records, or read others than
    those that follow what it has read.
    """
    where = f"{snapshot.topic}-{partition}"
    again = f"Choose where group {group} goes on: segments offsets LOG_DIR {snapshot.topic} --group {group} --reset-to"
    if position.topic_id != snapshot.topic_id:
        raise OffsetOutOfRangeError(
            f"Topic {snapshot.topic} was deleted and made again since group {group} read it",
            expected=f"topic id {position.topic_id}",
            found=snapshot.topic_id,
            hint=f"{again} earliest",
        )
    row = snapshot.partition(partition)
    epochs = LeaderEpochs.of(row)
    parting_offset = epochs.parting_offset(position.offset, position.leader_epoch)
    if parting_offset < position.offset:
        raise OffsetOutOfRangeError(
            f"The log of {where} is another one from offset {parting_offset} on than the log that group {group} read: "
            "a follower was promoted that lacked the records from there on",
            expected=f"offset {position.offset} of leader epoch {position.leader_epoch}",
            found=f"leader epoch {epochs.before(parting_offset + 1)} from offset {parting_offset} on",
            hint=f"{again} {parting_offset}",
        )
    if position.offset > row.log_end_offset or not epochs.know(position.leader_epoch):
        raise OffsetOutOfRangeError(
            f"The log of {where} is not the log that group {group} read: it is a copy of a part of it, or that log's "
            "last records were cut",
            expected=f"offset {position.offset} of leader epoch {position.leader_epoch}",
            found=f"a log end of {row.log_end_offset}, leader epoch {row.leader_epoch}",
            hint=f"{again} latest",
        )
    if position.offset < row.log_start_offset:
        raise OffsetOutOfRangeError(
            f"Records of {where} were deleted before group {group} read them",
            expected=f"a log start of at most {position.offset}",
            found=f"{row.log_start_offset}: offsets {position.offset} to {row.log_start_offset - 1} are gone",
            hint=f"{again} earliest",
        )
