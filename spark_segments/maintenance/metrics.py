"""Reports and the state of a log directory as OpenMetrics text, for the textfile collector of node_exporter.

report.py knows what a job did; this module knows how monitoring systems spell it. Names are Kafka's where Kafka has
one, spelled as Prometheus' JMX exporter spells them with its example rules for brokers in lower case:
kafka.log:type=Log,name=Size becomes kafka_log_log_size. The metrics of groups have the names of kafka_exporter, which
most dashboards of lag know.

The rules are those of https://prometheus.io/docs/specs/om/open_metrics_spec/. Every metric is a gauge: a file holds
what was true when it was written. No sample has a timestamp, because node_exporter refuses such files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.description import describe
from spark_segments.log.groups.lag import group_lags
from spark_segments.log.manifest.rows import REMOVED
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.report import FAILED, Report

if TYPE_CHECKING:
    from spark_segments.log.directory import LogDirectory

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


@dataclass(frozen=True, slots=True)
class Sample:
    """A value and its labels."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Family:
    """A gauge with its samples. `unit` is empty, or the last word of the name."""

    name: str
    help: str
    samples: tuple[Sample, ...]
    unit: str = ""

    def __post_init__(self) -> None:
        assert not self.unit or self.name.endswith(f"_{self.unit}"), "OpenMetrics wants the unit last in the name"


def openmetrics_text(families: Iterable[Family]) -> str:
    """The families as a document, in the order given. A family without samples is left out."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        lines.append(f"# TYPE {family.name} gauge")
        if family.unit:
            lines.append(f"# UNIT {family.name} {family.unit}")
        lines.append(f"# HELP {family.name} {family.help.translate(_ESCAPES)}")
        lines += [f"{family.name}{_labels(sample.labels)} {sample.value!r}" for sample in family.samples]
    return "\n".join([*lines, "# EOF\n"])


def write_metrics(path: Path, families: Iterable[Family]) -> None:
    """Puts the families in place of the file in one step: a collector reads the old text or the new text.

    The file is readable by whom the umask allows: node_exporter usually runs as another user. Its temporary file does
    not end in .prom, so that no collector reads it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(openmetrics_text(families), encoding="utf-8")
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


# Of a line with labels: a report, a topic's line in it, or a partition's line in `describe`.
_Line = tuple[Mapping[str, str], Mapping[str, Any]]
_Metric = tuple[str, str, str, Callable[[Mapping[str, Any]], float | None]]
"""(name, help, unit, value of a line; None where it has none)."""

