"""`segments topic …`: the group of commands for a topic."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import typer

from spark_segments.cli.lazy_commands import group_of, panel
from spark_segments.cli.options import LogOptions, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output, print_json, print_summary, print_table
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.quantities import Bytes, human_bytes, plural

COMMANDS = panel(
    "Commands",
    ("create", "topics.changes:create", "Creates a topic, and the log directory if it does not exist."),
    ("list", "topics.topic:list_topics", "Lists the topics."),
    ("alter", "topics.changes:alter", "Changes a topic's configuration, or raises its number of partitions."),
    ("upgrade", "topics.topic:upgrade", "Raises a topic's format version to the newest, in one commit."),
    ("delete", "topics.changes:delete", "Deletes a topic. On a terminal it says what is in it, and asks first."),
    (
        "history",
        "topics.history:history",
        "Shows the commits of a topic, newest first: when each job committed, and what it added and took.",
    ),
    (
        "restore",
        "topics.restore:restore",
        "Restores a topic's records to those of an earlier version, while its files still exist.",
    ),
)

app = typer.Typer(
    cls=group_of(
        COMMANDS,
        dict.fromkeys(("describe", "--describe"), "segments describe"),
        {f"--{name}": name for name in ("create", "list", "alter", "delete")},
    ),
    no_args_is_help=True,
    add_completion=False,
    help="Create, list, alter, upgrade, delete and restore topics; their history.",
)


@app.callback()
def _topic() -> None:
    pass


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


@with_options
def upgrade(
    location: LogOptions,
    topic: TopicArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Raises a topic's format version to the newest, in one commit.

    Packages older than that format refuse the topic from then on: upgrade
    every reader and writer first. There is no way back. No record and no
    file of the log changes, and jobs may run meanwhile.

    Example: segments topic upgrade /data/log orders --dry-run
    """
    done = location.open().topic(topic).upgrade(dry_run=dry_run)
    if output is Output.JSON:
        print_json({"topic": topic, "dry_run": dry_run, **dataclasses.asdict(done)})
    elif done.from_version == done.to_version:
        print(f"Topic {topic} has format version {done.to_version} already.")
    else:
        verb = "Would upgrade" if dry_run else "Upgraded"
        print(f"{verb} topic {topic} from format version {done.from_version} to {done.to_version}.")
        print(f"Transactions of writers that go along: {done.transactions}.")
