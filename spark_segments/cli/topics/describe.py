"""`segments describe`: topics as a table, as JSON, or as an HTML page."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from spark_segments.cli.command_options import (
    ANY_TOPICS,
    METRICS,
    NOW_MS,
    OUTPUT,
    ConfiguredLogOptions,
    option,
    with_options,
)
from spark_segments.cli.index_output import index_lines
from spark_segments.cli.output import FAILED, Output, print_json, print_table, print_text, shown_hole
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError, escaped
from spark_segments.lake.noted import TABLES, described_tables
from spark_segments.log import Captured, Undecided
from spark_segments.log import describe as describe_topic
from spark_segments.quantities import Bytes, human_bytes, moment, wall_ms
from spark_segments.replicas.role import role_of

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Snapshot

DescribedTopic = tuple["Snapshot", TopicConfig]
"""A topic as it is now, with the settings that are valid for it."""

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
    topics, is_complete = _readable(log, topic)
    if html is not None:
        # People compare a page with their own clock. The store's clock would also need a write to Kafka's directory.
        _write_page(html, log, topics, wall_ms() if now_ms is None else now_ms)
        if output is not Output.JSON:
            print(f"Wrote {html}: {human_bytes(html.stat().st_size)}.")
    if metrics is not None:
        from spark_segments.cli.metrics import log_metrics, write_metrics

        write_metrics(metrics, log_metrics(log, topics))
    if (html is None and metrics is None) or output is Output.JSON:
        _print(log, topics, output, single=[snapshot.topic for snapshot, _ in topics] == topic)
    if not is_complete:
        raise typer.Exit(FAILED)


def _readable(log: LogDir, names: Sequence[str] | None) -> tuple[list[DescribedTopic], bool]:
    """(topics with their settings, whether all listed topics could be read).

    A named topic that cannot be read is an error. Without names, each such topic is an error on standard error, so that
    one damaged topic hides no other.
    """
    topics: list[DescribedTopic] = []
    is_complete = True
    for name in log.named(names) if names else log.topics():
        try:
            snapshot = log.topic(name).snapshot
            _ = snapshot.live  # reads the rows of segments now, where a damaged one can still be reported by topic
            topics.append((snapshot, topic_config(snapshot.config, log.defaults)))
        except UnknownTopicError:
            if names:
                raise
            # The topic was deleted after it was listed.
        except SegmentsError as error:
            if names:
                raise
            print(f"error: {name}: {error}", file=sys.stderr)
            is_complete = False
    return topics, is_complete


def _write_page(path: Path, log: LogDir, topics: Sequence[DescribedTopic], now_ms: int) -> None:
    """Writes the page of the topics: of a large log, of the first ones that a browser can show."""
    from spark_segments.cli.page.log_state import first_topics, growth, log_warnings, sizes_now
    from spark_segments.cli.page.render import page

    shown = first_topics(topics)
    snapshots = [snapshot for snapshot, _ in shown.topics]
    warnings, lags = log_warnings(log, snapshots, now_ms)
    text = page(
        log.uri,
        shown.topics,
        now_ms,
        kafka=log.is_kafka,
        warnings=warnings,
        lags=lags,
        grown=growth(log, sizes_now(snapshots)),
        part=None if shown.is_all else shown,
    )
    path.write_text(text, encoding="utf-8")


def _print(log: LogDir, topics: Sequence[DescribedTopic], output: Output, *, single: bool) -> None:
    descriptions = []
    indexed_topics = log.key_offsets.topics()
    for snapshot, config in topics:
        description = describe_topic(snapshot, config)
        replica_states = Captured.others(snapshot.states)  # none where the topic has neither leader nor followers
        if replica_states.pop(TABLES, None) is not None:
            description["tables"] = described_tables(log, snapshot)
        if replica_states:
            description["states"] = replica_states
        if snapshot.topic in indexed_topics:
            description |= log.key_offsets.describe(snapshot)
        descriptions.append(description)
    if output is Output.JSON:
        print_json(descriptions[0] if single else descriptions)
        return
    for description, (snapshot, config) in zip(descriptions, topics, strict=True):
        _print_head(description, config)
        _print_role(snapshot)
        _print_partitions(description["partitions"], output)
        _print_states(description, snapshot)
        for line in index_lines(description.get("key_index"), description.get("field_indexes", {})):
            print_text(line)


def _print_head(description: dict[str, Any], config: TopicConfig) -> None:
    """The topic's line: its id, its version, the settings that are not defaults, and the objects that it shares."""
    sources = config.sources()
    settings = [f"{name}={value}" for name, value in description["config"].items() if sources[name] != "default"]
    line = f"Topic: {description['topic']}  TopicId: {description['topic_id']}  Version: {description['version']}"
    line += f"  Configs: {', '.join(settings) or '-'}"
    shared = description["shared"]
    if shared["objects"]:
        line += f"  Shared: {shared['objects']} objects, {human_bytes(shared['size_bytes'])}"
    print_text(escaped(line, one_line=True))


