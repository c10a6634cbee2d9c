"""A Spark session of `waits`: what its first and second write and count take, of a topic or a source that does nothing.

`_session_side.py segments|prebuilt DIRECTORY` prints a line of JSON: {name: [CPU seconds of all processes, seconds]}.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks.measure import cpu_seconds
from spark_segments import LogDir
from spark_segments.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 1000


def main(side: str, directory: str) -> None:
    local = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    local |= {"spark.ui.showConsoleProgress": "false", "spark.sql.warehouse.dir": f"{directory}/warehouse"}
    spark = spark_session("waits", master="local[2]", config=local)
    spark.sparkContext.setLogLevel("ERROR")
    write, count = {"segments": _segments, "prebuilt": _prebuilt}[side](spark, directory)
    found = {}
    works = {"first write": write, "second write": write, "first count": count, "second count": count}
    for name, work in works.items():
        cpu, wall = cpu_seconds(), time.perf_counter()
        work()
        found[name] = [cpu_seconds() - cpu, time.perf_counter() - wall]
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


if __name__ == "__main__":
    main(*sys.argv[1:])
