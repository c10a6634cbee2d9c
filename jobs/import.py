"""spark-submit jobs/import.py KAFKA_DIR LOG_DIR: copies topics out of a Kafka log directory. --help says more.

Without spark-submit, and without --master, the work is done in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["import", *sys.argv[1:]])
