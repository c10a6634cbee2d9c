"""The view latest of a topic of which 1 % of the bytes is dirty: what it takes beyond a plain read of the same range,
against what grouping all records by key takes beyond it. Spark on two cores, all columns, to `noop`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import TURNS, in_turns
from benchmarks.spark import settings
from spark_segments import LogDir
from spark_segments.maintenance import compact, roll
from spark_segments.spark.session import spark_session

RECORDS = 4_000_000
PARTITIONS = 4
VALUE_BYTES = 100
DIRTY_SHARE = 0.01
_APPEND_ROWS = 500_000
_NEVER_OLD_MS = "1000000000000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of records")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    records = round(RECORDS * arguments.scale)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        log = LogDir.create(str(Path(directory, "log")))
        dirty = make_topic(log, records)
        spark = spark_session("benchmark", master="local[2]", config=settings(directory))
        spark.sparkContext.setLogLevel("ERROR")
        try:
            plain = spark.read.format("segments").option("subscribe", "states").load(log.uri)
            view = spark.read.format("segments").options(subscribe="states", view="latest").load(log.uri)
            newest = "max_by(struct(value, topic, timestamp, timestampType), offset) as newest"
            grouped = plain.groupBy("partition", "key").agg(_expression(newest))
            assert view.count() == grouped.count() == records
            frames = {"plain": plain, "view": view, "group": grouped}
            cases = {
                name: (lambda frame=frame: frame.write.format("noop").mode("overwrite").save())
                for name, frame in frames.items()
            }
            timings = in_turns(cases, turns=arguments.turns, warm_turns=2)
        finally:
            spark.stop()
    figures = {f"{name} s": timings.median(name) for name in cases}
    figures["dirty share of bytes"] = dirty
    turns = zip(*(timings.seconds[name] for name in ("plain", "view", "group")), strict=True)
    beyond = [(view - plain) / (group - plain) for plain, view, group in turns]
    return {
        "turns": arguments.turns,
        "scale": arguments.scale,
        "figures": figures,
        "ratios": {"view beyond plain / group beyond plain": float(np.median(beyond))},
    }


def make_topic(log: LogDir, records: int) -> float:
    """Topic states: a record for each key, cleaned, and newer ones for 1 % of the keys. Their share of the bytes."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": _NEVER_OLD_MS}
    log.create_topic("states", partitions=PARTITIONS, config=config)
    generator = np.random.default_rng(7)
    for start in range(0, records, _APPEND_ROWS):
        log.topic("states").append(_rows(generator, np.arange(start, min(records, start + _APPEND_ROWS))))
    later_ms = log.storage.now_ms() + 30 * 24 * 3_600_000
    roll(log, topics=["states"], now_ms=later_ms)
    compact(log, topics=["states"])
    log.topic("states").append(_rows(generator, generator.choice(records, round(records * DIRTY_SHARE), replace=False)))
    partitions = log.topic("states").describe()["partitions"]
    assert all(0 < row["first_dirty_offset"] < row["log_end_offset"] for row in partitions)
    live = log.topic("states").snapshot.live
    sizes = live.column("log_bytes").to_numpy()
    is_chunk = np.array([state == "chunk" for state in live.column("state").to_pylist()])
    return float(sizes[is_chunk].sum() / sizes.sum())


def _rows(generator: np.random.Generator, numbers: np.ndarray) -> pa.Table:
    values = generator.integers(0, 256, len(numbers) * VALUE_BYTES, np.uint8).tobytes()
    offsets = np.arange(0, len(values) + 1, VALUE_BYTES, dtype=np.int32)
    value = pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(values)])
    return pa.table({"key": pa.array([b"customer-%d" % number for number in numbers]), "value": value})


def _expression(text: str) -> Any:
    from pyspark.sql import functions

    return functions.expr(text)
