"""Queries of DuckDB, Polars and Spark over a topic, by its log and as one with a table, each beside the same query over
the same rows in Parquet: seconds of CPU, of the start of a query and of its run apart.

The start is what makes a query ready: `database.sql(…)`, `scan_topic(…)`, `topic.to_spark(…)` and the view of a query,
and what an engine takes for as much over Parquet. Values are JSON objects of some 50 bytes, or of --value-bytes. The
rows of Parquet are those of the topic in their order, with values as text. A table has all records of a topic, or all
but the last --tail of a hundred. The query of a key is run again with an index of the topic's keys, which has all.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from benchmarks.measure import TURNS, cpu_seconds
from benchmarks.spark import CODECS, session
from spark_segments import LogDir
from spark_segments.maintenance import index, table

PARTITIONS = 4
BLOCK = 250_000
FIRST_MS = 1_767_225_600_000
TYPED = {"value.format": "json", "value.schema": "id bigint, city string, amount double"}
_HOUR = "timestamp >= '2026-01-01 05:00:00+00' AND timestamp < '2026-01-01 06:00:00+00'"

QUERIES = {
    "count": "SELECT count(*) FROM {rows}",
    "group": 'SELECT partition, count(*), max("offset") FROM {rows} GROUP BY ALL',
    "an hour": f'SELECT count(*), min("offset"), sum(octet_length(key)) FROM {{rows}} WHERE {_HOUR}',
    "100 offsets": 'SELECT * FROM {rows} WHERE partition = 1 AND "offset" BETWEEN {middle} AND {middle} + 99',
    "a key": "SELECT * FROM {rows} WHERE key = 'key-4711'::BLOB",
    "a JSON sum": "SELECT value->>'city' AS city, sum((value->>'amount')::DOUBLE) FROM {rows} GROUP BY ALL",
    "a typed JSON sum": "SELECT {city} AS city, sum({amount}) FROM {rows} GROUP BY ALL",
    "latest": 'SELECT count(*), max("offset") FROM {latest}',
}


SPARK_QUERIES = {
    "count": "SELECT count(*) FROM {rows}",
    "group": "SELECT partition, count(*), max(offset) FROM {rows} GROUP BY ALL",
    "an hour": "SELECT count(*), min(offset), sum(octet_length(key)) FROM {rows} WHERE timestamp >= "
    "TIMESTAMP '2026-01-01 05:00:00' AND timestamp < TIMESTAMP '2026-01-01 06:00:00'",
    "100 offsets": "SELECT * FROM {rows} WHERE partition = 1 AND offset BETWEEN {middle} AND {middle} + 99",
    "a key": "SELECT * FROM {rows} WHERE key = CAST('key-4711' AS BINARY)",
    "a JSON sum": "SELECT get_json_object(CAST(value AS STRING), '$.city') AS city, "
    "sum(CAST(get_json_object(CAST(value AS STRING), '$.amount') AS DOUBLE)) FROM {rows} GROUP BY ALL",
    "a typed JSON sum": "SELECT {value}.city AS city, sum({value}.amount) FROM {rows} GROUP BY ALL",
    "latest": "SELECT count(*), max(offset) FROM {latest}",
}

Case = tuple[Callable[[], Any], Callable[[Any], Any]]
"""The start of a query, and its run, which takes what the start gives."""

SPARK_WARM_TURNS = 3  # the JVM compiles for a while


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--codec", choices=list(CODECS), default="zstd-1")
    parser.add_argument("--value-bytes", type=int, default=0, help="about how large a value is; 0: some 50 bytes")
    parser.add_argument("--tail", type=float, nargs="*", default=[0, 1], help="percent of records behind the table's")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    found = Found({}, {})
    for tail in arguments.tail:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            size = Size(arguments.records, int(arguments.records * tail / 100), arguments.value_bytes)
            write_files(Path(directory), size, arguments.codec)
            measure(
                Path(directory), size, arguments.engines, arguments.turns, f", {tail:g} % behind" if tail else "", found
            )
    return {"turns": arguments.turns, "records": arguments.records, "figures": found.figures, "ratios": found.ratios}


def measure(directory: Path, size: Size, engines: list[str], turns: int, behind: str, found: Found) -> None:
    """Adds the figures of these files."""
    for engine in engines:
        with ENGINES[engine](directory, size) as cases:
            for name, kinds in cases.items():
                if size.tail:  # the log has been measured with all of its records in the table
                    kinds.pop("topic", None)
                found.add(f"{engine}, {name}{behind}", _in_turns(kinds, turns, is_spark=engine == "Spark"))
    # Last: the other queries are of a topic without an index.
    index(LogDir.open(f"{directory}/log"), topics=["events"])
    for engine in [engine for engine in engines if engine != "Spark"]:
        with ENGINES[engine](directory, size) as cases:
            kinds = {"indexed topic": cases["a key"]["topic"], "Parquet": cases["a key"]["Parquet"]}
            found.add(f"{engine}, a key{behind}", _in_turns(kinds, turns))


@dataclass(frozen=True, slots=True)
class Found:
    """The figures and ratios so far."""

    figures: dict[str, Any]
    ratios: dict[str, Any]

    def add(self, name: str, seconds: dict[str, list[tuple[float, float]]]) -> None:
        """Adds those of a query: {kind: [(seconds of its start, of its run) of a turn]}."""
        for kind, turns in seconds.items():
            self.figures[f"{name}, {kind}: start CPU s"] = round(median(start for start, _ in turns), 4)
            self.figures[f"{name}, {kind}: run CPU s"] = round(median(run for _, run in turns), 4)
        for kind in seconds.keys() - {"Parquet"}:
            pairs = list(zip(seconds[kind], seconds["Parquet"], strict=True))
            runs = median(ours / max(theirs, 1e-9) for (_, ours), (_, theirs) in pairs)
            wholes = median(sum(ours) / max(sum(theirs), 1e-9) for ours, theirs in pairs)
            self.ratios[f"{name}: run, {kind} / Parquet"] = round(runs, 2)
            self.ratios[f"{name}: all, {kind} / Parquet"] = round(wholes, 2)


@dataclass(frozen=True, slots=True)
class Size:
    """How many records a topic has, how many of them are behind its tables, and the bytes of a value (0: some 50)."""

    records: int
    tail: int = 0
    value_bytes: int = 0

    @property
    def middle(self) -> int:
        """An offset in the middle of a partition."""
        return self.records // PARTITIONS // 2


def write_files(directory: Path, size: Size, codec: str) -> None:
    """A topic with two tables, of bytes and of typed values, and Parquet files of its rows. A day of records, whose
    timestamps rise.
    """
    log = LogDir.create(str(directory / "log"))
    log.create_topic("events", PARTITIONS, CODECS[codec][0])
    random = np.random.default_rng(1)
    ends = [size.records - size.tail, size.records]
    for number, end in enumerate(ends):
        for first in range(0 if number == 0 else ends[0], end, BLOCK):
            log.topic("events").append(_rows(random, first, min(first + BLOCK, end), size))
        if number == 0:
            for name, formats in (("bytes", {}), ("typed", TYPED)):
                table(log, topics=["events"], table_uri=str(directory / name), formats=formats)
    (directory / "parquet").mkdir()
    for partition in range(PARTITIONS):
        rows = log.topic("events").scan(partition=partition).to_table()
        text = rows.column("value").cast(pa.string())
        pa.parquet.write_table(
            rows.set_column(rows.schema.get_field_index("value"), "value", text),
            directory / "parquet" / f"{partition}.parquet",
            compression="zstd",
            compression_level=1,
            use_dictionary=["topic", "partition", "timestampType"],
            row_group_size=BLOCK,
        )


def _rows(random: np.random.Generator, first: int, end: int, size: Size) -> pa.Table:
    """Records of these numbers."""
    numbers = np.arange(first, end)
    count = len(numbers)
    keys = pc.binary_join_element_wise("key", pc.cast(pa.array(random.integers(0, 100_000, count)), "string"), "-")
    amounts = pc.cast(pa.array(random.integers(0, 1_000_000, count) / 100), "string")
    cities = pa.array([f"city-{number}" for number in range(50)]).take(pa.array(random.integers(0, 50, count)))
    parts = ['{"id":', pc.cast(pa.array(numbers), "string"), ',"city":"', cities, '","amount":', amounts]
    if size.value_bytes > 60:
        length = (size.value_bytes - 60) // 2 * 2
        text = random.bytes(count * length // 2).hex().encode()
        texts = pa.FixedSizeBinaryArray.from_buffers(pa.binary(length), count, [None, pa.py_buffer(text)])
        parts += [',"text":"', texts.cast(pa.binary()).cast(pa.string()), '"']
    return pa.table(
        {
            "key": keys.cast(pa.binary()),
            "value": pc.binary_join_element_wise(*parts, "}", "").cast(pa.binary()),
            "timestamp": pa.array((FIRST_MS + numbers * 86_400_000 // size.records) * 1000, pa.timestamp("us", "UTC")),
            "partition": pa.array(numbers % PARTITIONS, pa.int32()),
        }
    )


@contextlib.contextmanager
def _duckdb_cases(directory: Path, size: Size) -> Iterator[dict[str, dict[str, Case]]]:
    import duckdb

    from spark_segments.duckdb import TopicDatabase

    log, parquet = LogDir.open(str(directory / "log")), duckdb.connect()
    databases = {
        (kind, is_typed): TopicDatabase(log, formats=TYPED if is_typed else None, tables=kind == "table")
        for kind in ("topic", "table")
        for is_typed in (False, True)
    }
    files = f"'{directory}/parquet/*.parquet'"
    newest = f'(SELECT DISTINCT ON (key) * FROM {files} ORDER BY "offset" DESC)'
    of_topic = {"rows": "events", "latest": '"events$latest"', "middle": size.middle}
    of_topic |= {"city": "value.city", "amount": "value.amount"}
    of_files = {"rows": files, "latest": newest, "middle": size.middle}
    of_files |= {"city": "value->>'city'", "amount": "(value->>'amount')::DOUBLE"}
    cases: dict[str, dict[str, Case]] = {}
    for name, query in QUERIES.items():
        cases[name] = {
            kind: (
                partial(databases[kind, "typed" in name].sql, query.format(**of_topic)),
                lambda result: result.to_table(),
            )
            for kind in ("topic", "table")
        }
        cases[name]["Parquet"] = partial(parquet.sql, query.format(**of_files)), lambda rows: rows.to_arrow_table()
    yield cases
    for database in databases.values():
        database.__exit__()
    parquet.close()


@contextlib.contextmanager
def _polars_cases(directory: Path, size: Size) -> Iterator[dict[str, dict[str, Case]]]:
    import polars as pl

    from spark_segments.polars import scan_topic

    hour = dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)
    queries: dict[str, Callable[[Any], Any]] = {
        "count": lambda rows: rows.select(pl.len()),
        "group": lambda rows: rows.group_by("partition").agg(pl.len(), pl.col("offset").max()),
        "an hour": lambda rows: rows.filter(
            (pl.col("timestamp") >= hour) & (pl.col("timestamp") < hour + dt.timedelta(hours=1))
        ).select(pl.len(), pl.col("offset").min(), pl.col("key").bin.size().sum()),
        "100 offsets": lambda rows: rows.filter(
            (pl.col("partition") == 1) & pl.col("offset").is_between(size.middle, size.middle + 99)
        ),
        "a key": lambda rows: rows.filter(pl.col("key") == b"key-4711"),
        "a JSON sum": lambda rows: _polars_sum(
            rows, *(pl.col("value").cast(pl.String).str.json_path_match(f"$.{name}") for name in ("city", "amount"))
        ),
        "a typed JSON sum": lambda rows: _polars_sum(
            rows, *(pl.col("value").struct.field(name) for name in ("city", "amount"))
        ),
        "latest": lambda rows: rows.select(pl.len(), pl.col("offset").max()),
    }
    log = str(directory / "log")
    files = f"{directory}/parquet/*.parquet"
    cases: dict[str, dict[str, Case]] = {}
    for name, query in queries.items():
        options = {"formats": TYPED if "typed" in name else None, "view": "latest" if name == "latest" else None}
        theirs = queries["a JSON sum"] if "typed" in name else query
        cases[name] = {
            "topic": (partial(scan_topic, log, "events", tables=False, **options), _collected(query)),
            "table": (partial(scan_topic, log, "events", **options), _collected(query)),
            "Parquet": (partial(_polars_parquet, files, is_latest=name == "latest"), _collected(theirs)),
        }
    yield cases


def _polars_sum(rows: Any, city: Any, amount: Any) -> Any:
    import polars as pl

    return rows.select(city=city, amount=amount.cast(pl.Float64)).group_by("city").agg(pl.col("amount").sum())


def _polars_parquet(files: str, *, is_latest: bool) -> Any:
    import polars as pl

    rows = pl.scan_parquet(files)
    return rows.filter(pl.col("offset") == pl.col("offset").max().over("key")) if is_latest else rows


def _collected(query: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda rows: query(rows).collect()


@contextlib.contextmanager
def _spark_cases(directory: Path, size: Size) -> Iterator[dict[str, dict[str, Case]]]:
    log = LogDir.open(str(directory / "log"))
    newest = "row_number() OVER (PARTITION BY key ORDER BY offset DESC) AS place"
    with session(str(directory)) as spark:

        def of_topic(query: str, formats: dict[str, str] | None, view: str | None) -> Any:
            log.topic("events").to_spark(spark, view, formats=formats).createOrReplaceTempView("events")
            return spark.sql(query)

        def of_files(query: str) -> Any:
            spark.read.parquet(str(directory / "parquet")).createOrReplaceTempView("files")
            return spark.sql(query)

        names = {"middle": size.middle, "value": "value"}
        typed = f"(SELECT from_json(CAST(value AS STRING), '{TYPED['value.schema']}') AS value FROM files)"
        latest = f"(SELECT * FROM (SELECT *, {newest} FROM files) WHERE place = 1)"
        cases: dict[str, dict[str, Case]] = {}
        for name, query in SPARK_QUERIES.items():
            ours = query.format(rows="events", latest="events", **names)
            theirs = query.format(rows=typed if "typed" in name else "files", latest=latest, **names)
            formats = TYPED if "typed" in name else None
            view = "latest" if name == "latest" else None
            cases[name] = {
                "table": (partial(of_topic, ours, formats, view), lambda rows: rows.collect()),
                "Parquet": (partial(of_files, theirs), lambda rows: rows.collect()),
            }
        yield cases


ENGINES = {"DuckDB": _duckdb_cases, "Polars": _polars_cases, "Spark": _spark_cases}


def _in_turns(cases: dict[str, Case], turns: int, *, is_spark: bool = False) -> dict[str, list[tuple[float, float]]]:
    clock = cpu_seconds if is_spark else time.process_time
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for turn in range(-SPARK_WARM_TURNS if is_spark else -1, turns):
        for name, (start, run) in cases.items():
            began = clock()
            ready = start()
            started = clock()
            run(ready)
            if turn >= 0:
                seconds[name].append((started - began, clock() - started))
    return seconds
