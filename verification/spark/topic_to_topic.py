"""python -m verification.spark.topic_to_topic LOG_DIR CHECKPOINT MODE [--end]: a query that copies topic source to
topic sink until it is killed, or with --end up to the end of what is there.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from spark_segments import spark_session
from spark_segments.spark import PYSPARK
from verification.spark.queries import NO_WORKER

MODES = ("plain", "foreach", "connect", "cluster", "second")
MOST_OFFSETS = 200

_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.showConsoleProgress": "false",
}


def session(mode: str) -> Any:
    """A session: on a cluster of two executors, by Spark Connect, or in this process."""
    if mode == "connect":
        from pyspark.sql import SparkSession

        from spark_segments.spark.session import prepare_environment

        prepare_environment()
        builder = SparkSession.builder.remote("local[2]")
        for name, value in _CONFIG.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    return spark_session("copy", master="local-cluster[2,1,1024]" if mode == "cluster" else "local[2]", config=_CONFIG)


def start(spark: Any, uri: str, checkpoint: str, mode: str, *, end: bool) -> Any:
    """The query, begun or gone on with."""
    source = spark.readStream.format("segments").option("subscribe", "source").option("startingOffsets", "earliest")
    limited = not end and PYSPARK >= (4, 2)
    rows = (source.option("maxOffsetsPerTrigger", MOST_OFFSETS) if limited else source).load(uri)
    rows = rows.select("key", "value", "partition", "timestamp")

    if mode == "foreach":

        def write_batch(frame: Any, number: int) -> None:
            options = {"topic": "sink", "txnAppId": "copy", "txnVersion": str(number)}
            frame.write.format("segments").mode("append").options(**options).save(uri)

        writer = rows.writeStream.foreachBatch(write_batch)
    else:
        writer = rows.writeStream.format("segments").option("topic", "sink").option("path", uri)
    writer = writer.option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if end else writer.trigger(processingTime="0 seconds")).start()


def committed_batches(checkpoint: Path) -> int:
    """How many batches a query has committed. Before PySpark 4.2 one with availableNow ends after a single one."""
    return len(list((checkpoint / "commits").glob("[0-9]*")))


def main() -> None:
    uri, checkpoint, mode, *rest = sys.argv[1:]
    end = rest == ["--end"]
    spark = session(mode)
    if mode != "connect":
        spark.sparkContext.setLogLevel("FATAL")
    while True:
        there = committed_batches(Path(checkpoint))
        query = start(spark, uri, checkpoint, mode, end=end)
        try:
            query.awaitTermination()
            if PYSPARK >= (4, 2) or committed_batches(Path(checkpoint)) == there:
                return
        except Exception as error:  # a worker was killed, or the other driver was faster: the query goes on
            print(f"ended: {' '.join(str(error).split())[:2000]}", file=sys.stderr, flush=True)
            if end and NO_WORKER not in str(error):
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
