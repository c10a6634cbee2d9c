"""A Spark stream into Kafka, exactly once, which Spark's own sink is not: into a topic here, then by a replay.

The stream writes each of its batches once to the topic, over restarts, and the replay sends each committed record once
to the cluster, in a transaction with its own position. Both run beside each other, and either may be killed at any
moment and started again:

    python examples/stream_into_kafka.py /data/log orders /data/checkpoint
    segments replay /data/log broker:9092 --topic orders --follow

Consumers there read with isolation.level=read_committed.
"""

from __future__ import annotations

import argparse

from spark_segments.spark.session import spark_session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log_dir")
    parser.add_argument("topic")
    parser.add_argument("checkpoint")
    parser.add_argument("--rows", type=int, default=1000, help="of a batch")
    parser.add_argument("--until", type=int, help="a value, at which the stream ends; else it goes on")
    arguments = parser.parse_args()
    spark = spark_session("stream into Kafka", config={"spark.ui.enabled": "false"})
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", arguments.rows).load()
    rows = numbers.selectExpr("cast(value as string) as value", "cast(value % 3 as int) as partition")
    query = (
        rows.writeStream.format("segments")
        .option("topic", arguments.topic)
        .option("checkpointLocation", arguments.checkpoint)
        .trigger(processingTime="0 seconds")
        .start(arguments.log_dir)
    )
    while query.isActive and not _has_reached(query.lastProgress, arguments.until, arguments.rows):
        query.awaitTermination(1)
    query.stop()


def _has_reached(progress: object, until: int | None, rows: int) -> bool:
    return until is not None and progress is not None and (progress["batchId"] + 1) * rows >= until  # type: ignore[index]


if __name__ == "__main__":
    main()
