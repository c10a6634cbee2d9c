"""Where a stream goes on from its last position, and the records it can have lost there: failOnDataLoss.

The rules come from the Kafka connector (KafkaOffsetReader), and look at topic ids and leader epochs as well as offsets:
see `loss_at`. Offsets that compaction has left empty are no loss.
"""

from __future__ import annotations

import logging

from spark_segments.errors import OffsetOutOfRangeError
from spark_segments.log.positions import PartitionState, Position, TopicPartition

READER = "the stream"

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
            f"Partition {partition[0]}-{partition[1]} is gone: its topic was deleted, or the options name it no more",
            always_error=always_error,
        )

    def passed_holes(self, partition: TopicPartition, first: int, stop: int, state: PartitionState) -> None:
        """Reports the holes of the log in the offsets [first, stop) of a batch."""
        # A hole counts where it overlaps the batch, even by one offset:
        #
        #   batch       |first ------------ stop|
        #   holes   |------|   |----|        |------|    and not |--| that ends at `first` or starts at `stop`
        for hole in state.holes:
            if hole.start_offset < stop and hole.end_offset > first:
                self.report(f"{partition[0]}-{partition[1]} has a hole: {hole}")

    def made_anew(
        self, partition: TopicPartition, position: Position, state: PartitionState, *, always_error: bool = False
    ) -> None:
        """Reports a topic that was deleted and made again since the position was taken."""
        loss = position.loss_in(state, partition, READER)
        assert loss is not None, "the position is one in another topic"
        self.report(loss.message, expected=loss.expected, found=loss.found, always_error=always_error)


def next_offset(
    partition: TopicPartition, position: Position | None, state: PartitionState, data_loss: DataLoss
) -> int:
    """The offset at which the stream goes on in a partition. `position`: None for a partition that is new to it."""
    if position is None:
        if state.log_start > 0:
            name = f"{partition[0]}-{partition[1]}"
            data_loss.report(f"New partition {name} does not begin at offset 0", expected=0, found=state.log_start)
        return state.log_start
    loss = position.loss_in(state, partition, READER)
    if loss is None:
        return position.offset
    data_loss.report(loss.message, expected=loss.expected, found=loss.found)
    return loss.offset


def is_foreign(position: Position, state: PartitionState) -> bool:
    """Whether the position is one in another topic of this name."""
    return position.topic_id is not None and position.topic_id != state.topic_id
