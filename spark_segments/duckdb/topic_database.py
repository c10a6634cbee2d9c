"""SQL over topics by DuckDB: each topic is a view, and so is its latest view, as `<topic>$latest`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, MissingExtraError, SegmentsError
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.reading.isolation import READ_UNCOMMITTED
from spark_segments.log.reading.latest import LATEST
from spark_segments.log.reading.records import BINARY, BINARY_VIEW, Wanted, check_reading, record_reader
from spark_segments.log.typed.columns import Columns

try:
    import duckdb
except ImportError as error:
    raise MissingExtraError("duckdb", "SQL over topics", "duckdb") from error

_LATEST_SUFFIX = f"${LATEST}"
_ARROW_SCAN = "PYTHON_ARROW_SCAN"
_BATCH_ROWS = 16384


class TopicTable:
    """A topic, or its latest view, as DuckDB scans it: an Arrow stream that can be had again and again.

    All streams are of one snapshot, of the moment when the first was made. A stream is read as far as the query goes.
    """

    def __init__(
        self, log: LogDir, topic: str, typed: Columns | None, *, latest: bool, isolation_level: str, threads: int | None
    ) -> None:
        self._log, self._topic, self._typed, self._threads = log, topic, typed, threads
        names = check_reading(None, isolation_level, LATEST if latest else None, False, True)
        value_type = BINARY_VIEW if typed is None else BINARY
        self._wanted = Wanted(columns=names, isolation_level=isolation_level, latest=latest, value_type=value_type)
        self._snapshot: Snapshot | None = None

    @property
    def columns(self) -> list[str]:
        return list(self._stream({}).schema.names)

    def project(self, names: frozenset[str]) -> None:
        """Gives only these columns from now on, where it has any of them."""
        raw = {one.chosen.raw_column: one.chosen.column for one in (self._typed.readers if self._typed else ())}
        wanted = {raw.get(name, name) for name in names}
        chosen = [name for name in self._wanted.columns if name in wanted] or ["offset"]
        self._wanted = replace(self._wanted, columns=chosen)
        self._typed = None if self._typed is None else Columns(chosen, self._typed.readers)

    def __arrow_c_schema__(self) -> object:
        return self._stream({}).schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._stream(None).__arrow_c_stream__(requested_schema)

    def _stream(self, offsets: Mapping[int, tuple[int, int]] | None) -> pa.RecordBatchReader:
        if self._snapshot is None:
            self._snapshot = self._log.snapshot(self._topic)
        wanted = replace(self._wanted, offsets=offsets)
        return record_reader(self._log.storage, self._snapshot, wanted, typed=self._typed, threads=self._threads)


class TopicDatabase:
    """A DuckDB database in memory whose views are the topics of a log directory."""

    def __init__(
        self,
        log: LogDir,
        *,
        isolation_level: str = READ_UNCOMMITTED,
        formats: Mapping[str, str] | None = None,
        threads: int | None = None,
    ) -> None:
        """`formats` are options such as value.format, for all topics that a query names."""
        self._log, self._isolation_level, self._formats, self._threads = log, isolation_level, formats, threads
        # DuckDB's bar of a query of two seconds goes to standard output, into the rows.
        self._connection = duckdb.connect()
        self._connection.execute("SET enable_progress_bar = false")

    def __enter__(self) -> TopicDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def sql(self, query: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """(the schema of the result, its batches as they are made) of a single statement.

        Only the columns that the statement uses are read, and no more than its LIMIT asks for. Topics are looked at
        afresh. Raises InvalidOptionError with DuckDB's own words where the statement is wrong; errors in the data come
        while the batches are read.
        """
        statement = query.strip().removesuffix(";")
        tables = self._tables(statement)
        try:
            self._register(tables)
            known = {name for table in tables.values() for name in table.columns}
            names = self._columns_used(statement, known)
            if names is not None:
                for table in tables.values():
                    table.project(names)
                self._register(tables)
            relation = self._connection.sql(statement)
            if relation is None:  # a statement without a result, such as SET
                return pa.schema([]), iter(())
            result = relation.to_arrow_reader(_BATCH_ROWS)
        except duckdb.Error as error:
            raise InvalidOptionError("The query cannot be run", found=str(error)) from error
        return result.schema, _batches(result)

    def _tables(self, statement: str) -> dict[str, TopicTable]:
        """The views that the statement may name."""
        text = statement.casefold()
        found = {}
        for topic in self._log.topics():
            if topic.casefold() not in text:
                continue
            typed = self._typed(topic)
            for name, latest in ((topic, False), (topic + _LATEST_SUFFIX, True)):
                found[name] = TopicTable(
                    self._log,
                    topic,
                    typed,
                    latest=latest,
                    isolation_level=self._isolation_level,
                    threads=self._threads,
                )
        return found

    def _typed(self, topic: str) -> Columns | None:
        if not self._formats:
            return None
        names = check_reading(None, self._isolation_level, None, False, True)
        return Columns(names, self._log.value_readers(topic, self._formats))

    def _register(self, tables: Mapping[str, TopicTable]) -> None:
        for name, table in tables.items():
            self._connection.register(name, table)

    def _columns_used(self, statement: str, known: set[str]) -> frozenset[str] | None:
        """The names of the columns that the plan's scans use; None where that is not known, as for all of them."""
        try:
            rows = self._connection.execute(f"EXPLAIN (FORMAT json) {statement}").fetchall()
            plan = json.loads(rows[0][1])
        except (duckdb.Error, IndexError, ValueError):
            return None  # no query, or a wrong one, of which the statement's own error tells
        used: set[str] = set()
        for scan in _scans(plan):
            names = scan.get("extra_info", {}).get("Projections")
            if not names:
                return None
            used |= {names} if isinstance(names, str) else set(names)
        # A field of a struct is shown as its path.
        columns = {name if name in known else name.partition(".")[0] for name in used}
        return frozenset(columns) if columns <= known else None


def _batches(result: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from result
    except (duckdb.Error, pa.ArrowException, OSError) as error:  # DuckDB has only the text of an error of a topic
        raise SegmentsError("The query failed", found=str(error)) from error


def _scans(plan: Any) -> Iterator[dict[str, Any]]:
    """The scans of topics in a plan."""
    for node in plan if isinstance(plan, list) else [plan]:
        if node.get("extra_info", {}).get("Function", "").upper() == _ARROW_SCAN:
            yield node
        yield from _scans(node.get("children", []))
