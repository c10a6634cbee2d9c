"""Capture: topics of a running cluster, their batches as the broker has them, at the same offsets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from spark_segments.config import selected_topics
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.extensions import observed_job
from spark_segments.kafka.group_patterns import chosen_groups
from spark_segments.kafka.groups import keep_groups
from spark_segments.kafka.internal_topics.consumer_offsets import GroupOffsets
from spark_segments.kafka_protocol.capturing.branches import branch
from spark_segments.kafka_protocol.capturing.capture_options import CaptureOptions, Divergence
from spark_segments.kafka_protocol.capturing.cluster_log import DivergedError
from spark_segments.kafka_protocol.capturing.source import SourceCluster, SourceTopic, patient
from spark_segments.kafka_protocol.capturing.topic_capture import CAPTURED, CapturePass, TopicCapture
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.log import LogDirectory, Report
from spark_segments.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@observed_job("capture")
def capture(
    log: LogDirectory,
    servers: str,
    topics: Sequence[str] = ("*",),
    options: CaptureOptions | None = None,
    *,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Report:
    """Copies what topics of a running cluster have, up to their high watermarks.

    `servers`: `host:port`, several with commas. `topics`: names or patterns; internal ones are left out. With `spark`
    the partitions of a topic are divided among the executors, each of which is a client of the cluster. `progress(done,
    total)`: offsets of the topic under way. A new topic gets the cluster's settings and topic id, but for retention.

    The report has a line a topic, with its name here, the records and bytes that were added (bytes of record batches,
    compressed, with their headers), and "source" (its name in the cluster), "partitions", "lag" (offsets between the
    log ends here and the high watermarks seen last), "late", "kept" (partitions whose log in the cluster is another
    one), "branched" (whether this pass began a new copy), "groups" that have positions in it; and in `details` "holes"
    and "undecided", as plain values.

    Call it again to go on. Offsets that the cluster removed before they were fetched are holes of the topic, recorded
    by the commit that passes them. A compacted topic is "late", and a warning says so from then on, where the cluster
    may have removed tombstones that were not captured. A transaction whose end it removed before that was captured,
    and its records with it, is undecided: committed reads leave it out, and the topic remembers it.

    A topic that cannot be captured has a line that failed, and the others go on: its log in the cluster is another one
    (see CaptureOptions), or the cluster does not answer for `patience_seconds`. Raises UnknownTopicError where there is
    no such topic, and SourceError where no broker answers within `reach_seconds`.
    """
    options = options or CaptureOptions()
    report = Report("capture", dry_run=False)
    report.details |= {"holes": [], "undecided": []}
    rate = RateLimit(options.max_rate)
    selected_topics((), topics)  # names that no topic has are no question for a cluster
    with SourceCluster(servers, options.client_config, options.answer_seconds) as source:
        _capture_topics(CapturePass(log, source, options, report, rate, spark, progress), topics)
    rate.wait()  # the next pass finds nothing saved up
    return report.finish()


def _capture_topics(work: CapturePass, topics: Sequence[str]) -> None:
    """Captures topics, and the positions of groups in them."""
    options = work.options
    servers = work.source.servers
    cluster_topics = work.source.reached(min(options.reach_seconds, options.patience_seconds))
    names = selected_topics(cluster_topics, topics)
    chosen = [cluster_topics[name] for name in names if name in cluster_topics]
    if not chosen:
        raise UnknownTopicError(
            f"{servers} shows no topic {', '.join(topics)}",
            hint="Internal topics are left out, and brokers hide what this user may not read",
        )
    # Before the logs, so that no position lies above what is captured.
    positions = patient(partial(_groups, work.source, options.groups, chosen), options.patience_seconds)
    names_here: dict[str, str] = {}
    for name in names:
        if name not in cluster_topics:
            work.report.add(name, None, Report.FAILED, error=f"{servers} shows no topic {name}")
            continue
        topic_capture = TopicCapture(work, cluster_topics[name])
        begin_copy = partial(branch, work.log, name, cluster_topics)
        try:
            if options.recapture:
                begin_copy()
            names_here[name] = _captured(topic_capture, begin_copy, work)
        except SegmentsError as error:
            topic_capture.add_line(Report.FAILED, error=str(error))
    _keep_groups(work.log, positions, names_here, work.report)


def _captured(topic_capture: TopicCapture, begin_copy: Callable[[], str], work: CapturePass) -> str:
    """Captures a topic, in a new copy where its log in the cluster is another one and the options say so. Returns the
    topic's name here.
    """
    try:
        return topic_capture.run()
    except DivergedError as error:
        if work.options.on_divergence is not Divergence.BRANCH:
            raise
        work.report.warn(
            f"{topic_capture.name}: {error.message}. What was captured stays there; a new copy goes on in "
            f"{begin_copy()}"
        )
        name_here = topic_capture.run()
        work.report.partitions[-1]["branched"] = True
        return name_here


def _keep_groups(log: LogDirectory, positions: GroupOffsets, names_here: Mapping[str, str], report: Report) -> None:
    """Gives the groups here their positions in the topics that were captured, under these topics' names here."""
    renamed = {
        group: {(names_here.get(topic, topic), number): offset for (topic, number), offset in offsets.items()}
        for group, offsets in positions.items()
    }
    lines = {line["topic"]: line for line in report.partitions if line["action"] == CAPTURED}
    parted = {(name, number) for name, line in lines.items() for number in line["kept"]}
    kept, warnings = keep_groups(log, renamed, [*lines] if renamed else [], parted)
    for text in warnings:
        report.warn(text)
    for name, groups in kept.items():
        lines[name]["groups"] = groups


def _groups(source: SourceCluster, patterns: Sequence[str], topics: Sequence[SourceTopic]) -> GroupOffsets:
    if not patterns:
        return {}
    groups = source.groups()
    return {
        group: source.positions(group, groups[group], topics)
        for group in chosen_groups(groups, patterns, "The cluster shows")
    }
