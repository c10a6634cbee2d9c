"""A Spark session of `waits`: what its first and second write and count take, of a topic or a source that does nothing.

`_session_side.py segments|prebuilt DIRECTORY` prints a line of JSON: {name: [CPU seconds of all processes, seconds]}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000
_TICKS = os.sysconf("SC_CLK_TCK")


def main(side: str, directory: str) -> None:
    local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    local |= {"spark.ui.showConsoleProgress": "false", "spark.sql.warehouse.dir": f"{directory}/warehouse"}
    spark = spark_session("waits", master="local[2]", config=local)
    spark.sparkContext.setLogLevel("ERROR")
    write, count = {"segments": _segments, "prebuilt": _prebuilt}[side](spark, directory)
    found = {}
    works = {"first write": write, "second write": write, "first count": count, "second count": count}
    for name, work in works.items():
        cpu, wall = _cpu_seconds(), time.perf_counter()
        work()
        found[name] = [_cpu_seconds() - cpu, time.perf_counter() - wall]
    spark.stop()
    print(json.dumps(found))


def _segments(spark: SparkSession, directory: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    log = LogDir.create(f"{directory}/log")
    log.create_topic("t", 2)
    rows = spark.range(ROWS).selectExpr("cast(id as string) as value")
    return (
        lambda: rows.write.format("segments").mode("append").option("topic", "t").save(log.uri),
        lambda: spark.read.format("segments").option("subscribe", "t").load(log.uri).count(),
    )


def _prebuilt(spark: SparkSession, directory: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    from benchmarks._prebuilt import PrebuiltSource  # this tree's, where another commit's package is measured

    spark.dataSource.register(PrebuiltSource)
    path = f"{directory}/batch.arrow"
    values = {"key": None, "value": b"v", "topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestampType": 0}
    schema = PrebuiltSource.arrow_schema()
    batch = pa.RecordBatch.from_pylist([values] * (ROWS // 2), schema)
    with pa.OSFile(path, "w") as file, pa.ipc.new_stream(file, schema) as stream:
        stream.write_batch(batch)
    rows = spark.range(ROWS).selectExpr("cast(id as string) as value")
    options = {"path": path, "tasks": "2", "rows": str(ROWS // 2)}
    return (
        lambda: rows.write.format("prebuilt").mode("append").save(),
        lambda: spark.read.format("prebuilt").options(**options).load().count(),
    )


def _cpu_seconds() -> float:
    """Of this process and all below it: Spark starts a JVM, and that a Python process for each thing it asks."""
    seconds, parents = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        seconds[process] = sum(map(int, fields[11:15])) / _TICKS  # with the processes that it waited for
    return sum(seconds[process] for process in seconds if _is_below(process, parents))


def _is_below(process: int, parents: dict[int, int]) -> bool:
    while process != os.getpid():
        if process not in parents:
            return False
        process = parents[process]
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
