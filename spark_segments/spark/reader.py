"""The batch reader: a plan of byte ranges on the driver, records as Arrow batches in the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_segments.execution import Versioned
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.reading.ahead import Piece, read_ahead
from spark_segments.log.reading.latest import LatestPlan, LatestRange, read_latest
from spark_segments.log.reading.plan import DEFAULT_MAX_PARTITION_BYTES, ReadRange, pack, read_ranges
from spark_segments.spark.offsets import OffsetRange, offset_ranges, split
from spark_segments.spark.options import ReadOptions
from spark_segments.spark.schema import as_struct, conformed, projection, typed_schema
from spark_segments.spark.worker import freeze_imports
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.values.batches import Decoder

TASK_THREADS = 4
"""Threads of a task that reads an object store: an executor has as many for each of its slots."""

TASK_AHEAD_BYTES = 32 << 20
"""Bytes of batches that wait for Spark in such a task, at most."""

# Smaller batches are put together, because passing a batch to the JVM has a fixed cost.
MIN_BATCH_BYTES = 1 << 20


class RangesPartition(Versioned, InputPartition):
    """The work of one task."""

    def __init__(self, work: Sequence[ReadRange | LatestRange]) -> None:
        super().__init__(work)


class Reader(Versioned, DataSourceReader):
    """Reads the records of topics at pinned snapshots."""

    def __init__(
        self,
        options: ReadOptions,
        snapshots: Mapping[str, Snapshot],
        schema: StructType | pa.Schema,
        value_readers: Mapping[str, Sequence[Decoder]] | None = None,
    ) -> None:
        """`value_readers` decode keys and values, by topic. Batches have the very types of an Arrow schema."""
        self._options = options
        self._snapshots = snapshots
        self._value_readers = dict(value_readers or {})
        self._schema = projection(as_struct(schema), typed_schema(self._value_readers))
        self._given = schema if isinstance(schema, pa.Schema) else None
        self._storage = Storage(options.location.uri, options.location.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_snapshots": {}}  # the driver plans; tasks get just their ranges

    def partitions(self) -> list[InputPartition]:
        tasks = self._plan()
        freeze_imports()
        return [RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batches = self._batches(partition.value or [])
        if self._given is None:
            return merged(batches, self._schema)
        return merged(_conformed(batches, self._given), self._given)

    def _plan(self) -> list[list[ReadRange]] | list[list[LatestRange]]:
        from spark_segments.log.reading.times import offsets_for_times

        lookup = partial(offsets_for_times, self._storage)
        return self.tasks_of(offset_ranges(self._options, self._snapshots, lookup))

    def tasks_of(self, wanted: Sequence[OffsetRange]) -> list[list[ReadRange]] | list[list[LatestRange]]:
        """The work of the tasks that read these offsets of the snapshots. Each is the value of a `RangesPartition`."""
        options = self._options
        max_bytes = options.max_partition_bytes or DEFAULT_MAX_PARTITION_BYTES
        pieces = split(wanted, options.min_partitions, options.max_records_per_partition)
        is_whole = len(pieces) == len(wanted)
        groups = list(_groups(pieces, whole=is_whole))
        if not is_whole or options.latest:  # a topic is planned several times then, from rows that are read once
            for topic in {one.topic for one in wanted}:
                _ = self._snapshots[topic].live
        if options.min_partitions is not None and not is_whole:  # the pieces are the tasks asked for
            if options.latest:
                return [[one] for one in self._plan_latest(wanted, groups, max_bytes)]
            return [task for group in groups for task in pack(self._plan_ranges(group, max_bytes), max_bytes)]
        packed = partial(
            pack,
            max_partition_bytes=max_bytes,
            min_tasks=options.min_partitions or 0,
            max_offsets=options.max_records_per_partition,
        )
        if options.latest:
            return packed(self._plan_latest(wanted, groups, max_bytes))
        return packed(chain.from_iterable(self._plan_ranges(group, max_bytes) for group in groups))

    def _plan_ranges(self, group: Sequence[OffsetRange], max_bytes: int) -> list[ReadRange]:
        return read_ranges(
            self._snapshots[group[0].topic],
            _offsets(group),
            max_partition_bytes=max_bytes,
            isolation_level=self._options.isolation_level,
        )

    def _plan_latest(
        self, wanted: Iterable[OffsetRange], groups: Iterable[list[OffsetRange]], max_bytes: int
    ) -> Iterator[LatestRange]:
        options = self._options
        topics: dict[str, list[OffsetRange]] = {}
        for one in wanted:
            topics.setdefault(one.topic, []).append(one)
        pieces: dict[str, list[dict[int, tuple[int, int]]]] = {}
        for group in groups:
            pieces.setdefault(group[0].topic, []).append(_offsets(group))
        for topic, ranges in topics.items():
            snapshot = self._snapshots[topic]
            plan = LatestPlan(snapshot, _offsets(ranges), options.isolation_level, options.include_tombstones)
            yield from plan.tasks_of(plan.heads(), pieces[topic], max_bytes)

    def _batches(self, work: Iterable[ReadRange | LatestRange]) -> Iterator[pa.RecordBatch]:
        try:
            everything = list(work)
            if self._storage.is_local or any(isinstance(one, LatestRange) for one in everything):
                for one in everything:
                    yield from self._piece(one)()
            else:
                yield from read_ahead(self._pieces(everything), TASK_THREADS, most_bytes=TASK_AHEAD_BYTES)
        finally:
            freeze_imports()

    def _pieces(self, work: Iterable[ReadRange | LatestRange]) -> Iterator[Piece]:
        """The work in pieces of a request each. Views are not cut: each takes the memory of a map."""
        from spark_segments.log.reading.records import pieces_of  # kernels, which only tasks need
        from spark_segments.log.segment.walk import WINDOW_BYTES

        for piece in pieces_of(self._storage, (one for one in work if isinstance(one, ReadRange))):
            yield self._piece(piece, first_window_bytes=WINDOW_BYTES)

    def _piece(self, one: ReadRange | LatestRange, **options: Any) -> Piece:
        from spark_segments.log.reading.read import read_range  # kernels, which only tasks need

        read: Callable[..., Iterator[pa.RecordBatch]]
        if isinstance(one, LatestRange):
            read = partial(read_latest, self._storage, one)
        else:
            read = partial(read_range, self._storage, one, **options)
        return partial(self._decoded, one.topic, read)

    def _decoded(self, topic: str, read: Callable[..., Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """The batches of `read(columns=…)`, with keys and values decoded where the topic has readers for them."""
        from spark_segments.log.typed.columns import Columns
        from spark_segments.values.column_types import recast

        readers = self._value_readers.get(topic)
        if not readers:
            yield from read(columns=self._schema.names)
            return
        raw = {reader.chosen.raw_column: reader.chosen.column for reader in readers}
        names = list(dict.fromkeys(raw.get(name, name) for name in self._schema.names))
        columns = Columns(names, readers)
        for batch in columns.decoded(read(columns=columns.wanted)):
            arrays = [recast(batch.column(field.name), field.type) for field in self._schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _groups(pieces: list[OffsetRange], *, whole: bool) -> Iterator[list[OffsetRange]]:
    """Pieces that are planned together: all pieces of a topic with `whole`, else each piece alone."""
    if not whole:
        yield from ([piece] for piece in pieces)
        return
    topics: dict[str, list[OffsetRange]] = {}
    for piece in pieces:
        topics.setdefault(piece.topic, []).append(piece)
    yield from topics.values()


def _offsets(ranges: Iterable[OffsetRange]) -> dict[int, tuple[int, int]]:
    return {one.partition: (one.start, one.end) for one in ranges}


def _conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in exactly the types of a schema: Sail compares time zones and the names of items."""
    for batch in batches:
        arrays = [conformed(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def merged(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in exactly this schema. Small batches are put together up to MIN_BATCH_BYTES."""
    pending: list[pa.RecordBatch] = []
    pending_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if batch.schema != schema:  # nullability, where a user's schema says that an offset cannot be null
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        pending.append(batch)
        pending_bytes += batch.nbytes
        if pending_bytes >= MIN_BATCH_BYTES:
            yield _one(pending)
            pending, pending_bytes = [], 0
    if pending:
        yield _one(pending)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
