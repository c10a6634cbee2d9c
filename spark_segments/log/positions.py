"""A reader's place in a log, and the one rule for when a reader cannot go on there.

Groups, streams and tables of latest values keep positions. Each says in its own words what it does where the rule finds
that records would be missed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from spark_segments.errors import OffsetOutOfRangeError
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.log.segment.leader_epochs import LeaderEpochs

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Position:
    """The next offset to be read, in the topic of this id (None: not known).

    `leader_epoch`: that of the record before the position. `metadata`: a text of the reader's own, as Kafka's.
    `committed_ms`: when a group committed it, in ms since 1970 by the reader's clock; 0: no group did.
    """

    offset: int
    topic_id: str | None = None
    leader_epoch: int = 0
    metadata: str = ""
    committed_ms: int = 0

    LONGEST_METADATA: ClassVar = 4096
    """The longest metadata in bytes of UTF-8: Kafka's default of offset.metadata.max.bytes."""

    @classmethod
    def at(cls, snapshot: Snapshot, partition: int, offset: int, metadata: str = "") -> Position:
        """The position at an offset of a partition, in the version of the topic that was read.

        Raises UnknownTopicError for a partition that is not there, OffsetOutOfRangeError for an offset above its log
        end.
        """
        row = snapshot.partition(partition)
        if not 0 <= offset <= row.log_end_offset:
            raise OffsetOutOfRangeError(
                f"No position of {snapshot.topic}-{partition}: the offset is not in the log",
                expected=f"0 to {row.log_end_offset}, the log end",
                found=offset,
            )
        return cls(int(offset), snapshot.topic_id, LeaderEpochs.of(row).before(offset), metadata)

    def loss_in(self, state: PartitionState, where: TopicPartition, reader: str) -> Loss | None:
        """What a reader loses that goes on here in the partition `where`; None: nothing. `reader`: in words.

        In the order of the rule: the topic is another one; another leader replaced records below the position;
        the position is above the log end, or its leader epoch is none of this log; the records at it have left the log.
        """
        # The order matters. In another topic the same offset means another record, so nothing below could be believed.
        # A log that parted may be shorter or longer by now: its bounds say nothing before its epochs have been asked.
        topic = where[0]
        name = f"{where[0]}-{where[1]}"
        offset = self.offset
        epochs = state.leader_epochs
        if self.topic_id is not None and self.topic_id != state.topic_id:
            message = f"Topic {topic} was deleted and made again since {reader} read it"
            return Loss(
                Loss.MADE_ANEW, state.log_start, message, f"topic id {self.topic_id}", f"topic id {state.topic_id}"
            )
        # The reader has read 0 … 7 of epoch 3; the new leader had 0 … 4 and wrote its own records from 5 on:
        #
        #   read here   |epoch 3: 0 1 2 3 4 5 6 7|      position 8
        #   log now     |epoch 3: 0 1 2 3 4|epoch 4: 5 6 7 8 9|
        #
        # Offset 8 exists, so without this rule the reader would go on there and never see the new 5, 6 and 7.
        parting_offset = epochs.parting_offset(offset, self.leader_epoch)
        was_read = f"offset {offset} of leader epoch {self.leader_epoch}"
        if parting_offset < offset:
            return Loss(
                Loss.PARTED,
                min(max(parting_offset, state.log_start), state.log_end),
                f"The log of {name} is another one from offset {parting_offset} on than the log that {reader} read: a "
                "follower was promoted that lacked the records from there on",
                was_read,
                f"leader epoch {epochs.before(parting_offset + 1)} from offset {parting_offset} on",
            )
        # A position at the log end waits for the next record. Above it, the log was cut or is a shorter copy; once it
        # has grown beyond the position, only the epoch still shows that the records below are others.
        if offset > state.log_end or not epochs.allows(self.leader_epoch):
            return Loss(
                Loss.OTHER_LOG,
                max(min(offset, state.log_end), state.log_start),
                f"The log of {name} is not the log that {reader} read: it is a copy of a part of it, or that log's "
                "last records were cut",
                was_read,
                f"a log end of {state.log_end}, leader epoch {epochs.before(min(offset, state.log_end))}",
            )
        if offset < state.log_start:
            return Loss(
                Loss.DELETED,
                state.log_start,
                f"Records of {name} were deleted before {reader} read them",
                f"a log start of at most {offset}",
                f"{state.log_start}: offsets {offset} to {state.log_start - 1} are gone",
            )
        return None


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition at a snapshot.

    `end`: the end of what may be read, the log end or, with read_committed, the last stable offset. `holes`: of the
    partition, for readers that ask for them.
    """

    topic_id: str
    log_start: int
    log_end: int
    end: int
    leader_epochs: LeaderEpochs
    holes: tuple[Hole, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot, partition: int) -> PartitionState:
        """The state of a partition. Raises UnknownTopicError where it is not there."""
        return cls.of_row(snapshot.topic_id, snapshot.partition(partition))

    @classmethod
    def of_row(cls, topic_id: str, row: Partition) -> PartitionState:
        """The state of the partition with this row."""
        return cls(topic_id, row.log_start_offset, row.log_end_offset, row.log_end_offset, LeaderEpochs.of(row))

    def position(self, offset: int) -> Position:
        """A position in this partition. Its leader epoch is that of the entry that holds the record before it."""
        return Position(offset, self.topic_id, self.leader_epochs.before(offset))


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a reader that goes on at its position misses records, or reads records of another log.

    `kind`: MADE_ANEW, PARTED, OTHER_LOG or DELETED. `offset`: where a reader goes on that accepts the loss.
    """

    kind: str
    offset: int
    message: str
    expected: str
    found: str

    MADE_ANEW: ClassVar = "made anew"
    PARTED: ClassVar = "parted"
    OTHER_LOG: ClassVar = "other log"
    DELETED: ClassVar = "deleted"

    @property
    def is_deletion(self) -> bool:
        """Whether records were deleted before the reader read them, and nothing worse."""
        return self.kind == Loss.DELETED
