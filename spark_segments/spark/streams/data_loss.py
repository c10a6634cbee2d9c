"""Where a stream goes on from its last position, and the records it can have lost there: failOnDataLoss.

The rules are those of the Kafka connector (KafkaOffsetReader), by topic id and leader epoch besides offsets. Offsets
that compaction has left empty are no loss.
"""

from __future__ import annotations

import logging

from spark_segments.errors import OffsetOutOfRangeError
from spark_segments.spark.option_values import TopicPartition
from spark_segments.spark.streams.stream_offsets import Position
from spark_segments.spark.streams.stream_topics import PartitionState

_log = logging.getLogger(__name__)


class DataLoss:
    """Records that a stream can have lost: an error with failOnDataLoss, else a warning."""

    def __init__(self, is_error: bool) -> None:
        self._is_error = is_error
        self._warned: set[str] = set()

    def report(
        self, message: str, *, expected: object = None, found: object = None, always_error: bool = False
    ) -> None:
        """Raises OffsetOutOfRangeError, or warns. The same warning is not repeated."""
        hint = (
            "Records may have been missed; with failOnDataLoss=false the stream goes on with the records that are there"
        )
        if always_error:
            hint = "Trigger.AvailableNow cannot reach the end that it began with: start the query again"
        if self._is_error or always_error:
            raise OffsetOutOfRangeError(message, expected=expected, found=found, hint=hint)
        if message not in self._warned:
            self._warned.add(message)
            _log.warning("%s (failOnDataLoss is false: the stream goes on)", message)

    def gone(self, partition: TopicPartition, *, always_error: bool = False) -> None:
        """Reports a partition that the stream has read and that is not there any more."""
        self.report(
            f"Partition {_name(partition)} is gone: its topic was deleted, or the options name it no more",
            always_error=always_error,
        )

    def made_anew(
        self, partition: TopicPartition, position: Position, state: PartitionState, *, always_error: bool = False
    ) -> None:
        """Reports a topic that was deleted and made again since the position was taken."""
        self.report(
            f"Topic {partition[0]} was deleted and made anew since the stream read it",
            expected=f"topic id {position.topic_id}",
            found=state.topic_id,
            always_error=always_error,
        )


def next_offset(
    partition: TopicPartition, position: Position | None, state: PartitionState, data_loss: DataLoss
) -> int:
    """The offset at which the stream goes on in a partition. `position`: None for a partition that is new to it."""
    name = _name(partition)
    if position is None:
        if state.log_start > 0:
            data_loss.report(f"New partition {name} does not begin at offset 0", expected=0, found=state.log_start)
        return state.log_start
    if is_foreign(position, state):
        data_loss.made_anew(partition, position, state)
        return state.log_start
    offset = state.leader_epochs.parting_offset(position.offset, position.leader_epoch)
    if offset < position.offset:
        data_loss.report(
            f"The log of {name} is another one from offset {offset} on: its leader epoch has changed",
            expected=f"epoch {position.leader_epoch} up to offset {position.offset}",
            found=f"epoch {state.leader_epochs.before(offset + 1)} from offset {offset} on",
        )
    elif not state.leader_epochs.know(position.leader_epoch):
        data_loss.report(
            f"The leader epoch of the last record that the stream read is none of the log of {name}",
            expected=f"epoch {position.leader_epoch} up to offset {position.offset}",
            found=f"epoch {state.leader_epochs.before(position.offset)} there",
        )
    if offset > state.log_end:
        data_loss.report(
            f"The end of {name} has gone back below the position of the stream",
            expected=f"a log end of at least {offset}",
            found=state.log_end,
        )
        return state.log_end
    if offset < state.log_start:
        data_loss.report(
            f"Offsets {offset} to {state.log_start - 1} of {name} left the log before the stream read them",
            expected=f"a log start of at most {offset}",
            found=state.log_start,
        )
    return max(offset, state.log_start)


def is_foreign(position: Position, state: PartitionState) -> bool:
    """Whether the position is one in another topic of this name."""
    return position.topic_id is not None and position.topic_id != state.topic_id


def _name(partition: TopicPartition) -> str:
    return f"{partition[0]}-{partition[1]}"
