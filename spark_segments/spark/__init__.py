"""`format("segments")`: options, readers and writers of Spark, and starting a session.

The only layer, with cli/, that imports pyspark. Bytes are decoded and encoded below it.
"""

from __future__ import annotations

from importlib.util import find_spec

from spark_segments.errors import MissingExtraError

if find_spec("pyspark") is None:
    raise MissingExtraError("spark", "Spark's reader, writer and sessions", "pyspark")
