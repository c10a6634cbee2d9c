"""A changelog with Delta tables beside it: changes come in, the log is rolled and compacted, and two tables follow. One
has the newest record of each key, the other one every record that the topic has.

It can be killed at any moment and started again: what was appended is not appended twice, what a table has does not
come in twice, and in the end the tables are what the topic is. Without `--spark` no Spark is started.

python examples/changelog_to_table.py LOG_DIR TABLE [--rounds 10] [--spark]
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from spark_segments import LogDir
from spark_segments.maintenance import compact, roll, table

TOPIC = "accounts"
CHANGES = 2_000  # a round
CUSTOMERS = 500
CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.2", "segment.ms": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log_dir")
    parser.add_argument("table")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--spark", action="store_true", help="Spark's tasks read the log and write the tables")
    arguments = parser.parse_args()

    log = LogDir.create(arguments.log_dir)
    if TOPIC not in log.topics():
        log.create_topic(TOPIC, partitions=3, config=CONFIG)
    spark = None
    if arguments.spark:
        from spark_segments.spark.session import spark_session

        spark = spark_session("changelog to table", config={"spark.ui.enabled": "false"})

    for number in range(arguments.rounds):
        # By its key an append that was done before a kill adds nothing now.
        added = log.topic(TOPIC).append(changes(number), once=f"changelog-to-table/{number}")
        if number % 3 == 2:
            roll(log)
            compact(log)
        print(f"round {number}: {'appended' if added else 'was there'}")
        for place, view in ((arguments.table, "latest"), (f"{arguments.table}-records", None)):
            report = table(log, topics=[TOPIC], table_uri=place, view=view, spark=spark)
            for line in report.failed:  # the next round tries again
                print(line["error"])
            print(f"{place}: {report.details.get(TOPIC)}")

    expected = sum(batch.num_rows for batch in log.topic(TOPIC).scan(view="latest", include_tombstones=False).batches())
    print(f"{expected} accounts have a balance; the table says:")
    print(
        query(
            arguments.table, "SELECT count(*) AS accounts, sum(CAST(arrow_cast(value, 'Utf8') AS INT)) AS total FROM t"
        )
    )


def changes(number: int) -> pa.Table:
    """The changes of a round, the same whenever it is run: balances of customers, a tenth of them closed accounts."""
    choose = random.Random(number)
    keys = [f"customer-{choose.randrange(CUSTOMERS)}" for _ in range(CHANGES)]
    values = [None if choose.random() < 0.1 else str(choose.randrange(10_000)) for _ in range(CHANGES)]
    return pa.table({"key": keys, "value": values})


def query(uri: str, statement: str) -> Any:
    """What SQL says of the table, as `t`, by delta-rs's own engine: any other that reads Delta says the same."""
    return pa.table(QueryBuilder().register("t", DeltaTable(uri)).execute(statement).read_all()).to_pylist()


if __name__ == "__main__":
    main()
