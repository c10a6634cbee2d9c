"""spark-submit jobs/export.py LOG_DIR KAFKA_DIR: writes topics as directories that a broker serves. --help says more.

Without spark-submit, and without --master, the work is done in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["export", *sys.argv[1:]])
