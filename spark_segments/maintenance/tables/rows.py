"""The tasks of a table: records become Parquet files, and files lose the rows that are to go."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_segments.errors import LogDirError, StorageError
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.log.partitions import Eras
from spark_segments.log.reading.across import RANKED, ViewPart, is_newer, ranks
from spark_segments.log.reading.latest import LatestPart
from spark_segments.log.reading.plan import Part
from spark_segments.log.reading.scan import read
from spark_segments.maintenance.tables.table_format import DAY, DataFile
from spark_segments.storage import Storage, WriteStream
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
    """What a task wrote. `rows`: their number by partition. `keys`: the columns RANKED of all records that it read,
    where they were asked for.
    """

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

    def __call__(self, parts: Sequence[Part | ViewPart]) -> Written:
        rows: Counter[int] = Counter()
        keys: list[pa.RecordBatch] = []
        with _Files(self.table, self.columns.schema) as files:
            for part in parts:
                for batch in self.columns.conformed(self.columns.decoded(self._read(part, keys))):
                    rows.update(_by_partition(batch.column("partition").to_numpy()))
                    for day, some in _days(batch) if self.by_day else [(None, batch)]:
                        files.write(day, some)
        return Written(files.written, dict(rows), pa.Table.from_batches(keys) if keys else None)

    def _read(self, part: Part | ViewPart, keys: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in read(self.log, part):
            if self.changes:
                keys.append(batch.select(RANKED))
                batch = batch.filter(pc.is_valid(batch.column("value")))
            yield batch


@dataclass(frozen=True, slots=True)
class FromOffsets:
    """Keeps the rows from these offsets on, by partition; those of other partitions go."""

    offsets: Mapping[int, int]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, offsets = _places(rows)
        starts = np.full(int(partitions.max(initial=-1)) + 1, np.iinfo(np.int64).max)
        for number, start in self.offsets.items():
            starts[number : number + 1] = start
        return np.asarray(offsets >= starts[partitions])


@dataclass(frozen=True, slots=True)
class StillThere:
    """Keeps the rows whose records the log has. `parts`: at least of all offsets of the rows."""

    parts: Sequence[Part]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        partitions, offsets = _places(rows)
        kept = np.zeros(len(offsets), np.bool_)
        there: dict[int, list[np.ndarray]] = {}
        for part in self.parts:
            read_offsets = there.setdefault(part.partition, [])
            read_offsets += [batch.column("offset").to_numpy() for batch in read(storage, part)]
        for partition, read_offsets in there.items():
            mine = partitions == partition
            if read_offsets:
                kept[mine] = np.isin(offsets[mine], np.concatenate(read_offsets))
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
                named = pc.is_in(rows.column("key").take(pa.array(mine)), keys.cast(rows.schema.field("key").type))
                kept[mine[named.to_numpy()]] = False
        return kept


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Keeps the rows that any of the rules keeps."""

    rules: Sequence[FromOffsets | StillThere | OtherKeys]

    def keeps(self, storage: Storage, rows: pa.Table) -> np.ndarray:
        kept = np.zeros(rows.num_rows, np.bool_)
        for rule in self.rules:
            if not kept.all():
                kept |= rule.keeps(storage, rows)
        return kept


Rule = FromOffsets | StillThere | OtherKeys | AnyOf


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
        try:
            parquet = pq.ParquetFile(pa.BufferReader(self.table.read(file.path)))
            places = parquet.read(["partition", "offset", *(["key"] if isinstance(rule, OtherKeys | AnyOf) else [])])
        except (FileNotFoundError, pa.ArrowException) as error:
            raise LogDirError(
                f"A file of the table cannot be read ({type(error).__name__})",
                path=self.table.location(file.path),
                hint="RESTORE the table to a version whose files are there, or make another one",
            ) from error
        kept = rule.keeps(self.log, places)
        left = _by_partition(_places(places)[0][kept])
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


