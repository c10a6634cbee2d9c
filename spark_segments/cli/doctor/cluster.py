"""Asks the Pythons of a running Spark for their versions and clocks."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException

import spark_segments
from spark_segments.cli.doctor.finding import FAILED, OK, WARNING, Check
from spark_segments.spark.session import spark_session

FAR_SECONDS = 60
_COLUMNS = "python string, package string, clock double"


def ask_workers(master: str) -> Iterator[Check]:
    """Findings about the workers and the data source, by a job of a few tasks. Raises whatever Spark raises."""
    session = spark_session("segments doctor", master=master)
    started = time.time()
    rows = session.range(0, 8, 1, 8).mapInArrow(_of_worker, _COLUMNS).collect()
    ended = time.time()
    here = (f"{sys.version_info.major}.{sys.version_info.minor}", spark_segments.__version__)
    there = sorted({(row["python"], row["package"]) for row in rows})
    text = ", ".join(f"Python {python} with spark_segments {package}" for python, package in there)
    if there == [here]:
        yield Check("spark workers", OK, text)
    else:
        hint = (
            "Give the executors the driver's environment: PYSPARK_PYTHON, or spark.archives; see the page on clusters"
        )
        yield Check("spark workers", FAILED, f"{text}; the driver: Python {here[0]} with {here[1]}", hint)
    off = max(max(started - row["clock"], row["clock"] - ended, 0.0) for row in rows)
    status = WARNING if off > FAR_SECONDS else OK
    yield Check(
        "spark clocks", status, f"workers are {off:.0f} s off", "Set the clocks by NTP" if off > FAR_SECONDS else None
    )
    try:
        session.read.format("segments").option("subscribe", "none").load("/nowhere/of/segments-doctor")
    except PySparkException as error:
        if "DATA_SOURCE_NOT_FOUND" in str(error):
            hint = f"export PYSPARK_PYTHON={sys.executable}: Spark plans with it, and it must have this package"
            yield Check("data source", FAILED, 'Spark does not find format("segments")', hint)
            return
    yield Check("data source", OK, 'Spark finds format("segments")')


def _of_worker(batches: Any) -> Any:
    for batch in batches:
        try:
            import spark_segments

            package = spark_segments.__version__
        except ImportError:
            package = "none"
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        count = batch.num_rows
        yield pa.RecordBatch.from_pydict(
            {"python": [python] * count, "package": [package] * count, "clock": [time.time()] * count}
        )
