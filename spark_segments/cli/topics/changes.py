"""`segments topic create`, `alter` and `delete`: the counterparts of Kafka's kafka-topics and kafka-configs."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_segments.cli.options import ConfigOption, ConfiguredLogOptions, LogOptions, TopicArgument, with_options
from spark_segments.config import parse_overrides

PartitionsOption = Annotated[int, typer.Option("--partitions", min=1, help="The number of partitions.")]


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
    log = location.create_topics()
    if if_not_exists and topic in log.topics():
        return
    log.create_topic(topic, partitions, parse_overrides(config or []))
    print(f"Created topic {topic}.")


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
    location.open_topics().alter_topic(topic, changes, partitions)
    print(f"Altered topic {topic}.")


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
    log = location.open_topics()
    if if_exists and topic not in log.topics():
        return
    log.delete_topic(topic, force=force)
    print(f"Deleted topic {topic}.")
