"""`segments topic list`."""

from __future__ import annotations

from typing import Any

from spark_segments.cli.options import LogOptions, OutputOption, with_options
from spark_segments.cli.output import Output, print_json, print_summary, print_table
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.quantities import Bytes, human_bytes, plural

COLUMNS = ["topic", "partitions", "segments", "records", "bytes"]


@with_options
def list_topics(location: LogOptions, output: OutputOption = Output.TEXT) -> None:
    """Lists the topics.

    With --output wide it has their sizes, as kafka-log-dirs sums them up.

    Example: segments topic list /data/log
    Example: segments topic list /data/log --output wide
    """
    log = location.open()
    topics = log.topics()
    if output is Output.WIDE:
        rows = [_sizes(log.topic(name).snapshot) for name in topics]
        print_table(COLUMNS, rows)
        print_summary(f"{plural(len(rows), 'topic')}, {human_bytes(sum(int(row[-1]) for row in rows))}")
    elif output is Output.JSON:
        print_json(topics)
    else:
        for topic in topics:
            print(topic)


def _sizes(snapshot: Snapshot) -> list[Any]:
    records, size = (sum(snapshot.live.column(name).to_pylist()) for name in ("records", "log_bytes"))
    return [snapshot.topic, len(snapshot.partitions), len(snapshot.live), records, Bytes(size)]
