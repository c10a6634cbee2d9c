"""spark-submit jobs/mirror.py SOURCE TARGET: keeps topics in step at another place. --help says more.

Takes the arguments of `segments mirror`. Without spark-submit and without --master it works in the calling process.
"""

from __future__ import annotations

import sys

from spark_segments.cli import main

if __name__ == "__main__":
    main(["mirror", *sys.argv[1:]])
