"""The stream writer: a trigger against a sink that does nothing, into a new topic and into a topic that has thousands
of versions already. The sinks take turns.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.maintenance import roll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 2
ROWS = 100
TURNS = 3
# The JVM compiles for a while, and the first trigger of a query starts Python processes.
WARM_TRIGGERS = 15
ROLL_VERSIONS = 1000
PARTS = ("triggerExecution", "addBatch")


def measure_sink(
    spark: SparkSession,
    directory: Path,
    triggers: int,
    versions: int,
    figures: dict[str, float],
    ratios: dict[str, float],
) -> None:
    """Batches of the source that does nothing, into nothing and into both topics."""
    log = LogDir.create(str(directory / "log"))
    for topic in ("new", "old"):
        log.create_topic(topic, PARTITIONS)
    make_versions(log, "old", versions, figures)
    found: dict[str, list[dict[str, int]]] = {"nothing": [], "new": [], "old": []}
    each = -(-triggers // TURNS)
    for turn in range(TURNS):
        for name, durations in found.items():
            topic = None if name == "nothing" else name
            durations += sink_triggers(spark, log.uri, topic, str(directory / f"{name}-{turn}"), each)
    names = {"nothing": "sink, nothing", "new": "sink, new topic", "old": f"sink, topic of {versions} versions"}
    for name, durations in found.items():
        for part in PARTS:
            figures[f"{names[name]}, {part}, ms"] = round(statistics.median(one[part] for one in durations), 1)
        times = sorted(one["triggerExecution"] for one in durations)
        figures[f"{names[name]}, triggerExecution p99, ms"] = float(times[int(len(times) * 0.99)])
    new, old, nothing = (figures[f"{names[name]}, triggerExecution, ms"] for name in ("new", "old", "nothing"))
    ratios["trigger, sink / nothing"] = round(new / nothing, 2)
    ratios[f"trigger, topic of {versions} versions / new topic"] = round(old / new, 2)


def make_versions(log: LogDir, topic: str, versions: int, figures: dict[str, float]) -> None:
    """Commits small appends, with a roll now and then; the time of the first and of the last tenth of the commits."""
    rows = pa.table({"value": ["v"] * PARTITIONS, "partition": pa.array(range(PARTITIONS), pa.int32())})
    seconds = []
    while (version := log.topic(topic).snapshot.version) < versions:
        for _ in range(min(ROLL_VERSIONS, versions - version)):
            started = time.perf_counter()
            log.topic(topic).append(rows)
            seconds.append(time.perf_counter() - started)
        roll(log, topics=[topic])
    tenth = max(1, len(seconds) // 10)
    for name, part in (("first", seconds[:tenth]), ("last", seconds[-tenth:])):
        figures[f"append, {name} tenth of {versions} versions, ms"] = round(1000 * statistics.median(part), 1)
    files = log.storage.list(f"_manifest/{topic}", recursive=True)
    figures[f"manifest of {versions} versions, files"] = len(files)
    figures[f"manifest of {versions} versions, MiB"] = round(sum(file.size for file in files) / 2**20, 1)


def sink_triggers(
    spark: SparkSession, uri: str, topic: str | None, checkpoint: str, count: int
) -> list[dict[str, int]]:
    """Durations in ms of `count` triggers, after some that do not count, into a topic or into nothing."""
    frame = spark.readStream.format("nothing").options(tasks=str(PARTITIONS), rows=str(ROWS)).load()
    writer = frame.select("key", "value", "partition").writeStream.option("checkpointLocation", checkpoint)
    writer = writer.format("nothing") if topic is None else writer.format("segments").option("topic", topic)
    query = writer.trigger(processingTime="0 seconds").start(uri)
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
