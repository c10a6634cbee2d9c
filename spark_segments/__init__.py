"""Kafka's topics, segments, offsets, retention and compaction as files on any storage, for Spark DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_segments import extensions
from spark_segments.lazy_names import imported_name

if TYPE_CHECKING:
    from spark_segments import errors
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Position, ProducerOptions
    from spark_segments.progress import progress_bar
    from spark_segments.spark.session import spark_session
    from spark_segments.spark.streams.lag import lag

__version__ = "0.3.0"
__all__ = ["LogDir", "Position", "ProducerOptions", "__version__", "errors", "lag", "progress_bar", "spark_session"]

extensions.provide("open_directory", "spark_segments.kafka.directory:kafka_directory")
extensions.provide("keys", "spark_segments.keys.provider:PROVIDER")
extensions.provide("observe", "spark_segments.lineage:observe")
extensions.provide("values", "spark_segments.values.provider:PROVIDER")


def __getattr__(name: str) -> Any:
    # Spark's planner and workers import this package by way of pyspark_segments: kernels and Arrow come when they
    # are used.
    return imported_name(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
