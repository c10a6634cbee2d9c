"""Kafka's topics, segments, offsets, retention and compaction as files on any storage, for Spark DataFrames."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_segments import extensions

if TYPE_CHECKING:
    from spark_segments import errors
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Position, ProducerOptions
    from spark_segments.progress import progress_bar
    from spark_segments.spark.session import spark_session
    from spark_segments.spark.streams.lag import lag

__version__ = "0.3.0"
__all__ = ["LogDir", "Position", "ProducerOptions", "__version__", "errors", "lag", "progress_bar", "spark_session"]

_HOME = {
    "LogDir": "spark_segments.face.logdir",
    "Position": "spark_segments.log.positions",
    "ProducerOptions": "spark_segments.log.appending.appender",
    "lag": "spark_segments.spark.streams.lag",
    "progress_bar": "spark_segments.progress",
    "spark_session": "spark_segments.spark.session",
}

extensions.provide("open_directory", "spark_segments.kafka.directory:kafka_directory")
extensions.provide("observe", "spark_segments.lineage:observe")
extensions.provide("values", "spark_segments.values.provider:PROVIDER")


def __getattr__(name: str) -> Any:
    # Spark's planner and workers import this package by way of pyspark_segments: kernels and Arrow come when they
    # are used.
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name == "errors":
        return import_module("spark_segments.errors")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