_REPORT: tuple[_Metric, ...] = (
    ("segments_job_duration_seconds", "Time that the last run took.", "seconds", lambda one: one["seconds"]),
    ("segments_job_input_records", "Records that the last run looked at.", "records", lambda one: one["records_in"]),
    ("segments_job_kept_records", "Records that the last run kept.", "records", lambda one: one["records_out"]),
    ("segments_job_input_bytes", "Bytes of .log files that the last run read.", "bytes", lambda one: one["bytes_in"]),
    ("segments_job_output_bytes", "Bytes that the last run left of them.", "bytes", lambda one: one["bytes_out"]),
    ("segments_job_worked_partitions", "Partitions of the last run.", "partitions", lambda one: len(one["partitions"])),
    ("segments_job_failed_partitions", "Partitions and topics that failed.", "partitions", lambda one: one["failed"]),
)
# Of a compaction: what Kafka's LogCleaner and LogCleanerManager say.
_CLEANER: tuple[_Metric, ...] = (
    (
        "kafka_log_logcleaner_cleaner_recopy_percent",
        "Bytes that the last cleaning left, in percent of those it read.",
        "percent",
        lambda one: 100 * one["bytes_out"] / one["bytes_in"] if one["bytes_in"] else 0.0,
    ),
    (
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        "Partitions that the last compaction could not clean.",
        "",
        lambda one: sum(line["action"] == FAILED for line in one["partitions"]),
    ),
)
_MIRROR: tuple[_Metric, ...] = (
    ("segments_mirror_lag_commits", "Commits that the follower lacks.", "commits", lambda one: one["lag_commits"]),
    ("segments_mirror_lag_records", "Offsets that the follower lacks.", "records", lambda one: one["lag_records"]),
    (
        "segments_mirror_lag_seconds",
        "Age of the first commit that the follower lacks.",
        "seconds",
        lambda one: one["lag_ms"] / 1000,
    ),
)
_SERVE: tuple[_Metric, ...] = tuple(
    (f"segments_serve_{name}", text, unit, itemgetter(name))
    for name, text, unit in (
        ("open_connections", "Connections that are open.", "connections"),
        ("accepted_connections", "Connections since the server began.", "connections"),
        ("refused_connections", "Connections that were refused, or ended for what they sent.", "connections"),
        ("failed_logins", "Logins that failed since the server began.", "logins"),
        ("answered_requests", "Requests since the server began.", "requests"),
        ("fetched_bytes", "Bytes of answers to fetches since the server began.", "bytes"),
        ("held_bytes", "Bytes of requests and answers under way in memory.", "bytes"),
        ("kept_bytes", "Bytes of members of groups in memory.", "bytes"),
        ("active_groups", "Groups that have members at this server.", "groups"),
        ("holds_groups", "1 where the server holds the groups of the log directory.", ""),
    )
)
_PARTITION: tuple[_Metric, ...] = (
    ("kafka_log_log_size", "Bytes of the .log files of the partition.", "", lambda one: one["size_bytes"]),
    ("kafka_log_log_logstartoffset", "The first offset of the log.", "", lambda one: one["log_start_offset"]),
    ("kafka_log_log_logendoffset", "The next offset to be given out.", "", lambda one: one["log_end_offset"]),
    (
        "kafka_log_log_numlogsegments",
        "Segments: sealed ones, and the active segment where it has records.",
        "",
        lambda one: one["segments"] + (one["chunks"] > 0),
    ),
    (
        "segments_partition_chunks",
        "Files of the active segment.",
        "chunks",
        lambda one: one["chunks"],
    ),
    ("segments_partition_records", "Records in the log.", "records", lambda one: one["records"]),
    (
        "segments_partition_dirty_ratio",
        "Share of the sealed bytes of a compacted partition that no cleaning has seen.",
        "ratio",
        lambda one: one["dirty_ratio"],
    ),
)


def _families(metrics: Iterable[_Metric], lines: Sequence[_Line]) -> list[Family]:
    """A family for each metric, with a sample for each line that has a value."""
    return [
        Family(
            name,
            text,
            tuple(Sample(labels, number) for labels, line in lines if (number := value(line)) is not None),
            unit,
        )
        for name, text, unit, value in metrics
    ]


def _ended(labels: Iterable[Mapping[str, str]], seconds: float) -> Family:
    """When the last runs ended."""
    text = "When the last run ended, in seconds since 1970."
    return Family(
        "segments_job_last_run_timestamp_seconds", text, tuple(Sample(one, seconds) for one in labels), "seconds"
    )


def job_metrics(log_dir: str, reports: Sequence[Report]) -> list[Family]:
    """Metrics of jobs that have just run over a log directory, a job at most once."""
    lines = [({"log_dir": log_dir, "job": report.job}, report.to_dict()) for report in reports]
    dropped = tuple(
        Sample({**labels, "reason": reason}, count)
        for labels, report in lines
        for reason, count in report["dropped"].items()
    )
    text = "Records that the last run took out of the log, by the rule that decided."
    compactions = [({"logDirectory": log_dir}, report) for _, report in lines if report["job"] == "compact"]
    return [
        _ended((labels for labels, _ in lines), time.time()),
        *_families(_REPORT, lines),
        Family("segments_job_dropped_records", text, dropped, "records"),
        *_families(_CLEANER, compactions),
    ]


