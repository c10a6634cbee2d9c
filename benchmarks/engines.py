"""Engines reading our files, each beside the same engine reading Parquet of the same rows; writes on Sail; memory.

Each engine has a process. Spark and Sail write to `noop`, DuckDB and Polars give all rows as Arrow or frames, batch by
batch. `value` is that column alone. Parquet has no headers column, and neither is it asked of a topic.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet

from benchmarks.measure import TURNS
from benchmarks.spark import CODECS, PARTITIONS, noop, record_batches, settings
from spark_segments import LogDir
from spark_segments.format.layout import RECORD_SCHEMA

RECORDS = {100: 2_000_000, 1024: 400_000}
_ALL = [name for name in RECORD_SCHEMA.names if name != "headers"]
COLUMNS = {"full rows": _ALL, "value": ["value"]}

Read = Callable[[str, list[str]], Any]  # of a path or topic, and columns


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--in-process", help=argparse.SUPPRESS)  # the engine that this process measures


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.in_process:
        return measure(arguments.in_process, Path(arguments.directory), arguments.turns)
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        write_files(Path(directory), arguments.scale)
        for engine in arguments.engines:
            command = [sys.executable, "-m", "benchmarks", "engines", "--output", "json", "--in-process", engine]
            command += ["--directory", directory, "--turns", str(arguments.turns)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            figures |= found["figures"]
            ratios |= found["ratios"]
    return {"turns": arguments.turns, "scale": arguments.scale, "figures": figures, "ratios": ratios}


def write_files(directory: Path, scale: float) -> None:
    """Topics and Parquet files of the same rows, by codec and size of value."""
    log = LogDir.create(str(directory / "log"))
    for size, records in RECORDS.items():
        count = round(records * scale) // PARTITIONS
        for codec, (config, _) in CODECS.items():
            topic = f"{codec}-{size}"
            log.create_topic(topic, PARTITIONS, config)
            (directory / "parquet" / topic).mkdir(parents=True)
            for part in range(PARTITIONS):
                rows = pa.Table.from_batches(record_batches(count, size, seed=part))
                log.topic(topic).append(rows.append_column("partition", pa.array([part] * count, pa.int32())))
                pa.parquet.write_table(
                    pa.Table.from_batches(list(log.topic(topic).scan(partition=part, columns=_ALL).batches())),
                    directory / "parquet" / topic / f"{part}.parquet",
                    compression="none" if codec == "none" else "zstd",
                    compression_level=None if codec == "none" else 1,
                    use_dictionary=["topic", "partition", "timestampType"],
                    row_group_size=250_000,
                )


def measure(engine: str, directory: Path, turns: int) -> dict[str, Any]:
    """The figures of one engine, in this process."""
    topics, parquet, close, session = ENGINES[engine](directory)
    figures: dict[str, Any] = {}
    ratios: dict[str, Any] = {}
    log = LogDir.open(str(directory / "log"))
    for topic in [f"{codec}-{size}" for size in RECORDS for codec in CODECS]:
        millions = sum(end for _, end in log.topic(topic).offsets().values()) / 1e6
        codec, _, size = topic.rpartition("-")
        for what, columns in COLUMNS.items():
            name = f"{size} B, {codec}, {what}"
            cases = {"log": (topics, topic), "Parquet": (parquet, str(directory / "parquet" / topic))}
            seconds = _in_turns({kind: _call(read, place, columns) for kind, (read, place) in cases.items()}, turns)
            _note(f"{engine} reads", name, seconds, millions, figures, ratios)
        if engine == "sail":
            frame = session.read.parquet(str(directory / "parquet" / topic)).select("key", "value", "timestamp")
            log.create_topic(f"{topic}-written", PARTITIONS, CODECS[codec][0])
            writes = {"log": _to_topic(frame, log.uri, f"{topic}-written"), "Parquet": _to_parquet(frame, directory)}
            _note("sail writes", f"{size} B, {codec}", _in_turns(writes, turns), millions, figures, ratios)
    if engine != "spark":  # whose work is done in other processes
        figures[f"{engine} peak RSS MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    close()
    return {"figures": figures, "ratios": ratios}


def _call(read: Read, place: str, columns: list[str]) -> Callable[[], Any]:
    return lambda: read(place, columns)


def _to_topic(frame: Any, uri: str, topic: str) -> Callable[[], Any]:
    return lambda: frame.write.format("segments").mode("append").option("topic", topic).save(uri)


def _to_parquet(frame: Any, directory: Path) -> Callable[[], Any]:
    writer = frame.write.mode("overwrite").option("compression", "zstd(1)")
    return lambda: writer.parquet(str(directory / "written"))


def _in_turns(cases: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, case in cases.items():
            began = time.perf_counter()
            case()
            if turn:  # the first is warm-up
                seconds[name].append(time.perf_counter() - began)
    return seconds


def _note(
    verb: str,
    name: str,
    seconds: dict[str, list[float]],
    millions: float,
    figures: dict[str, Any],
    ratios: dict[str, Any],
) -> None:
    for kind, times in seconds.items():
        figures[f"{verb} {kind} Mrecords/s, {name}"] = round(millions / median(times), 2)
    pairs = zip(seconds["log"], seconds["Parquet"], strict=True)
    ratios[f"{verb} / its Parquet, {name}"] = round(median(parquet / ours for ours, parquet in pairs), 2)


def _arrow(directory: Path) -> tuple[Read, Read, Callable[[], None], Any]:
    log = LogDir.open(str(directory / "log"))
    return (
        lambda topic, columns: _drain(log.topic(topic).scan(columns=columns, value_type="binary_view").to_reader()),
        lambda path, columns: _drain(pa.dataset.dataset(path).scanner(columns=columns).to_reader()),
        lambda: None,
        None,
    )


def _drain(stream: Any) -> int:
    return sum(batch.num_rows for batch in stream)


def _duckdb(directory: Path) -> tuple[Read, Read, Callable[[], None], Any]:
    from spark_segments.duckdb import TopicDatabase

    database = TopicDatabase(LogDir.open(str(directory / "log")))

    def select(columns: list[str], source: str) -> int:
        names = ", ".join(f'"{name}"' for name in columns)
        return _drain(database.sql(f"SELECT {names} FROM {source}").batches())

    return (
        lambda topic, columns: select(columns, f'"{topic}"'),
        lambda path, columns: select(columns, f"'{path}/*.parquet'"),
        lambda: database.__exit__(),
        None,
    )


def _polars(directory: Path) -> tuple[Read, Read, Callable[[], None], Any]:
    import polars as pl

    from spark_segments.polars import scan_topic

    def drain(frame: pl.LazyFrame, columns: list[str]) -> int:
        return sum(one.height for one in frame.select(columns).collect_batches())

    return (
        lambda topic, columns: drain(scan_topic(str(directory / "log"), topic), columns),
        lambda path, columns: drain(pl.scan_parquet(f"{path}/*.parquet"), columns),
        lambda: None,
        None,
    )


def _sail(directory: Path) -> tuple[Read, Read, Callable[[], None], Any]:
    from pysail.spark import SparkConnectServer

    from spark_segments.spark.session import spark_session

    server = SparkConnectServer(ip="127.0.0.1", port=0)
    server.start(background=True)
    session = spark_session(master=f"sc://127.0.0.1:{server.listening_address[1]}")

    def close() -> None:
        session.stop()
        server.stop()

    return (*_frames(session, directory), close, session)


def _spark(directory: Path) -> tuple[Read, Read, Callable[[], None], Any]:
    from spark_segments.spark.session import spark_session

    session = spark_session("engines", master="local[2]", config=settings(str(directory)))
    session.sparkContext.setLogLevel("ERROR")
    return (*_frames(session, directory), session.stop, session)


def _frames(session: Any, directory: Path) -> tuple[Read, Read]:
    uri = str(directory / "log")

    def topics(topic: str, columns: list[str]) -> None:
        reader = session.read.format("segments").option("subscribe", topic)
        noop((reader.schema("value binary") if columns == ["value"] else reader).load(uri))

    return topics, lambda path, columns: noop(session.read.parquet(path).select(*columns))


ENGINES: dict[str, Callable[[Path], tuple[Read, Read, Callable[[], None], Any]]] = {
    "arrow": _arrow,
    "duckdb": _duckdb,
    "polars": _polars,
    "sail": _sail,
    "spark": _spark,
}
