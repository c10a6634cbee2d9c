"""The batch reader: a plan of byte ranges on the driver, records as Arrow batches in the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_segments.execution import Versioned
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.across import ViewPart
from spark_segments.log.reading.plan import Part, Selection, pack
from spark_segments.log.reading.scan import Decoded, Scan
from spark_segments.spark.batches import merged
from spark_segments.spark.offsets import OffsetRange, offset_ranges, split
from spark_segments.spark.options import ReadOptions
from spark_segments.spark.schema import as_struct, conformed, projection, typed_schema
from spark_segments.spark.shown_errors import as_itself
from spark_segments.spark.worker import freeze_imports
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from spark_segments.log.typed import Decoders

TASK_THREADS = 4
"""Threads of a task that reads an object store: an executor has as many for each of its slots."""

TASK_AHEAD_BYTES = 32 << 20
"""Bytes of batches that wait for Spark in such a task, at most."""


class RangesPartition(Versioned, InputPartition):
    """The work of one task."""

    def __init__(self, work: Sequence[Part | ViewPart]) -> None:
        super().__init__(work)


class Reader(Versioned, DataSourceReader):
    """Reads the records of topics at pinned snapshots."""

    def __init__(
        self,
        options: ReadOptions,
        snapshots: Mapping[str, Snapshot],
        schema: StructType | pa.Schema,
        value_readers: Mapping[str, Decoders] | None = None,
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

    @as_itself
    def partitions(self) -> list[InputPartition]:
        from spark_segments.log.reading.times import offsets_for_times

        lookup = partial(offsets_for_times, self._storage)
        tasks = self.tasks_of(offset_ranges(self._options, self._snapshots, lookup))
        freeze_imports()
        return [RangesPartition(task) for task in tasks]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task. PySpark 4.0 reads None where there are no partitions."""
        batches = self._batches([] if partition is None else partition.value or [])
        if self._given is None:
            return merged(batches, self._schema)
        return merged(_conformed(batches, self._given), self._given)

    def tasks_of(self, wanted: Sequence[OffsetRange]) -> list[list[Any]]:
        """The parts of the tasks that read these offsets of the snapshots. Each is the value of a `RangesPartition`."""
        options = self._options
        max_bytes = options.max_partition_bytes or Part.DEFAULT_BYTES
        pieces = split(wanted, options.min_partitions, options.max_records_per_partition)
        is_whole = len(pieces) == len(wanted)
        groups = list(_by_topic(pieces).values()) if is_whole else [[piece] for piece in pieces]  # planned together
        if not is_whole or options.latest:  # a topic is planned several times then, from rows that are read once
            for topic in {offset_range.topic for offset_range in wanted}:
                _ = self._snapshots[topic].live
        if options.min_partitions is not None and not is_whole:  # the pieces are the tasks asked for
            if options.latest:
                return [[part] for part in self._parts(wanted, groups, max_bytes)]
            return [task for group in groups for task in pack(self._parts(group, [group], max_bytes), max_bytes)]
        return pack(
            self._parts(wanted, groups, max_bytes),
            max_bytes,
            min_tasks=options.min_partitions or 0,
            max_offsets=options.max_records_per_partition,
        )

    def _parts(
        self, wanted: Iterable[OffsetRange], groups: Iterable[Sequence[OffsetRange]], max_bytes: int
    ) -> Iterator[Any]:
        """The parts of all topics, topic by topic. No part is in two groups."""
        pieces: dict[str, list[dict[int, tuple[int, int]]]] = {}
        for group in groups:
            pieces.setdefault(group[0].topic, []).append(_offsets(group))
        for topic, ranges in _by_topic(wanted).items():
            yield from self._scan(topic, _offsets(ranges)).parts(max_bytes, pieces[topic])

    def _scan(self, topic: str, offsets: dict[int, tuple[int, int]]) -> Scan:
        options, readers = self._options, self._value_readers.get(topic)
        selection = Selection(
            isolation=options.isolation_level,
            view=Selection.LATEST_VIEW if options.latest else None,
            include_tombstones=options.include_tombstones,
        )
        return Scan(self._storage, self._snapshots[topic], offsets, selection, readers).select(self._schema.names)

    def _batches(self, parts: Sequence[Any]) -> Iterator[pa.RecordBatch]:
        """The rows of parts, with keys and values decoded where a topic has readers for them."""
        threads = 1 if self._storage.is_local or self._options.latest else TASK_THREADS
        try:
            yield from Scan.read(self._storage, parts, threads, most_bytes=TASK_AHEAD_BYTES, decoded=self._decoded)
        finally:
            freeze_imports()

    def _decoded(self, topic: str) -> Decoded | None:
        """What decodes the keys and values of a topic, to the types of all topics; None where it has no readers."""
        readers = self._value_readers.get(topic)
        if not readers:
            return None
        columns = readers.columns(readers.stored(self._schema.names))
        return lambda batches: columns.conformed(columns.decoded(batches), self._schema)


def _by_topic(ranges: Iterable[OffsetRange]) -> dict[str, list[OffsetRange]]:
    topics: dict[str, list[OffsetRange]] = {}
    for offset_range in ranges:
        topics.setdefault(offset_range.topic, []).append(offset_range)
    return topics


def _offsets(ranges: Iterable[OffsetRange]) -> dict[int, tuple[int, int]]:
    return {offset_range.partition: (offset_range.start, offset_range.end) for offset_range in ranges}


def _conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in exactly the types of a schema: Sail compares time zones and the names of items."""
    for batch in batches:
        arrays = [conformed(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
