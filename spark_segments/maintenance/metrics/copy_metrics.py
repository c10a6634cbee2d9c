"""What an append, an import or an export added, as metrics, and the file with them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from spark_segments.maintenance.metrics.openmetrics import Family, Sample, openmetrics_text, write_metrics


def write_copy_metrics(
    path: Path,
    log_dir: str,
    job: str,
    records: Mapping[str, int | None],
    copied_bytes: Mapping[str, int] | None = None,
    lag: Mapping[str, int] | None = None,
) -> None:
    """Writes the metrics of a job that has just ended. `records`: {topic: how many it added, None if not known}. `lag`:
    {topic: offsets that it has not reached}, where the job knows.
    """
    labels = {"log_dir": log_dir, "job": job}

    def by_topic(name: str, text: str, unit: str, values: Mapping[str, int | None]) -> Family:
        known = ((topic, value) for topic, value in values.items() if value is not None)
        return Family(name, text, tuple(Sample({**labels, "topic": topic}, value) for topic, value in known), unit)

    ended = Family(
        "segments_job_last_run_timestamp_seconds",
        "When the last run ended, in seconds since 1970.",
        (Sample(labels, time.time()),),
        "seconds",
    )
    families = [
        ended,
        by_topic("segments_job_copied_records", "Records that the last run added.", "records", records),
        by_topic("segments_job_copied_bytes", "Bytes of .log files of that.", "bytes", dict(copied_bytes or {})),
    ]
    if lag is not None:
        families.append(
            by_topic("segments_job_lag_offsets", "Offsets that the last run did not reach.", "offsets", lag)
        )
    write_metrics(path, openmetrics_text(families))
