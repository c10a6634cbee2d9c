"""A key of 25 records among many: the look-up by an index against DuckDB and Spark over Parquet of the same rows (zstd,
else as pyarrow writes it; and with Bloom filters of the key, as Spark writes them); how fast the index is built against
a scan of keys; and how large it is.

CPU seconds in turns, of this process, and with Spark of the session's processes. JSON of 1 KiB, 8 partitions, all
rolled and all indexed. The topic of a tenth of the records shows how a look-up grows, and an append of a hundredth at
the end what it takes where that is not indexed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import TURNS, cpu_seconds
from spark_segments import LogDir
from spark_segments.maintenance import index, roll
from spark_segments.spark.session import spark_session

RECORDS = 5_000_000
PARTITIONS = 8
HITS = 25
_APPEND_ROWS = 100_000
_LATER_MS = 30 * 24 * 3_600_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    records = round(RECORDS * arguments.scale)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        log = LogDir.create(str(Path(directory, "log")))
        parquet = Path(directory, "parquet")
        parquet.mkdir()
        make_topic(log, "tenth", records // 10, None)
        make_topic(log, "events", records, parquet)
        scan_seconds = process_seconds(lambda: log.topic("events").scan(columns=["key", "offset"]).to_table())
        build_seconds = process_seconds(lambda: index(log, topics=["events"]))
        index(log, topics=["tenth"])
        key = b"customer-%d" % (records // HITS // 2)
        scan = log.topic("events").scan(keys=key)
        assert scan.coverage is not None and scan.coverage.scanned_offsets == 0
        assert scan.to_table().num_rows == HITS
        query = f"select * from '{parquet}/*.parquet' where key = '{key.decode()}'::BLOB"
        connection = duckdb.connect()
        assert len(connection.execute(query).fetchall()) == HITS
        blooms, by_spark = spark_cases(log, parquet, Path(directory, "blooms"), key)
        bloom_query = query.replace(str(parquet), str(blooms))
        cases = {
            "look-up": lambda: log.topic("events").scan(keys=key).to_table(),
            "look-up of a tenth": lambda: log.topic("tenth").scan(keys=b"customer-7").to_table(),
            "duckdb over parquet": lambda: connection.execute(query).fetchall(),
            "duckdb over parquet, bloom": lambda: connection.execute(bloom_query).fetchall(),
        }
        figures = in_turns(cases, arguments.turns, time.process_time)
        figures |= in_turns(by_spark, arguments.turns, cpu_seconds)
        rest = _rows(np.random.default_rng(8), np.arange(records // 100) + records)
        log.topic("events").append(rest)
        partly = {"look-up, 1 % not indexed": cases["look-up"]}
        figures |= in_turns(partly, arguments.turns, time.process_time)
        state = log.topic("events").describe()["key_index"]
    return {
        "turns": arguments.turns,
        "scale": arguments.scale,
        "figures": {
            **{f"{name} CPU s": seconds for name, seconds in figures.items()},
            "scan of keys CPU s": scan_seconds,
            "build CPU s": build_seconds,
            "index bytes a record": state["index_bytes"] / state["entries"],
            "runs": state["runs"],
            "index bytes read a look-up": scan.coverage.index_bytes,
        },
        "ratios": {
            "look-up / duckdb over parquet": figures["look-up"] / figures["duckdb over parquet"],
            "look-up / duckdb over parquet, bloom": figures["look-up"] / figures["duckdb over parquet, bloom"],
            "look-up, 1 % not indexed / look-up": figures["look-up, 1 % not indexed"] / figures["look-up"],
            "spark look-up / spark over parquet": figures["spark look-up"] / figures["spark over parquet"],
            "spark look-up / spark over parquet, bloom": figures["spark look-up"]
            / figures["spark over parquet, bloom"],
            "look-up / of a tenth": figures["look-up"] / figures["look-up of a tenth"],
            "scan of keys / build": scan_seconds / build_seconds,
        },
    }


def process_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process, in all of its threads, for a call."""
    started = time.process_time()
    work()
    return time.process_time() - started


def spark_cases(
    log: LogDir, parquet: Path, blooms: Path, key: bytes
) -> tuple[Path, dict[str, Callable[[], list[Any]]]]:
    """(a copy of the Parquet files with a Bloom filter of the key, the cases of a Spark session)"""
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = spark_session("keys", master="local[2]", config=quiet)
    spark.sparkContext.setLogLevel("ERROR")
    rows = spark.read.parquet(str(parquet))
    filters = {"parquet.bloom.filter.enabled#key": "true", "compression": "zstd"}
    rows.write.options(**filters).parquet(str(blooms))
    condition = f"key = X'{key.hex()}'"
    by_index = spark.read.format("segments").option("subscribe", "events").option("keys", json.dumps([key.decode()]))
    cases: dict[str, Callable[[], list[Any]]] = {
        "spark look-up": lambda: by_index.load(log.uri).select("key", "value").collect(),
        "spark over parquet": lambda: spark.read.parquet(str(parquet)).where(condition).collect(),
        "spark over parquet, bloom": lambda: spark.read.parquet(str(blooms)).where(condition).collect(),
    }
    for name, case in cases.items():
        assert len(case()) == HITS, name
    return blooms, cases


def in_turns(cases: Mapping[str, Callable[[], object]], turns: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median CPU seconds of each case by a clock; they are run in turns, after one that does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, work in cases.items():
            started = clock()
            work()
            if turn:
                seconds[name].append(clock() - started)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def make_topic(log: LogDir, topic: str, records: int, parquet: Path | None) -> None:
    """A topic in which each key has 25 records, spread over all of it, and the same rows as Parquet."""
    log.create_topic(topic, PARTITIONS)
    generator = np.random.default_rng(7)
    numbers = generator.permutation(np.arange(records) // HITS)
    for start in range(0, records, _APPEND_ROWS):
        rows = _rows(generator, numbers[start : start + _APPEND_ROWS])
        log.topic(topic).append(rows)
        if parquet is not None:
            pq.write_table(rows, parquet / f"{start:012d}.parquet", compression="zstd")
    roll(log, topics=[topic], now_ms=log.storage.now_ms() + _LATER_MS)


def _rows(generator: np.random.Generator, numbers: np.ndarray) -> pa.Table:
    words = generator.integers(0, 1 << 30, (len(numbers), 8)).tolist()
    values = [
        json.dumps({"customer": number, "words": row, "text": "x" * 880})
        for number, row in zip(numbers.tolist(), words, strict=True)
    ]
    return pa.table(
        {
            "key": pa.array([b"customer-%d" % number for number in numbers], pa.binary()),
            "value": pa.array(values, pa.string()).cast(pa.binary()),
        }
    )
