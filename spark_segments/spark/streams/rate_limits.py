"""How many offsets a batch of a stream takes: maxOffsetsPerTrigger, minOffsetsPerTrigger and maxTriggerDelay.

The rules and the arithmetic are those of the Kafka connector (KafkaMicroBatchStream).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from spark_segments.spark.option_values import TopicPartition

TopicOffsets = Mapping[TopicPartition, int]


def split_in_proportion(begins: TopicOffsets, ends: TopicOffsets, most: int) -> dict[TopicPartition, int]:
    """The ends of a batch of about `most` offsets: each partition gets a share in proportion to its backlog.

    A share is rounded down, but a partition with a backlog always gets an offset. So a batch can be above `most` by the
    number of partitions.
    """
    sizes = {partition: end - begins[partition] for partition, end in ends.items() if end > begins[partition]}
    total = float(sum(sizes.values()))
    shares = {partition: most * (size / total) for partition, size in sizes.items()}
    return {
        partition: min(end, begins[partition] + (math.ceil if shares[partition] < 1 else math.floor)(shares[partition]))
        if partition in shares
        else end
        for partition, end in ends.items()
    }


class BatchDelay:
    """Holds a batch back until enough offsets wait for it, or it has been held back for long enough."""

    def __init__(self, min_offsets: int, max_delay_ms: int, clock_ms: Callable[[], int]) -> None:
        """`clock_ms` must not go back."""
        self._min_offsets = min_offsets
        self._max_delay_ms = max_delay_ms
        self._clock_ms = clock_ms
        self._last_ms: int | None = None

    def holds_back(self, begins: TopicOffsets, ends: TopicOffsets) -> bool:
        """Whether a batch with these offsets waits. The first batch of a run never does."""
        now_ms = self._clock_ms()
        waiting = sum(end - begins[partition] for partition, end in ends.items())
        overdue = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not overdue and waiting < self._min_offsets:
            return True
        self._last_ms = now_ms
        return False
