"""The stream reader: where each batch of a streaming query ends, and the tasks that read it.

Spark keeps one reader for a query's life in a process beside the driver, and asks it for offsets at each trigger. What
must outlive that process is in the offsets that Spark writes to the query's checkpoint.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from spark_segments.errors import OffsetOutOfRangeError, SegmentsError
from spark_segments.execution import Versioned
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.positions import PartitionState, Position
from spark_segments.spark.offsets import OffsetRange
from spark_segments.spark.option_values import TopicPartition
from spark_segments.spark.options import StreamOptions
from spark_segments.spark.reader import RangesPartition, Reader
from spark_segments.spark.schema import projection
from spark_segments.spark.streams.data_loss import DataLoss, is_foreign, next_offset
from spark_segments.spark.streams.rate_limits import BatchDelay, split_in_proportion
from spark_segments.spark.streams.start_offsets import StartOffsets, check_start, is_repeatable, start_offsets
from spark_segments.spark.streams.stream_offsets import Positions, begin_of, from_json, to_json
from spark_segments.spark.streams.stream_topics import StreamTopics

if TYPE_CHECKING:
    from spark_segments.values.batches import Decoder

NO_LIMIT = 2**63 - 1

Method = TypeVar("Method", bound=Callable[..., Any])


def _as_itself(method: Method) -> Method:
    """Spark shows the traceback of an error to the user: one that says all about itself is shown without."""

    @functools.wraps(method)
    def shown(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except SegmentsError as error:
            raise error.with_traceback(None) from None

    return shown  # type: ignore[return-value]


def monotonic_ms() -> int:
    """A clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


