"""The batch reader: a plan of byte ranges on the driver, records as Arrow batches in the tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_segments.execution import Versioned
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.across import ViewPart
from spark_segments.log.reading.clip import borders
from spark_segments.log.reading.scan import Decoded, Scan
from spark_segments.log.reading.scan_plan import Part, Selection, pack, runs_of
from spark_segments.spark.batches import merged
from spark_segments.spark.offsets import TimeLookup, check_holes, split, wanted_offsets
from spark_segments.spark.options import ReadOptions
from spark_segments.spark.schema import as_struct, conformed, projection, typed_schema
from spark_segments.spark.shown_errors import without_traceback
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
        self._arrow_schema = schema if isinstance(schema, pa.Schema) else None
        self._storage = Storage(options.location.uri, options.location.storage_options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_snapshots": {}}  # the driver plans; tasks get just their ranges

    @without_traceback
    def partitions(self) -> list[InputPartition]:
        from spark_segments.log.reading.times import offsets_for_times

        tasks = self.tasks_of(self.scans(partial(offsets_for_times, self._storage)))
        freeze_imports()
        return [RangesPartition(task) for task in tasks]

    def scans(self, offsets_for_times: TimeLookup) -> list[Scan]:
        """The scans of the topics, at the offsets that the options name. Raises what `wanted_offsets` says, and unless
        failOnDataLoss is off, OffsetOutOfRangeError for offsets with a hole.
        """
        bounds = wanted_offsets(self._options, self._snapshots, offsets_for_times)
        scans = [self.scan(topic, offsets) for topic, offsets in bounds.items()]
        if self._options.fail_on_data_loss:
            for scan in scans:
                check_holes(scan.snapshot, scan.offsets)
        if self._options.keys is None and not self._options.where:
            return scans
        location = self._options.location
        log = LogDirectory.open(location.uri, location.storage_options)
        return [self._looked_up(scan, log) for scan in scans]

    def _looked_up(self, scan: Scan, log: LogDirectory) -> Scan:
        """The scan of the records alone with these keys and fields. The indexes of a topic are asked here, on the
        driver.
        """
        options = self._options
        if options.keys is not None:
            keys = log.values.key_bytes(scan.snapshot.topic, options.keys, options.formats)
            scan = scan.of_keys(keys, log.key_offsets)
        for on, values in options.where.items():
            field = log.values.field(scan.snapshot, on, options.formats)
            scan = scan.of_field(field, field.encoded(values), log.key_offsets)
        return scan

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task. PySpark 4.0 reads None where there are no partitions."""
        batches = self._batches([] if partition is None else partition.value or [])
        if self._arrow_schema is None:
            return merged(batches, self._schema)
        return merged(_conformed(batches, self._arrow_schema), self._arrow_schema)

    def tasks_of(self, scans: Sequence[Scan]) -> list[list[Any]]:
        """The parts of the tasks that read these scans, of a topic each. A task is the value of a `RangesPartition`."""
        options = self._options
        max_bytes = options.max_partition_bytes or Part.DEFAULT_BYTES
        by_topic = {scan.snapshot.topic: scan.offsets for scan in scans}
        pieces = split(by_topic, options.min_partitions, options.max_records_per_partition)
        is_split = any(borders(ranges) for offsets in pieces.values() for ranges in offsets.values())
        scans = [replace(scan, offsets=pieces.get(scan.snapshot.topic, {})) for scan in scans]
        if options.min_partitions is None or not is_split:
            of_all_topics = chain.from_iterable(self._parts(scan, max_bytes) for scan in scans)
            least = options.min_partitions or 0
            most = options.max_records_per_partition
            return pack(of_all_topics, max_bytes, min_tasks=least, max_offsets=most)
        # The pieces are the tasks that were asked for: no task reads from two of them.
        tasks: list[list[Any]] = []
        for scan in scans:
            parts = self._parts(scan, max_bytes)
            if options.latest:
                tasks.extend([part] for part in parts)
                continue
            for run in runs_of(parts, scan.offsets):
                tasks.extend(pack(run, max_bytes))
        return tasks

    def _parts(self, scan: Scan, max_bytes: int) -> Iterator[Any]:
        if self._options.latest:  # its heads are planned, too, from rows that are read once
            _ = scan.snapshot.live
        return scan.parts(max_bytes)

    def scan(self, topic: str, offsets: Mapping[int, tuple[int, int]]) -> Scan:
        """The scan of these offsets ({partition: (start, end exclusive)}) of a topic."""
        options = self._options
        readers = self._value_readers.get(topic)
        selection = Selection(
            isolation=options.isolation_level,
            view=Selection.LATEST_VIEW if options.latest else None,
            include_tombstones=options.include_tombstones,
            times=options.times,
        )
        scan = Scan.of(self._storage, self._snapshots[topic], None, offsets, selection, readers)
        return scan.select(self._schema.names)

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


def _conformed(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in exactly the types of a schema: Sail compares time zones and the names of items."""
    for batch in batches:
        arrays = [conformed(array, field.type) for array, field in zip(batch.columns, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
