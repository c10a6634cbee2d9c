"""The tasks of a table: records become Parquet files, and files lose the rows that are to go."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_segments.errors import InvalidOptionError, LogDirError, StorageError, ValueFormatError
from spark_segments.execution import check_wanted
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.lake.rules import PLACE, OtherKeys, Rule, places_of
from spark_segments.lake.table_format import DAY, KEY_BYTES, DataFile, RowFacts, new_file_name
from spark_segments.lake.truncates import Truncates, envelopes, truncates_in
from spark_segments.log import Eras, Scan, ScanPart
from spark_segments.storage import Storage, WriteStream
from spark_segments.values.batches import FormatColumns
from spark_segments.values.format_options import FAIL, NULL

ROW_GROUP_BYTES = 64 << 20
"""A file is written in groups of rows of so many bytes in memory, or of ROW_GROUP_ROWS."""

ROW_GROUP_ROWS = 1 << 17
"""Readers leave out groups by their bounds, and read several groups at once."""

LEAST_GROUP_ROWS = ROW_GROUP_ROWS // 4
"""A group of so many rows ends where another partition begins: bounds of offsets are those of one partition then."""

LEAST_REPETITIONS = 8
"""How often a value comes in the first rows of a file, on average, for its column to have a dictionary."""

_COUNTED = (pa.binary(), pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())

UNDATED = "timestamp.errors"
"""An option beside formats: null for timestamps that a table cannot have, fail (the default) for an error."""

NO_DAY = "__HIVE_DEFAULT_PARTITION__"
"""The directory of rows without a timestamp, as other writers of Delta name it."""

_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a task made of records, or of a file's rows: `files`, and their `rows` by partition. `dropped`: rows of the
    file that go; where none does, it stays. `undecided`: the places of rows of the file of which nobody knows whether
    they have to go. `undated`: records whose timestamp became null. `keys`: the columns RANKED of all records, where
    they were asked for. `facts`: of the records. `truncates`: events among records without a key.
    """

    files: Sequence[DataFile] = ()
    rows: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    undecided: Sequence[tuple[int, int]] = ()
    undated: int = 0
    keys: pa.Table | None = None
    facts: RowFacts = field(default_factory=RowFacts)
    truncates: Truncates = field(default_factory=Truncates)


@dataclass(frozen=True, slots=True)
class TableTarget:
    """What a table's new files are to be: `storage`, the table's; `schema`, of its files; `columns`, the conversion of
    records. `by_day`: a file for each day. `may_be_undated`: a timestamp that a table cannot have becomes null.
    `is_latest`: tombstones are left out.
    """

    storage: Storage
    schema: pa.Schema
    columns: FormatColumns
    by_day: bool
    may_be_undated: bool
    is_latest: bool


def may_be_undated(formats: Mapping[str, str]) -> bool:
    """Whether a timestamp that a table cannot have becomes null, by the option UNDATED. Raises InvalidOptionError for
    another value of it.
    """
    errors = formats.get(UNDATED, FAIL).lower()
    if errors not in (FAIL, NULL):
        raise InvalidOptionError(f"Option {UNDATED} has an unknown value", expected=f"{FAIL} or {NULL}", found=errors)
    return errors == NULL


def write_rows(log: Storage, target: TableTarget, by_keys: bool, parts: Sequence[ScanPart]) -> Written:
    """Task function: parts of a scan → files of the table. `by_keys`: the keys of all records are asked for, also those
    of tombstones.
    """
    rows: Counter[int] = Counter()
    undated_rows = 0
    keys: list[pa.RecordBatch] = []
    facts = RowFacts()
    truncates = Truncates()
    with _Files(target.storage, target.schema) as files:
        for part in parts:
            for records in Scan.read(log, [part]):
                check_wanted()
                if target.is_latest:
                    records, keyless = _by_key(records)
                    truncates = truncates.joined(_truncates_of(target, keyless))
                facts = facts.joined(_facts_of(records, is_latest=target.is_latest))
                if by_keys:
                    keys.append(records.select(Eras.RANKED))
                if target.is_latest:
                    records = records.filter(pc.is_valid(records.column("value")))
                typed, undated = _with_dates(part.topic, _typed(target, records), target.may_be_undated)
                undated_rows += undated
                (batch,) = target.columns.conformed([typed], target.schema)
                rows.update(_by_partition(batch.column("partition").to_numpy()))
                for day, rows_of_day in _days(batch) if target.by_day else [(None, batch)]:
                    files.write(day, rows_of_day)
        written = files.ended()
    all_keys = pa.Table.from_batches(keys) if keys else None
    return Written(written, rows, undated=undated_rows, keys=all_keys, facts=facts, truncates=truncates)


