"""The stream reader: where each batch of a streaming query ends, and the tasks that read it.

Spark keeps one reader for a query's life in a process beside the driver, and asks it for offsets at each trigger. What
must outlive that process is in the offsets that Spark writes to the query's checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError, SegmentsError, UnknownTopicError
from spark_segments.execution import Versioned
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.log.positions import PartitionState, Position, TopicPartition
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.spark.offsets import subscribed_partitions
from spark_segments.spark.options import ReadOptions, StreamOptions
from spark_segments.spark.reader import RangesPartition, Reader
from spark_segments.spark.schema import projection
from spark_segments.spark.shown_errors import without_traceback
from spark_segments.spark.streams.data_loss import DataLoss, is_foreign, next_offset
from spark_segments.spark.streams.start_offsets import StartOffsets, check_start, start_offsets
from spark_segments.spark.streams.stream_offsets import Positions, begin_of, from_json, to_json

if TYPE_CHECKING:
    from spark_segments.log.typed import Decoders

_THREADS = 8


class StreamTopics:
    """Looks at the topics that a stream subscribes to. Nothing is kept from one look to the next."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log: LogDirectory | None = None

    def log(self) -> LogDirectory:
        """The log directory."""
        if self._log is None or self._log.is_kafka:  # a directory of Kafka's is scanned when it is opened
            location = self._options.location
            self._log = LogDirectory.open(location.uri, location.storage_options)
        return self._log

    def snapshots(self) -> dict[str, Snapshot]:
        """{topic: its latest snapshot}, of the existing topics."""
        log = self.log()

        def look(name: str) -> Snapshot | None:
            try:
                return log.snapshot(name) if log.is_kafka else log.manifest(name).snapshot()
            except UnknownTopicError:
                return None

        names = self._options.topics.chosen(log.directories)
        if len(names) < 2:
            snapshots = [look(name) for name in names]
        else:
            with ThreadPoolExecutor(min(_THREADS, len(names))) as pool:
                snapshots = list(pool.map(look, names))
        return {name: snapshot for name, snapshot in zip(names, snapshots, strict=True) if snapshot is not None}

    def states(self, snapshots: Mapping[str, Snapshot]) -> dict[TopicPartition, PartitionState]:
        """The state of every existing subscribed partition."""
        states = {}
        for topic, numbers in subscribed_partitions(self._options.topics, snapshots, skip_missing=True).items():
            snapshot = snapshots[topic]
            bounds = snapshot.offset_bounds()
            readable = snapshot.offset_bounds(self._options.isolation_level)
            holes = Hole.of(snapshot.states)
            entries = snapshot.partitions.column("leader_epochs").to_pylist()
            epochs = dict(zip(snapshot.partitions.column("partition").to_pylist(), entries, strict=True))
            for number in numbers:
                states[topic, number] = PartitionState(
                    snapshot.topic_id,
                    *bounds[number],
                    readable[number][1],
                    LeaderEpochs(tuple((entry["epoch"], entry["start_offset"]) for entry in epochs[number] or ())),
                    tuple(hole for hole in holes if hole.partition == number),
                )
        return states


class StreamPartition(Versioned, InputPartition):
    """The work of one task: a task of the batch reader, and the decoders of its keys and values by topic."""

    def __init__(self, work: Any, value_readers: Mapping[str, Decoders]) -> None:
        super().__init__(work)
        self.value_readers = dict(value_readers)


def refuse_limits(options: StreamOptions) -> None:
    """Raises InvalidOptionError for a limit of batches, which a `StreamReader` cannot keep to."""
    if options.max_offsets is not None or options.min_offsets is not None:
        name = "minOffsetsPerTrigger" if options.max_offsets is None else "maxOffsetsPerTrigger"
        raise InvalidOptionError(
            f"Option {name} needs PySpark 4.2 or newer",
            found=pyspark.__version__,
            hint="Leave it out: with this version a batch takes all that is there",
        )


