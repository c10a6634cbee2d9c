"""`segments topic …`: the counterpart of Kafka's kafka-topics and kafka-configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from spark_segments.cli.options import (
    ConfigOption,
    ConfiguredLogOptions,
    LogOptions,
    OutputOption,
    TopicArgument,
    with_options,
)
from spark_segments.cli.output import Output, print_json, print_table
from spark_segments.cli.topics.describe import describe
from spark_segments.config import parse_overrides

app = typer.Typer(no_args_is_help=True, help="Create, list, describe, alter, delete and restore topics.")

PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, help="The number of partitions.")]


@app.command("create")
@with_options
def create(
    location: ConfiguredLogOptions,
    topic: TopicArgument,
    partitions: PartitionsOption = 1,
    config: ConfigOption = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do nothing if the topic exists.")] = False,
) -> None:
    """Creates a topic, and the log directory if it does not exist.

    Example: segments topic create /data/log orders --partitions 6 \\
      --config retention.ms=604800000
    """
    log = location.create()
    if if_not_exists and topic in log.topics():
        return
    log.create_topic(topic, partitions, parse_overrides(config or []))
    print(f"Created topic {topic}.")


@app.command("list")
@with_options
def list_topics(location: LogOptions, output: OutputOption = Output.TEXT) -> None:
    """Lists the topics.

    Example: segments topic list /data/log
    """
    topics = location.open().topics()
    if output is Output.JSON:
        print_json(topics)
    else:
        for topic in topics:
            print(topic)


app.command("describe")(describe)


@app.command("alter")
@with_options
def alter(
    location: ConfiguredLogOptions,
    topic: TopicArgument,
    partitions: Annotated[
        int | None, typer.Option("--partitions", help="Raise the number of partitions to this.")
    ] = None,
    config: ConfigOption = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="NAME", help="Return a setting to its default; may be given several times."
        ),
    ] = None,
) -> None:
    """Changes a topic's configuration, or raises its number of partitions.

    Example: segments topic alter /data/log orders \\
      --config cleanup.policy=compact --delete-config retention.ms
    """
    changes: dict[str, str | None] = dict(parse_overrides(config or []))
    changes |= dict.fromkeys(delete_config or [])
    location.open().alter_topic(topic, changes, partitions)
    print(f"Altered topic {topic}.")


@app.command("delete")
@with_options
def delete(
    location: LogOptions,
    topic: TopicArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if the topic does not exist.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the topic even if its manifest cannot be read.")
    ] = False,
) -> None:
    """Deletes a topic. Vacuum deletes its files once file.delete.delay.ms has passed.

    --force also deletes a topic whose manifest cannot be read, because it is
    damaged or of a newer version of this package. All of the topic's files
    are deleted, even if another version could still read them.

    Example: segments topic delete /data/log orders
    """
    log = location.open()
    if if_exists and topic not in log.topics():
        return
    log.delete_topic(topic, force=force)
    print(f"Deleted topic {topic}.")


@app.command("restore")
@with_options
def restore(
    location: LogOptions,
    topic: TopicArgument,
    version: Annotated[int, typer.Option("--version", help="The version to return to, as describe printed it.")],
    forget_transactions: Annotated[
        bool, typer.Option("--forget-transactions", help="Let the removed transactions be appended again.")
    ] = False,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restores a topic's records to those of an earlier version, while its files still exist.

    The output names the transactions (app id, version) of appends that the
    restore removes. Repeating such an append adds nothing, unless
    --forget-transactions is given, now or in a second restore of the same
    version.

    Example: segments topic restore /data/log orders --version 41
    """
    from spark_segments.maintenance.removal.restore import restore as restore_topic

    offsets = restore_topic(location.open(), topic, version, forget_transactions=forget_transactions)
    rows = [{"partition": number, "log_start_offset": a, "log_end_offset": b} for number, (a, b) in offsets.items()]
    if output is Output.JSON:
        transactions = [
            {"app_id": one.app_id, "versions": list(one.versions), "kept_version": one.kept_version}
            for one in offsets.transactions
        ]
        print_json(
            {
                "topic": topic,
                "version": version,
                "partitions": rows,
                "transactions": transactions,
                "transactions_forgotten": forget_transactions,
            }
        )
    else:
        print_table(["partition", "log_start_offset", "log_end_offset"], (list(row.values()) for row in rows))
        if offsets.transactions:
            again = "can be sent again" if forget_transactions else "add nothing if repeated (--forget-transactions)"
            print(f"\nTransactions above version {version}, which {again}:")
            print_table(
                ["app_id", "versions", "kept_version"],
                ([one.app_id, _ranges(one.versions), one.kept_version] for one in offsets.transactions),
            )


def _ranges(versions: Sequence[int]) -> str:
    """[3, 4, 5, 9] → "3-5, 9"."""
    runs: list[list[int]] = []
    for version in versions:
        if runs and version == runs[-1][1] + 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)
