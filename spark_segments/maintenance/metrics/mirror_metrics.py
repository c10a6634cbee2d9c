"""How far followers are behind their leaders, as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_segments.maintenance.metrics.openmetrics import Family, Sample

# (name, help, unit, field of a topic's line in the report, that many of the field's units)
_LAGS = (
    ("segments_mirror_lag_commits", "Commits of the leader that the follower lacks.", "commits", "lag_commits", 1),
    ("segments_mirror_lag_records", "Offsets of the leader that the follower lacks.", "records", "lag_records", 1),
    ("segments_mirror_lag_seconds", "Age of the first commit that the follower lacks.", "seconds", "lag_ms", 1000),
)


def mirror_metrics(log_dir: str, report: Mapping[str, Any]) -> list[Family]:
    """The lag of each follower after a run of the mirror, by the run's report."""
    lines = [line for line in report["partitions"] if "lag_commits" in line]
    return [
        Family(
            name,
            text,
            tuple(Sample({"log_dir": log_dir, "topic": line["topic"]}, line[field] / scale) for line in lines),
            unit,
        )
        for name, text, unit, field, scale in _LAGS
    ]
