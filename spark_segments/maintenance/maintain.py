"""The jobs that keep a log in order, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spark_segments.log.logdir import LogDir
from spark_segments.log.report import Report
from spark_segments.maintenance.compaction.compact import compact
from spark_segments.maintenance.removal.vacuum import vacuum
from spark_segments.maintenance.retention.retain import retain
from spark_segments.maintenance.rolling.roll import roll

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IN_ORDER = (roll, retain, compact, vacuum)


def maintain(
    log: LogDir,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[Report]:
    """Runs roll, retain, compact and vacuum, and returns their reports, in that order."""
    return [job(log, topics=topics, spark=spark, dry_run=dry_run, progress=progress) for job in IN_ORDER]