class StreamPartition(Versioned, InputPartition):
    """The work of one task: a task of the batch reader, and the decoders of its keys and values by topic."""

    def __init__(self, work: Any, value_readers: Mapping[str, list[Decoder]]) -> None:
        super().__init__(work)
        self.value_readers = dict(value_readers)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as they grow."""

    def __init__(self, options: StreamOptions, schema: StructType, clock_ms: Callable[[], int] = monotonic_ms) -> None:
        """`clock_ms`: for maxTriggerDelay."""
        self._options = options
        self._schema = schema
        if not options.read.formats:
            projection(schema)
        self._topics = StreamTopics(options.read)
        self._data_loss = DataLoss(options.read.fail_on_data_loss)
        self._delay = (
            None if options.min_offsets is None else BatchDelay(options.min_offsets, options.max_delay_ms, clock_ms)
        )
        self._value_readers: dict[str, list[Decoder]] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._is_available_now = False
        self._initial: dict[str, Any] | None = None
        self._start: StartOffsets = {}
        self._has_begun = False
        self._latest: Positions | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends this object to every task; tasks read what their partition says.
        return {"_options": self._options, "_schema": self._schema}

    # Offsets

    @_as_itself
    def initialOffset(self) -> dict[str, Any]:
        """Where the stream begins: the same at every call, however the topics have grown."""
        if self._initial is None:
            snapshots = self._look()
            states = self._topics.states(snapshots)
            self._start = start_offsets(self._options.read, snapshots, self._offsets_for_times)
            self._initial = to_json(
                {one: states[one].position(states[one].end if at is None else at) for one, at in self._start.items()}
            )
        return self._initial

    @_as_itself
    def prepareForTriggerAvailableNow(self) -> None:
        """Keeps the topics as they are now: the query ends where they end."""
        self._snapshots = self._topics.snapshots()
        self._is_available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_offsets is None and self._options.min_offsets is None:
            return ReadAllAvailable()
        # Spark hands this back at each trigger; with Trigger.Once it asks for all that is available.
        return ReadMaxRows(self._options.max_offsets or NO_LIMIT)

    @_as_itself
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the batch ends that begins at `start`; `start` itself where there is nothing to read yet."""
        snapshots = self._look()
        is_first = self._initial is not None and not self._has_begun
        self._has_begun = True
        if is_first:
            check_start(self._options.read, snapshots, self._start)
        positions, states = from_json(start), self._topics.states(snapshots)
        begins = self._begins(positions, states)
        ends = {one: max(begins[one], state.end) for one, state in states.items()}
        self._latest = {one: states[one].position(end) for one, end in ends.items()}
        if is_first and not is_repeatable(self._options.read.start):
            return start
        if not isinstance(limit, ReadAllAvailable):
            if self._delay and not self._is_available_now and self._delay.holds_back(begins, ends):
                return start
            if self._options.max_offsets is not None:
                ends = split_in_proportion(begins, ends, self._options.max_offsets)
        reached = {one: states[one].position(end) for one, end in ends.items()}
        if not reached or reached == positions:
            return start
        return to_json(reached, start if is_first else None)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The end of the topics as the last trigger saw them."""
        return None if self._latest is None else to_json(self._latest)

    # Records

    @_as_itself
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks that read a batch. A replay, too, reads what was planned: the records from `start` to `end`."""
        self._has_begun = True
        if start == end:
            return []
        positions = from_json(end)
        states = self._states_for(positions)
        ranges = self._ranges(from_json(begin_of(end) or start), positions, states)
        if not ranges:
            return []
        readers = self._readers_of({one.topic for one in ranges})
        reader = Reader(self._options.read, self._snapshots, self._schema, readers)
        return [StreamPartition(task, readers) for task in reader.tasks_of(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        reader = Reader(self._options.read, {}, self._schema, partition.value_readers)
        return reader.read(RangesPartition(partition.value))

    def _look(self) -> dict[str, Snapshot]:
        """The topics as of now, or as of the beginning of Trigger.AvailableNow."""
        if not self._is_available_now:
            self._snapshots = self._topics.snapshots()
        return self._snapshots

    def _states_for(self, end: Positions) -> dict[TopicPartition, PartitionState]:
        """States of partitions that a batch up to `end` can be read from: those of the look that planned it, where this
        process did, whose files stay there whatever retention takes meanwhile.
        """
        if self._is_available_now:
            self._check_reachable(end, self._topics.states(self._topics.snapshots()))
        states = self._topics.states(self._snapshots)
        if all(
            one in states and not is_foreign(position, states[one]) and position.offset <= states[one].end
            for one, position in end.items()
        ):
            return states
        self._snapshots = self._topics.snapshots()
        return self._topics.states(self._snapshots)

    def _ranges(
        self, start: Positions, end: Positions, states: Mapping[TopicPartition, PartitionState]
    ) -> list[OffsetRange]:
        ranges = []
        for one, position in sorted(end.items()):
            state = states.get(one)
            if state is None:
                self._data_loss.gone(one)
                continue
            if is_foreign(position, state):
                self._data_loss.made_anew(one, position, state)
                continue
            epochs = state.leader_epochs
            stop = min(epochs.parting_offset(position.offset, position.leader_epoch), state.log_end)
            if stop < position.offset or not epochs.know(position.leader_epoch):
                next_offset(one, position, state, self._data_loss)  # reports it
            if stop > state.end:
                raise OffsetOutOfRangeError(
                    f"A batch of this stream was planned beyond the last stable offset of {one[0]}-{one[1]}",
                    expected=f"at most {state.end}",
                    found=stop,
                    hint="Start the query once with isolation.level=read_uncommitted, which planned it, to finish it",
                )
            begin = start.get(one)
            if begin is not None and begin.offset >= stop and not is_foreign(begin, state):
                continue  # a replay of the first batch, of a start that has moved on since
            first = next_offset(one, begin, state, self._data_loss)
            if first < stop:
                self._data_loss.passed_holes(one, first, stop, state)
                ranges.append(OffsetRange(*one, first, stop))
        return ranges

    def _begins(
        self, start: Mapping[TopicPartition, Position], states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, int]:
        # First: where a topic was made anew with fewer partitions, that is what happened.
        begins = {one: next_offset(one, start.get(one), state, self._data_loss) for one, state in states.items()}
        for one in start:
            if one not in states:
                self._data_loss.gone(one)
        return begins

    def _check_reachable(self, end: Positions, states: Mapping[TopicPartition, PartitionState]) -> None:
        """Raises OffsetOutOfRangeError where Trigger.AvailableNow cannot reach the end that it has set out to."""
        for one, position in end.items():
            state = states.get(one)
            if state is None:
                self._data_loss.gone(one, always_error=True)
            elif is_foreign(position, state):
                self._data_loss.made_anew(one, position, state, always_error=True)
            elif position.offset > state.log_end:
                self._data_loss.report(
                    f"The end of {one[0]}-{one[1]} has gone back below the end of a batch",
                    expected=f"a log end of at least {position.offset}",
                    found=state.log_end,
                    always_error=True,
                )

    def _readers_of(self, topics: set[str]) -> dict[str, list[Decoder]]:
        """The decoders of these topics' keys and values; none where neither has a format."""
        formats = self._options.read.formats
        if not formats:
            return {}
        for topic in sorted(topics - self._value_readers.keys()):
            self._value_readers[topic] = self._topics.log().value_readers(topic, formats)
        return {topic: self._value_readers[topic] for topic in sorted(topics)}

    def _offsets_for_times(
        self, snapshot: Snapshot, targets_ms: Mapping[int, int]
    ) -> dict[int, tuple[int, int] | None]:
        from spark_segments.log.reading.times import offsets_for_times  # kernels, which few streams need here

        return offsets_for_times(self._topics.log().storage, snapshot, targets_ms)


class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream that cannot be: raises its error at the first thing that Spark asks of it.

    What the data source itself raises would stand above an error of Spark's own in the message of the query.
    """

    def __init__(self, error: SegmentsError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._shown()

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._shown()

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._shown()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._shown()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._shown()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._shown()

    def _shown(self) -> SegmentsError:
        return self._error.with_traceback(None)
