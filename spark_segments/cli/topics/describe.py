"""`segments describe`: topics as a table, as JSON, or as an HTML page."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spark_segments.cli.options import (
    ANY_TOPICS,
    METRICS,
    NOW_MS,
    OUTPUT,
    ConfiguredLogOptions,
    option,
    with_options,
)
from spark_segments.cli.output import FAILED, Output, print_json, print_table, print_text, shown_hole
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError, escaped
from spark_segments.log import Captured, Undecided
from spark_segments.log import describe as describe_topic
from spark_segments.quantities import Bytes, human_bytes, moment, wall_ms
from spark_segments.replicas.role import role_of

if TYPE_CHECKING:
    from spark_segments.log import Snapshot

SHORT = {
    "partition": "partition",
    "log_start_offset": "log_start",
    "log_end_offset": "log_end",
    "segments": "segments",
    "chunks": "chunks",
    "records": "records",
    "size_bytes": "size",
    "dirty_ratio": "dirty_ratio",
}
"""{a column: its name at a terminal}. --output wide has all columns."""


@with_options
def describe(
    location: ConfiguredLogOptions,
    topic: list[str] | None = ANY_TOPICS,
    html: Path | None = option(
        "Write a page that shows all segments to this file. It needs no server.", metavar="FILE"
    ),
    metrics: Path | None = METRICS,
    output: Output = OUTPUT,
    now_ms: int | None = NOW_MS,
) -> None:
    """Shows topics: settings; offsets, segments, records, bytes and dirty ratio of each partition.

    With --html a page shows each partition as a strip of its segments (clean
    tail, dirty head, active), and when segments are rolled, removed and
    compacted. With --metrics the offsets, sizes and dirty ratios become
    metrics, under Kafka's names where Kafka has the same.

    Example: segments describe /data/log --html log.html
    Example: segments describe /data/log orders
    """
    log = location.open()
    topics = []
    failed = False
    for name in log.named(topic) if topic else log.topics():
        try:
            snapshot = log.topic(name).snapshot
            _ = snapshot.live
            topics.append((snapshot, topic_config(snapshot.config, log.defaults)))
        except UnknownTopicError:
            if topic:
                raise
            # The topic was deleted after it was listed.
        except SegmentsError as error:
            if topic:
                raise
            print(f"error: {name}: {error}", file=sys.stderr)
            failed = True
    if html is not None:
        from spark_segments.cli.page.log_state import first_topics, growth, log_warnings, sizes_now
        from spark_segments.cli.page.render import page

        # People compare a page with their own clock. The store's clock would also need a write to Kafka's directory.
        now_ms = wall_ms() if now_ms is None else now_ms
        shown = first_topics(topics)
        warnings, lags = log_warnings(log, [snapshot for snapshot, _ in shown.topics], now_ms)
        part = None if shown.is_all else shown
        grown = growth(log, sizes_now(snapshot for snapshot, _ in shown.topics))
        text = page(
            log.uri, shown.topics, now_ms, kafka=log.is_kafka, warnings=warnings, lags=lags, grown=grown, part=part
        )
        html.write_text(text, encoding="utf-8")
        if output is not Output.JSON:
            print(f"Wrote {html}: {human_bytes(html.stat().st_size)}.")
    if metrics is not None:
        from spark_segments.cli.metrics import log_metrics, write_metrics

        write_metrics(metrics, log_metrics(log, topics))
    if (html is None and metrics is None) or output is Output.JSON:
        _print(topics, output, single=[snapshot.topic for snapshot, _ in topics] == topic)
    if failed:
        raise typer.Exit(FAILED)


def _open(snapshot: Snapshot, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """(a partition's line, a sentence) where a transaction that is open keeps offsets from committed reads."""
    for row in rows:
        if not row["last_stable_offset_lag"]:
            continue
        from spark_segments.format.sidecars.producer_state import parse_producer_snapshot  # kernels, which few need

        producers = snapshot.partition(row["partition"]).producer_snapshot
        waits = [
            f"producer {entry.producer_id} since offset {entry.current_txn_first_offset}"
            for entry in (parse_producer_snapshot(producers) if producers else ())
            if entry.current_txn_first_offset >= 0
        ]
        text = f"{row['last_stable_offset_lag']} offsets from the last stable offset {row['last_stable_offset']} on"
        yield row, f"{text} wait for the end of a transaction: {', '.join(waits) or 'of an unknown producer'}"


def _print(topics: Sequence[tuple[Snapshot, TopicConfig]], output: Output, *, single: bool) -> None:
    described = []
    for snapshot, config in topics:
        states = Captured.others(snapshot.states)  # what it is among its followers; nothing where it stands alone
        described.append(describe_topic(snapshot, config) | ({"states": states} if states else {}))
    if output is Output.JSON:
        print_json(described[0] if single else described)
        return
    for topic, (snapshot, config) in zip(described, topics, strict=True):
        sources = config.sources()
        shared = topic["shared"]
        own = [f"{name}={value}" for name, value in topic["config"].items() if sources[name] != "default"]
        line = f"Topic: {topic['topic']}  TopicId: {topic['topic_id']}  Version: {topic['version']}"
        line += f"  Configs: {', '.join(own) or '-'}"
        if shared["objects"]:
            line += f"  Shared: {shared['objects']} objects, {human_bytes(shared['size_bytes'])}"
        print_text(escaped(line, one_line=True))
        role = role_of(snapshot)
        if role.source is not None:
            print(f"Follower of {role.source.uri}, at its version {role.source.version}")
        elif role.is_fenced:
            print(f"Fenced: the topic in {role.leader_uri} was promoted in its place")
        rows = [row | {"size_bytes": Bytes(row["size_bytes"])} for row in topic["partitions"]]
        if output is Output.TEXT and sys.stdout.isatty():
            print_table([*SHORT.values()], ([row[name] for name in SHORT] for row in rows))
        else:
            print_table(list(rows[0]), (list(row.values()) for row in rows))
        for row, text in _open(snapshot, topic["partitions"]):
            print(f"Open: {topic['topic']}-{row['partition']}: {text}")
        for hole in topic["holes"]:
            print(f"Hole: {shown_hole({'topic': topic['topic'], **hole})}")
        for transaction in Undecided.of(snapshot.states):
            print(f"Undecided: {topic['topic']}-{transaction.partition}: {transaction}")
        for part in topic["captured"]:
            late = "; a capture came later than delete.retention.ms" if part["late"] else ""
            at = moment(part["at_ms"])
            print(f"Captured: partition {part['partition']}, {part['lag']} behind, all was here at {at}{late}")
