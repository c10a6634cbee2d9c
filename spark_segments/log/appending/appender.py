"""Turning rows into chunks: which partition a row goes to, and a bounded buffer in front of the encoder.

Each task of a writer uses an Appender. The Appender assigns no offsets; the commit does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import SegmentLimits, TopicConfig
from spark_segments.errors import InvalidOptionError
from spark_segments.format.encoding.arrow_buffers import RecordColumns
from spark_segments.format.encoding.encode import Encoded, Runs, encode_runs
from spark_segments.format.encoding.partitioner import group_rows, murmur2_partitions
from spark_segments.format.layout import CREATE_TIME, LOG_APPEND_TIME
from spark_segments.log.appending.caller_rows import check_columns, combine, normalize
from spark_segments.log.appending.record_rules import check_timestamps, compression, key_missing
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.shared_object import SharedObjectWriter
from spark_segments.log.segment.writer import ChunkWriter, discard
from spark_segments.storage import Storage


class WaitingRun:
    """The batches of a partition with dense offsets from 0, in the order in which they were appended."""

    __slots__ = ("log_bytes", "next_offset", "parts")

    def __init__(self) -> None:
        self.parts: list[Encoded] = []
        self.log_bytes = 0
        self.next_offset = 0

    def append(self, encoded: Encoded) -> None:
        """Appends batches, which must begin at `next_offset`."""
        if len(encoded.batches):
            assert int(encoded.batches.base_offset[0]) == self.next_offset
            # The encoder's buffer has room for the batches before their compression.
            compact = pa.py_buffer(encoded.buffer.to_pybytes())
            self.parts.append(replace(encoded, buffer=compact))
            self.log_bytes += encoded.buffer.size
            self.next_offset = int(encoded.batches.last_offset[-1]) + 1


DEFAULT_BATCH_BYTES = 131072
BUFFER_BYTES = 64 << 20
# A partition's last batch in a buffer is half full on average. With this many batches before it, that costs little.
BUFFERED_BATCHES = 16
MAX_OPEN_CHUNKS = 256

WAITING_BYTES = 64 << 20
"""Upper bound on the encoded batches that wait for a shared object, and about its size."""

LARGE_RUN_BYTES = WAITING_BYTES // 64
CHUNK_BYTES = 4 << 20
"""A run of this size has separate files. So has a run of LARGE_RUN_BYTES where more rows come after WAITING_BYTES:
a partition that gets many rows becomes one large chunk and not a run in each of many objects."""

GROUP_BYTES = 2 << 20
"""Rows of partitions that get little are encoded together up to about this size, which the processor's cache holds."""

FEWEST_RUNS = 8
"""Fewer runs than this get separate files: an object would save few requests."""

NO_LEADER_EPOCH = -1  # as in a producer's batch: rolling and export write the partition's epoch


