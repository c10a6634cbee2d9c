"""`python -m spark_segments` is the `segments` command."""

from __future__ import annotations

from spark_segments.cli import main

if __name__ == "__main__":
    main()
