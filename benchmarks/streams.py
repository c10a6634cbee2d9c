"""Streams on two cores: a trigger against a Python source and sink that do nothing, an idle trigger over a topic of
very many segments, a trigger of the sink, and catching up against the batch reader.

A trigger's time is Spark's own (`triggerExecution` of its progress), in the median. Source and nothing take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks._nothing import NothingSource
from benchmarks._stream_sink import measure_sink
from benchmarks.plan import make_topic, segment_rows
from benchmarks.spark import noop, record_batches, settings
from spark_segments import LogDir
from spark_segments.spark.session import spark_session
from spark_segments.spark.source import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 2
ROWS = 100
# The JVM compiles for a while, and the first trigger of a query starts Python processes.
WARM_TRIGGERS = 15
TURNS = 3
CATCH_UP_BATCHES = 2
VALUE_BYTES = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--triggers", type=int, default=300)
    parser.add_argument("--segments", type=int, default=10_000, help="of the topic of the idle trigger")
    parser.add_argument("--records", type=int, default=8_000_000, help="to catch up with")
    parser.add_argument("--versions", type=int, default=10_000, help="of the topic that a sink writes to")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        measure_idle(Path(directory, "idle"), arguments.segments, figures)
        config = settings(directory) | {"spark.sql.streaming.numRecentProgressUpdates": "100000"}
        spark = spark_session("benchmark", master="local[2]", config=config)
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(NothingSource)
        try:
            measure_triggers(spark, Path(directory, "triggers"), arguments.triggers, figures, ratios)
            sink = Path(directory, "sink")
            measure_sink(spark, sink, arguments.triggers, arguments.versions, figures, ratios)
            measure_catching_up(spark, Path(directory, "catching-up"), arguments.records, figures, ratios)
        finally:
            spark.stop()
    return {"triggers": arguments.triggers, "figures": figures, "ratios": ratios}


def measure_idle(directory: Path, segments: int, figures: dict[str, float]) -> None:
    """A trigger that finds nothing new, as Spark's process beside the driver runs it."""
    log = LogDir.create(str(directory))
    make_topic(log, segment_rows(10, segments // 10, removed=0.0, chunks=0.05), 10, {})
    source = Source({"path": log.uri, "subscribe": "orders", "startingOffsets": "earliest"})
    reader = source.stream_reader(source.schema())
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(reader.initialOffset(), limit)
    found = []
    for _ in range(50):
        started = time.perf_counter()
        assert reader.latestOffset(end, limit) == end
        reader.reportLatestOffset()
        found.append(time.perf_counter() - started)
    figures[f"idle trigger over {segments} segments, ms"] = round(1000 * statistics.median(found), 1)
    figures[f"idle trigger over {segments} segments, slowest, ms"] = round(1000 * max(found), 1)


def measure_triggers(
    spark: SparkSession, directory: Path, triggers: int, figures: dict[str, float], ratios: dict[str, float]
) -> None:
    """Each trigger of the topic reads what two appends before it left, one a partition."""
    log = LogDir.create(str(directory / "log"))
    log.create_topic("t", PARTITIONS)
    each = -(-triggers // TURNS)
    appends = TURNS * (each + WARM_TRIGGERS) + 10
    for _ in range(appends):
        log.topic("t").append(rows())
    nothing, found = [], []
    for turn in range(TURNS):
        frame = spark.readStream.format("nothing").options(tasks=str(PARTITIONS), rows=str(ROWS)).load()
        nothing += triggers_of(frame, str(directory / f"nothing-{turn}"), each)
        start = {str(number): turn * (each + WARM_TRIGGERS) * ROWS for number in range(PARTITIONS)}
        options = {
            "subscribe": "t",
            "startingOffsets": str({"t": start}).replace("'", '"'),
            "maxOffsetsPerTrigger": str(PARTITIONS * ROWS),
        }
        frame = spark.readStream.format("segments").options(**options).load(log.uri)
        found += triggers_of(frame, str(directory / f"segments-{turn}"), each)
    for name, one in (("nothing", nothing), ("source", found)):
        for part in one[0]:
            figures[f"{name}, {part}, ms"] = round(statistics.median(durations[part] for durations in one), 1)
        times = sorted(durations["triggerExecution"] for durations in one)
        figures[f"{name}, triggerExecution p99, ms"] = float(times[int(len(times) * 0.99)])
    whole = "triggerExecution"
    ratios["trigger, source / nothing"] = round(figures[f"source, {whole}, ms"] / figures[f"nothing, {whole}, ms"], 2)


def triggers_of(frame: DataFrame, checkpoint: str, count: int) -> list[dict[str, int]]:
    """Durations in ms of `count` triggers with a batch, after some that do not count, into a sink that does nothing."""
    writer = frame.writeStream.format("nothing").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        while True:
            done = [one.durationMs for one in query.recentProgress if one.numInputRows]
            if len(done) >= count + WARM_TRIGGERS:
                return [dict(one) for one in done[WARM_TRIGGERS : count + WARM_TRIGGERS]]
            if not query.isActive:
                raise RuntimeError(query.exception())
            time.sleep(0.5)
    finally:
        query.stop()


def measure_catching_up(
    spark: SparkSession, directory: Path, records: int, figures: dict[str, float], ratios: dict[str, float]
) -> None:
    """Trigger.AvailableNow in a few large batches against one batch read, both to `noop`."""
    log = LogDir.create(str(directory / "log"))
    log.create_topic("t", 4)
    for part in range(4):
        batches = record_batches(records // 4, VALUE_BYTES, seed=part)
        log.topic("t").append(in_partition(batch, part) for batch in batches)
    seconds: dict[str, list[float]] = {"batch": [], "stream": []}
    for turn in range(-1, TURNS):
        started = time.perf_counter()
        noop(spark.read.format("segments").option("subscribe", "t").load(log.uri))
        batch = time.perf_counter() - started
        options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(records // CATCH_UP_BATCHES)}
        frame = spark.readStream.format("segments").option("subscribe", "t").options(**options).load(log.uri)
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(directory / f"{turn}"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        done = [one for one in query.recentProgress if one.numInputRows]
        assert sum(one.numInputRows for one in done) == records
        if turn >= 0:
            seconds["batch"].append(batch)
            seconds["stream"].append(sum(one.durationMs["triggerExecution"] for one in done) / 1000)
    for name, found in seconds.items():
        figures[f"catching up, {name}, records/s"] = round(records / statistics.median(found))
    turns = zip(seconds["batch"], seconds["stream"], strict=True)
    ratios["catching up, stream / batch read"] = round(statistics.median(one / other for one, other in turns), 2)


def rows() -> pa.Table:
    """What one append brings: ROWS records for each partition."""
    count = PARTITIONS * ROWS
    partitions = [number for number in range(PARTITIONS) for _ in range(ROWS)]
    return pa.table(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array([b"v" * VALUE_BYTES] * count, pa.binary()),
            "partition": pa.array(partitions, pa.int32()),
        }
    )


def in_partition(batch: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """The batch with all of its rows in one partition."""
    names = [name for name in ("key", "value") if name in batch.schema.names]
    column = pa.array([partition] * batch.num_rows, pa.int32())
    return batch.select(names).append_column("partition", column)
