"""A topic, or its latest view, as a view of DuckDB: of the log alone, or of a table's files and the log's tail as one.

DuckDB reads the files itself, each by its name, with the columns and conditions of the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
from deltalake.fs import DeltaStorageHandler

from spark_segments.duckdb.topic_table import Narrowed, TopicTable
from spark_segments.lake.as_one import AsOne, TableHalf
from spark_segments.log import Scan

if TYPE_CHECKING:
    import duckdb

_PLACE = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class TableReading:
    """What a view was made of: the files of a table, and what of them counts. None: the log alone."""

    files: tuple[str, ...]
    log_starts: tuple[tuple[int, int], ...]
    has_tail: bool


class DatabaseView:
    """The view of a topic, of all records or of the `kind` latest. `records`: what it reads of the log.

    `ask` gives the newest snapshot, as the log alone has it: what is read until `read_as` says otherwise. `narrowed`,
    `threads` and `json` as for a `TopicTable`. `opens_files`: whether statements may name files, so that DuckDB's own
    reader is used; else, and in an object store, Arrow's reads the files.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        topic: str,
        kind: str | None,
        ask: Callable[[], Scan],
        narrowed: Narrowed,
        threads: int | None,
        json: Collection[str],
        *,
        name: str,
        opens_files: bool,
    ) -> None:
        self._connection = connection
        self.topic = topic
        self.kind = kind
        self.name = name
        self._ask = ask
        self._json = json
        self._opens_files = opens_files
        self._one: AsOne | None = None
        self.records = TopicTable(lambda: self._scan("tail"), narrowed, threads, json)
        self._keys = TopicTable(lambda: self._scan("tail_keys"), narrowed, threads)
        self._reading: TableReading | None = None
        self._is_made = False

    @property
    def one(self) -> AsOne | None:
        """How the view reads its topic; None: not known before it is read."""
        return self._one

    @property
    def tables(self) -> tuple[TopicTable, TopicTable]:
        """What is read of the log."""
        return self.records, self._keys

    @property
    def reads_table(self) -> bool:
        """Whether rows come from a table."""
        return self._one is not None and self._one.half is not None

    @property
    def knows_tables(self) -> bool:
        """Whether the topic has noted tables, read or not."""
        return self._one is not None and (self._one.half is not None or self._one.why is not None)

    def begin(self) -> None:
        """Forgets the scans and errors of the last statement. What rests on a table stays until `read_as` is called."""
        if not self.knows_tables:
            self._one = None
        for table in self.tables:
            table.begin()

    def make(self) -> None:
        """Makes the view, by the log alone, where it is new."""
        if not self._is_made:
            self.read_as(AsOne.by_log(self._ask()))

    def read_as(self, one: AsOne) -> None:
        """Makes the view read a topic so, from now on."""
        self.begin()
        self._one = one
        half = one.half
        reading = None
        if half is not None:
            reading = TableReading(tuple(half.addresses), tuple(half.log_starts.items()), one.has_tail)
        if not self._is_made or reading != self._reading:
            self._relation(one).create_view(self.name, replace=True)
            self._is_made = True
            self._reading = reading

    def leave_table(self) -> None:
        """Makes the view one of the log alone, which is asked once a query reads the view."""
        if self._one is not None:
            self.read_as(AsOne.by_log(self._one.scan))
            self._one = None

    def _scan(self, part: str) -> Scan:
        if self._one is None:
            self._one = AsOne.by_log(self._ask())
        one = self._one
        return one.tail if part == "tail" else one.tail_keys

    def _relation(self, one: AsOne) -> duckdb.DuckDBPyRelation:
        names = one.scan.schema.names
        half = one.half
        if half is None:
            return self._connection.from_arrow(self.records).project(_listed(names))
        rows = self._rows(half, one)
        is_view = one.scan.selection.view is not None
        if one.has_tail and half.is_latest:
            keys = self._connection.from_arrow(self._keys)
            same = f't."{half.key_column}" = k.key' + ("" if one.across else " AND t.partition = k.partition")
            rows = rows.set_alias("t").join(keys.set_alias("k"), same, how="anti")
        # Where a query of a union needs no column, as count(*), DuckDB reads the first: here the same in all rows.
        united = sorted(names, key=lambda name: name != "topic")
        rows = rows.project(", ".join(self._columns(half, one.scan, united)))
        if one.has_tail:
            rows = rows.union(self._connection.from_arrow(self.records).project(_listed(united)))
        if is_view and not half.is_latest:
            newest = 'row_number() OVER (PARTITION BY partition, key ORDER BY "offset" DESC) AS place'
            rows = rows.filter("key IS NOT NULL").project(f"*, {newest}").filter("place = 1")
            if not one.scan.selection.include_tombstones:
                rows = rows.filter("value IS NOT NULL")
        return rows.project(_listed(names))

    def _rows(self, half: TableHalf, one: AsOne) -> duckdb.DuckDBPyRelation:
        """The rows of the table that count, with the table's columns."""
        if not half.files:
            rows = self._connection.from_arrow(half.table.schema.empty_table())
        elif self._opens_files and half.table.storage.is_local:
            files = ", ".join(_literal(_escaped(path)) for path in half.addresses)
            rows = self._connection.sql(f"SELECT * FROM read_parquet([{files}], hive_partitioning = false)")
        else:
            rows = self._connection.from_arrow(_dataset(half))
        for partition, start in half.log_starts.items():
            rows = rows.filter(f'NOT (partition = {partition} AND "offset" < {start})')
        return rows

    def _columns(self, half: TableHalf, scan: Scan, names: Sequence[str]) -> list[str]:
        """The columns of records, of the table's rows."""
        constant = {
            "topic": _literal(scan.snapshot.topic),
            "timestampType": f"CAST({half.timestamp_type} AS INTEGER)",
        }
        constant |= {
            name: f'CAST("{name}" AS JSON)' for name in self._json if pa.types.is_string(scan.schema.field(name).type)
        }
        return [f'{constant[name]} AS "{name}"' if name in constant else f'"{name}"' for name in names]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _dataset(half: TableHalf) -> pa.dataset.Dataset:
    """The files as Arrow reads them, wherever they are."""
    storage = half.table.storage
    uri, options = storage.delta_uri()
    files = pa.fs.PyFileSystem(DeltaStorageHandler(uri, options, {file.path: file.size for file in half.files}))
    return pa.dataset.dataset([file.path for file in half.files], half.table.schema, "parquet", files)


def _escaped(path: str) -> str:
    """A path by which DuckDB finds this file alone: it takes some characters for patterns."""
    return _PLACE.sub(r"[\g<0>]", path)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
