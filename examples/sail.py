"""The DataFrame program of the quickstart on Sail: a Spark Connect server in this process, with no JVM.

    pip install 'spark-segments[sail]'
    python examples/sail.py [LOG_DIR]

Appends a million records, reads them, runs the jobs, and keeps a Delta table of the newest record of each key.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from pysail.spark import SparkConnectServer

from spark_segments import LogDir, spark_session
from spark_segments.maintenance import compact, retain, roll, vacuum

RECORDS = 1_000_000
CUSTOMERS = 1_000


def main(uri: str) -> None:
    server = SparkConnectServer(ip="127.0.0.1", port=0)
    server.start(background=True)
    _, port = server.listening_address
    spark = spark_session(master=f"sc://127.0.0.1:{port}")

    log = LogDir.create(uri)
    log.create_topic("orders", 4, {"cleanup.policy": "compact", "segment.bytes": "500000"})
    rows = spark.range(RECORDS).selectExpr(f"'customer-' || (id % {CUSTOMERS}) AS key", "'order ' || id AS value")
    began = time.perf_counter()
    rows.repartition(4).write.format("segments").mode("append").option("topic", "orders").save(uri)
    print(f"written in {time.perf_counter() - began:.2f} s")

    orders = spark.read.format("segments").option("subscribe", "orders").load(uri)
    began = time.perf_counter()
    orders.groupBy("partition").count().orderBy("partition").show()
    print(f"read and counted in {time.perf_counter() - began:.2f} s")

    for job in (roll, compact, retain, vacuum):
        report = job(log, spark=spark).to_dict()
        print(f"{report['job']}: {report['records_in']:,} records in, {report['records_out']:,} out")

    latest = spark.read.format("segments").option("subscribe", "orders").option("view", "latest").load(uri)
    latest.selectExpr("string(key) AS customer", "string(value) AS newest").createOrReplaceTempView("latest")
    table = Path(uri).absolute().parent / "newest_orders"
    spark.sql(f"CREATE TABLE newest_orders (customer STRING, newest STRING) USING delta LOCATION '{table}'")
    spark.sql(
        """MERGE INTO newest_orders USING latest ON newest_orders.customer = latest.customer
           WHEN MATCHED THEN UPDATE SET newest = latest.newest
           WHEN NOT MATCHED THEN INSERT (customer, newest) VALUES (latest.customer, latest.newest)"""
    )
    print(f"{spark.sql('SELECT * FROM newest_orders').count():,} customers in the table")
    spark.stop()
    server.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else f"{tempfile.mkdtemp()}/log")
