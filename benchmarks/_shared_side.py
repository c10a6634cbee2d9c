"""One side of `benchmarks.shared`: a process that has one version of the package and does what it is told.

A line of JSON on standard input is a case with its arguments, a line on standard output its seconds or its result.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from spark_segments import LogDir
from spark_segments.spark.session import spark_session


class Side:
    def __init__(self, directory: str, source: str, settings: dict[str, str]) -> None:
        self._directory = Path(directory)
        self._spark = spark_session("benchmark", master="local[2]", config=settings)
        self._spark.sparkContext.setLogLevel("ERROR")
        self._frame = self._spark.read.parquet(source).cache()
        self._frame.count()

    def write(self, partitions: int) -> float:
        """Seconds of a write of the whole frame, a task a file of the source, into a new topic."""
        from pyspark.sql import functions

        shutil.rmtree(self._directory, ignore_errors=True)
        log = LogDir.create(str(self._directory))
        log.create_topic("t", partitions)
        frame = self._frame.withColumn("partition", (functions.col("number") % partitions).cast("int")).drop("number")
        started = time.perf_counter()
        frame.write.format("segments").option("topic", "t").mode("append").save(str(self._directory))
        return time.perf_counter() - started

    def read(self) -> float:
        """Seconds of a read of the topic that was written last."""
        started = time.perf_counter()
        frame = self._spark.read.format("segments").option("subscribe", "t").load(str(self._directory))
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - started

    def files(self) -> dict[str, int]:
        """{"files": files beside the manifest, "rows": rows of the manifest} of the topic that was written last."""
        log = LogDir.open(str(self._directory))
        files = [info for info in log.storage.list(recursive=True) if not info.path.startswith("_")]
        return {"files": len(files), "rows": log.topic("t").snapshot.live.num_rows}


class StoreSide:
    """Without Spark, against an object store."""

    def __init__(self, uri: str, options: dict[str, str]) -> None:
        self._uri, self._options = uri, options

    def create(self, partitions: int) -> None:
        LogDir.create(self._uri, self._options).create_topic("t", partitions)

    def append(self, rows: int) -> None:
        log = LogDir.open(self._uri, self._options)
        partitions = len(log.topic("t").offsets())
        numbers = pa.array((np.arange(rows) % partitions).astype(np.int32))
        log.topic("t").append(pa.table({"value": [b"v" * 100] * rows, "partition": numbers}))

    def read_partition(self) -> int:
        log = LogDir.open(self._uri, self._options)
        return sum(batch.num_rows for batch in log.topic("t").scan(partition=3).batches())

    def open(self) -> None:
        LogDir.open(self._uri, self._options).topic("t").offsets()


def main() -> None:
    arguments = json.loads(sys.stdin.readline())
    side: Any = StoreSide(**arguments) if "uri" in arguments else Side(**arguments)
    print("ready", flush=True)
    for line in sys.stdin:
        name, *values = json.loads(line)
        case: Callable[..., Any] = getattr(side, name)
        print(json.dumps({"result": case(*values)}), flush=True)


if __name__ == "__main__":
    main()
