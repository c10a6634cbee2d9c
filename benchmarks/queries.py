"""Queries of DuckDB and Polars over a topic, by its log and as one with a table, each beside the same query over the
same rows in Parquet: seconds of CPU.

Values are JSON objects of some 50 bytes, or of --value-bytes. Parquet has them as text, and its rows are those of the
topic in their order. A table has all records of a topic, or all but the last --tail of a hundred. The query of a key is
run again with an index of the topic's keys, which has all of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from benchmarks.measure import TURNS
from benchmarks.spark import CODECS
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--codec", choices=list(CODECS), default="zstd-1")
    parser.add_argument("--value-bytes", type=int, default=0, help="about how large a value is; 0: some 50 bytes")
    parser.add_argument("--tail", type=float, nargs="*", default=[0, 1], help="percent of records behind the table's")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    for tail in arguments.tail:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            size = Size(arguments.records, int(arguments.records * tail / 100), arguments.value_bytes)
            write_files(Path(directory), size, arguments.codec)
            cases = _cases(Path(directory), arguments.records)
            cases |= {f"Polars, {name}": queries for name, queries in _polars_cases(Path(directory), size).items()}
            for name, queries in cases.items():
                kinds = queries if tail == 0 else {kind: query for kind, query in queries.items() if kind != "topic"}
                found = _in_turns(kinds, arguments.turns)
                behind = f", {tail:g} % behind" if tail else ""
                for kind, seconds in found.items():
                    figures[f"{name}, {kind}{behind}: CPU s"] = round(median(seconds), 3)
                for kind in found.keys() - {"Parquet"}:
                    ratio = median(found[kind]) / median(found["Parquet"])
                    ratios[f"{name}{behind}: {kind} / Parquet"] = round(ratio, 2)
            # Last: the other queries are of a topic without an index.
            index(LogDir.open(f"{directory}/log"), topics=["events"])
            for name in ("a key", "Polars, a key"):
                kinds = {kind: query for kind, query in cases[name].items() if kind != "table"}
                found = _in_turns(kinds, arguments.turns)
                figures[f"{name}, indexed topic{behind}: CPU s"] = round(median(found["topic"]), 3)
                ratio = median(found["topic"]) / median(found["Parquet"])
                ratios[f"{name}{behind}: indexed topic / Parquet"] = round(ratio, 2)
    return {"turns": arguments.turns, "records": arguments.records, "figures": figures, "ratios": ratios}


@dataclass(frozen=True, slots=True)
class Size:
    """How many records a topic has, how many of them are behind its tables, and the bytes of a value (0: some 50)."""

    records: int
    tail: int = 0
    value_bytes: int = 0


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
        rows = log.topic("events").scan(partition=partition).to_table().drop_columns("headers")
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


def _cases(directory: Path, records: int) -> dict[str, dict[str, Callable[[], Any]]]:
    import duckdb

    from spark_segments.duckdb import TopicDatabase

    log, parquet = LogDir.open(str(directory / "log")), duckdb.connect()
    databases = {
        (kind, is_typed): TopicDatabase(log, formats=TYPED if is_typed else None, tables=kind == "table")
        for kind in ("topic", "table")
        for is_typed in (False, True)
    }
    files = f"'{directory}/parquet/*.parquet'"
    middle = records // PARTITIONS // 2
    newest = f'(SELECT DISTINCT ON (key) * FROM {files} ORDER BY "offset" DESC)'
    of_topic = {"rows": "events", "latest": '"events$latest"'}
    of_topic |= {"city": "value.city", "amount": "value.amount"}
    of_files = {"rows": files, "latest": newest}
    of_files |= {"city": "value->>'city'", "amount": "(value->>'amount')::DOUBLE"}
    cases: dict[str, dict[str, Callable[[], Any]]] = {}
    for name, query in QUERIES.items():
        ours, theirs = query.format(middle=middle, **of_topic), query.format(middle=middle, **of_files)
        cases[name] = {
            kind: lambda database=databases[kind, "typed" in name], ours=ours: database.sql(ours).to_table()
            for kind in ("topic", "table")
        }
        cases[name]["Parquet"] = lambda theirs=theirs: parquet.sql(theirs).to_arrow_table()
    return cases


def _polars_cases(directory: Path, size: Size) -> dict[str, dict[str, Callable[[], Any]]]:
    import datetime as dt

    import polars as pl

    from spark_segments.polars import scan_topic

    hour = dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)
    middle = size.records // PARTITIONS // 2
    queries: dict[str, Callable[[Any], Any]] = {
        "count": lambda rows: rows.select(pl.len()),
        "group": lambda rows: rows.group_by("partition").agg(pl.len(), pl.col("offset").max()),
        "an hour": lambda rows: rows.filter(
            (pl.col("timestamp") >= hour) & (pl.col("timestamp") < hour + dt.timedelta(hours=1))
        ).select(pl.len(), pl.col("offset").min()),
        "100 offsets": lambda rows: rows.filter(
            (pl.col("partition") == 1) & pl.col("offset").is_between(middle, middle + 99)
        ),
        "a key": lambda rows: rows.filter(pl.col("key") == b"key-4711"),
    }
    log = str(directory / "log")
    frames: dict[str, Callable[[], Any]] = {
        "topic": lambda: scan_topic(log, "events", tables=False),
        "table": lambda: scan_topic(log, "events"),
        "Parquet": lambda: pl.scan_parquet(f"{directory}/parquet/*.parquet"),
    }
    return {
        name: {kind: lambda query=query, frame=frame: query(frame()).collect() for kind, frame in frames.items()}
        for name, query in queries.items()
    }


def _in_turns(cases: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, case in cases.items():
            began = time.process_time()
            case()
            if turn:  # the first is warm-up
                seconds[name].append(time.process_time() - began)
    return seconds
