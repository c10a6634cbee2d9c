"""SQL over topics by DuckDB: each topic is a view, and so is its latest view, as `<topic>$latest`."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, MissingExtraError, SegmentsError
from spark_segments.face.logdir import LogDir
from spark_segments.log import Scan
from spark_segments.printing import MOST_ROWS, Printed, Prints, cell_of, rows_of
from spark_segments.storage.scratch import scratch_directory

if TYPE_CHECKING:
    import pandas as pd


_MOST_LETTERS = 60


@dataclass(frozen=True, slots=True, repr=False)
class Result(Prints):
    """The rows of a statement. Each of these methods runs the query, and sees the topics as they are then.

    It prints its first rows. Whatever takes an Arrow stream takes it: `polars.DataFrame(result)`.
    """

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """The rows as they are made. They end where the database is asked for others: `to_table()` keeps them."""

    def to_table(self) -> pa.Table:
        """All rows in memory, as an Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows in memory, as a data frame of pandas."""
        return self.to_table().to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _printed(self) -> Printed:
        rows = [[_cut(cell_of(value)) for value in row] for row in islice(rows_of(self.batches()), MOST_ROWS + 1)]
        facts = {"rows": len(rows) if len(rows) <= MOST_ROWS else f"more than {MOST_ROWS}"}
        return Printed("Result", facts, self.schema.names, rows[:MOST_ROWS])


def _cut(cell: Any) -> Any:
    return f"{cell[:_MOST_LETTERS]}…" if isinstance(cell, str) and len(cell) > _MOST_LETTERS else cell


try:
    import duckdb
except ImportError as error:
    raise MissingExtraError("duckdb", "SQL over topics", "duckdb") from error

_LATEST = "latest"  # the view
_LATEST_SUFFIX = f"${_LATEST}"
_ARROW_SCAN = "PYTHON_ARROW_SCAN"
_logger = logging.getLogger(__name__)
_ASKS_FOR_TABLES = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+)\b")
_BATCH_ROWS = 16384
_OF_A_VALUE = re.compile(r"(?:Conversion|Out of Range|Invalid Input) Error")


class TopicTable:
    """A topic, or its latest view, as DuckDB scans it: an Arrow stream that can be had again and again.

    All streams of a statement are of one snapshot, of the moment when the first was made. A stream is read as far as
    the query goes.
    """

    def __init__(self, scan: Callable[[], Scan], threads: int | None) -> None:
        """`scan`: of all columns, as the topic is when it is asked."""
        self._ask, self._threads = scan, threads
        self.begin()

    def begin(self) -> None:
        """Forgets the scan, the columns and the error of the last statement."""
        self.error: SegmentsError | OSError | None = None
        self._scan: Scan | None = None
        self._names: frozenset[str] | None = None

    @property
    def scan(self) -> Scan:
        """All columns of the topic, as it was when the statement first asked."""
        if self._scan is None:
            self._scan = self._ask()
        return self._scan

    @property
    def columns(self) -> list[str]:
        return list(self.scan.schema.names)

    def project(self, names: frozenset[str]) -> None:
        """Reads only these columns from now on, where it has any of them. All others are null: nobody looks at them."""
        self._names = names

    def __arrow_c_schema__(self) -> object:
        return self.scan.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        scan = self.scan
        schema = scan.schema
        if self._names is not None:
            scan = scan.select(name for name in schema.names if name in self._names)
        found = scan.to_reader(self._threads)
        batches = found if found.schema.equals(schema) else _filled_up(found, schema)
        return pa.RecordBatchReader.from_batches(schema, self._watched(batches)).__arrow_c_stream__(requested_schema)

    def _watched(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches. An error of them is kept, because DuckDB passes on its text alone."""
        try:
            yield from batches
        except (SegmentsError, OSError) as error:
            self.error = error
            raise


