"""Reports and the state of a log directory as OpenMetrics text, for the textfile collector of node_exporter.

Names are Kafka's where Kafka has one, spelled as Prometheus' JMX exporter spells them with its example rules for
brokers in lower case: kafka.log:type=Log,name=Size becomes kafka_log_log_size. The metrics of groups have the names of
kafka_exporter. Every metric is a gauge: a file holds what was true when it was written. No sample has a timestamp,
because node_exporter refuses such files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from spark_segments.config import TopicConfig
from spark_segments.errors import MissingExtraError
from spark_segments.log import Group, Report, Snapshot, describe

try:
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest
except ModuleNotFoundError as error:
    raise MissingExtraError("cli", "Metrics", "prometheus-client") from error

if TYPE_CHECKING:
    from spark_segments.log import LogDirectory

_Line = tuple[Mapping[str, str], Any]
"""Labels, and what has the values: a report, a topic's line in it, or a partition's line in `describe`."""
_Metric = tuple[str, str, str, str | Callable[[Any], float | None]]
"""(name, unit, help, the value of a line by its name, or a function of the line; None where it has none). The unit is
empty, or the last word of the name.
"""

_ENDED = "segments_job_last_run_timestamp_seconds", "seconds", "When the last run ended, in seconds since 1970."
_REPORT: tuple[_Metric, ...] = (
    ("segments_job_duration_seconds", "seconds", "Time that the last run took.", "seconds"),
    ("segments_job_input_records", "records", "Records that the last run looked at.", "records_in"),
    ("segments_job_kept_records", "records", "Records that the last run kept.", "records_out"),
    ("segments_job_input_bytes", "bytes", "Bytes of .log files that the last run read.", "bytes_in"),
    ("segments_job_output_bytes", "bytes", "Bytes that the last run left of them.", "bytes_out"),
    ("segments_job_worked_partitions", "partitions", "Partitions of the last run.", lambda run: len(run["partitions"])),
    ("segments_job_failed_partitions", "partitions", "Partitions and topics that failed.", "failed"),
)
_DROPPED = "Records that the last run took out of the log, by the rule that decided."
_CLEANER: tuple[_Metric, ...] = (  # of a compaction: what Kafka's LogCleaner and LogCleanerManager say
    (
        *("kafka_log_logcleaner_cleaner_recopy_percent", "percent"),
        "Bytes that the last cleaning left, in percent of those it read.",
        lambda run: 100 * run["bytes_out"] / run["bytes_in"] if run["bytes_in"] else 0.0,
    ),
    (
        *("kafka_log_logcleanermanager_uncleanable_partitions_count", ""),
        "Partitions that the last compaction could not clean.",
        lambda run: sum(line["action"] == Report.FAILED for line in run["partitions"]),
    ),
)
_MIRROR: tuple[_Metric, ...] = (
    ("segments_mirror_lag_commits", "commits", "Commits that the follower lacks.", "lag_commits"),
    ("segments_mirror_lag_records", "records", "Offsets that the follower lacks.", "lag_records"),
    (
        *("segments_mirror_lag_seconds", "seconds", "Age of the first commit that the follower lacks."),
        lambda line: line["lag_ms"] / 1000,
    ),
)
_SERVE: tuple[_Metric, ...] = tuple(
    (f"segments_serve_{name}", unit, text, name)
    for name, unit, text in (
        ("open_connections", "connections", "Connections that are open."),
        ("accepted_connections", "connections", "Connections since the server began."),
        ("refused_connections", "connections", "Connections that were refused, or ended for what they sent."),
        ("failed_logins", "logins", "Logins that failed since the server began."),
        ("answered_requests", "requests", "Requests since the server began."),
        ("fetched_bytes", "bytes", "Bytes of answers to fetches since the server began."),
        ("held_bytes", "bytes", "Bytes of requests and answers under way in memory."),
        ("kept_bytes", "bytes", "Bytes of members of groups in memory."),
        ("active_groups", "groups", "Groups that have members at this server."),
        ("holds_groups", "", "1 where the server holds the groups of the log directory."),
    )
)
_PARTITION: tuple[_Metric, ...] = (
    ("kafka_log_log_size", "", "Bytes of the .log files of the partition.", "size_bytes"),
    ("kafka_log_log_logstartoffset", "", "The first offset of the log.", "log_start_offset"),
    ("kafka_log_log_logendoffset", "", "The next offset to be given out.", "log_end_offset"),
    (
        *("kafka_cluster_partition_laststableoffsetlag", ""),
        "Offsets that committed reads do not get, for a transaction is open.",
        "last_stable_offset_lag",
    ),
    (
        *("kafka_log_log_numlogsegments", "", "Segments: sealed ones, and the active segment where it has records."),
        lambda line: line["segments"] + (line["chunks"] > 0),
    ),
    ("segments_partition_chunks", "chunks", "Files of the active segment.", "chunks"),
    ("segments_partition_records", "records", "Records in the log.", "records"),
    (
        *("segments_partition_dirty_ratio", "ratio"),
        "Share of the sealed bytes of a compacted partition that no cleaning has seen.",
        "dirty_ratio",
    ),
)


def gauge(name: str, unit: str, text: str, samples: Iterable[tuple[Mapping[str, str], float | None]]) -> Any:
    """A gauge of prometheus-client with a sample for each (labels, value) that has a value."""
    values = [(labels, value) for labels, value in samples if value is not None]
    family = GaugeMetricFamily(name, text, labels=[*values[0][0]] if values else [], unit=unit)
    for labels, value in values:
        family.add_metric([*labels.values()], value)
    return family


def openmetrics_text(families: Iterable[Any]) -> str:
    """The families as a document, in the order given. A family without samples is left out."""
    told = [family for family in families if family.samples]
    text: bytes = generate_latest(SimpleNamespace(collect=lambda: told))  # type: ignore[no-untyped-call]
    return text.decode()


def write_metrics(path: Path, families: Iterable[Any]) -> None:
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


def _families(metrics: Iterable[_Metric], lines: Sequence[_Line]) -> list[Any]:
    """A family for each metric, with a sample for each line that has a value."""
    return [
        gauge(name, unit, text, [(labels, value(line) if callable(value) else line[value]) for labels, line in lines])
        for name, unit, text, value in metrics
    ]


def job_metrics(log_dir: str, reports: Sequence[Report]) -> list[Any]:
    """Metrics of jobs that have just run over a log directory, a job at most once."""
    lines = [({"log_dir": log_dir, "job": report.job}, report.to_dict()) for report in reports]
    dropped = [({**labels, "reason": why}, count) for labels, run in lines for why, count in run["dropped"].items()]
    compactions = [({"logDirectory": log_dir}, run) for _, run in lines if run["job"] == "compact"]
    return [
        gauge(*_ENDED, [(labels, time.time()) for labels, _ in lines]),
        *_families(_REPORT, lines),
        gauge("segments_job_dropped_records", "records", _DROPPED, dropped),
        *_families(_CLEANER, compactions),
    ]


def mirror_metrics(log_dir: str, report: Report) -> list[Any]:
    """The metrics of a mirror's run, and the lag of each follower after it."""
    lags = [line for line in report.to_dict()["partitions"] if "lag_commits" in line]
    lines = [({"log_dir": log_dir, "topic": line["topic"]}, line) for line in lags]
    return job_metrics(log_dir, [report]) + _families(_MIRROR, lines)


