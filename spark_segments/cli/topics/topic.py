"""`segments topic …`: the group of commands for a topic."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer

from spark_segments.cli.command_options import OUTPUT, TOPIC, LogOptions, option, with_options
from spark_segments.cli.lazy_commands import group_of, panels
from spark_segments.cli.output import Output, ShownTime, print_json, print_summary, print_table, shown_change
from spark_segments.log import Snapshot
from spark_segments.quantities import Bytes, human_bytes, plural

COMMANDS = panels(
    {
        "Commands": {
            "create": "topics.changes:create",
            "list": "topics.topic:list_topics",
            "alter": "topics.changes:alter",
            "delete": "topics.changes:delete",
            "history": "topics.topic:history",
            "restore": "topics.changes:restore",
        }
    }
)

app = typer.Typer(cls=group_of(COMMANDS, {"describe": "segments describe"}), no_args_is_help=True, add_completion=False)


@app.callback()
def _topic() -> None:
    """Create, list, alter, delete and restore topics; their history."""


COLUMNS = ["topic", "partitions", "segments", "records", "bytes", "removed_bytes"]


@with_options
def list_topics(location: LogOptions, output: Output = OUTPUT) -> None:
    """Lists the topics.

    With --output wide or json it has their sizes, as kafka-log-dirs sums
    them up, and the bytes of files that have left the log and wait for
    vacuum: the disk holds both.

    Example: segments topic list /data/log
    Example: segments topic list /data/log --output wide
    """
    log = location.open()
    topics = log.topics()
    if output is not Output.TEXT:
        rows = [_sizes(log.topic(name).snapshot) for name in topics]
        if output is Output.JSON:
            print_json([dict(zip(COLUMNS, row, strict=True)) for row in rows])
            return
        print_table(COLUMNS, rows)
        log_bytes, removed_bytes = (sum(int(row[place]) for row in rows) for place in (-2, -1))
        text = f"{plural(len(rows), 'topic')}, {human_bytes(log_bytes)}"
        print_summary(f"{text}, and {human_bytes(removed_bytes)} wait for vacuum" if removed_bytes else text)
    else:
        for topic in topics:
            print(topic)


def _sizes(snapshot: Snapshot) -> list[Any]:
    records, size = (sum(snapshot.live.column(name).to_pylist()) for name in ("records", "log_bytes"))
    sizes = (Bytes(size), Bytes(snapshot.removed_bytes))
    return [snapshot.topic, len(snapshot.partitions), len(snapshot.live), records, *sizes]


PARTITIONS_SHOWN = 4
COMMIT_COLUMNS = (
    "version",
    "time",
    "job",
    "records_in",
    "records_out",
    "bytes_in",
    "bytes_out",
    "log_start",
    "log_end",
)


@with_options
def history(
    location: LogOptions,
    topic: str = TOPIC,
    partition: int | None = option("Show the offsets of this partition."),
    limit: int = option("Show this number of commits; 0 for all.", "-n", default=20, min=0),
    output: Output = OUTPUT,
) -> None:
    """Shows the commits of a topic, newest first: when each job committed, and what it added and removed.

    A segment that a job rewrites counts as records out and as records in.
    A line has each partition's offsets after the commit. Figures that vacuum
    has deleted are shown as -. `topic restore` goes back to a version.

    Example: segments topic history /data/log orders -n 5
    """
    commits = location.open().topic(topic).history(limit or None)
    if output is Output.JSON:
        print_json([_with_partitions(commit, partition) for commit in commits])
        return
    rows = [_commit_row(commit, partition) for commit in commits]
    if output is not Output.TEXT or not sys.stdout.isatty():
        print_table(COMMIT_COLUMNS, rows)
        return
    # At a terminal: what a commit added and took in one column each, and of the offsets the log ends alone.
    for row in rows:
        row[3:] = [_changed("records", row[3], row[4]), _changed("bytes", row[5], row[6]), row[8]]
    print_table([*COMMIT_COLUMNS[:3], "records", "bytes", "log_end"], rows)


def _with_partitions(commit: dict[str, Any], partition: int | None) -> dict[str, Any]:
    """The commit with a line for each partition, or for the one that is asked for."""
    if not commit["partitions"]:
        return commit
    lines = [
        {"partition": number, "log_start_offset": start, "log_end_offset": end}
        for number, (start, end) in commit["partitions"].items()
        if partition in (None, number)
    ]
    return commit | {"partitions": lines}


def _commit_row(commit: Mapping[str, Any], partition: int | None) -> list[Any]:
    """COMMIT_COLUMNS of a commit. Figures that vacuum has deleted are None."""
    bounds = [ends for number, ends in (commit["partitions"] or {}).items() if partition in (None, number)]
    time = None if commit["committed_ms"] is None else ShownTime(commit["committed_ms"])
    sizes = [None if commit[name] is None else Bytes(commit[name]) for name in ("bytes_in", "bytes_out")]
    return [
        str(commit["version"]),
        time,
        commit["job"],
        commit["records_in"],
        commit["records_out"],
        *sizes,
        _offsets([start for start, _ in bounds]),
        _offsets([end for _, end in bounds]),
    ]


def _changed(name: str, added: int | None, taken: int | None) -> str | None:
    """What a commit did to the topic: +10, −10, or what it made of the records that it took."""
    if added is None or taken is None:
        return None
    if added and taken:
        return shown_change(name, taken, added)
    return f"−{shown_change(name, taken, taken)}" if taken else f"+{shown_change(name, added, added)}"


def _offsets(offsets: list[int]) -> str | None:
    more = ", …" if len(offsets) > PARTITIONS_SHOWN else ""
    return ", ".join(map(str, offsets[:PARTITIONS_SHOWN])) + more if offsets else None
