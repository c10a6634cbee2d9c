"""spark-submit jobs/roll.py LOG_DIR [TOPIC]: seals what is due and merges small chunks. --help says more.

Takes the arguments of `segments roll`. Without spark-submit and without --master it works in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["roll", *sys.argv[1:]])
