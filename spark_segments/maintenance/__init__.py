"""The jobs that keep a log in order, and the functions that explain, check and undo what they do.

Each job can be repeated, and can run beside any other job, without harm. log/ says what the files of a log mean.
`Topic` says what a `Time` and a `Duration` are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_segments.lazy_names import imported_name

if TYPE_CHECKING:
    from spark_segments.keys.job import index
    from spark_segments.lake.table import table
    from spark_segments.log.report import Report
    from spark_segments.maintenance.compaction.compact import compact
    from spark_segments.maintenance.erasure.erase import erase
    from spark_segments.maintenance.removal.restore import restore
    from spark_segments.maintenance.removal.vacuum import vacuum
    from spark_segments.maintenance.retention.retain import retain
    from spark_segments.maintenance.rolling.roll import roll
    from spark_segments.replicas.mirror import mirror
    from spark_segments.replicas.promote import promote
    from spark_segments.signed_lists.verify import verify

__all__ = [
    "Report",
    "compact",
    "erase",
    "index",
    "mirror",
    "promote",
    "restore",
    "retain",
    "roll",
    "table",
    "vacuum",
    "verify",
]


def __getattr__(name: str) -> Any:
    # A command that runs one job waits for the import of no other.
    return imported_name(__name__, name)


def __dir__() -> list[str]:
    return sorted(__all__)