def serve_metrics(log_dir: str, state: Mapping[str, int]) -> list[Any]:
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

    def by_topic(name: str, unit: str, text: str, values: Mapping[str, int | None]) -> Any:
        return gauge(name, unit, text, [({**labels, "topic": topic}, value) for topic, value in values.items()])

    families = [
        gauge(*_ENDED, [(labels, time.time())]),
        by_topic("segments_job_copied_records", "records", "Records that the last run added.", records),
        by_topic("segments_job_copied_bytes", "bytes", "Bytes of .log files of that.", dict(copied_bytes or {})),
        by_topic("segments_job_lag_offsets", "offsets", "Offsets that the last run did not reach.", dict(lag or {})),
    ]
    write_metrics(path, families)


def log_metrics(log: LogDirectory, topics: Sequence[tuple[Snapshot, TopicConfig]]) -> list[Any]:
    """Metrics of the partitions of topics, of the groups that read them, and of the log directory as a whole, from
    the manifests alone: what Kafka's JMX beans say of a log, and our own figures.
    """
    lines: list[_Line] = []
    removed_bytes = []
    for snapshot, config in topics:
        labels = {"log_dir": log.uri, "topic": snapshot.topic}
        partitions = describe(snapshot, config)["partitions"]
        lines += [({**labels, "partition": str(line["partition"])}, line) for line in partitions]
        removed_bytes.append((labels, snapshot.removed_bytes))
    ratios = [100 * line["dirty_ratio"] for _, line in lines if line["dirty_ratio"] is not None]
    lags = [
        ({"log_dir": log.uri, "consumergroup": lag.group, "topic": lag.topic, "partition": str(lag.partition)}, lag)
        for group in Group.with_positions(log)
        for lag in group.lags([snapshot for snapshot, _ in topics])
    ]
    text = "Bytes of .log files that have left the log and wait for vacuum: on the disk beside the log's own."
    dirtiest = "The highest dirty ratio of the compacted partitions, in percent."
    groups: list[_Metric] = [
        ("kafka_consumergroup_lag", "", "Offsets that the group has not read.", lambda lag: lag.lag),
        ("kafka_consumergroup_current_offset", "", "The next offset that the group reads.", lambda lag: lag.offset),
    ]
    percents = [({"logDirectory": log.uri}, max(ratios, default=None))]
    return [
        *_families(_PARTITION, lines),
        gauge("segments_topic_removed_bytes", "bytes", text, removed_bytes),
        gauge("kafka_log_logcleanermanager_max_dirty_percent", "percent", dirtiest, percents),
        *_families(groups, lags),
    ]