def _filled_up(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in a schema that has further columns, which are null."""
    nulls = {field.name: pa.nulls(0, field.type) for field in schema}
    for batch in batches:
        arrays = []
        for field in schema:
            if field.name in batch.schema.names:
                arrays.append(batch.column(field.name))
                continue
            if len(nulls[field.name]) < batch.num_rows:
                nulls[field.name] = pa.nulls(batch.num_rows, field.type)
            arrays.append(nulls[field.name].slice(0, batch.num_rows))
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class TopicDatabase:
    """A DuckDB database in memory whose views are the topics of a log directory."""

    def __init__(
        self,
        log: LogDir,
        *,
        isolation: str = "read_uncommitted",
        formats: Mapping[str, str] | None = None,
        threads: int | None = None,
        versions: Mapping[str, int] | None = None,
        timestamp: datetime | int | None = None,
        safe: bool = False,
    ) -> None:
        """`formats` are options such as value.format, for all topics that a query names. `timestamp`: the topics as
        they were then; `versions`: {topic: version}, those topics as of that version. Else a query sees them as they
        are.

        A statement may read and write any file of this machine, attach databases, and load extensions, as DuckDB does.
        With `safe` it may not: it has the topics, and tables in memory. Take it for statements that others wrote.
        """
        self._log, self._isolation, self._formats, self._threads = log, isolation, formats, threads
        self._versions, self._timestamp = dict(versions or {}), timestamp
        self._tables: dict[str, TopicTable] = {}
        self._running: pa.RecordBatchReader | None = None
        self._left_open = contextlib.ExitStack()
        self._connection = self._left_open.enter_context(duckdb.connect())
        # What does not fit in memory would go into the working directory, and stay there if the process is killed.
        scratch = self._left_open.enter_context(scratch_directory())
        self._connection.execute("SET temp_directory = $1", [str(scratch / "duckdb")])
        # DuckDB's bar of a query of two seconds goes to standard output, into the rows. A notebook without ipywidgets
        # has none, and DuckDB refuses to be told so.
        if self._connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() != (False,):
            self._connection.execute("SET enable_progress_bar = false")
        # A name that is no topic would be looked for among the variables of this module.
        self._connection.execute("SET python_enable_replacements = false")
        if safe:
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")

    def __enter__(self) -> TopicDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_run()
        self._left_open.close()

    def sql(self, query: str) -> Result:
        """The result of a statement, or of the last of several. A query runs whenever its rows are asked for;
        any other statement has run when this returns.

        Only the columns that the statement uses are read, and no more than its LIMIT asks for. Topics are looked at
        afresh by each run. Raises InvalidOptionError with DuckDB's own words where the statement is wrong. Errors of
        the topics, as CorruptBatchError, come here or while the rows are read. Columns of the same name get numbers.
        """
        self._end_run()
        try:
            query.encode()
        except UnicodeEncodeError:
            raise InvalidOptionError("The statement is no UTF-8", found=query) from None
        with self._errors():
            statements = self._connection.extract_statements(query)
            if not statements:
                raise InvalidOptionError("There is no statement", expected="such as SELECT count(*) FROM orders")
            self._register(query)
            *before, statement = statements
            _check_kind(statement)
            for one in before:
                self._connection.execute(one)
            names = self._columns_used(statement.query)
            relation = self._connection.sql(statement)
        if relation is None:  # a statement without a result, such as SET
            return Result(pa.schema([]), lambda: iter(()))
        schema = _with_unique_names(pa.schema(relation.limit(0).to_arrow_table().schema))
        return Result(schema, lambda: self._run(relation, schema, names))

    def _run(
        self, relation: duckdb.DuckDBPyRelation, schema: pa.Schema, names: frozenset[str] | None
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a query. The connection has one run at a time: whatever is asked next ends it."""
        self._end_run()
        for table in self._tables.values():
            table.begin()
            if names is not None:
                table.project(names)
        with self._errors():
            self._running = reader = relation.to_arrow_reader(_BATCH_ROWS)
            try:
                while self._running is reader:
                    try:
                        batch = reader.read_next_batch()
                    except StopIteration:
                        return
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
            finally:
                if self._running is reader:
                    self._end_run()
        raise InvalidOptionError(
            "The rows of a query were not read to their end before its database was asked for others",
            hint="Read them whole before, with to_table(), or open a TopicDatabase for each",
        )

    def _end_run(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        """DuckDB's errors as those of this package; the topic's own where a topic made the query fail."""
        try:
            yield
        except duckdb.CatalogException as error:
            hint = f"The topics are: {', '.join(self._log.topics()[:MOST_ROWS]) or 'none'}"
            raise InvalidOptionError("The query cannot be run", found=str(error), hint=hint) from error
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if isinstance(error, SegmentsError):
                raise
            self._raise_from_topics()
            if (refused := _refused_value(error)) is not None:
                raise refused from None
            if isinstance(error, duckdb.Error):
                raise InvalidOptionError("The query cannot be run", found=str(error)) from error
            raise SegmentsError("The query failed", found=str(error)) from error

    def _raise_from_topics(self) -> None:
        """Raises the error of a topic that made the query fail, if it is one."""
        for table in self._tables.values():
            if table.error is not None:
                raise table.error from None

    def _register(self, query: str) -> None:
        """Makes views of the topics that the query may name. Views of earlier queries stay, with what is there now."""
        for table in self._tables.values():
            table.begin()
        for topic in self._named(query):
            if topic in self._tables:
                continue
            for name, view in ((topic, None), (topic + _LATEST_SUFFIX, _LATEST)):
                table = TopicTable(partial(self._scan, topic, view), self._threads)
                self._connection.register(name, table)
                self._tables[name] = table

    def _scan(self, topic: str, view: str | None) -> Scan:
        found = self._log.topic(
            topic, self._versions.get(topic), self._timestamp if topic not in self._versions else None
        )
        value_type = "binary" if self._formats else "binary_view"
        return found.scan(view=view, isolation=self._isolation, formats=self._formats, value_type=value_type)

    def _named(self, query: str) -> list[str]:
        """The topics whose names are in the query; all where it asks for the names of tables.

        DuckDB does not tell names apart by their case. Raises InvalidOptionError where the query does not say which of
        such topics it means.
        """
        topics, text = self._log.topics(), query.casefold()
        alike: dict[str, list[str]] = {}
        for topic in topics:
            if _ASKS_FOR_TABLES.search(text) or topic.casefold() in text:
                alike.setdefault(topic.casefold(), []).append(topic)
        named: list[str] = []
        for name, group in alike.items():
            known = {topic for topic in group if topic in self._tables}
            meant = [topic for topic in group if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.-])", query)]
            chosen = known.union(meant or ([group[0]] if len(group) == 1 else []))
            if len(chosen) > 1 or (not chosen and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text)):
                raise InvalidOptionError(
                    "DuckDB does not tell the names of these topics apart",
                    expected="the exact name of only one of them",
                    found=", ".join(group),
                )
            if not chosen and _ASKS_FOR_TABLES.search(text):
                _logger.warning("not among the tables, as DuckDB does not tell them apart: %s", ", ".join(group))
            named += chosen
        return named

    def _columns_used(self, statement: str) -> frozenset[str] | None:
        """The names of the columns that the plan's scans use; None where that is not known, as for all of them."""
        try:
            rows = self._connection.execute(f"EXPLAIN (FORMAT json) {statement}").fetchall()
            plan = json.loads(rows[0][1])
        except (duckdb.Error, IndexError, ValueError):
            return None  # no query, or a wrong one, of which the statement's own error tells
        known = {name for table in self._tables.values() for name in table.columns}
        used: set[str] = set()
        scans = 0
        for leaf in _leaves(plan):
            information = leaf.get("extra_info", {})
            if information.get("Function", "").upper() != _ARROW_SCAN:
                if "ARROW" in f"{leaf.get('name')} {information.get('Function')}".upper():
                    return None
                continue
            names = information.get("Projections")
            if not names:
                return None
            scans += 1
            used |= {names} if isinstance(names, str) else set(names)
        # A field of a struct is shown as its path.
        columns = {name if name in known else name.partition(".")[0] for name in used}
        return frozenset(columns) if scans and columns <= known else None


