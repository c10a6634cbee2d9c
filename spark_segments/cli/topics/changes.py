"""`segments topic create`, `alter` and `delete`: the counterparts of Kafka's kafka-topics and kafka-configs."""

from __future__ import annotations

import difflib
from typing import Annotated

import pyarrow.compute as pc
import typer

from spark_segments.cli.completion import setting_names
from spark_segments.cli.confirmation import confirm, print_way_back
from spark_segments.cli.options import (
    ConfigOption,
    ConfiguredLogOptions,
    DryRunOption,
    LogOptions,
    TopicArgument,
    YesOption,
    with_options,
)
from spark_segments.cli.page.words import duration
from spark_segments.config import parse_overrides, topic_config
from spark_segments.config.table import KEYS
from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownTopicError
from spark_segments.quantities import human_bytes

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
    log = location.create()
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
            "--delete-config",
            metavar="NAME",
            help="Return a setting to its default; may be given several times.",
            autocompletion=setting_names,
        ),
    ] = None,
) -> None:
    """Changes a topic's configuration, or raises its number of partitions.

    Example: segments topic alter /data/log orders \\
      --config cleanup.policy=compact --delete-config retention.ms
    """
    changes: dict[str, str | None] = dict(parse_overrides(config or []))
    changes |= dict.fromkeys(delete_config or [])
    log = location.open()
    for name in delete_config or []:
        if name not in KEYS and name not in log.topic(topic).snapshot.config:
            near = difflib.get_close_matches(name, KEYS, n=1)
            hint = f"Did you mean {near[0]}?" if near else "segments describe shows the topic's settings"
            raise InvalidOptionError("Unknown setting", found=name, hint=hint)
    log.topic(topic).alter(changes, partitions)
    print(f"Altered topic {topic}.")


@with_options
def delete(
    location: LogOptions,
    topic: TopicArgument,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do nothing if the topic does not exist.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete the topic even if its manifest cannot be read.")
    ] = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Deletes a topic. On a terminal it says what is in it, and asks first.

    Vacuum deletes the files once file.delete.delay.ms has passed. Until then
    `segments topic restore` brings the topic back.

    --force also deletes a topic whose manifest cannot be read, because it is
    damaged or of a newer version of this package. All of the topic's files
    are deleted, even if another version could still read them.

    Example: segments topic delete /data/log orders
    """
    log = location.open()
    if if_exists and topic not in log.topics():
        return
    try:
        snapshot = log.topic(topic).snapshot
    except UnknownTopicError:
        raise
    except SegmentsError as error:
        if not force:
            error.hint = error.hint or "Restore the manifest from a backup, or delete the topic by force"
            raise
        what, version, delay = f"topic {topic}, whose content is not known ({error.message})", None, None
    else:
        records, size = (pc.sum(snapshot.live.column(name)).as_py() or 0 for name in ("records", "log_bytes"))
        what = f"topic {topic}: {len(snapshot.partitions):,} partitions, {records:,} records, {human_bytes(size)}"
        version = snapshot.version
        delay = duration(topic_config(snapshot.config, log.defaults).file_delete_delay_ms)
    if dry_run:
        print(f"Would delete {what}.")
        return
    confirm(f"Delete {what}?", yes)
    log.delete_topic(topic, force=force)
    print(f"Deleted topic {topic}.")
    if version is not None:
        print_way_back(location.log_dir, topic, version, delay=delay)
