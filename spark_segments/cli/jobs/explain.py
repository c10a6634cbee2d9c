"""`segments explain`: why a record is still in the log and when it goes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.jobs.keys import Base64KeyOption, KeyOption, key_bytes
from spark_segments.cli.options import ConfiguredLogOptions, NowOption, OutputOption, TopicArgument, with_options
from spark_segments.cli.output import Output, print_json, print_text
from spark_segments.errors import InvalidOptionError
from spark_segments.quantities import duration_ms


@with_options
def explain(
    location: ConfiguredLogOptions,
    topic: TopicArgument,
    partition: Annotated[
        int | None, typer.Option("--partition", help="The partition; needed where the topic has several.")
    ] = None,
    offset: Annotated[int | None, typer.Option("--offset", help="The record at this offset.", min=0)] = None,
    at: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="The first record of this time or later.")
    ] = None,
    key: KeyOption = None,
    key_base64: Base64KeyOption = None,
    every: Annotated[str, typer.Option("--every", metavar="TIME", help="How often each job runs.")] = "1h",
    output: OutputOption = Output.TEXT,
    now_ms: NowOption = None,
) -> None:
    """Says which rule keeps a record, what must happen before it goes, and when.

    "At the earliest" holds whatever is appended. "At the latest" holds if
    each job runs again after --every at most.

    --key names every file that has records of a key, also files that only
    readers of earlier versions see, and until when. It reads every segment.

    Example: segments explain /data/log orders --partition 0 --offset 1234
    Example: segments explain /data/log orders --time 2026-01-31T12:00:00Z
    Example: segments explain /data/log customers --key ada@example.org
    """
    keys = key_bytes(key, key_base64)
    if (offset is not None) + (at is not None) + len(keys) != 1:
        raise typer.BadParameter("--offset, --time or --key must name the record, and only one of them")
    log, every_ms = location.open(), duration_ms(every)
    explanation: Any
    text: Callable[[Any], str]
    if keys:
        from spark_segments.cli.jobs.account_text import account_text as text
        from spark_segments.maintenance.erasure.copies import key_account

        explanation = key_account(log, topic, keys[0], every_ms=every_ms, now_ms=now_ms)
    else:
        from spark_segments.cli.jobs.explain_text import explanation_text as text

        here = log.topic(topic)
        number = _only_partition(here.offsets()) if partition is None else partition
        time_ms = None if at is None else timestamp_ms(at)
        explanation = here.explain(number, offset, time_ms, every_ms=every_ms, now_ms=now_ms)
    if output is Output.JSON:
        print_json(explanation.to_dict())
    elif not keys and explanation.state == "not written":
        print_text(text(explanation), sys.stderr)
    else:
        print_text(text(explanation))


def _only_partition(offsets: dict[int, tuple[int, int]]) -> int:
    if len(offsets) > 1:
        raise InvalidOptionError(
            "The topic has several partitions", expected=f"--partition 0 to {len(offsets) - 1}", found="none"
        )
    return next(iter(offsets))
