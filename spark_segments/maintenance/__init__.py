"""The jobs that keep a log in order, and the functions that explain, check and undo what they do.

Each job can be repeated, and can run beside any other job, without harm. log/ says what the files of a log mean.
"""

from __future__ import annotations

from spark_segments.log.report import Report
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance.compaction.compact import compact
from spark_segments.maintenance.erasure.erase import erase
from spark_segments.maintenance.maintain import maintain
from spark_segments.maintenance.mirroring.mirror import mirror
from spark_segments.maintenance.promotion.demote import demote
from spark_segments.maintenance.promotion.promote import promote
from spark_segments.maintenance.removal.restore import restore
from spark_segments.maintenance.removal.vacuum import vacuum
from spark_segments.maintenance.retention.retain import retain
from spark_segments.maintenance.rolling.roll import roll
from spark_segments.maintenance.tables.table import table

__all__ = [
    "Report",
    "compact",
    "demote",
    "erase",
    "maintain",
    "mirror",
    "promote",
    "restore",
    "retain",
    "roll",
    "table",
    "vacuum",
    "verify",
]
