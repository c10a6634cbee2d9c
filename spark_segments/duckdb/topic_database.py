"""SQL over topics by DuckDB: each topic is a view, and so is its latest view, as `<topic>$latest`."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.dataset

from spark_segments.duckdb.database_view import DatabaseView
from spark_segments.duckdb.statement_process import MOST_BYTES, StatementProcess
from spark_segments.errors import InvalidOptionError, MissingExtraError, QueryError, SegmentsError
from spark_segments.face.conditions import narrowed
from spark_segments.face.logdir import LogDir
from spark_segments.lake.as_one import AsOne, OpenTables, as_one
from spark_segments.log import Scan
from spark_segments.printing import MOST_ROWS, Printed, Prints, cell_of, rows_of
from spark_segments.quantities import Time
from spark_segments.storage.scratch import scratch_directory

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


AnyResult = TypeVar("AnyResult")
_MOST_LETTERS = 60


@dataclass(frozen=True, slots=True, repr=False)
class Result(Prints):
    """The rows of a statement. Each of these methods runs the query, on the topics' newest snapshots.

    It prints its first rows. Any library that takes an Arrow stream takes it: `polars.DataFrame(result)`.
    """

    schema: pa.Schema
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """The rows, streamed. They end when the database runs another query: `to_table()` keeps them."""
    _cursor: list[Iterator[tuple[Any, ...]]] = field(default_factory=list)
    """The rows that `fetchone` goes through, once it was called."""

    def to_table(self) -> pa.Table:
        """All rows in memory, as an Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self) -> pd.DataFrame:
        """All rows in memory, as a data frame of pandas."""
        return self.to_table().to_pandas()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of Python's values, as of a connection of DuckDB."""
        return list(rows_of(self.batches()))

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row of the run of the query that the first call began; None behind the last row."""
        if not self._cursor:
            self._cursor.append(rows_of(self.batches()))
        return next(self._cursor[0], None)

    def df(self) -> pd.DataFrame:
        """As `to_pandas`, by DuckDB's name for it."""
        return self.to_pandas()

    def pl(self) -> pl.DataFrame:
        """All rows in memory, as a data frame of Polars."""
        import polars as pl

        frame = pl.from_arrow(self.to_table())
        assert isinstance(frame, pl.DataFrame)
        return frame

    def arrow(self) -> pa.Table:
        """As `to_table`, by DuckDB's name for it."""
        return self.to_table()

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
    raise MissingExtraError("duckdb", "Queries over topics", "duckdb") from error

_LATEST = "latest"  # the view
_LATEST_SUFFIX = f"${_LATEST}"
_logger = logging.getLogger(__name__)
_ASKS_FOR_TABLES = re.compile(r"\b(show|information_schema|duckdb_\w+|pg_\w+)\b")
_SECONDS_TO_SEE = 0.1
_SECONDS_TO_END = 3.0
_BATCH_ROWS = 16384
_OF_A_VALUE = re.compile(r"(?:Conversion|Out of Range|Invalid Input) Error")


