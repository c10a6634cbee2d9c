"""The stream reader of PySpark 4.2 and newer, which says where a stream is, and how much a batch may take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.positions import PartitionState, TopicPartition
from spark_segments.spark.options import StreamOptions
from spark_segments.spark.shown_errors import without_traceback
from spark_segments.spark.streams.data_loss import is_foreign
from spark_segments.spark.streams.start_offsets import check_start, is_repeatable
from spark_segments.spark.streams.stream_offsets import Positions, from_json, to_json
from spark_segments.spark.streams.stream_reader import StreamReader

TopicOffsets = Mapping[TopicPartition, int]


def split_in_proportion(begins: TopicOffsets, ends: TopicOffsets, most: int) -> dict[TopicPartition, int]:
    """The ends of a batch of about `most` offsets: each partition gets a share in proportion to its backlog.

    A share is rounded down, but a partition with a backlog always gets an offset. So a batch can be above `most` by the
    number of partitions.
    """
    sizes = {partition: end - begins[partition] for partition, end in ends.items() if end > begins[partition]}
    total = float(sum(sizes.values()))
    stops = dict(ends)
    for partition, size in sizes.items():
        share = most * (size / total)
        # A share below one offset is rounded up. Rounded down, a small partition beside a large one would starve.
        offsets = math.ceil(share) if share < 1 else math.floor(share)
        stops[partition] = min(ends[partition], begins[partition] + offsets)
    return stops


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
        # The clock starts again with each batch that is let through, and not with each that is held back: else a query
        # with short triggers would wait forever.
        overdue = self._last_ms is None or now_ms - self._last_ms >= self._max_delay_ms
        if not overdue and waiting < self._min_offsets:
            return True
        self._last_ms = now_ms
        return False


NO_LIMIT = 2**63 - 1


def monotonic_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow, within the limits of the options, and with Trigger.AvailableNow to their end."""

    def __init__(self, options: StreamOptions, schema: StructType, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        """`clock_ms`: for maxTriggerDelay."""
        super().__init__(options, schema)
        self._delay = (
            None if options.min_offsets is None else BatchDelay(options.min_offsets, options.max_delay_ms, clock_ms)
        )
        self._is_available_now = False
        self._has_begun = False
        self._latest: Positions | None = None

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Where the stream begins: the same at every call. Options are checked where `latestOffset` says it is new."""
        if self._initial is None:
            self._resolve_start()
        assert self._initial is not None
        return self._initial

    @without_traceback
    def prepareForTriggerAvailableNow(self) -> None:
        """Keeps the newest snapshots of the topics: the query ends at their log ends."""
        self._snapshots = self._topics.snapshots()
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is None and self._options.min_offsets is None:
            return ReadAllAvailable()
        # Spark hands this back at each trigger; with Trigger.Once it asks for all that is available.
        return ReadMaxRows(self._options.max_offsets or NO_LIMIT)

    @without_traceback
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        """Where the batch ends that begins at `start`; `start` itself where there is nothing to read yet."""
        snapshots = self._look()
        is_first = self._initial is not None and not self._has_begun
        self._has_begun = True
        if is_first:
            check_start(self._options.read, snapshots, self._start)
        positions = from_json(start)
        states = self._topics.states(snapshots)
        begins = self._begins(positions, states)
        ends = {key: max(begins[key], state.end) for key, state in states.items()}
        self._latest = {key: states[key].position(end) for key, end in ends.items()}
        if is_first and not is_repeatable(self._options.read.start):
            # An empty first batch: Spark keeps its end, and so the start. Had the batch records and the query died in
            # it, `latest` would be resolved again later, and the records between would be left out.
            return start
        if not isinstance(limit, ReadAllAvailable):
            if self._delay and not self._is_available_now and self._delay.holds_back(begins, ends):
                return start
            if self._options.max_offsets is not None:
                ends = split_in_proportion(begins, ends, self._options.max_offsets)
        reached = {key: states[key].position(end) for key, end in ends.items()}
        if not reached or reached == positions:
            return start
        return to_json(reached, start if is_first else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the topics as the last trigger saw them."""
        return None if self._latest is None else to_json(self._latest)

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        self._has_begun = True
        return super().partitions(start, end)

    def _look(self) -> dict[str, Snapshot]:
        """The topics as of now, or as of the beginning of Trigger.AvailableNow."""
        return self._snapshots if self._is_available_now else super()._look()

    def _states_for(self, end: Positions) -> dict[TopicPartition, PartitionState]:
        if self._is_available_now:
            self._check_reachable(end, self._topics.states(self._topics.snapshots()))
        return super()._states_for(end)

    def _check_reachable(self, end: Positions, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Raises OffsetOutOfRangeError where Trigger.AvailableNow cannot reach the end that it has set out to."""
        for place, position in end.items():
            state = states.get(place)
            if state is None:
                self._data_loss.gone(place, always_error=True)
            elif is_foreign(position, state):
                self._data_loss.made_anew(place, position, state, always_error=True)
            elif position.offset > state.log_end:
                self._data_loss.report(
                    f"The end of {place[0]}-{place[1]} has gone back below the end of a batch",
                    expected=f"a log end of at least {position.offset}",
                    found=state.log_end,
                    always_error=True,
                )
