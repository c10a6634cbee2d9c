"""The Parquet files that hold the manifest's rows: written once, named by Delta's log, read in parallel, cached.

A `RowFile` is a file's entry in Delta's log; its statistics say which partitions the file can hold rows of. Delta's log
says which files make up the table; schemas.py says what they hold.
"""

from __future__ import annotations

import json
import os
import threading
import uuid
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_segments.errors import FormatVersionError, LogDirError
from spark_segments.log.manifest.schemas import (
    KIND,
    PARTITION_KIND,
    SCHEMAS,
    SEGMENT_KIND,
    TOPIC_KIND,
    TRANSACTION_KIND,
    rows_in_file,
)
from spark_segments.quantities import wall_ms
from spark_segments.storage import Storage

ROWS_A_FILE = {TOPIC_KIND: 1000, PARTITION_KIND: 1000, SEGMENT_KIND: 20_000, TRANSACTION_KIND: 1000}
"""The most rows of a file, by kind: a commit that changes a single row may write as many again."""

STATISTICS = ("partition", "base_offset", "created_ms")
"""The columns whose bounds go into Delta's log."""

UNBOUNDED = (-(1 << 63), (1 << 63) - 1)
"""The bounds of a column without statistics in Delta's log: the file may hold any value."""

UNKNOWN_ROWS = -1
"""The number of rows of a file that has no statistics in Delta's log. It counts as a small file."""

CACHE_BYTES = 64 << 20
"""Upper bound on this process's memory for recently read or written rows."""

COLUMN_BYTES = 1536
"""What a column of a table takes beside its values: measured, of tables of a row (1,440 bytes, 1,680 of the system's
allocator)."""

_READ_THREADS = 16


@dataclass(frozen=True, slots=True)
class RowFile:
    """One Parquet file of the table: `path` relative to the table, `bounds` by column: (least, greatest) value.

    `rows`: how many, or UNKNOWN_ROWS.
    """

    path: str
    kind: str
    rows: int
    size: int
    modified_ms: int
    bounds: dict[str, tuple[int, int]]

    def may_hold(self, partitions: Sequence[int]) -> bool:
        """Whether the file can hold a row of any of these partitions. `partitions` must be sorted."""
        least, greatest = self.bounds["partition"]
        at = bisect_left(partitions, least)
        return at < len(partitions) and partitions[at] <= greatest

    @property
    def statistics(self) -> str:
        """The file's statistics, as Delta's log has them."""
        by_column = {name: bounds for name, bounds in self.bounds.items() if bounds != UNBOUNDED}
        rows = {} if self.rows == UNKNOWN_ROWS else {"numRecords": self.rows}
        statistics = {
            **rows,
            "minValues": {name: least for name, (least, _) in by_column.items()},
            "maxValues": {name: greatest for name, (_, greatest) in by_column.items()},
            "nullCount": dict.fromkeys(by_column, 0),
        }
        return json.dumps(statistics)


EncodedFile = tuple[RowFile, pa.Buffer]
"""A file that is not written yet, and its bytes."""

