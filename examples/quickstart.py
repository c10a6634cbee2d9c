"""A log directory from nothing: a topic written and read by Spark, by offset and by time, and a real Kafka directory
beside it.

python examples/quickstart.py [LOG_DIR]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from spark_segments import LogDir
from spark_segments.spark.session import spark_session

KAFKA_DIRECTORY = Path(__file__).resolve().parent.parent / "tests" / "golden" / "broker-data"
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


def main() -> None:
    """Runs the whole tour and prints what it finds."""
    console = Console()
    uri = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quickstart-") + "/log"
    spark = spark_session("quickstart", config={"spark.ui.enabled": "false"})

    console.rule("1. A log directory and a topic")
    log = LogDir.create(uri)
    if "orders" not in log.topics():
        log.create_topic("orders", partitions=3, config={"retention.ms": "604800000"})
    console.print(f"{uri}: topics {log.topics()}")

    console.rule("2. Spark writes 100,000 records")
    orders = spark.range(100_000).selectExpr(
        "concat('customer-', id % 1000) as key",
        "to_json(named_struct('order', id, 'amount', round(rand(7) * 100, 2))) as value",
        f"timestamp_millis({START_MS} + id * 100) as timestamp",
    )
    orders.write.format("segments").mode("append").option("topic", "orders").save(uri)
    console.print(_partitions(log, "orders"))

    console.rule("3. Spark reads them back: the last five of each partition, by offset")
    last = {"orders": {str(number): end - 5 for number, (_, end) in log.topic("orders").offsets().items()}}
    frame = (
        spark.read.format("segments")
        .option("subscribe", "orders")
        .option("startingOffsets", json.dumps(last))
        .load(uri)
        .selectExpr("partition", "offset", "timestamp", "cast(key as string) key", "cast(value as string) value")
    )
    frame.orderBy("partition", "offset").show(15, truncate=False)

    console.rule("4. … and one hour of them, by time")
    hour = (
        spark.read.format("segments")
        .option("subscribe", "orders")
        .option("startingTimestamp", START_MS + HOUR_MS)
        .option("endingTimestamp", START_MS + 2 * HOUR_MS)
        .load(uri)
    )
    hour.groupBy("partition").agg({"offset": "count", "timestamp": "min"}).orderBy("partition").show(truncate=False)

    console.rule("5. A log directory that Kafka wrote, opened without a copy")
    kafka = LogDir.open(str(KAFKA_DIRECTORY))
    console.print(f"topics {kafka.topics()}")
    console.print(_partitions(kafka, "orders"))
    from_kafka = spark.read.format("segments").option("subscribe", "orders").load(str(KAFKA_DIRECTORY))
    from_kafka.selectExpr("partition", "offset", "timestamp", "cast(key as string) key", "length(value) bytes").show(5)
    console.print(f"{from_kafka.count():,} records, CRC of every batch checked")


def _partitions(log: LogDir, topic: str) -> Table:
    table = Table("partition", "log start", "log end", "segments", "chunks", "records", "bytes")
    for row in log.topic(topic).describe()["partitions"]:
        cells = ("partition", "log_start_offset", "log_end_offset", "segments", "chunks", "records", "size_bytes")
        table.add_row(*(f"{row[cell]:,}" for cell in cells))
    return table


if __name__ == "__main__":
    main()
