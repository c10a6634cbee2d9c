"""Queries of DuckDB over a topic, each beside the same query over the same rows in Parquet: seconds of CPU.

Values are JSON objects. Parquet has them as text, and its rows are those of the topic in their order.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
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

PARTITIONS = 4
BLOCK = 250_000
FIRST_MS = 1_767_225_600_000
_DDL = "id bigint, city string, amount double"
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
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        write_files(Path(directory), arguments.records, arguments.codec)
        for name, cases in _cases(Path(directory), arguments.records).items():
            found = _in_turns(cases, arguments.turns)
            for kind, seconds in found.items():
                figures[f"{name}, {kind}: CPU s"] = round(median(seconds), 3)
            ratios[f"{name}: topic / Parquet"] = round(median(found["topic"]) / median(found["Parquet"]), 2)
    return {"turns": arguments.turns, "records": arguments.records, "figures": figures, "ratios": ratios}


def write_files(directory: Path, records: int, codec: str) -> None:
    """A topic and Parquet files of its rows. A day of records, whose timestamps rise."""
    log = LogDir.create(str(directory / "log"))
    log.create_topic("events", PARTITIONS, CODECS[codec][0])
    random = np.random.default_rng(1)
    for first in range(0, records, BLOCK):
        numbers = np.arange(first, min(first + BLOCK, records))
        keys = pc.binary_join_element_wise(
            "key", pc.cast(pa.array(random.integers(0, 100_000, len(numbers))), "string"), "-"
        )
        amounts = pc.cast(pa.array(random.integers(0, 1_000_000, len(numbers)) / 100), "string")
        cities = pa.array([f"city-{number}" for number in range(50)]).take(
            pa.array(random.integers(0, 50, len(numbers)))
        )
        parts = ['{"id":', pc.cast(pa.array(numbers), "string"), ',"city":"', cities, '","amount":', amounts, "}"]
        rows = {
            "key": keys.cast(pa.binary()),
            "value": pc.binary_join_element_wise(*parts, "").cast(pa.binary()),
            "timestamp": pa.array((FIRST_MS + numbers * 86_400_000 // records) * 1000, pa.timestamp("us", "UTC")),
            "partition": pa.array(numbers % PARTITIONS, pa.int32()),
        }
        log.topic("events").append(pa.table(rows))
    (directory / "parquet").mkdir()
    for partition in range(PARTITIONS):
        table = log.topic("events").scan(partition=partition).to_table().drop_columns("headers")
        text = table.column("value").cast(pa.string())
        pa.parquet.write_table(
            table.set_column(table.schema.get_field_index("value"), "value", text),
            directory / "parquet" / f"{partition}.parquet",
            compression="zstd",
            compression_level=1,
            use_dictionary=["topic", "partition", "timestampType"],
            row_group_size=BLOCK,
        )


def _cases(directory: Path, records: int) -> dict[str, dict[str, Callable[[], Any]]]:
    import duckdb

    from spark_segments.duckdb import TopicDatabase

    log = LogDir.open(str(directory / "log"))
    plain, parquet = TopicDatabase(log), duckdb.connect()
    typed = TopicDatabase(log, formats={"value.format": "json", "value.schema": _DDL})
    files = f"'{directory}/parquet/*.parquet'"
    middle = records // PARTITIONS // 2
    newest = f'(SELECT DISTINCT ON (key) * FROM {files} ORDER BY "offset" DESC)'
    of_topic = {"rows": "events", "latest": '"events$latest"'}
    of_topic |= {"city": "value.city", "amount": "value.amount"}
    of_files = {"rows": files, "latest": newest}
    of_files |= {"city": "value->>'city'", "amount": "(value->>'amount')::DOUBLE"}
    cases = {}
    for name, query in QUERIES.items():
        database = typed if "typed" in name else plain
        ours, theirs = query.format(middle=middle, **of_topic), query.format(middle=middle, **of_files)
        cases[name] = {
            "topic": lambda database=database, ours=ours: database.sql(ours).to_table(),
            "Parquet": lambda theirs=theirs: parquet.sql(theirs).to_arrow_table(),
        }
    return cases


def _in_turns(cases: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, case in cases.items():
            began = time.process_time()
            case()
            if turn:  # the first is warm-up
                seconds[name].append(time.process_time() - began)
    return seconds
