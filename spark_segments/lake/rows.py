"""The tasks of a table: records become Parquet files, and files lose the rows that are to go."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_segments.errors import LogDirError, StorageError, ValueFormatError
from spark_segments.execution import check_wanted
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.lake.rules import PLACE, OtherKeys, Rule, places_of
from spark_segments.lake.table_format import DAY, KEY_BYTES, DataFile
from spark_segments.log import Eras, Scan, ScanPart
from spark_segments.storage import Storage, WriteStream
from spark_segments.values.batches import FormatColumns

ROW_GROUP_BYTES = 64 << 20
"""A file is written in groups of rows of so many bytes in memory, or of ROW_GROUP_ROWS."""

ROW_GROUP_ROWS = 1 << 20
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
    they were asked for.
    """

    files: Sequence[DataFile] = ()
    rows: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    undecided: Sequence[tuple[int, int]] = ()
    undated: int = 0
    keys: pa.Table | None = None


def write_rows(
    log: Storage,
    table: Storage,
    columns: FormatColumns,
    schema: pa.Schema,
    by_day: bool,
    changes: bool,
    undated: bool,
    parts: Sequence[ScanPart],
) -> Written:
    """Task function: parts of a scan → files of the table, which have the schema. `changes`: tombstones are read, for
    their keys alone. `undated`: a timestamp that a table cannot have becomes null.
    """
    rows: Counter[int] = Counter()
    undated_rows = 0
    keys: list[pa.RecordBatch] = []

    def records(part: ScanPart) -> Iterator[pa.RecordBatch]:
        for batch in Scan.read(log, [part]):
            check_wanted()
            if changes:
                keys.append(batch.select(Eras.RANKED))
                batch = batch.filter(pc.is_valid(batch.column("value")))
            (typed,) = columns.decoded([batch])
            yield typed.append_column(KEY_BYTES, batch.column("key")) if KEY_BYTES in schema.names else typed

    with _Files(table, schema) as files:
        for topic, batch in ((part.topic, batch) for part in parts for batch in records(part)):
            batch, count = _with_dates(topic, batch, undated)
            undated_rows += count
            (batch,) = columns.conformed([batch], schema)
            rows.update(_by_partition(batch.column("partition").to_numpy()))
            for day, some in _days(batch) if by_day else [(None, batch)]:
                files.write(day, some)
        written = files.ended()
    return Written(written, rows, undated=undated_rows, keys=pa.Table.from_batches(keys) if keys else None)


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
    partition, offset = (batch.column(name)[row].as_py() for name in PLACE)
    raise ValueFormatError(
        "A record's timestamp is outside the years 1 to 9999, which are all that a table's readers know",
        path=f"topic {topic}, partition {partition}, offset {offset}",
        expected=f"milliseconds from {_FIRST_US // 1000} to {_LAST_US // 1000}",
        found=f"{micros[row].as_py() // 1000}",
        hint=f"Its producer took another unit for milliseconds: {UNDATED}=null makes the timestamp null in the table",
    )


def sift_rows(
    log: Storage, table: Storage, schema: pa.Schema, anew: bool, task: tuple[DataFile, Sequence[Rule]]
) -> Written:
    """Task function: a file of the table → a file of the rows that a rule keeps. `anew`: a file that keeps all its rows
    is rewritten, too.
    """
    file, rules = task
    key_rules = [rule for rule in rules if isinstance(rule, OtherKeys)]
    names = [*PLACE, "key", KEY_BYTES] if key_rules else [*PLACE]
    try:
        parquet = pq.ParquetFile(pa.BufferReader(table.read(file.path)))
        places = parquet.read([name for name in names if name in schema.names])
    except (FileNotFoundError, pa.ArrowException) as error:
        raise LogDirError(
            f"A file of the table cannot be read ({type(error).__name__})",
            path=table.location(file.path),
            hint="RESTORE the table to a version whose files are there, or make another one",
        ) from error
    kept = np.zeros(places.num_rows, np.bool_)
    for rule in rules:
        if not kept.all():
            kept |= rule.keeps(log, places)
    partitions, offsets = places_of(places)
    for rule in key_rules:
        undecided = ~kept & rule.undecided(places)
        if undecided.any():
            found = np.stack([partitions[undecided], offsets[undecided]], axis=1).tolist()
            return Written(undecided=[(partition, offset) for partition, offset in found])
    rows, dropped = _by_partition(partitions[kept]), len(kept) - int(kept.sum())
    if not (dropped or anew):
        return Written(rows=rows)
    with _Files(table, schema) as files:
        first = 0
        for number in range(parquet.num_row_groups):
            check_wanted()
            group = parquet.read_row_group(number, schema.names)
            some = group.filter(pa.array(kept[first : first + group.num_rows])).to_batches()
            for batch in FormatColumns(schema.names, ()).conformed(some, schema):
                files.write(file.day, batch)
            first += group.num_rows
        return Written(files.ended(), rows, dropped)


def have_newer(log: Storage, eras: Eras, records: pa.Table, parts: Sequence[ScanPart]) -> bool:
    """Task function: parts of a scan of RANKED → whether they have a newer record of a key in another partition than
    `records`, which have each key once.
    """
    keys, own = records.column("key").combine_chunks(), eras.ranks(records)
    known = LatestKeys.of(keys)
    for batch in Scan.read(log, parts):
        check_wanted()
        rivals = batch.filter(pa.array(known.contains(batch.column("key"))))
        theirs, ours = eras.ranks(rivals), own[:, pc.index_in(rivals.column("key"), keys).to_numpy()]
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
        self._storage, self._schema = storage, schema
        self._open: dict[str | None, _File] = {}

    def write(self, day: str | None, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if day not in self._open:
            name = f"part-{uuid.uuid4()}.snappy.parquet"
            path = name if day is None else f"{DAY}={day}/{name}"
            self.push(partial(self._discard, path))
            stream = self.enter_context(self._storage.stream(path, unique=True))
            self._open[day] = _File(stream, self._schema, path, None if day == NO_DAY else day)
        self._open[day].write(batch)

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
        self._path, self._stream, self._schema, self._day = path, stream, schema, day
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
        for name in (*PLACE, "timestamp"):
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
        return DataFile(self._path, self._stream.bytes_written, self._all_rows, self._day, self._bounds)

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), self._rows)
        self._all_rows += self._rows
        self._waiting, self._rows, self._bytes = [], 0, 0


def _repeated_columns(schema: pa.Schema) -> list[str]:
    """The columns whose values may repeat, as Parquet names them. A dictionary of the others only costs the reader."""
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    columns = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    paths = (columns.column(number).path for number in range(len(columns)))
    return [path for path in paths if path not in ("offset", "timestamp")]


def _days(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The rows by the day of their timestamp, in UTC."""
    days = pc.cast(pc.floor_temporal(batch.column("timestamp"), unit="day"), pa.date32())
    for day in pc.unique(days):
        if day.as_py() is None:
            yield NO_DAY, batch.filter(pc.is_null(days))
        else:
            yield str(day.as_py()), batch.filter(pc.equal(days, day))