@dataclass(frozen=True, slots=True)
class Target:
    """A topic as a writer sees it; picklable, so that a driver looks it up once for all tasks.

    `repeated`: whether the topic holds the writer's transaction already.
    """

    topic: str
    topic_id: str
    partitions: int
    config: TopicConfig
    repeated: bool = False

    @property
    def chunk_bytes(self) -> int:
        """From this size on, the run of a partition becomes a chunk with separate files."""
        return min(CHUNK_BYTES, self.config.segment_bytes // 2)


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Configuration of Kafka's producer. `compression_type` None: the topic's."""

    compression_type: str | None = None
    batch_bytes: int = DEFAULT_BATCH_BYTES


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks that a task wrote into a topic, in the order of its rows within each partition.

    `row_without_key`: the first row of the task without a key, counted from 1; None where every row has a key.
    `partitions`: how many the topic had for the task, which chose by keys among them.
    """

    topic: str
    topic_id: str
    segments: tuple[Segment, ...] = ()
    row_without_key: int | None = None
    partitions: int | None = None


@dataclass
class _Open:
    """A topic that is being written to."""

    target: Target
    codec: int
    level: int | None
    timestamp_type: int
    sticky_partition: int
    sticky_bytes: int = 0
    writers: dict[int, ChunkWriter] = field(default_factory=dict)
    waiting: dict[int, WaitingRun] = field(default_factory=dict)
    finished: list[Segment] = field(default_factory=list)
    row_without_key: int | None = None

    def waiting_bytes(self, partition: int) -> int:
        """The encoded bytes of a partition that wait for a file."""
        run = self.waiting.get(partition)
        return 0 if run is None else run.log_bytes


class Appender:
    """Buffers rows, then encodes them partition by partition into open chunks and runs of shared objects.

    A buffer has BUFFERED_BATCHES batches for each partition, and BUFFER_BYTES at most: a smaller buffer stays in the
    processor's cache. Encoded batches wait in memory, WAITING_BYTES at most, and then go into a shared object, a run
    for each partition. A partition that gets much has a chunk open instead. Where the object would be shared by few,
    all have chunks.

    At most MAX_OPEN_CHUNKS chunks are open at a time. Where a topic has more partitions, the chunk that was written to
    least recently is closed, and its partition gets a new chunk later.

    As a context manager it deletes its files where an error comes before `close` has returned: nobody can commit
    them, and a disk that is full would stay full until vacuum takes them.
    """

    def __init__(
        self,
        storage: Storage,
        resolve: Callable[[str], Target],
        *,
        topic: str | None = None,
        options: ProducerOptions | None = None,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        """`resolve` looks a topic up by name (UnknownTopicError); `topic`, where given, beats the column."""
        self._storage = storage
        self._resolve = resolve
        self._topic = topic
        self._options = options or ProducerOptions()
        self._buffer_bytes = buffer_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._flushed_rows = 0
        self._topics: dict[str, _Open] = {}
        self._waiting_bytes = 0
        self._checked: pa.Schema | None = None
        self._is_closed = False

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        for opened in self._topics.values():
            for writer in opened.writers.values():
                writer.__exit__(kind, error, trace)
        if kind is not None and not self._is_closed:
            for opened in self._topics.values():
                discard(self._storage, opened.finished, objects=True)

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes rows of any schema that `check_columns` accepts; rows of a partition keep their order.

        Raises InvalidRecordError for a row without key where its topic is compacted.
        """
        if batch.num_rows == 0:
            return
        if self._checked is not batch.schema and self._checked != batch.schema:
            check_columns(batch.schema, topic_given=self._topic is not None)
            self._checked = batch.schema
        if self._topic is not None:
            self._open(self._topic)  # its number of partitions decides how much is buffered
        step = batch.num_rows
        if batch.get_total_buffer_size() > self._buffer_bytes:  # of a slice that is too much, but it costs nothing
            step = max(1, self._buffer_bytes * batch.num_rows // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            piece = normalize(batch.slice(start, step), now_ms=self._storage.now_ms())
            self._pending.append(piece)
            self._pending_bytes += piece.nbytes
            if self._pending_bytes >= min(self._buffer_bytes, self._wanted_bytes):
                self._flush()

    @property
    def _wanted_bytes(self) -> int:
        """Bytes of BUFFERED_BATCHES batches of every partition of the topics seen so far."""
        partitions = sum(opened.target.partitions for opened in self._topics.values())
        return BUFFERED_BATCHES * self._options.batch_bytes * max(partitions, 1)

    def close(self) -> list[Chunks]:
        """Writes the buffered rows, finishes all chunks and returns them, an entry for each topic."""
        self._flush()
        for opened in self._topics.values():
            if len(opened.waiting) >= FEWEST_RUNS:
                self._write_object(opened)
            else:
                self._open_chunks(opened, [*opened.waiting])
            for chunks in self._storage.at_once(ChunkWriter.close, opened.writers.values()):
                opened.finished.extend(chunks)
            opened.writers = {}
        self._is_closed = True  # from now on the files are the caller's, who may commit them
        return [
            Chunks(
                opened.target.topic,
                opened.target.topic_id,
                tuple(opened.finished),
                opened.row_without_key,
                opened.target.partitions,
            )
            for opened in self._topics.values()
        ]

    def _flush(self) -> None:
        """Encodes the buffered rows, and writes the batches that became many.

        All files are opened from this loop. What it goes through are generators, so that what is written is counted
        before they go on.
        """
        for opened, batch in self._buffered():
            for group, writers, encoded in self._encoded(opened, batch):
                for writer, batches in zip(writers, encoded, strict=True):
                    writer.append(batches)
                    if isinstance(writer, WaitingRun):
                        self._waiting_bytes += batches.buffer.size
                for topic, partitions, may_share in self._due(opened, group):
                    if may_share and len(partitions) >= FEWEST_RUNS:
                        self._write_object(topic)
                    else:
                        self._open_chunks(topic, partitions)

    def _buffered(self) -> Iterator[tuple[_Open, pa.RecordBatch]]:
        """The buffered rows, topic by topic, which are no longer buffered then."""
        if not self._pending:
            return
        rows = combine(self._pending)
        self._pending = []
        self._pending_bytes = 0
        for batch in rows:
            if self._topic is not None:
                opened = self._open(self._topic)
                self._check_keys(opened, batch.column("key").is_null())
                yield opened, batch
            else:
                yield from self._by_topic(batch)
            self._flushed_rows += batch.num_rows

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[_Open, pa.RecordBatch]]:
        """The rows of a batch by its column topic."""
        topics = batch.column("topic").dictionary_encode()
        if topics.null_count:
            raise InvalidOptionError(
                "A row has no topic",
                expected="a topic name",
                found="null",
                hint="Give the option topic, or fill the column",
            )
        for number, name in enumerate(topics.dictionary.to_pylist()):
            opened = self._open(name)
            mine = pc.equal(topics.indices, number)
            self._check_keys(opened, pc.and_(mine, batch.column("key").is_null()))
            yield opened, batch if len(topics.dictionary) == 1 else batch.filter(mine)

    def _check_keys(self, opened: _Open, without_key: pa.Array) -> None:
        """Notes the first row without a key, or refuses it. `without_key` is bool[rows] of the batch to be flushed."""
        first = pc.index(without_key, True).as_py()
        if first < 0:
            return
        row = self._flushed_rows + first + 1
        if opened.target.config.compact:
            raise key_missing(opened.target.topic, row)
        if opened.row_without_key is None:
            opened.row_without_key = row

    def _open(self, topic: str) -> _Open:
        if topic not in self._topics:
            target = self._resolve(topic)
            config = target.config
            codec, level = compression(config, self._options.compression_type)
            self._topics[topic] = _Open(
                target=target,
                codec=codec,
                level=level,
                timestamp_type=LOG_APPEND_TIME if config.message_timestamp_type == "LogAppendTime" else CREATE_TIME,
                sticky_partition=random.randrange(target.partitions),
            )
        return self._topics[topic]

    def _encoded(
        self, opened: _Open, batch: pa.RecordBatch
    ) -> Iterator[tuple[list[int], list[ChunkWriter | WaitingRun], list[Encoded]]]:
        """(partitions, where their batches go, their batches) of the rows, a group of partitions at a time."""
        config = opened.target.config
        batch = self._timed(opened, batch)
        partitions = self._partitions(opened, batch)
        order, starts = group_rows(partitions, opened.target.partitions)
        columns = RecordColumns.of(batch)
        for group in self._groups(opened, starts, GROUP_BYTES * batch.num_rows // max(1, batch.nbytes)):
            writers = [self._writer(opened, partition) for partition in group]
            begin, end = starts[group[0]], starts[group[-1] + 1]
            runs = Runs(
                np.append(starts[group], end) - begin,
                np.array([writer.next_offset for writer in writers], np.int64),
            )
            encoded = encode_runs(
                columns,
                order[begin:end],
                runs,
                codec=opened.codec,
                level=opened.level,
                # As in Kafka, no batch is larger than a segment.
                batch_bytes=min(self._options.batch_bytes, config.segment_bytes),
                max_message_bytes=min(config.max_message_bytes, config.segment_bytes),
                timestamp_type=opened.timestamp_type,
                leader_epoch=NO_LEADER_EPOCH,
            )
            yield group, writers, encoded

    def _timed(self, opened: _Open, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with the times that the topic gives them, or with their own, which are checked."""
        if opened.timestamp_type != LOG_APPEND_TIME:
            config = opened.target.config
            check_timestamps(batch.column("timestamp"), opened.target.topic, config, self._storage.now_ms())
            return batch
        now = pa.scalar(self._storage.now_ms() * 1000, pa.timestamp("us", tz="UTC"))
        column = batch.schema.get_field_index("timestamp")
        return batch.set_column(column, "timestamp", pa.repeat(now, batch.num_rows))

    @staticmethod
    def _groups(opened: _Open, starts: np.ndarray, most_rows: int) -> Iterator[list[int]]:
        """The partitions that have rows, in groups that are encoded together: a call for each would take longer.

        A group has partitions side by side of up to `most_rows` rows, all of whose batches wait. A partition that has
        a chunk is alone: to open a chunk for another might close it.
        """
        group: list[int] = []
        with_rows = np.flatnonzero(np.diff(starts)).tolist()
        for partition in with_rows:
            waits = partition not in opened.writers
            if group and (not waits or starts[partition + 1] - starts[group[0]] > most_rows):
                yield group
                group = []
            group.append(partition)
            if not waits:
                yield group
                group = []
        if group:
            yield group

    def _due(self, opened: _Open, group: Sequence[int]) -> Iterator[tuple[_Open, list[int], bool]]:
        """(topic, partitions, whether they may share an object) of runs to be written, after a group got its batches.

        Runs that became large get chunks. Where much waits in memory, large runs get chunks that stay open; where that
        is not enough, the others go into objects.
        """
        large = [number for number in group if opened.waiting_bytes(number) >= opened.target.chunk_bytes]
        yield opened, large, False
        if self._waiting_bytes < WAITING_BYTES:
            return
        for topic in self._topics.values():
            yield topic, [number for number in topic.waiting if topic.waiting_bytes(number) >= LARGE_RUN_BYTES], False
        if self._waiting_bytes >= WAITING_BYTES // 2:
            for topic in self._topics.values():
                yield topic, [*topic.waiting], True

    def _partitions(self, opened: _Open, batch: pa.RecordBatch) -> np.ndarray:
        """int32[rows]: the partition column where it is set, else murmur2 of the key, else the sticky partition."""
        count = opened.target.partitions
        partitions = murmur2_partitions(batch.column("key"), count)
        column = batch.column("partition")
        if column.null_count < len(column):
            chosen = column.fill_null(-1).to_numpy(zero_copy_only=False)
            wrong = ~column.is_null().to_numpy(zero_copy_only=False) & ((chosen < 0) | (chosen >= count))
            if wrong.any():
                raise InvalidOptionError(
                    f"Topic {opened.target.topic} has no such partition",
                    expected=f"0 to {count - 1}",
                    found=int(chosen[wrong][0]),
                    hint="Fix the partition column, or raise the topic's number of partitions",
                )
            partitions = np.where(chosen >= 0, chosen, partitions).astype(np.int32)
        without = np.flatnonzero(partitions < 0)
        if len(without):
            partitions = partitions.copy()
            partitions[without] = self._sticky(opened, batch, without)
        return partitions

    def _sticky(self, opened: _Open, batch: pa.RecordBatch, rows: np.ndarray) -> np.ndarray:
        """Rows without key stay with one partition for batch.size bytes, then go on to the next, as Kafka's producer
        does.
        """
        sizes = pc.fill_null(pc.binary_length(batch.column("value")), 0).to_numpy(zero_copy_only=False)[rows] + 1
        written = opened.sticky_bytes + np.cumsum(sizes, dtype=np.int64) - sizes
        opened.sticky_bytes += int(sizes.sum())
        turns = written // self._options.batch_bytes
        values: np.ndarray = ((opened.sticky_partition + turns) % opened.target.partitions).astype(np.int32)
        return values

    def _writer(self, opened: _Open, partition: int) -> ChunkWriter | WaitingRun:
        """The open chunk of a partition, else the run that waits."""
        writer = opened.writers.pop(partition, None)
        if writer is not None:
            opened.writers[partition] = writer  # last in the dict: written to most recently
            return writer
        return opened.waiting.setdefault(partition, WaitingRun())

    def _open_chunks(self, opened: _Open, partitions: Sequence[int]) -> None:
        """Opens chunks for partitions, and puts their runs that wait into these."""
        target = opened.target
        limits = SegmentLimits.of(opened.target.config)
        for partition in partitions:
            if sum(len(other.writers) for other in self._topics.values()) >= MAX_OPEN_CHUNKS:
                fullest = max(self._topics.values(), key=lambda other: len(other.writers))
                oldest = next(iter(fullest.writers))
                fullest.finished.extend(fullest.writers[oldest].close())
                del fullest.writers[oldest]  # where closing fails, leaving the context deletes the files
            writer = ChunkWriter(self._storage, target.topic, target.topic_id, partition, limits=limits)
            opened.writers[partition] = writer
            run = opened.waiting.pop(partition)
            self._waiting_bytes -= run.log_bytes
            for encoded in run.parts:
                writer.append(encoded)

    def _write_object(self, opened: _Open) -> None:
        """Writes all runs of a topic that wait into a shared object."""
        target = opened.target
        limits = SegmentLimits.of(target.config)
        now_ms = self._storage.now_ms()
        with SharedObjectWriter(self._storage, target.topic, target.topic_id, limits) as writer:
            for partition, run in sorted(opened.waiting.items()):
                writer.begin(partition, now_ms)
                for encoded in run.parts:
                    data = np.frombuffer(encoded.buffer, np.uint8)
                    least = int(encoded.min_timestamps.min())
                    writer.append(data, encoded.batches, least)
                    writer.add_tombstones(encoded.tombstones)
            rows = writer.close()
        self._waiting_bytes -= sum(run.log_bytes for run in opened.waiting.values())
        opened.waiting = {}
        opened.finished.extend(rows)
