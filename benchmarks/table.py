"""Tables beside a topic, one of each format: three columns by Spark's Parquet reader over the live files, against
Parquet that Spark itself wrote of the same rows, and against a read of the topic; and the writing of all. Spark on two
cores, reads to `noop`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from benchmarks.measure import in_turns
from benchmarks.spark import settings
from spark_segments import LogDir
from spark_segments.maintenance import table
from spark_segments.spark.session import spark_session

RECORDS = 50_000_000
PARTITIONS = 4
VALUE_BYTES = 60
COLUMNS = ("key", "offset", "timestamp")
FORMATS = ("delta", "iceberg")
TURNS = 3
_APPEND_ROWS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    records = round(RECORDS * arguments.scale)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        log = LogDir.create(str(Path(directory, "log")))
        log.create_topic("orders", partitions=PARTITIONS)
        generator = np.random.default_rng(7)
        for start in range(0, records, _APPEND_ROWS):
            log.topic("orders").append(_rows(generator, start, min(_APPEND_ROWS, records - start)))
        spark = spark_session("benchmark", master="local[2]", config=settings(directory))
        spark.sparkContext.setLogLevel("ERROR")
        topic = spark.read.format("segments").options(subscribe="orders", includeHeaders="true").load(log.uri)
        parquet = Path(directory, "parquet")

        def write_table(table_format: str, session: Any) -> None:
            shutil.rmtree(Path(directory, table_format), ignore_errors=True)
            uri = str(Path(directory, table_format, "table"))
            report = table(log, topics=["orders"], table_uri=uri, table_format=table_format, spark=session)
            assert report.details["orders"]["rows"] == records and not report.failed

        def write_parquet() -> None:
            frame = topic.select("key", "value", "headers", "partition", "offset", "timestamp")
            frame.write.mode("overwrite").parquet(str(parquet))

        try:
            sessions = {"by Spark": spark, "without Spark": None}
            writes = {
                f"{name} {how}": partial(write_table, name, session)
                for name in FORMATS
                for how, session in sessions.items()
            }
            written = in_turns({**writes, "Spark's Parquet": write_parquet}, turns=arguments.turns)
            iceberg = load_catalog("segments", type="sql", uri=f"sqlite:///{directory}/iceberg/iceberg.sqlite")
            tasks = iceberg.load_table("iceberg.table").scan().plan_files()
            files = {
                "delta": DeltaTable(str(Path(directory, "delta", "table"))).file_uris(),
                "iceberg": [task.file.file_path for task in tasks],
                "Spark's Parquet": [str(parquet)],
            }
            frames = {name: spark.read.parquet(*paths) for name, paths in files.items()} | {"topic": topic}
            counts = {name: frame.count() for name, frame in frames.items()}
            assert set(counts.values()) == {records}, counts
            reads = {
                name: (lambda frame=frame: frame.select(*COLUMNS).write.format("noop").mode("overwrite").save())
                for name, frame in frames.items()
            }
            read = in_turns(reads, turns=arguments.turns)
        finally:
            spark.stop()
        sizes = {
            name: sum(file.stat().st_size for file in Path(directory, place).rglob("*.parquet"))
            for name, place in {**dict(zip(FORMATS, FORMATS, strict=True)), "Spark's Parquet": "parquet"}.items()
        }
    figures = {f"write, {name} s": written.median(name) for name in (*writes, "Spark's Parquet")}
    figures |= {f"read three columns, {name} s": read.median(name) for name in reads}
    figures |= {f"{name} MiB": size / 2**20 for name, size in sizes.items()}
    ratios = {f"write: {name} / Spark's Parquet": written.speed_up(name, "Spark's Parquet") for name in writes}
    for name in FORMATS:
        ratios |= {f"read: {name} / {other}": read.speed_up(name, other) for other in ("Spark's Parquet", "topic")}
    return {"turns": arguments.turns, "records": records, "figures": figures, "ratios": ratios}


def _rows(generator: np.random.Generator, start: int, count: int) -> pa.Table:
    """Keys of a million customers, values of half random bytes, a record a millisecond."""
    values = generator.integers(0, 16, count * VALUE_BYTES, np.uint8).tobytes()
    ends = np.arange(0, len(values) + 1, VALUE_BYTES, dtype=np.int32)
    keys = np.char.add("customer-", generator.integers(0, 1_000_000, count).astype("U7"))
    return pa.table(
        {
            "key": pa.array(keys).cast(pa.binary()),
            "value": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(values)]),
            "timestamp": pa.array(np.arange(start, start + count), pa.timestamp("ms", "UTC")),
        }
    )
