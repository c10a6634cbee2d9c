"""spark-submit segments.py COMMAND …: runs a job, as `segments COMMAND …` does. `segments doctor --path job` says where
this script lies. Without spark-submit and without --master the work is done in the calling process.
"""

from __future__ import annotations

from spark_segments.cli import main

if __name__ == "__main__":
    main()
