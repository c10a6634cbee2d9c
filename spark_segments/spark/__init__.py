"""`format("segments")`: options, readers and writers of Spark, and starting a session.

The only layer, with cli/, that imports pyspark. Bytes are decoded and encoded below it.
"""

from __future__ import annotations

import re

from spark_segments.errors import MissingExtraError, UnsupportedSparkError

try:
    import pyspark
except ModuleNotFoundError as error:
    raise MissingExtraError("spark", "Spark's reader, writer and sessions", "pyspark") from error

OLDEST, NEWEST = (4, 0), (4, 3)


def supported(version: str) -> tuple[int, ...]:
    """(major, minor) of a version of PySpark. Raises UnsupportedSparkError for one that was not tried."""
    installed = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if not OLDEST <= installed <= NEWEST:
        oldest, newest, next_one = (f"{major}.{minor}" for major, minor in (OLDEST, NEWEST, (NEWEST[0], NEWEST[1] + 1)))
        raise UnsupportedSparkError(
            "spark-segments was not tried with this PySpark",
            expected=f"{oldest} to {newest}",
            found=version,
            hint=f"pip install 'pyspark>={oldest},<{next_one}', or look for a newer spark-segments",
        )
    return installed


PYSPARK = supported(pyspark.__version__)
"""The version of PySpark that is installed, as (4, 2)."""
