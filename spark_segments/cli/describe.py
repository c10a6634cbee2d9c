"""`segments describe` (and `segments topic describe`): topics as a table, as JSON, or as a page to look at."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from spark_segments.cli.arguments import (
    DefaultsOption,
    LogDirArgument,
    NowOption,
    OptionalTopicArgument,
    OutputOption,
    StorageOption,
    open_log,
)
from spark_segments.cli.output import Output, human_bytes, print_json, print_table
from spark_segments.config import topic_config
from spark_segments.errors import UnknownTopicError

HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Write a page of all segments there, which needs no server."),
]


def describe(
    log_dir: LogDirArgument,
    topic: OptionalTopicArgument = None,
    html: HtmlOption = None,
    output: OutputOption = Output.TEXT,
    now_ms: NowOption = None,
    storage: StorageOption = None,
    defaults: DefaultsOption = None,
) -> None:
    """Shows topics: settings; offsets, segments, records, bytes and dirty ratio of each partition.

    With --html a page shows each partition as a strip of its segments (clean
    tail, dirty head, active), and what rolls, goes and is compacted when.

    Example: segments describe /data/log --html log.html
    Example: segments topic describe /data/log orders
    """
    from spark_segments.log.description import describe as describe_topic

    log = open_log(log_dir, storage, defaults)
    topics = []
    for name in [topic] if topic else log.topics():
        try:
            snapshot = log.snapshot(name)
        except UnknownTopicError:
            if topic:
                raise
            continue  # deleted since it was listed
        topics.append((snapshot, topic_config(snapshot.config, log.defaults)))
    if html is not None:
        from spark_segments.cli.page.render import page

        # A page is looked at beside a person's clock; and a directory of Kafka's is not written to for the store's.
        text = page(log.uri, topics, time.time_ns() // 1_000_000 if now_ms is None else now_ms, kafka=log.is_kafka)
        html.write_text(text, encoding="utf-8")
        if output is Output.TEXT:
            print(f"Wrote {html}: {human_bytes(html.stat().st_size)}.")
            return
    described = [describe_topic(snapshot, config) for snapshot, config in topics]
    if output is Output.JSON:
        print_json(described if topic is None else described[0])
        return
    for one, (_, config) in zip(described, topics, strict=True):
        sources = config.sources()
        own = [f"{name}={value}" for name, value in one["config"].items() if sources[name] != "default"]
        print(
            f"Topic: {one['topic']}  TopicId: {one['topic_id']}  Version: {one['version']}",
            f"Configs: {', '.join(own) or '-'}",
            sep="  ",
        )
        columns = list(one["partitions"][0])
        print_table(columns, (list(row.values()) for row in one["partitions"]))
