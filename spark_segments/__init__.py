"""Kafka's topics, segments, offsets, retention and compaction as files on any storage, for Spark DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_segments.log.logdir import LogDir

__version__ = "0.1.0"
__all__ = ["LogDir", "__version__"]


def __getattr__(name: str) -> Any:
    # Spark's planner and workers import this package by way of pyspark_segments: numba and Arrow come when they are
    # used.
    if name == "LogDir":
        from spark_segments.log.logdir import LogDir

        return LogDir
    raise AttributeError(name)
