"""spark-submit append_json.py LOG_DIR DIRECTORY VERSION: writes a directory of JSON lines to the topic orders, as the
run of that number of a job.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

if __name__ == "__main__":
    log_dir, directory, version = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    frame = spark.read.schema("key string, value string").json(directory)
    writer = frame.write.format("segments").mode("append")
    writer.options(topic="orders", txnAppId="landing", txnVersion=version).save(log_dir)
