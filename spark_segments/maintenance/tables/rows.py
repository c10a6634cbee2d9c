"""The tasks of a table: records become Parquet files, and files lose the rows that are to go."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_segments.errors import LogDirError
from spark_segments.log.reading.latest import LatestPart
from spark_segments.log.reading.plan import Part
from spark_segments.log.reading.scan import read
from spark_segments.maintenance.tables.table_beside import DAY, DataFile
from spark_segments.storage import Storage
from spark_segments.values.batches import Columns

ROW_GROUP_BYTES = 64 << 20
"""A file is written in groups of rows of so many bytes in memory, or of ROW_GROUP_ROWS."""

ROW_GROUP_ROWS = 1 << 20
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows without a timestamp, as other writers of Delta name it."""

_BOUNDED = ("partition", "offset", "timestamp")
_PLACE = ("partition", "offset")
_RISING = ("offset", "timestamp")


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote. `keys`: partition and key of all records that it read, where they were asked for."""

    files: Sequence[DataFile] = ()
    rows: Mapping[int, int] = field(default_factory=dict)
    keys: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class WriteRows:
    """Task function: parts of a scan → files of the table. `changes`: tombstones are read, for their keys alone."""

    log: Storage
    table: Storage
    columns: Columns
    by_day: bool
    changes: bool = False

    def __call__(self, parts: Sequence[Part | LatestPart]) -> Written:
        rows: Counter[int] = Counter()
        keys: list[pa.RecordBatch] = []
        with _Files(self.table, self.columns.schema) as files:
            for part in parts:
                for batch in self.columns.conformed(self.columns.decoded(self._read(part, keys))):
                    rows[part.partition] += batch.num_rows
                    for day, some in _days(batch) if self.by_day else [(None, batch)]:
                        files.write(day, some)
        return Written(files.written, dict(rows), pa.Table.from_batches(keys) if keys else None)

    def _read(self, part: Part | LatestPart, keys: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in read(self.log, part):
            if self.changes:
                keys.append(batch.select(["partition", "key"]))
                batch = batch.filter(pc.is_valid(batch.column("value")))
            yield batch


@dataclass(frozen=True, slots=True)
class FromStart:
    """Keeps the rows from the log start on."""

    log_starts: Mapping[int, int]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, offsets = _places(rows)
        starts = np.zeros(max(self.log_starts, default=-1) + 1, np.int64)
        starts[list(self.log_starts)] = list(self.log_starts.values())
        return np.asarray(offsets >= starts[partitions])


@dataclass(frozen=True, slots=True)
class StillThere:
    """Keeps the rows whose records the log has. `parts`: at least of all offsets of the rows."""

    parts: Sequence[Part | LatestPart]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, offsets = _places(rows)
        kept = np.zeros(len(offsets), np.bool_)
        there: dict[int, list[np.ndarray]] = {}
        for part in self.parts:
            there.setdefault(part.partition, []).extend(
                batch.column("offset").to_numpy() for batch in read(storage, part)
            )
        for partition, found in there.items():
            mine = partitions == partition
            if found:
                kept[mine] = np.isin(offsets[mine], np.concatenate(found))
        return kept


@dataclass(frozen=True, slots=True)
class OtherKeys:
    """Keeps the rows with other keys. `keys`: by partition; under None those of every partition."""

    keys: Mapping[int | None, pa.Array]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, _ = _places(rows)
        kept = np.ones(len(partitions), np.bool_)
        for partition, keys in self.keys.items():
            mine = np.flatnonzero(partitions == partition) if partition is not None else np.arange(len(partitions))
            if len(mine):
                found = pc.is_in(rows.column("key").take(pa.array(mine)), keys.cast(rows.schema.field("key").type))
                kept[mine[found.to_numpy()]] = False
        return kept


Rule = FromStart | StillThere | OtherKeys


@dataclass(frozen=True, slots=True)
class Sifted:
    """A file under a rule. `kept`: rows by partition; `dropped`: rows; `made`: the file of the rows that stay, None
    where none does, or all do.
    """

    file: DataFile
    kept: Mapping[int, int]
    dropped: int
    made: DataFile | None = None


@dataclass(frozen=True, slots=True)
class SiftRows:
    """Task function: (a file of the table, the rule for its rows) → what is left of it."""

    log: Storage
    table: Storage
    schema: pa.Schema

    def __call__(self, task: tuple[DataFile, Rule]) -> Sifted:
        file, rule = task
        parquet = pq.ParquetFile(pa.BufferReader(self.table.read(file.path)))
        needed = ["partition", "offset", *(["key"] if isinstance(rule, OtherKeys) else [])]
        places = parquet.read(needed)
        kept = rule.keeps(self.log, places)
        partitions, counts = np.unique(_places(places)[0][kept], return_counts=True)
        left = dict(zip(partitions.tolist(), counts.tolist(), strict=True))
        dropped = len(kept) - int(kept.sum())
        if not dropped or not left:
            return Sifted(file, left, dropped)
        with _Files(self.table, self.schema) as files:
            first = 0
            for number in range(parquet.num_row_groups):
                group = parquet.read_row_group(number, self.schema.names)
                chosen = group.filter(pa.array(kept[first : first + group.num_rows])).cast(self.schema)
                first += group.num_rows
                for batch in chosen.to_batches():
                    files.write(file.day, batch)
        [made] = files.written
        return Sifted(file, left, dropped, made)


def count_records(log: Storage, parts: Sequence[Part | LatestPart]) -> dict[int, int]:
    """Task function: parts of a scan → {partition: records}."""
    counted: Counter[int] = Counter()
    for part in parts:
        counted[part.partition] += sum(batch.num_rows for batch in read(log, part))
    return {number: records for number, records in counted.items() if records}


class _Files:
    """The files that a task writes: one for each day, or one."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        self._storage, self._schema = storage, schema
        self._open: dict[str | None, _File] = {}
        self.written: list[DataFile] = []

    def write(self, day: str | None, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if day not in self._open:
            self._open[day] = _File(self._storage, self._schema, day)
        self._open[day].write(batch)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.written = [one.close() for one in self._open.values()]


class _File:
    """A Parquet file that is being written."""

    def __init__(self, storage: Storage, schema: pa.Schema, day: str | None) -> None:
        name = f"part-{uuid.uuid4()}.snappy.parquet"
        self._day, self._path = (None if day in (None, NO_DAY) else day), name if day is None else f"{DAY}={day}/{name}"
        self._stream = storage.stream(self._path, unique=True)
        repeated = _repeated_columns(schema)
        sink = pa.PythonFile(self._stream, "w")
        self._writer = pq.ParquetWriter(sink, schema, compression="snappy", use_dictionary=repeated)
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._all_rows = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        for name in _BOUNDED:
            found = pc.min_max(batch.column(name)).as_py()
            both = [one for one in (*self._bounds.get(name, ()), found["min"], found["max"]) if one is not None]
            if both:
                self._bounds[name] = (min(both), max(both))
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        self._stream.close()
        least = {name: _statistic(bounds[0]) for name, bounds in self._bounds.items()}
        greatest = {name: _statistic(bounds[1]) for name, bounds in self._bounds.items()}
        stats = {"numRecords": self._all_rows, "minValues": least, "maxValues": greatest, "nullCount": {}}
        return DataFile(
            self._path,
            self._stream.bytes_written,
            self._all_rows,
            self._day,
            (least["partition"], least["offset"]),
            (greatest["partition"], greatest["offset"]),
            json.dumps(stats),
        )

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), self._rows)
        self._all_rows += self._rows
        self._waiting, self._rows, self._bytes = [], 0, 0


def _repeated_columns(schema: pa.Schema) -> list[str]:
    """The columns whose values may repeat, as Parquet names them. A dictionary of the others only costs the reader."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.ParquetFile(pa.BufferReader(sink.getvalue())).schema
    return [one.path for one in map(columns.column, range(len(columns))) if one.path not in _RISING]


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by the day of their timestamp, in UTC."""
    days = pc.cast(pc.floor_temporal(batch.column("timestamp"), unit="day"), pa.date32())
    for day in pc.unique(days):
        if day.as_py() is None:
            yield NO_DAY, batch.filter(pc.is_null(days))
        else:
            yield str(day.as_py()), batch.filter(pc.equal(days, day))


def _statistic(value: Any) -> Any:
    # Delta has timestamps as text with milliseconds, which is all that a record's has.
    return (
        value if isinstance(value, int) else value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03d}Z"
    )


def _places(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    partitions, offsets = (rows.column(name).combine_chunks() for name in _PLACE)
    if partitions.null_count or offsets.null_count:
        raise LogDirError("A row of the table has no partition or no offset", hint="Make another table")
    return partitions.to_numpy(), offsets.to_numpy()
