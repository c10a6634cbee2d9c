"""A topic moved from one place to another by Spark: out of Kafka into a log directory (archive), or back (replay).

Nothing but formats and options differ. Records keep their partition, their order in it, key, value and headers, and in
a log directory their timestamp. The same move between two log directories:

    python examples/move_topic.py \\
        --from segments path=/data/log subscribe=orders --to segments path=/data/copy topic=orders

Archive and replay, with Kafka's connector, whose jar comes from a Maven repository:

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/move_topic.py \\
        --from kafka kafka.bootstrap.servers=broker:9092 subscribe=orders --to segments path=/data/log topic=orders
    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/move_topic.py \\
        --from segments path=/data/log subscribe=orders startingTimestamp=1700000000000 \\
        --to kafka kafka.bootstrap.servers=broker:9092 topic=orders
"""

from __future__ import annotations

import argparse

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_segments.spark.session import spark_session

COLUMNS = ["key", "value", "headers", "partition", "timestamp"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for side in ("from", "to"):
        parser.add_argument(f"--{side}", nargs="+", required=True, metavar=("FORMAT", "OPTION=VALUE"), dest=side)
    arguments = vars(parser.parse_args())
    spark = spark_session("move topic", config={"spark.ui.enabled": "false"})
    try:
        move(spark, *arguments["from"], to=arguments["to"])
    except AnalysisException as error:
        if "Failed to find data source: kafka" in str(error):
            parser.exit(1, f"{error}\nKafka's connector is a package: --help says which\n")
        raise


def move(spark: SparkSession, source: str, *options: str, to: list[str]) -> None:
    """Reads the one side as the other is written."""
    frame = spark.read.format(source).options(**_pairs(list(options))).option("includeHeaders", "true").load()
    sink, *others = to
    frame.select(COLUMNS).write.format(sink).mode("append").options(**_pairs(others)).save()


def _pairs(options: list[str]) -> dict[str, str]:
    return dict(option.split("=", 1) for option in options)


if __name__ == "__main__":
    main()
