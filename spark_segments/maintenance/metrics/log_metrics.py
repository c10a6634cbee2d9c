"""The state of topics as metrics, from their manifests alone: what Kafka's JMX beans say of a log, and our own figures.

Kafka's names are spelled as Prometheus' JMX exporter spells them with its example rules for brokers in lower case:
kafka.log:type=Log,name=Size becomes kafka_log_log_size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.description import describe
from spark_segments.log.groups.lag import GroupLag, group_lags
from spark_segments.log.manifest.rows import REMOVED
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.maintenance.metrics.openmetrics import Family, Sample

if TYPE_CHECKING:
    from spark_segments.log.logdir import LogDir

Value = Callable[[Mapping[str, Any]], float | None]

# (name, help, value of a partition's line in `describe`)
_PARTITION: tuple[tuple[str, str, str, Value], ...] = (
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
        "Files of the active segment: appends since the last roll.",
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


def log_metrics(log: LogDir, topics: Sequence[tuple[Snapshot, TopicConfig]]) -> list[Family]:
    """Metrics of the partitions of topics, of the groups that read them, and of the log directory as a whole."""
    log_dir, described = log.uri, []
    waiting: list[Sample] = []
    for snapshot, config in topics:
        described.append(describe(snapshot, config))
        removed = snapshot.segments.filter(pc.equal(snapshot.segments.column("state"), REMOVED))
        size = pc.sum(removed.column("log_bytes")).as_py() or 0
        waiting.append(Sample({"log_dir": log_dir, "topic": snapshot.topic}, size))
    lines = [(topic["topic"], line) for topic in described for line in topic["partitions"]]
    families = [
        Family(name, text, _by_partition(log_dir, lines, value), unit) for name, text, unit, value in _PARTITION
    ]
    families.append(
        Family(
            "segments_topic_removed_bytes",
            "Bytes of .log files that have left the log and wait for vacuum.",
            tuple(waiting),
            "bytes",
        )
    )
    ratios = [line["dirty_ratio"] for _, line in lines if line["dirty_ratio"] is not None]
    if ratios:
        dirtiest = (Sample({"logDirectory": log_dir}, 100 * max(ratios)),)
        text = "The highest dirty ratio of the compacted partitions, in percent."
        families.append(Family("kafka_log_logcleanermanager_max_dirty_percent", text, dirtiest, "percent"))
    return families + _group_metrics(
        log_dir, group_lags(map(log.group, log.groups()), [snapshot for snapshot, _ in topics])
    )


def _group_metrics(log_dir: str, lags: Sequence[GroupLag]) -> list[Family]:
    """The metrics of groups, under the names of kafka_exporter, which most dashboards of lag know."""
    labels = [
        {"log_dir": log_dir, "consumergroup": one.group, "topic": one.topic, "partition": str(one.partition)}
        for one in lags
    ]
    return [
        Family(name, text, tuple(Sample(one, value) for one, value in zip(labels, values, strict=True)))
        for name, text, values in (
            ("kafka_consumergroup_lag", "Offsets that the group has not read.", [one.lag for one in lags]),
            (
                "kafka_consumergroup_current_offset",
                "The next offset that the group reads.",
                [one.offset for one in lags],
            ),
        )
    ]


def _by_partition(log_dir: str, lines: Sequence[tuple[str, Mapping[str, Any]]], value: Value) -> tuple[Sample, ...]:
    samples = []
    for topic, line in lines:
        found = value(line)
        if found is not None:
            labels = {"log_dir": log_dir, "topic": topic, "partition": str(line["partition"])}
            samples.append(Sample(labels, found))
    return tuple(samples)
