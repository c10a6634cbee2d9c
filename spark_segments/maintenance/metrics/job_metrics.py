"""What a job's report says, as metrics. Their names begin with `segments_job`; the cleaner's are those of Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spark_segments.log.report import FAILED
from spark_segments.maintenance.metrics.openmetrics import Family, Sample

Value = Callable[[Mapping[str, Any]], float]

# (name, help, unit, value of a report)
_TOTALS: tuple[tuple[str, str, str, Value], ...] = (
    ("segments_job_duration_seconds", "Time that the last run took.", "seconds", lambda one: one["seconds"]),
    ("segments_job_input_records", "Records that the last run looked at.", "records", lambda one: one["records_in"]),
    ("segments_job_kept_records", "Records that the last run kept.", "records", lambda one: one["records_out"]),
    ("segments_job_input_bytes", "Bytes of .log files that the last run read.", "bytes", lambda one: one["bytes_in"]),
    ("segments_job_output_bytes", "Bytes that the last run left of them.", "bytes", lambda one: one["bytes_out"]),
    (
        "segments_job_worked_partitions",
        "Partitions that the last run worked on.",
        "partitions",
        lambda one: len(one["partitions"]),
    ),
    (
        "segments_job_failed_partitions",
        "Partitions and topics that failed in the last run.",
        "partitions",
        lambda one: one["failed"],
    ),
)


def job_metrics(log_dir: str, reports: Sequence[Mapping[str, Any]], finished_ms: int) -> list[Family]:
    """Metrics of jobs that ran over a log directory.

    `reports`: as `Report.to_dict` gives them, a job at most once. `finished_ms`: when the last of them ended, in ms
    since 1970.
    """

    def family(name: str, text: str, unit: str, value: Value) -> Family:
        return Family(name, text, tuple(_sample(log_dir, one, value(one)) for one in reports), unit)

    families = [family(*total) for total in _TOTALS]
    families.insert(
        0,
        family(
            "segments_job_last_run_timestamp_seconds",
            "When the last run ended, in seconds since 1970.",
            "seconds",
            lambda _: finished_ms / 1000,
        ),
    )
    dropped = [
        _sample(log_dir, one, count, reason=reason) for one in reports for reason, count in one["dropped"].items()
    ]
    families.append(
        Family(
            "segments_job_dropped_records",
            "Records that the last run took out of the log, by the rule that decided.",
            tuple(dropped),
            "records",
        )
    )
    return families + _cleaner(log_dir, [one for one in reports if one["job"] == "compact"])


def _cleaner(log_dir: str, reports: Iterable[Mapping[str, Any]]) -> list[Family]:
    """The metrics of Kafka's LogCleaner and LogCleanerManager that follow from a compaction."""
    labels = {"logDirectory": log_dir}
    recopied, uncleanable = [], []
    for report in reports:
        share = 100 * report["bytes_out"] / report["bytes_in"] if report["bytes_in"] else 0.0
        recopied.append(Sample(labels, share))
        failed = [line for line in report["partitions"] if line["action"] == FAILED]
        uncleanable.append(Sample(labels, len(failed)))
    return [
        Family(
            "kafka_log_logcleaner_cleaner_recopy_percent",
            "Bytes that the last cleaning left, in percent of those it read.",
            tuple(recopied),
            "percent",
        ),
        Family(
            "kafka_log_logcleanermanager_uncleanable_partitions_count",
            "Partitions that the last compaction could not clean.",
            tuple(uncleanable),
        ),
    ]


def _sample(log_dir: str, report: Mapping[str, Any], value: float, **labels: str) -> Sample:
    return Sample({"log_dir": log_dir, "job": report["job"], **labels}, value)