def _check_kind(statement: duckdb.Statement) -> None:
    """Raises InvalidOptionError for a statement of a kind that DuckDB's Python has no name for, and cannot run."""
    try:
        _ = statement.type
    except ValueError:
        raise InvalidOptionError(
            "The query cannot be run", expected="a statement that DuckDB's Python knows", found=statement.query
        ) from None


def _refused_value(error: Exception) -> InvalidOptionError | None:
    """The error of a query that a value stopped, whose text in DuckDB's words has the value in it; else None."""
    kind = _OF_A_VALUE.search(str(error))
    if kind is None:
        return None
    return InvalidOptionError(
        "The query cannot be run: a value does not fit what is done with it",
        found=f"DuckDB's {kind[0]}",
        hint="try_cast gives null where a value cannot be cast",
    )


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """The schema with numbers behind names that others have, too, as in the result of a join."""
    taken = set(schema.names)
    fields, seen = [], set()
    for field in schema:
        name, number = field.name, 0
        while name in seen or (number and name in taken):
            number += 1
            name = f"{field.name}_{number}"
        seen.add(name)
        fields.append(field.with_name(name))
    return pa.schema(fields, schema.metadata)


def _leaves(plan: Any) -> Iterator[dict[str, Any]]:
    """The operators of a plan that read, and do not take from another operator. A scan of a topic is a leaf."""
    for node in plan if isinstance(plan, list) else [plan]:
        children = node.get("children", [])
        if children:
            yield from _leaves(children)
        else:
            yield node