class TopicDatabase:
    """A DuckDB database in memory whose views are the topics of a log directory."""

    _runs_apart = True

    def __init__(
        self,
        log: LogDir,
        *,
        isolation: str = "read_uncommitted",
        formats: Mapping[str, str] | None = None,
        threads: int | None = None,
        versions: Mapping[str, int] | None = None,
        timestamp: Time | None = None,
        safe: bool = False,
        seconds: float | None = None,
        memory_bytes: int | None = None,
        tables: bool = True,
    ) -> None:
        """`formats` are options such as value.format, for all topics that a query names. `timestamp`: the topics as
        they were then; `versions`: {topic: version}, those topics as of that version. Else a query sees them as they
        are. Where a topic knows a table (`segments table`), its view is of the table's files and of the log's tail, as
        long as they are the topic's records; a warning says why they are not. `tables`: whether they are read at all.

        A statement may read and write any file of this machine, attach databases, and load extensions, as DuckDB does.
        With `safe` it may not: it has the topics, and tables in memory. Take it for statements that others wrote.
        `seconds`: statements run in another process, and one that takes longer, with the time to read its rows, ends in
        a QueryError with that process, and with its tables in memory. So does one that takes more than `memory_bytes`
        (on Linux), 2 GiB without another number.
        """
        self._apart: StatementProcess | None = None
        if self._runs_apart and seconds is not None:
            arguments = {
                "log": log,
                "isolation": isolation,
                "formats": formats,
                "threads": threads,
                "versions": versions,
                "timestamp": timestamp,
                "safe": safe,
                "tables": tables,
            }
            self._apart = StatementProcess(arguments, seconds, MOST_BYTES if memory_bytes is None else memory_bytes)
            return
        self._log = log
        self._isolation = isolation
        self._formats = formats
        self._threads = threads
        self._versions = dict(versions or {})
        self._timestamp = timestamp
        self._json = [name for name in ("key", "value") if (formats or {}).get(f"{name}.format") == "json"]
        self._views: dict[str, DatabaseView] = {}
        self._reads_tables = tables and timestamp is None
        self._reasons: set[tuple[str, str]] = set()
        self._opens_files = not safe
        self._opened = OpenTables()
        self._running: pa.RecordBatchReader | None = None
        self.is_stuck = False
        """Whether a statement goes on after Ctrl-C: it stays within one function, where DuckDB looks for nothing."""
        self._left_open = contextlib.ExitStack()
        self._connection = self._left_open.enter_context(duckdb.connect())
        self._caller = self._left_open.enter_context(ThreadPoolExecutor(1, thread_name_prefix="duckdb"))
        self._prepare(memory_bytes)
        # Last of all, since nothing can be set behind it.
        if safe:
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")

    def _prepare(self, memory_bytes: int | None) -> None:
        """Makes the settings of the connection, and the functions that topics need."""
        if memory_bytes is not None:
            # The rest is for what DuckDB does not count: a list that a function makes.
            self._connection.execute("SET memory_limit = $1", [f"{memory_bytes * 3 // 4} B"])
        # What does not fit in memory would go into the working directory, and stay there if the process is killed.
        scratch = self._left_open.enter_context(scratch_directory())
        self._connection.execute("SET temp_directory = $1", [str(scratch / "duckdb")])
        # After two seconds of a query DuckDB shows a progress bar on standard output, among the rows. A notebook
        # without ipywidgets has no bar, and DuckDB refuses the setting there.
        if self._connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() != (False,):
            self._connection.execute("SET enable_progress_bar = false")
        # Its default is the machine's, by which the same query has other days and other texts elsewhere.
        self._connection.execute("SET TimeZone = 'UTC'")
        # Files of a table never change. A count by their footers is ten times as fast from memory.
        self._connection.execute("SET parquet_metadata_cache = true")
        # A name that is no topic would be looked for among the variables of this module.
        self._connection.execute("SET python_enable_replacements = false")
        for operator, function in (("->", "json_extract"), ("->>", "json_extract_string")):
            # Of bytes, DuckDB's own give NULL.
            overloads = f"(json BLOB, path) AS {function}(decode(json), path), (json, path) AS {function}(json, path)"
            self._connection.execute(f'CREATE TEMP MACRO "{operator}"{overloads}')

    def __enter__(self) -> TopicDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        if self._apart is not None:
            self._apart.close()
            return
        if self.is_stuck:
            self._caller.shutdown(wait=False, cancel_futures=True)
            return
        self._end_run()
        self._left_open.close()

    def sql(self, query: str) -> Result:
        """The result of a statement, or of the last of several. A query runs whenever its rows are asked for;
        any other statement has run when this returns.

        Only the columns that the statement uses are read, and no more than its LIMIT asks for. Topics are looked at
        afresh by each run. Raises QueryError with DuckDB's own words where the statement is wrong. Errors of
        the topics, as CorruptBatchError, come here or while the rows are read. Columns of the same name get numbers.
        """
        try:
            query.encode()
        except UnicodeEncodeError:
            raise InvalidOptionError("The statement is no UTF-8", found=query) from None
        apart = self._apart
        if apart is not None:
            number, schema = apart.begin(query)
            return Result(schema, lambda: apart.batches(number))
        self._end_run()
        with self._errors(query):
            statements = self._connection.extract_statements(query)
            if not statements:
                raise InvalidOptionError("There is no statement", expected="such as SELECT count(*) FROM orders")
            views = self._register(query)
        *before, statement = statements
        _check_kind(statement)
        with self._errors(query):
            for earlier in before:
                self._waited(self._connection.execute, earlier)
            relation = self._planned(views, lambda: self._waited(self._connection.sql, statement))
        if relation is None:  # a statement without a result, such as SET
            return Result(pa.schema([]), lambda: iter(()))
        empty = self._planned(views, lambda: self._waited(lambda: relation.limit(0).to_arrow_table()))  # and constants
        schema = _with_unique_names(pa.schema(empty.schema))
        return Result(schema, lambda: self._run(relation, schema, views, query))

    def _run(
        self, relation: duckdb.DuckDBPyRelation, schema: pa.Schema, views: Sequence[DatabaseView], query: str
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a query. The connection runs one query at a time: the next one ends this one."""
        self._end_run()

        def begun() -> tuple[pa.RecordBatchReader, pa.RecordBatch | None]:
            reader = self._waited(relation.to_arrow_reader, _BATCH_ROWS)
            return reader, self._waited(next, reader, None)

        with self._errors(query):
            self._begin()
            self._plan(views)
            reader, batch = self._planned(views, begun)
            self._running = reader
            try:
                while self._running is reader:
                    if batch is None:
                        return
                    yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                    if self._running is reader:
                        batch = self._waited(next, reader, None)
            finally:
                if self._running is reader:
                    self._end_run()
        raise InvalidOptionError(
            "The rows of a query were not read to their end before its database was asked for others",
            hint="Read them whole before, with to_table(), or open a TopicDatabase for each",
        )

    def _waited(self, call: Callable[..., AnyResult], *arguments: Any) -> AnyResult:
        """The result of a call of DuckDB's, which Ctrl-C ends: in the main thread, DuckDB may not look for it."""
        try:
            result = self._caller.submit(call, *arguments)
            while not result.done():  # where another thread takes the signal, a thread that waits does not see it
                wait([result], _SECONDS_TO_SEE)
            return result.result()
        except KeyboardInterrupt:
            behind = self._caller.submit(int)
            self.is_stuck = True  # and is, if Ctrl-C comes again meanwhile
            ends = time.monotonic() + _SECONDS_TO_END
            while not behind.done() and time.monotonic() < ends:  # a call that only begins may not have seen it
                self._connection.interrupt()
                wait([behind], _SECONDS_TO_SEE)
            self.is_stuck = not behind.done()
            raise

    def _end_run(self) -> None:
        running = self._running
        self._running = None
        if running is not None and not self.is_stuck:
            running.close()

    @contextlib.contextmanager
    def _errors(self, query: str) -> Iterator[None]:
        """Turns DuckDB's errors into this package's. Where a topic made the query fail, its own error is raised."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if isinstance(error, SegmentsError):
                raise
            self._raise_error_of_log()
            if isinstance(error, duckdb.Error):
                message, found = _said(error, query)
                hidden = error if str(error).startswith(found) else None
                hint = _hint(error, query, self._log.topics())
                if _may_be_of_damage(error) and any(view.reads_table for view in self._views.values()):
                    hint = "If a file of a table is damaged, the logs alone are read with --no-tables (tables=False)"
                raise QueryError(message, found=found, hint=hint) from hidden
            raise SegmentsError("The query failed", found=str(error)) from error

    def _raise_error_of_log(self) -> None:
        """Raises the error of a topic that made the query fail."""
        for view in self._views.values():
            for table in view.tables:
                if table.error is not None:
                    raise table.error from None

    def _register(self, query: str) -> list[DatabaseView]:
        """Makes views of the topics that the query may name, and returns all views that have to be planned: those, and
        any that views of the caller may name, if their topics know tables.
        """
        self._begin()
        named = self._named(query)
        for topic in named:
            for name, kind in ((topic, None), (topic + _LATEST_SUFFIX, _LATEST)):
                if name not in self._views:
                    ask = partial(self._scan, topic, kind)
                    narrowing = partial(narrowed, self._log, formats=self._formats)
                    place = self._connection, topic, kind, ask, narrowing, self._threads, self._json
                    self._views[name] = DatabaseView(*place, name=name, opens_files=self._opens_files)
                self._views[name].make()
        is_latest_named = _LATEST_SUFFIX in query.casefold()
        views = []
        for view in self._views.values():
            is_named = view.topic in named and (view.kind is None or is_latest_named)
            if is_named or view.knows_tables:
                views.append(view)
        self._plan(views)
        return views

    def _begin(self) -> None:
        for view in self._views.values():
            view.begin()

    def _plan(self, views: Iterable[DatabaseView], *, by_tables: bool = True) -> None:
        """Makes the views read the topics as they are now."""
        for view in views:
            try:
                scan = self._scan(view.topic, view.kind)
            except SegmentsError:  # a statement that does not read the topic need not know that it is gone
                view.leave_table()
                continue
            if not by_tables or not self._reads_tables or view.topic in self._versions:
                view.read_as(AsOne.by_log(scan))
                continue
            if view.one is not None and self._opened.still_has(view.one, scan):
                continue
            one = as_one(self._log, scan, self._formats, self._opened)
            if one.why is not None:
                self._warn(view, one.why)
            try:
                view.read_as(one)
            except (duckdb.Error, OSError) as error:  # DuckDB looks into a file for its columns
                self._opened.forget()
                view.read_as(AsOne.by_log(one.scan))
                self._warn_of_files([view], error)

    def _warn_of_files(self, views: Iterable[DatabaseView], error: Exception) -> None:
        """Says of these topics that a file of their table cannot be read, with the cause."""
        for view in views:
            self._warn(view, f"a file of its table cannot be read: {' '.join(str(error).split())}")

    def _warn(self, view: DatabaseView, why: str) -> None:
        """Says once why a topic is read by its log alone."""
        if (view.topic, why) not in self._reasons:
            self._reasons.add((view.topic, why))
            _logger.warning("topic %s is read by its log alone: %s", view.topic, why)

    def _planned(self, views: Sequence[DatabaseView], call: Callable[[], AnyResult]) -> AnyResult:
        """What a call gives that binds or begins a query. Where a file of a table cannot be read, since another program
        has deleted it, the topics are planned again once, and then by their logs alone.
        """
        for by_tables in (True, False):
            try:
                return call()
            except (duckdb.IOException, duckdb.HTTPException, OSError) as error:
                self._raise_error_of_log()
                if not any(view.reads_table for view in views):
                    raise
                if not by_tables:
                    self._warn_of_files([view for view in views if view.reads_table], error)
            except duckdb.Error as error:
                if not _may_be_of_damage(error) or not any(view.reads_table for view in views):
                    raise
                return self._by_logs(views, call, error)
            self._opened.forget()
            self._plan(views, by_tables=by_tables)
        return call()

    def _by_logs(self, views: Sequence[DatabaseView], call: Callable[[], AnyResult], error: duckdb.Error) -> AnyResult:
        """What a call gives by the logs alone, after an error that a damaged file of a table may have made. Raises the
        error where it was not the file.
        """
        self._raise_error_of_log()
        self._opened.forget()
        by_table = [view for view in views if view.reads_table]  # until they are planned by the log
        self._plan(views, by_tables=False)
        try:
            result = call()
        except duckdb.Error:
            raise error from None
        self._warn_of_files(by_table, error)
        return result

    def _scan(self, topic: str, view: str | None) -> Scan:
        found = self._log.topic(
            topic, self._versions.get(topic), self._timestamp if topic not in self._versions else None
        )
        return found.scan(view=view, isolation=self._isolation, formats=self._formats)

    def _named(self, query: str) -> list[str]:
        """The topics whose names are in the query; all where it asks for the names of tables.

        DuckDB does not tell names apart by their case. Raises InvalidOptionError where the query does not say which of
        such topics it means.
        """
        text = query.casefold()
        asks_for_tables = _ASKS_FOR_TABLES.search(text) is not None
        topics = self._log.topics() if asks_for_tables else self._log.directories()
        alike: dict[str, list[str]] = {}
        for topic in topics:
            if asks_for_tables or (topic.casefold() in text and self._log.is_there(topic)):
                alike.setdefault(topic.casefold(), []).append(topic)
        named: list[str] = []
        for name, group in alike.items():
            tables = {topic for topic in group if topic in self._views}
            meant = [topic for topic in group if re.search(rf"(?<![\w.-]){re.escape(topic)}(?![\w.-])", query)]
            chosen = tables.union(meant or ([group[0]] if len(group) == 1 else []))
            if len(chosen) > 1 or (not chosen and re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])", text)):
                raise InvalidOptionError(
                    "DuckDB does not tell the names of these topics apart",
                    expected="the exact name of only one of them",
                    found=", ".join(group),
                )
            if not chosen and asks_for_tables:
                _logger.warning("not among the tables, as DuckDB does not tell them apart: %s", ", ".join(group))
            named += chosen
        return named


def _check_kind(statement: duckdb.Statement) -> None:
    """Raises InvalidOptionError for a statement of a kind that DuckDB's Python has no name for, and cannot run."""
    try:
        _ = statement.type
    except ValueError:
        raise InvalidOptionError(
            "The query cannot be run", expected="a statement that DuckDB's Python knows", found=statement.query
        ) from None


def _may_be_of_damage(error: duckdb.Error) -> bool:
    """Whether an error may be of a damaged Parquet file, for which DuckDB has no type."""
    return isinstance(error, duckdb.InvalidInputException) or type(error) is duckdb.Error


def _said(error: Exception, query: str) -> tuple[str, str]:
    """(what went wrong, in DuckDB's words). The value of a record is not for a log: where DuckDB's words may have one,
    they are left out. A literal of the query is no secret.
    """
    text = str(error)
    if isinstance(error, duckdb.CatalogException):  # behind it is a guess, which never is a topic
        text = text.partition("\nDid you mean")[0]
    kind = _OF_A_VALUE.search(text)
    if kind is None:
        return "The query cannot be run", text
    message, _, _ = text.partition("\n\nLINE ")
    for literal in re.findall("'([^']*)'", query):
        message = message.replace(f"'{literal}'", "").replace(f'"{literal}"', "")
    if text.startswith(message) or re.search(r"['\"\n]|(?<!\w)\d", message):
        return "The query cannot be run: a value does not fit what is done with it", f"DuckDB's {kind[0]}"
    return "The query cannot be run", text


def _hint(error: Exception, query: str, topics: list[str]) -> str | None:
    """What to do about an error of DuckDB's, where the query shows it."""
    if isinstance(error, duckdb.CatalogException):
        return f"The topics are: {', '.join(topics[:MOST_ROWS]) or 'none'}"
    if isinstance(error, duckdb.ParserException) and re.search(r"(?<![\w\"])offset\b(?!\")", query, re.IGNORECASE):
        return 'offset is a word of SQL: write "offset" with quotes'
    return "try_cast gives null where a value cannot be cast" if _OF_A_VALUE.search(str(error)) else None


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """The schema with numbers behind names that others have, too, as in the result of a join."""
    taken = set(schema.names)
    fields = []
    seen = set()
    for column in schema:
        name = column.name
        number = 0
        while name in seen or (number and name in taken):
            number += 1
            name = f"{column.name}_{number}"
        seen.add(name)
        fields.append(column.with_name(name))
    return pa.schema(fields, schema.metadata)
