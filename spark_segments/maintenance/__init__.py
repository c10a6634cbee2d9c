"""The jobs that keep a log in order. Each can be repeated, and run beside any other, without harm."""

from __future__ import annotations

from spark_segments.maintenance.compact import compact
from spark_segments.maintenance.report import Report
from spark_segments.maintenance.retain import retain
from spark_segments.maintenance.roll import roll
from spark_segments.maintenance.vacuum import vacuum

__all__ = ["Report", "compact", "retain", "roll", "vacuum"]
