"""spark-submit jobs/vacuum.py LOG_DIR [TOPIC]: deletes what has left the log for long enough. --help says more.

Takes the arguments of `segments vacuum`. Without spark-submit and without --master it works in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["vacuum", *sys.argv[1:]])