@dataclass(frozen=True, slots=True)
class HaveNewer:
    """Task function: parts of a scan of RANKED → whether they have a newer record of a key in another partition than
    `records`, which have each key once.
    """

    log: Storage
    eras: Eras
    records: pa.Table

    def __call__(self, parts: Sequence[LatestPart]) -> bool:
        keys, own = self.records.column("key").combine_chunks(), ranks(self.records, self.eras)
        known = LatestKeys.of(keys)
        for part in parts:
            for batch in read(self.log, part):
                rivals = batch.filter(pa.array(known.know(batch.column("key"))))
                theirs = ranks(rivals, self.eras)
                ours = own[:, pc.index_in(rivals.column("key"), keys).to_numpy()]
                if (is_newer(theirs, ours) & (theirs[0] != ours[0])).any():
                    return True
        return False


def count_records(log: Storage, parts: Sequence[Part | ViewPart]) -> dict[int, int]:
    """Task function: parts of a scan → {partition: records}."""
    counted: Counter[int] = Counter()
    for part in parts:
        counted[part.partition] += sum(batch.num_rows for batch in read(log, part))
    return {number: records for number, records in counted.items() if records}


def _by_partition(partitions: np.ndarray) -> dict[int, int]:
    """{partition: rows}"""
    numbers, counts = np.unique(partitions, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


class _Files(contextlib.ExitStack):
    """The files that a task writes: one for each day, or one. Those of a task that fails are given up."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        super().__init__()
        self._storage, self._schema = storage, schema
        self._open: dict[str | None, _File] = {}
        self.written: list[DataFile] = []

    def write(self, day: str | None, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if day not in self._open:
            name = f"part-{uuid.uuid4()}.snappy.parquet"
            path = name if day is None else f"{DAY}={day}/{name}"
            stream = self.enter_context(self._storage.stream(path, unique=True))
            self._open[day] = _File(stream, self._schema, path, None if day == NO_DAY else day)
        self._open[day].write(batch)

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> bool | None:
        if kind is None:
            self.written = [file.close() for file in self._open.values()]
            return super().__exit__(kind, *error)
        super().__exit__(kind, *error)
        with contextlib.suppress(StorageError):  # the first error is the one to show
            self._storage.delete([file.path for file in self._open.values()])
        return None


class _File:
    """A Parquet file that is being written."""

    def __init__(self, stream: WriteStream, schema: pa.Schema, path: str, day: str | None) -> None:
        self.path, self._stream, self._schema, self._day = path, stream, schema, day
        self._writer = pq.ParquetWriter(
            pa.PythonFile(stream, "w"), schema, compression="snappy", use_dictionary=_repeated_columns(schema)
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = self._all_rows = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        for name in _BOUNDED:
            ends = pc.min_max(batch.column(name)).as_py().values()
            known = [value for value in (*self._bounds.get(name, ()), *ends) if value is not None]
            if known:
                self._bounds[name] = (min(known), max(known))
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self._flush()

    def close(self) -> DataFile:
        self._flush()
        self._writer.close()
        self._stream.close()
        return DataFile(self.path, self._stream.bytes_written, self._all_rows, self._day, self._bounds)

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
    paths = [columns.column(number).path for number in range(len(columns))]
    return [path for path in paths if path not in _RISING]


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by the day of their timestamp, in UTC."""
    days = pc.cast(pc.floor_temporal(batch.column("timestamp"), unit="day"), pa.date32())
    for day in pc.unique(days):
        if day.as_py() is None:
            yield NO_DAY, batch.filter(pc.is_null(days))
        else:
            yield str(day.as_py()), batch.filter(pc.equal(days, day))


def _places(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    partitions, offsets = (rows.column(name).combine_chunks() for name in _PLACE)
    if partitions.null_count or offsets.null_count:
        raise LogDirError("A row of the table has no partition or no offset", hint="Make another table")
    return partitions.to_numpy(), offsets.to_numpy()