def mirror_metrics(log_dir: str, report: Report) -> list[Family]:
    """The metrics of a mirror's run, and the lag of each follower after it."""
    lags = [line for line in report.to_dict()["partitions"] if "lag_commits" in line]
    lines = [({"log_dir": log_dir, "topic": line["topic"]}, line) for line in lags]
    return job_metrics(log_dir, [report]) + _families(_MIRROR, lines)


def serve_metrics(log_dir: str, state: Mapping[str, int]) -> list[Family]:
    """What `segments serve` has done since it began. `state`: as `Server.state` gives it."""
    return _families(_SERVE, [({"log_dir": log_dir}, state)])


def write_copy_metrics(
    path: Path,
    log_dir: str,
    job: str,
    records: Mapping[str, int | None],
    copied_bytes: Mapping[str, int] | None = None,
    lag: Mapping[str, int] | None = None,
) -> None:
    """Writes the metrics of an append, an import, an export, a capture or a replay that has just ended. `records`:
    {topic: how many it added, None if not known}. `lag`: {topic: offsets that it has not reached}, where it knows.
    """
    labels = {"log_dir": log_dir, "job": job}

    def by_topic(name: str, text: str, unit: str, values: Mapping[str, int | None]) -> Family:
        known = ((topic, value) for topic, value in values.items() if value is not None)
        return Family(name, text, tuple(Sample({**labels, "topic": topic}, value) for topic, value in known), unit)

    families = [
        _ended([labels], time.time()),
        by_topic("segments_job_copied_records", "Records that the last run added.", "records", records),
        by_topic("segments_job_copied_bytes", "Bytes of .log files of that.", "bytes", dict(copied_bytes or {})),
        by_topic("segments_job_lag_offsets", "Offsets that the last run did not reach.", "offsets", dict(lag or {})),
    ]
    write_metrics(path, families)


def log_metrics(log: LogDirectory, topics: Sequence[tuple[Snapshot, TopicConfig]]) -> list[Family]:
    """Metrics of the partitions of topics, of the groups that read them, and of the log directory as a whole, from
    the manifests alone: what Kafka's JMX beans say of a log, and our own figures.
    """
    lines: list[_Line] = []
    waiting = []
    for snapshot, config in topics:
        labels = {"log_dir": log.uri, "topic": snapshot.topic}
        numbers = describe(snapshot, config)["partitions"]
        lines += [({**labels, "partition": str(line["partition"])}, line) for line in numbers]
        removed = snapshot.segments.filter(pc.equal(snapshot.segments.column("state"), REMOVED))
        waiting.append(Sample(labels, pc.sum(removed.column("log_bytes")).as_py() or 0))
    text = "Bytes of .log files that have left the log and wait for vacuum."
    families = [
        *_families(_PARTITION, lines),
        Family("segments_topic_removed_bytes", text, tuple(waiting), "bytes"),
    ]
    ratios = [line["dirty_ratio"] for _, line in lines if line["dirty_ratio"] is not None]
    if ratios:
        dirtiest = (Sample({"logDirectory": log.uri}, 100 * max(ratios)),)
        text = "The highest dirty ratio of the compacted partitions, in percent."
        families.append(Family("kafka_log_logcleanermanager_max_dirty_percent", text, dirtiest, "percent"))
    lags = [
        ({"log_dir": log.uri, "consumergroup": one.group, "topic": one.topic, "partition": str(one.partition)}, one)
        for one in group_lags(map(log.group, log.groups()), [snapshot for snapshot, _ in topics])
    ]
    behind = tuple(Sample(labels, one.lag) for labels, one in lags)
    positions = tuple(Sample(labels, one.offset) for labels, one in lags)
    return [
        *families,
        Family("kafka_consumergroup_lag", "Offsets that the group has not read.", behind),
        Family("kafka_consumergroup_current_offset", "The next offset that the group reads.", positions),
    ]
