"""`segments topic upgrade`: a topic's format version raised to the newest."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from spark_segments.cli.options import LogOptions, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output, print_json


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
