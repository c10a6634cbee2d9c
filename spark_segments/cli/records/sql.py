"""`segments sql`: a query over topics, by DuckDB."""

from __future__ import annotations

import csv
import enum
import io
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet

from spark_segments.cli.command_options import ISOLATION_LEVEL, LogOptions, argument, flag, option, with_options
from spark_segments.cli.interrupts import INTERRUPTED
from spark_segments.cli.output import print_table
from spark_segments.cli.records.value_text import FormatOptions
from spark_segments.errors import InvalidOptionError, escaped, escaped_json
from spark_segments.printing import cell_of, finite, plain, rows_of

MOST_TEXT_ROWS = 1000
"""Rows of a table for people, which is laid out as a whole. Other outputs have no limit."""


class TableOutput(enum.StrEnum):
    """How rows are printed."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


@with_options
def sql(
    location: LogOptions,
    values: FormatOptions,
    query: str = argument("QUERY", "A statement of DuckDB's SQL."),
    isolation_level: str = ISOLATION_LEVEL,
    safe: bool = flag("The statement may read topics alone: no file, no database, no setting."),
    no_tables: bool = flag("Read topics by their logs alone, also where they know tables."),
    output: TableOutput = option("How rows are printed.", default=TableOutput.TEXT),
) -> None:
    """Runs a SQL query over topics, by DuckDB. A topic is a view; its newest records by key are <topic>$latest.

    The columns are key, value, topic, partition, offset, timestamp,
    timestampType and headers. "offset" is a word of SQL, so it stands in
    quotes, and so do names of topics with a dot, a dash or a $. Only the
    columns that the query uses are read, and no more than its LIMIT.

    With --value-format (and --key-format) values have fields: value.id. Text
    shows the first 1,000 rows; JSON has a line for each row. Bytes are shown
    as text where they are UTF-8, else in base64. It needs the extra duckdb.

    Where `segments table` keeps a table of a topic, the view reads the table's
    files and of the log what follows them: EXPLAIN shows both.

    DuckDB's SQL can read and write every file that you can, attach databases,
    and load extensions from the internet: run statements that others wrote
    with --safe.

    Example: segments sql /data/log 'SELECT max(timestamp) FROM orders'
    """
    from spark_segments.duckdb import TopicDatabase

    formats = values.of_values()
    log = location.open()
    with TopicDatabase(log, isolation=isolation_level, formats=formats, safe=safe, tables=not no_tables) as database:
        try:
            result = database.sql(query)
            _WRITERS[output](result.schema, result.batches(), sys.stdout.buffer)
            sys.stdout.flush()
        except KeyboardInterrupt:
            if database.is_stuck:  # Python would wait for its thread
                os._exit(INTERRUPTED)
            raise


def _text(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    rows = [list(row) for row in itertools.islice(rows_of(batches), MOST_TEXT_ROWS + 1)]
    print_table(schema.names, ([cell_of(value) for value in row] for row in rows[:MOST_TEXT_ROWS]))
    if len(rows) > MOST_TEXT_ROWS:
        print(
            f"There are more rows than {MOST_TEXT_ROWS:,}: --output json, csv or parquet has them all", file=sys.stderr
        )


def json_lines(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    """Writes an object a row, on a line."""
    for row in rows_of(batches):
        named = dict(zip(schema.names, row, strict=True))
        try:
            line = json.dumps(named, default=plain, ensure_ascii=False, allow_nan=False)
        except ValueError:  # JSON has no such numbers
            line = json.dumps(finite(named), default=plain, ensure_ascii=False)
        file.write(escaped_json(line).encode() + b"\n")


def _csv(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    try:
        lines = csv.writer(text, lineterminator="\n")
        for row in itertools.chain([schema.names], rows_of(batches)):
            cells = ["" if value is None else cell_of(value) for value in row]
            lines.writerow(
                [escaped(cell) if isinstance(cell, str) else cell for cell in cells] if file.isatty() else cells
            )
    finally:
        text.detach()


def _parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: BinaryIO) -> None:
    if file.isatty():
        raise InvalidOptionError("Parquet is nothing for a terminal", hint="Send it to a file: > rows.parquet")
    try:
        with pa.parquet.ParquetWriter(_KeptOpen(file), schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
    except pa.ArrowNotImplementedError as error:
        raise InvalidOptionError(
            "Parquet has no such column", found=str(error), hint="Cast it, as in CAST(a AS VARCHAR)"
        ) from error


class _KeptOpen(io.RawIOBase):
    """A file that Arrow's writer may close, and that stays open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._file.write(data)


_WRITERS: dict[TableOutput, Callable[[pa.Schema, Iterator[pa.RecordBatch], BinaryIO], None]] = {
    TableOutput.TEXT: _text,
    TableOutput.JSON: json_lines,
    TableOutput.CSV: _csv,
    TableOutput.PARQUET: _parquet,
}
