"""spark-submit jobs/append.py LOG_DIR TOPIC --input PATH: appends files to a topic. --help says more.

Takes the arguments of `segments append`. Without spark-submit and without --master Spark runs in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["append", *sys.argv[1:]])
