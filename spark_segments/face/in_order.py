"""The jobs that keep a log in order, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Callable

from spark_segments.keys.job import index
from spark_segments.lake.table import MANY_SMALL_FILES, table
from spark_segments.log import LogDirectory, Report, Snapshot
from spark_segments.maintenance.compaction.compact import compact
from spark_segments.maintenance.removal.vacuum import vacuum
from spark_segments.maintenance.retention.retain import retain
from spark_segments.maintenance.rolling.roll import roll

Job = Callable[..., Report]


def jobs_in_order(
    log: LogDirectory | None = None, table_uri: str | None = None, catalog: str | None = None
) -> list[Job]:
    """The jobs. In a dry run each plans on what those before it would leave. Existing tables at `table_uri` are
    updated first, so that an archive has the records that the other jobs remove, and once more before vacuum; there,
    many small files of a Delta table are joined.
    `catalog`: that of Iceberg tables. Where a topic of `log` has indexes, they are kept before vacuum, too.
    """
    first: list[Job] = []
    again: list[Job] = []
    if table_uri is not None:
        update = functools.partial(table, table_uri=table_uri, existing=True, catalog=catalog)
        first = [update]
        again = [functools.partial(update, optimize_from=MANY_SMALL_FILES)]
    planned: dict[str, Snapshot] = {}
    *jobs, last = [functools.partial(job, planned=planned) for job in (roll, retain, compact, vacuum)]
    indexes: list[Job] = []
    if log is not None and log.key_offsets.topics():
        indexes = [functools.partial(index, existing=True)]
    return [*first, *jobs, *indexes, *again, last]
