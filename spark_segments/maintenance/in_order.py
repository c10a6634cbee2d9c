"""The jobs that keep a log in order, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spark_segments.log.logdir import LogDir
from spark_segments.log.report import Report
from spark_segments.maintenance.compaction.compact import compact
from spark_segments.maintenance.removal.vacuum import vacuum
from spark_segments.maintenance.retention.retain import retain
from spark_segments.maintenance.rolling.roll import roll
from spark_segments.maintenance.tables.table import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Job = Callable[..., Report]


def jobs_in_order(table_uri: str | None = None) -> list[Job]:
    """The jobs. With tables at `table_uri`, those that are there are brought in step first, so that an archive has what
    the other jobs take, and once more before vacuum.
    """
    tables: list[Job] = [] if table_uri is None else [functools.partial(table, table_uri=table_uri, existing=True)]
    return [*tables, roll, retain, compact, *tables, vacuum]


def maintain(
    log: LogDir,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
    table_uri: str | None = None,
) -> list[Report]:
    """Runs roll, retain, compact and vacuum, and returns their reports, in that order. `table_uri`: where topics may
    have tables beside them, with {topic} in it; `jobs_in_order` says when these come.
    """
    jobs = jobs_in_order(table_uri)
    return [job(log, topics=topics, spark=spark, dry_run=dry_run, progress=progress) for job in jobs]
