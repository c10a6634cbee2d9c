"""The jobs that keep a log in order. Each can be repeated, and run beside any other, without harm."""

from __future__ import annotations

from spark_segments.maintenance.compaction.compact import compact
from spark_segments.maintenance.removal.vacuum import vacuum
from spark_segments.maintenance.report import Report
from spark_segments.maintenance.retention.retain import retain
from spark_segments.maintenance.rolling.roll import roll

__all__ = ["Report", "compact", "retain", "roll", "vacuum"]