def _by_key(records: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(the records with a key, the records without one)"""
    keys = records.column("key")
    if not keys.null_count:
        return records, records[:0]
    return records.filter(pc.is_valid(keys)), records.filter(pc.is_null(keys))


def _truncates_of(target: TableTarget, keyless: pa.RecordBatch) -> Truncates:
    """The truncate events among records without a key. Their values may be anything: none is an error."""
    reader = envelopes(target.columns.readers) if keyless.num_rows else None
    return Truncates() if reader is None else truncates_in(keyless, reader)


def _facts_of(records: pa.RecordBatch, *, is_latest: bool) -> RowFacts:
    """The facts of records with their columns as they are stored."""
    types = pc.unique(records.column("timestampType")).to_pylist()
    return RowFacts(tuple(sorted(types)), has_passed_tombstones=is_latest and records.column("value").null_count > 0)


def _typed(target: TableTarget, records: pa.RecordBatch) -> pa.RecordBatch:
    """Records with the columns of their table, and the bytes of their keys where it has them."""
    (typed,) = target.columns.decoded([records])
    return typed.append_column(KEY_BYTES, records.column("key")) if KEY_BYTES in target.schema.names else typed


def _with_dates(topic: str, batch: pa.RecordBatch, undated: bool) -> tuple[pa.RecordBatch, int]:
    """(the batch, with null in place of timestamps that readers of tables have no date for; how many they are). Raises
    ValueFormatError for them unless they may be `undated`.
    """
    times = batch.column("timestamp")
    micros = times.cast(pa.int64())
    outside = pc.fill_null(pc.or_(pc.less(micros, _FIRST_US), pc.greater(micros, _LAST_US)), False)
    row = pc.index(outside, True).as_py()
    if row < 0:
        return batch, 0
    if undated:
        dated = pc.if_else(outside, pa.scalar(None, times.type), times)
        return batch.set_column(batch.schema.names.index("timestamp"), "timestamp", dated), pc.sum(outside).as_py()
    partition = batch.column("partition")[row].as_py()
    offset = batch.column("offset")[row].as_py()
    raise ValueFormatError(
        "A record's timestamp is outside the years 1 to 9999, which are all that a table's readers know",
        path=f"topic {topic}, partition {partition}, offset {offset}",
        expected=f"milliseconds from {_FIRST_US // 1000} to {_LAST_US // 1000}",
        found=f"{micros[row].as_py() // 1000}",
        hint=f"Its producer took another unit for milliseconds: {UNDATED}=null makes the timestamp null in the table",
    )


def sift_rows(
    log: Storage, table: Storage, schema: pa.Schema, rewrites_all: bool, task: tuple[DataFile, Sequence[Rule]]
) -> Written:
    """Task function: a file of the table → a file of the rows that a rule keeps. `rewrites_all`: a file that keeps all
    its rows is rewritten, too.
    """
    file, rules = task
    key_rules = [rule for rule in rules if isinstance(rule, OtherKeys)]
    names = [*PLACE, "key", KEY_BYTES] if key_rules else [*PLACE]
    parquet, places = _places_in(table, file, [name for name in names if name in schema.names])
    kept = np.zeros(places.num_rows, np.bool_)
    for rule in rules:
        if not kept.all():
            kept |= rule.keeps(log, places)
    partitions, offsets = places_of(places)
    # A row that may have an erased key neither stays nor goes by a guess: its caller stops, or reads the whole log.
    for rule in key_rules:
        undecided = ~kept & rule.undecided(places)
        if undecided.any():
            pairs = zip(partitions[undecided].tolist(), offsets[undecided].tolist(), strict=True)
            return Written(undecided=list(pairs))
    rows = _by_partition(partitions[kept])
    dropped = len(kept) - int(kept.sum())
    if not (dropped or rewrites_all):
        return Written(rows=rows)
    return Written(_rewritten(table, schema, file, parquet, kept), rows, dropped)


def join_rows(table: Storage, schema: pa.Schema, files: Sequence[DataFile]) -> list[DataFile]:
    """Task function: files of the table → a file for each day, of all their rows in the order of the files."""
    with _Files(table, schema) as joined:
        for file in files:
            parquet, _ = _places_in(table, file, [])
            for group in _groups(table, file, parquet, schema):
                joined.write_group(file.day, group)
        return joined.ended()


def _places_in(table: Storage, file: DataFile, names: Sequence[str]) -> tuple[pq.ParquetFile, pa.Table]:
    """(a file of the table, its columns of these names)"""
    with _read_failures(table, file):
        parquet = pq.ParquetFile(pa.BufferReader(table.read(file.path)))
        return parquet, parquet.read(names)


def _groups(table: Storage, file: DataFile, parquet: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """The groups of rows of a file, with those columns of the schema that it has."""
    for number in range(parquet.num_row_groups):
        check_wanted()
        with _read_failures(table, file):
            group = parquet.read_row_group(number, schema.names)
        yield group


@contextlib.contextmanager
def _read_failures(table: Storage, file: DataFile) -> Iterator[None]:
    """Turns the errors of a file of the table that is gone or damaged into LogDirError."""
    try:
        yield
    except (FileNotFoundError, pa.ArrowException) as error:
        raise LogDirError(
            f"A file of the table cannot be read ({type(error).__name__})",
            path=table.location(file.path),
            hint="RESTORE the table to a version whose files are there, or make another one",
        ) from error


def _rewritten(
    table: Storage, schema: pa.Schema, file: DataFile, parquet: pq.ParquetFile, kept: np.ndarray
) -> list[DataFile]:
    """A file of the rows that are `kept` of a file; none, where no row is."""
    with _Files(table, schema) as files:
        first = 0
        for group in _groups(table, file, parquet, schema):
            files.write_group(file.day, group.filter(pa.array(kept[first : first + group.num_rows])))
            first += group.num_rows
        return files.ended()


def have_newer(log: Storage, eras: Eras, records: pa.Table, parts: Sequence[ScanPart]) -> bool:
    """Task function: parts of a scan of RANKED → whether they have a newer record of a key in another partition than
    `records`, which have each key once.
    """
    keys = records.column("key").combine_chunks()
    ranks = eras.ranks(records)
    latest_keys = LatestKeys.of(keys)
    for batch in Scan.read(log, parts):
        check_wanted()
        rivals = batch.filter(pa.array(latest_keys.contains(batch.column("key"))))
        theirs = eras.ranks(rivals)
        ours = ranks[:, pc.index_in(rivals.column("key"), keys).to_numpy()]
        # Within a partition offsets say which record is newer, and the records to add come last.
        if (_is_newer(theirs, ours) & (theirs[0] != ours[0])).any():
            return True
    return False


def _is_newer(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """bool[n]: whether each rank in `theirs` (`Eras.ranks`) is of a newer record than the rank beside it in `ours`."""
    newer = np.zeros(theirs.shape[1], np.bool_)
    for their, our in zip(theirs, ours, strict=True):
        newer = (their > our) | ((their == our) & newer)
    return newer


def count_records(log: Storage, parts: Sequence[ScanPart]) -> Counter[int]:
    """Task function: parts of a scan → their records by partition."""
    counted: Counter[int] = Counter()
    for part in parts:
        for batch in Scan.read(log, [part]):
            check_wanted()
            counted[part.partition] += batch.num_rows
    return counted


def _by_partition(partitions: np.ndarray) -> Counter[int]:
    """{partition: rows}"""
    numbers, counts = np.unique(partitions, return_counts=True)
    return Counter(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))


class _Files(contextlib.ExitStack):
    """The files that a task writes: one for each day, or one. Those of a task that fails are deleted."""

    def __init__(self, storage: Storage, schema: pa.Schema) -> None:
        super().__init__()
        self._storage = storage
        self._schema = schema
        self._open: dict[str | None, _File] = {}

    def write(self, day: str | None, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if day not in self._open:
            name = new_file_name()
            path = name if day is None else f"{DAY}={day}/{name}"
            self.push(partial(self._discard, path))
            stream = self.enter_context(self._storage.stream(path, unique=True))
            self._open[day] = _File(stream, self._schema, path, None if day == NO_DAY else day)
            self.callback(self._open[day].end_writer)
        self._open[day].write(batch)

    def write_group(self, day: str | None, rows: pa.Table) -> None:
        """Writes rows of an existing file, which may lack columns, or have them with narrower types."""
        for batch in FormatColumns(self._schema.names, ()).conformed(rows.to_batches(), self._schema):
            self.write(day, batch)

    def ended(self) -> list[DataFile]:
        """Ends the files."""
        return [file.close() for file in self._open.values()]

    def _discard(self, path: str, kind: type[BaseException] | None, *_: object) -> None:
        with contextlib.suppress(StorageError):  # the first error is the one to show
            if kind is not None:
                self._storage.delete(path)


class _File:
    """A Parquet file that is being written."""

    def __init__(self, stream: WriteStream, schema: pa.Schema, path: str, day: str | None) -> None:
        self._path = path
        self._stream = stream
        self._schema = schema
        self._day = day
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = 0
        self._bytes = 0
        self._all_rows = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def write(self, batch: pa.RecordBatch) -> None:
        if self._rows >= LEAST_GROUP_ROWS and batch.column("partition")[0] != self._waiting[-1].column("partition")[-1]:
            self._flush()
        self._waiting.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        for name in (*PLACE, "timestamp"):
            ends = pc.min_max(batch.column(name)).as_py().values()
            values = [value for value in (*self._bounds.get(name, ()), *ends) if value is not None]
            if values:
                self._bounds[name] = (min(values), max(values))
        if self._bytes >= ROW_GROUP_BYTES or self._rows >= ROW_GROUP_ROWS:
            self._flush()

    def end_writer(self) -> None:
        """Ends the writer of a task that fails while its stream is open: by itself it would do so at some later time,
        and print that the stream is closed.
        """
        if self._writer is not None:
            with contextlib.suppress(OSError, ValueError, pa.ArrowException, StorageError):
                self._writer.close()

    def close(self) -> DataFile:
        self._flush()
        assert self._writer is not None, "a file is made for rows"
        self._writer.close()
        self._stream.close()
        return DataFile(self._path, self._stream.bytes_written, self._all_rows, self._day, self._bounds)

    def _flush(self) -> None:
        if self._waiting:
            rows = pa.Table.from_batches(self._waiting, self._schema)
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    pa.PythonFile(self._stream, "w"),
                    self._schema,
                    compression="zstd",  # as small as the log: a reader of snappy's files reads twice the bytes
                    compression_level=1,  # costs no more time than snappy
                    use_dictionary=_repeated_columns(rows),
                    write_statistics=_bounded_columns(self._schema),
                    write_page_index=True,  # by which Spark leaves out pages, too
                )
            self._writer.write_table(rows, self._rows)
        self._all_rows += self._rows
        self._waiting = []
        self._rows = 0
        self._bytes = 0


def _repeated_columns(rows: pa.Table) -> list[str]:
    """The columns whose values repeat, as Parquet names them: by the first rows of a file. A dictionary of the others
    makes the file no smaller, and a reader slower: it reads most of the values from the dictionary's page, in no order.
    Floats have none: Spark looks for 0.0 in it by its bits, and passes over a file that has -0.0 alone.
    """
    different = {"offset", "timestamp"}
    for name in rows.column_names:
        different.update(_different_columns(rows.column(name), name))
    return [path for path in _bounded_columns(rows.schema) if path not in different]


def _bounded_columns(schema: pa.Schema) -> list[str]:
    """The columns whose bounds a file has, as Parquet names them: all but floats. Parquet's bounds leave NaN out, and
    Spark and DuckDB order it above all numbers: they would pass over the rows that have it.
    """
    return [column.path for column in _leaves(schema) if column.physical_type not in ("FLOAT", "DOUBLE")]


def _leaves(schema: pa.Schema) -> list[pq.ColumnSchema]:
    """The columns of a file without further ones in them, in structs, lists and maps, too."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    return [columns.column(number) for number in range(len(columns))]


def _different_columns(column: pa.ChunkedArray, path: str) -> Iterator[str]:
    """The path of a column, or those of the fields of a struct, whose values mostly differ."""
    kind = column.type
    if pa.types.is_struct(kind):
        for number in range(kind.num_fields):
            yield from _different_columns(pc.struct_field(column, number), f"{path}.{kind.field(number).name}")
    elif kind in _COUNTED and pc.count_distinct(column).as_py() * LEAST_REPETITIONS > len(column):
        yield path


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by the day of their timestamp, in UTC."""
    days = pc.cast(pc.floor_temporal(batch.column("timestamp"), unit="day"), pa.date32())
    for day in pc.unique(days):
        if day.as_py() is None:
            yield NO_DAY, batch.filter(pc.is_null(days))
        else:
            yield str(day.as_py()), batch.filter(pc.equal(days, day))
