"""`segments topic …`: the group of commands for a topic."""

from __future__ import annotations

import typer

from spark_segments.cli.lazy_commands import LazyCommand, group_of

COMMANDS = [
    LazyCommand(
        "create",
        "spark_segments.cli.topics.changes:create",
        "Creates a topic, and the log directory if it does not exist.",
    ),
    LazyCommand("list", "spark_segments.cli.topics.listing:list_topics", "Lists the topics."),
    LazyCommand(
        "alter",
        "spark_segments.cli.topics.changes:alter",
        "Changes a topic's configuration, or raises its number of partitions.",
    ),
    LazyCommand(
        "upgrade",
        "spark_segments.cli.topics.upgrade:upgrade",
        "Raises a topic's format version to the newest, in one commit.",
    ),
    LazyCommand(
        "delete",
        "spark_segments.cli.topics.changes:delete",
        "Deletes a topic. On a terminal it says what is in it, and asks first.",
    ),
    LazyCommand(
        "history",
        "spark_segments.cli.topics.history:history",
        "Shows the commits of a topic, newest first: when each job committed, and what it added and took.",
    ),
    LazyCommand(
        "restore",
        "spark_segments.cli.topics.restore:restore",
        "Restores a topic's records to those of an earlier version, while its files still exist.",
    ),
]

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
