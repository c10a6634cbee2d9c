"""spark-submit jobs/retain.py LOG_DIR [TOPIC]: takes whole segments out of the log by age and size. --help says more.

Takes the arguments of `segments retain`. Without spark-submit and without --master it works in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["retain", *sys.argv[1:]])
