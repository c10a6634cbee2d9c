"""What `segments serve` has done since it began, as metrics."""

from __future__ import annotations

from collections.abc import Mapping

from spark_segments.maintenance.metrics.openmetrics import Family, Sample

# (name, help, unit)
_FAMILIES = (
    ("open_connections", "Connections that are open.", "connections"),
    ("accepted_connections", "Connections since the server began.", "connections"),
    ("refused_connections", "Connections that were refused, or ended for what they sent.", "connections"),
    ("answered_requests", "Requests since the server began.", "requests"),
    ("fetched_bytes", "Bytes of answers to fetches since the server began.", "bytes"),
    ("active_groups", "Groups that have members at this server.", "groups"),
    ("holds_groups", "1 where the server holds the groups of the log directory.", ""),
)


def serve_metrics(log_dir: str, state: Mapping[str, int]) -> list[Family]:
    """Metrics of a server. `state`: as `Server.state` gives it."""
    labels = {"log_dir": log_dir}
    return [
        Family(f"segments_serve_{name}", text, (Sample(labels, state[name]),), unit) for name, text, unit in _FAMILIES
    ]
