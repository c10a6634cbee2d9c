"""spark-submit jobs/maintain.py LOG_DIR [TOPIC]: roll, retain, compact, vacuum, in this order. --help says more.

Without spark-submit, and without --master, the work is done in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["maintain", *sys.argv[1:]])
