"""spark-submit jobs/compact.py LOG_DIR [TOPIC]: keeps the latest record of each key. --help says more.

Takes the arguments of `segments compact`. Without spark-submit and without --master it works in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["compact", *sys.argv[1:]])
