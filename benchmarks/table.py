"""A table beside a topic: three of its columns by Spark's Parquet reader over the live files, against Parquet that
Spark itself wrote of the same rows, and against a read of the topic; and the writing of both. Spark on two cores, reads
to `noop`.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from benchmarks.measure import in_turns
from benchmarks.spark import settings
from spark_segments import LogDir
from spark_segments.maintenance import table
from spark_segments.spark.session import spark_session

RECORDS = 50_000_000
PARTITIONS = 4
VALUE_BYTES = 60
COLUMNS = ("key", "offset", "timestamp")
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
        beside, parquet = Path(directory, "table"), Path(directory, "parquet")

        def write_table(session: Any) -> None:
            shutil.rmtree(beside, ignore_errors=True)
            report = table(log, topics=["orders"], table_uri=str(beside), spark=session)
            assert report.details["orders"]["rows"] == records and not report.failed

        def write_parquet() -> None:
            frame = topic.select("key", "value", "headers", "partition", "offset", "timestamp")
            frame.write.mode("overwrite").parquet(str(parquet))

        try:
            writes = {
                "table by Spark": lambda: write_table(spark),
                "table without Spark": lambda: write_table(None),
                "Spark's Parquet": write_parquet,
            }
            written = in_turns(writes, turns=arguments.turns)
            frames = {
                "table": spark.read.parquet(*DeltaTable(str(beside)).file_uris()),
                "Spark's Parquet": spark.read.parquet(str(parquet)),
                "topic": topic,
            }
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
            "table": sum(file.stat().st_size for file in beside.rglob("*.parquet")),
            "Spark's Parquet": sum(file.stat().st_size for file in parquet.rglob("*.parquet")),
        }
    figures = {f"write, {name} s": written.median(name) for name in writes}
    figures |= {f"read three columns, {name} s": read.median(name) for name in reads}
    figures |= {f"{name} MiB": size / 2**20 for name, size in sizes.items()}
    return {
        "turns": arguments.turns,
        "records": records,
        "figures": figures,
        "ratios": {
            "write: table by Spark / Spark's Parquet": written.speed_up("table by Spark", "Spark's Parquet"),
            "write: table without Spark / Spark's Parquet": written.speed_up("table without Spark", "Spark's Parquet"),
            "read: table / Spark's Parquet": read.speed_up("table", "Spark's Parquet"),
            "read: table / topic": read.speed_up("table", "topic"),
        },
    }


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