NamedFile = tuple[str, Any]
"""The path of a file that is not written yet, relative to the log directory, and its bytes."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """Files that a commit adds and removes."""

    added: list[RowFile]
    removed: list[RowFile]


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Reads and writes the files of a topic's table."""

    storage: Storage
    directory: str

    def named(self, files: Sequence[EncodedFile]) -> list[NamedFile]:
        """The files of `encode_all` under the names that they are written by."""
        return [(self.path(file), data) for file, data in files]

    def path(self, file: RowFile) -> str:
        """The file's path, relative to the log directory."""
        return f"{self.directory}/{file.path}"

    def encode_all(self, kind: str, rows: pa.Table) -> list[EncodedFile]:
        """The content of new files with these rows in their order, in as many files as ROWS_A_FILE asks for."""
        step = ROWS_A_FILE[kind]
        slices = (rows.slice(start, step) for start in range(0, rows.num_rows, step))
        return [self._encode(kind, part) for part in slices]

    def _encode(self, kind: str, rows: pa.Table) -> EncodedFile:
        rows = rows.combine_chunks()
        path = f"{KIND}={kind}/part-{uuid.uuid4().hex}.parquet"
        sink = pa.BufferOutputStream()
        integers = [field.name for field in rows.schema if pa.types.is_integer(field.type)]
        # Delta encoding reads five times faster than a dictionary here, and takes half of the space.
        pq.write_table(
            rows,
            sink,
            compression="zstd",
            use_dictionary=[name for name in ("topic_id", "state") if name in rows.column_names],
            column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED") or None,
            store_schema=False,
            write_statistics=False,
        )
        content = sink.getvalue()
        if rows.get_total_buffer_size() <= 2 * rows.nbytes:  # a slice would keep the memory of the whole table
            _cache.put((self.storage.uri, self.directory, path), rows_in_file(rows, kind))
        return RowFile(path, kind, rows.num_rows, content.size, wall_ms(), bounds_of(rows)), content

    def read_all(self, files: Sequence[RowFile]) -> list[pa.Table]:
        """All rows of each file in the schema of its kind, in the order of the files.

        Raises FileNotFoundError for a file that vacuum has deleted.
        """
        tables = [_cache.get((self.storage.uri, self.directory, file.path)) for file in files]
        missing = [at for at, rows in enumerate(tables) if rows is None]
        if len(missing) < 2:
            for at in missing:
                tables[at] = self._read(files[at])
            return tables
        threads = _READ_THREADS if not self.storage.is_local else min(_READ_THREADS, 2 * (os.cpu_count() or 1))
        with ThreadPoolExecutor(min(threads, len(missing))) as pool:
            for at, rows in zip(missing, pool.map(lambda at: self._read(files[at]), missing), strict=True):
                tables[at] = rows
        return tables

    def content(self, file: RowFile) -> pa.Buffer:
        """The bytes of a file. Raises FileNotFoundError for a file that vacuum has deleted."""
        return self.storage.read(self.path(file))

    def _read(self, file: RowFile) -> pa.Table:
        content = self.content(file)
        try:
            rows = rows_of(content, file.kind)
        except FormatVersionError as error:
            error.path = self.storage.location(self.path(file))
            raise
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise LogDirError(
                f"A file of the manifest is damaged ({' '.join(str(error).split())})",
                path=self.storage.location(f"{self.directory}/{file.path}"),
                hint="Restore it from a backup",
            ) from error
        _cache.put((self.storage.uri, self.directory, file.path), rows)
        return rows


def rows_of(content: pa.Buffer, kind: str) -> pa.Table:
    """The rows in the bytes of a file. Raises ArrowException, OSError, ValueError or KeyError for damaged ones."""
    rows = rows_in_file(pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False), kind)
    rows.validate(full=True)  # texts that are no UTF-8 would fail wherever a value is used
    return rows


def bounds_of(rows: pa.Table) -> dict[str, tuple[int, int]]:
    """{column of STATISTICS: its (least, greatest) value}; UNBOUNDED where the rows have none."""
    bounds = dict.fromkeys(STATISTICS, UNBOUNDED)
    for name in STATISTICS:
        if name in rows.column_names and rows.num_rows:
            least, greatest = pc.min_max(rows.column(name)).as_py().values()
            if least is not None:
                bounds[name] = (least, greatest)
    return bounds


class _RowCache:
    """The rows of recently used files. A file never changes, so an entry is never stale."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._rows: OrderedDict[tuple[str, str, str], pa.Table] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[str, str, str]) -> pa.Table | None:
        with self._lock:
            rows = self._rows.get(key)
            if rows is not None:
                self._rows.move_to_end(key)
            return rows

    def put(self, key: tuple[str, str, str], rows: pa.Table) -> None:
        with self._lock:
            if key in self._rows or _memory_bytes(rows) > self._limit:
                return
            self._rows[key] = rows
            self._bytes += _memory_bytes(rows)
            while self._bytes > self._limit:
                self._bytes -= _memory_bytes(self._rows.popitem(last=False)[1])


def _memory_bytes(rows: pa.Table) -> int:
    """About the memory of a table. Of small tables, as ten thousand topics have, most is not the values'."""
    return int(rows.nbytes) + COLUMN_BYTES * int(rows.num_columns)


_cache = _RowCache(CACHE_BYTES)


def concat(tables: Iterable[pa.Table], kind: str) -> pa.Table:
    """The tables in a single table. Without tables, an empty table in the schema of `kind`."""
    return pa.concat_tables([pa.Table.from_batches([], SCHEMAS[kind]), *tables])