class StreamReader(DataSourceStreamReader):
    """Reads topics as they grow: each batch reads up to the log end.

    It is the reader of PySpark 4.0 and 4.1, which ask for the latest offset and do not say where the stream is. At the
    first call the position is not known, with Trigger.AvailableNow even where a stream goes on: records that were lost
    before it are found when the batch is planned. `LimitedStreamReader` is the reader of later versions.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        if not options.read.formats:
            projection(schema)
        self._topics = StreamTopics(options.read)
        self._data_loss = DataLoss(options.read.fail_on_data_loss)
        self._value_readers: dict[str, Decoders] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._initial: dict[str, Any] | None = None
        self._start: StartOffsets = {}
        self._reached: dict[str, Any] | None = None
        self._goes_on = False

    def __getstate__(self) -> dict[str, Any]:
        # Spark sends this object to every task; tasks read what their partition says.
        return {"_options": self._options, "_schema": self._schema}

    # Offsets

    @without_traceback
    def initialOffset(self) -> dict[str, Any]:
        """Where the stream begins: the same at every call, however the topics have grown."""
        if self._initial is None:
            self._resolve_start()
            if not self._goes_on:  # else a replay of the first batch, whose start was checked
                check_start(self._options.read, self._snapshots, self._start)
        assert self._initial is not None
        return self._initial

    def _resolve_start(self) -> None:
        snapshots = self._look()
        states = self._topics.states(snapshots)
        self._start = start_offsets(self._options.read, snapshots, self._offsets_for_times)
        self._initial = to_json(
            {key: states[key].position(states[key].end if at is None else at) for key, at in self._start.items()}
        )

    @without_traceback
    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # PySpark 4.2 calls that of LimitedStreamReader
        """The end of the topics; where the stream is, as far as that is known, where there is nothing to read yet."""
        states = self._topics.states(self._look())
        if self._reached is None:
            self._reached = to_json({key: state.position(state.end) for key, state in states.items()})
            return self._reached
        positions = from_json(self._reached)
        begins = self._begins(positions, states)
        # With read_committed the last stable offset can lie before the stream: another isolation level has read on. A
        # batch that ended there would take the stream back, and its records would come twice.
        ends = {key: state.position(max(begins[key], state.end)) for key, state in states.items()}
        # Where nothing came, Spark gets the offset that it has. Any other would be a batch without records.
        if ends and ends != positions:
            self._reached = to_json(ends)
        return self._reached

    # Records

    @without_traceback
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """The tasks that read a batch. A replay, too, reads what was planned: the records from `start` to `end`.

        A stream that goes on begins with a batch from where it is to where it is: PySpark 4.0 and 4.1 say so where that
        is.
        """
        # After a restart, this alone says how far the stream is: these versions do not say it when they ask for an end.
        self._reached = end
        if start == end:
            self._goes_on = True
            return []
        # Spark may have another start by now, where the query died in its first batch: the end says where that began.
        begins = from_json(begin_of(end) or start)
        positions = from_json(end)
        states = self._states_for(positions)
        is_first = start == self._initial
        if not is_first:
            for key in sorted(begins.keys() - positions.keys()):
                self._data_loss.gone(key)
        ranges = self._ranges(begins, positions, states, is_first=is_first)
        if not ranges:
            return []
        readers = self._readers_of(ranges.keys())
        reader = Reader(self._options.read, self._snapshots, self._schema, readers)
        scans = [reader.scan(topic, offsets) for topic, offsets in ranges.items()]
        return [StreamPartition(task, readers) for task in reader.tasks_of(scans)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StreamPartition)
        reader = Reader(self._options.read, {}, self._schema, partition.value_readers)
        return reader.read(RangesPartition(partition.value))

    def _look(self) -> dict[str, Snapshot]:
        """The topics as of now."""
        self._snapshots = self._topics.snapshots()
        return self._snapshots

    def _states_for(self, end: Positions) -> dict[TopicPartition, PartitionState]:
        """States of partitions from which a batch up to `end` can be read. If this process planned the batch, they are
        the states of that time, whose files stay although retention removes segments meanwhile.
        """
        states = self._topics.states(self._snapshots)
        if all(
            key in states and not is_foreign(position, states[key]) and position.offset <= states[key].end
            for key, position in end.items()
        ):
            return states
        self._snapshots = self._topics.snapshots()
        return self._topics.states(self._snapshots)

    def _ranges(
        self,
        start: Positions,
        end: Positions,
        states: Mapping[TopicPartition, PartitionState],
        *,
        is_first: bool,
    ) -> dict[str, dict[int, tuple[int, int]]]:
        """{topic: {partition: (start, end exclusive)}}: the offsets of a batch.

        log start                            last stable offset     log end
        |------|==================|------------------|-----------------|
             first               stop

        `stop` is where Spark's end is, or before it, where a new leader has replaced the records from there on. `first`
        is where Spark's start is, or behind it, where records were lost in between.
        """
        ranges: dict[str, dict[int, tuple[int, int]]] = {}
        for place, position in sorted(end.items()):
            state = states.get(place)
            if state is None:
                self._data_loss.gone(place)
                continue
            if is_foreign(position, state):
                self._data_loss.made_anew(place, position, state)
                continue
            stop = self._stop_of(place, position, state)
            begin = start.get(place)
            if is_first and begin is not None and begin.offset >= stop and not is_foreign(begin, state):
                continue  # a replay of the first batch, of a start that has moved on since
            first = next_offset(place, begin, state, self._data_loss)
            if first < stop:
                self._data_loss.passed_holes(place, first, stop, state)
                topic, number = place
                ranges.setdefault(topic, {})[number] = first, stop
        return ranges

    def _stop_of(self, place: TopicPartition, position: Position, state: PartitionState) -> int:
        """Where a batch up to `position` ends in a partition. Reports what the log has lost below it."""
        epochs = state.leader_epochs
        stop = min(epochs.parting_offset(position.offset, position.leader_epoch), state.log_end)
        if stop < position.offset or not epochs.allows(position.leader_epoch):
            next_offset(place, position, state, self._data_loss)  # reports it
        if stop > state.end:
            # Read up to `end` only, and Spark would go on from `stop`: the records between would never be read.
            raise OffsetOutOfRangeError(
                f"A batch of this stream was planned beyond the last stable offset of {place[0]}-{place[1]}",
                expected=f"at most {state.end}",
                found=stop,
                hint="Start the query once with isolation.level=read_uncommitted, which planned it, to finish it",
            )
        return stop

    def _begins(
        self, start: Mapping[TopicPartition, Position], states: Mapping[TopicPartition, PartitionState]
    ) -> dict[TopicPartition, int]:
        # First: where a topic was made again with fewer partitions, this is the error to report.
        begins = {key: next_offset(key, start.get(key), state, self._data_loss) for key, state in states.items()}
        for key in start:
            if key not in states:
                self._data_loss.gone(key)
        return begins

    def _readers_of(self, topics: Set[str]) -> dict[str, Decoders]:
        """The decoders of these topics' keys and values; none where neither has a format."""
        formats = self._options.read.formats
        if not formats:
            return {}
        log = self._topics.log()
        for topic in sorted(topics - self._value_readers.keys()):
            self._value_readers[topic] = log.values.decoders(log.snapshot(topic), formats)
        return {topic: self._value_readers[topic] for topic in sorted(topics)}

    def _offsets_for_times(
        self, snapshot: Snapshot, targets_ms: Mapping[int, int]
    ) -> dict[int, tuple[int, int] | None]:
        from spark_segments.log.reading.times import offsets_for_times  # kernels, which few streams need here

        return offsets_for_times(self._topics.log().storage, snapshot, targets_ms)


class RefusedStream(DataSourceStreamReader):
    """A stream that cannot be: raises its error at the first thing that Spark asks of it.

    What the data source itself raises would stand above an error of Spark's own in the message of the query.
    """

    def __init__(self, error: SegmentsError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._shown()

    def latestOffset(self, *_: Any) -> dict[str, Any]:
        raise self._shown()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._shown()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        raise self._shown()

    def _shown(self) -> SegmentsError:
        return self._error.with_traceback(None)
