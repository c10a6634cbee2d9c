"""The reports among the lines that a job printed. Needs no Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def report_of(line: str) -> dict[str, Any] | None:
    """The report that a job printed as this line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and "job" in value else None


def summary(report: Mapping[str, Any]) -> dict[str, Any]:
    """A report without the lines of its partitions and topics: Airflow keeps results in its database."""
    return {name: value for name, value in report.items() if name not in ("partitions", "topics")}