def _print_role(snapshot: Snapshot) -> None:
    role = role_of(snapshot)
    if role.source is not None:
        print(f"Follower of {role.source.uri}, at its version {role.source.version}")
    elif role.is_fenced:
        print(f"Fenced: the topic in {role.leader_uri} was promoted in its place")


def _print_partitions(partitions: Sequence[dict[str, Any]], output: Output) -> None:
    """The table of partitions: a terminal gets the columns that fit it, a pipe and --output wide all of them."""
    rows = [row | {"size_bytes": Bytes(row["size_bytes"])} for row in partitions]
    if output is Output.TEXT and sys.stdout.isatty():
        print_table([*SHORT.values()], ([row[name] for name in SHORT] for row in rows))
    else:
        print_table(list(rows[0]), (list(row.values()) for row in rows))


def _print_states(description: dict[str, Any], snapshot: Snapshot) -> None:
    """A line for each state that a reader or an operator has to know: what waits, what is lost, what is behind."""
    topic = description["topic"]
    for row, text in _open(snapshot, description["partitions"]):
        print(f"Open: {topic}-{row['partition']}: {text}")
    for hole in description["holes"]:
        print(f"Hole: {shown_hole({'topic': topic, **hole})}")
    for transaction in Undecided.of(snapshot.states):
        print(f"Undecided: {topic}-{transaction.partition}: {transaction}")
    for capture in description["captured"]:
        # The broker may have removed tombstones before this capture came: records that they deleted stay in the log.
        late = "; a capture came later than delete.retention.ms" if capture["late"] else ""
        at = moment(capture["at_ms"])
        print(f"Captured: partition {capture['partition']}, {capture['lag']} behind, all was here at {at}{late}")
    for table in description.get("tables", ()):
        kind = table["view"] or ("archive" if table["archive"] else "all records")
        state = f"version {table['version']}, {table['offsets_behind']} offsets behind"
        print_text(escaped(f"Table: {table['uri']} ({kind}): {table['error'] or state}", one_line=True))


def _open(snapshot: Snapshot, rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], str]]:
    """(a partition's line, a sentence) where a transaction that is open keeps offsets from committed reads."""
    for row in rows:
        if not row["last_stable_offset_lag"]:
            continue
        producers = ", ".join(_open_producers(snapshot, row["partition"])) or "of an unknown producer"
        offsets = f"{row['last_stable_offset_lag']} offsets from the last stable offset {row['last_stable_offset']} on"
        yield row, f"{offsets} wait for the end of a transaction: {producers}"


def _open_producers(snapshot: Snapshot, partition: int) -> Iterator[str]:
    from spark_segments.format.sidecars.producer_state import parse_producer_snapshot  # kernels, which few need

    producer_snapshot = snapshot.partition(partition).producer_snapshot
    if not producer_snapshot:
        return
    for entry in parse_producer_snapshot(producer_snapshot):
        if entry.current_txn_first_offset >= 0:
            yield f"producer {entry.producer_id} since offset {entry.current_txn_first_offset}"
