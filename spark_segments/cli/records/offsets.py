"""`segments offsets`: log starts, log ends, or the offsets of a time, as Kafka's kafka-get-offsets prints them."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_segments.cli.arguments import timestamp_ms
from spark_segments.cli.options import LogOptions, OptionalTopicArgument, OutputOption, with_options
from spark_segments.cli.output import Output, print_json
from spark_segments.cli.records.group_offsets import print_positions, reset
from spark_segments.errors import InvalidOptionError

_KAFKAS_OWN = {
    text: name
    for number, name in ((-3, "max-timestamp"), (-4, "earliest-local"), (-5, "latest-tiered"))
    for text in (str(number), name)
}


@with_options
def offsets(
    location: LogOptions,
    topic: OptionalTopicArgument = None,
    time: Annotated[
        str,
        typer.Option(
            "--time",
            metavar="TIME|earliest|latest",
            help="latest (or -1), earliest (or -2), ms since 1970 or an ISO time.",
        ),
    ] = "latest",
    partitions: Annotated[
        str | None, typer.Option("--partitions", metavar="N,N", help="Print these partitions only.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Print this group's positions and their lag.")
    ] = None,
    reset_to: Annotated[
        str | None,
        typer.Option(
            "--reset-to",
            metavar="OFFSET|earliest|latest",
            help="Move the group's positions in the topic there first.",
        ),
    ] = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Prints topic:partition:offset lines: the log end, the log start, or the first offset not older than a time.

    With --group the positions of its reader, in all topics or in one, and how
    many offsets each is behind the log end. --reset-to moves them.

    Example: segments offsets /data/log orders --time 2026-01-31T12:00:00Z
    Example: segments offsets /data/log --group audit
    """
    if group is not None:
        chosen = _numbers(partitions) if partitions else None
        if reset_to is not None:
            reset(location.open_topics(), group, topic, chosen, reset_to)
        print_positions(location.open_topics(), group, topic, chosen, output)
        return
    if topic is None or reset_to is not None:
        raise InvalidOptionError("Whose offsets?", expected="a topic, or --group" if topic is None else "--group")
    bounds = location.open_topics().offsets(topic)
    if time in ("latest", "-1"):
        found: dict[int, int | None] = {number: end for number, (_, end) in bounds.items()}
    elif time in ("earliest", "-2"):
        found = {number: start for number, (start, _) in bounds.items()}
    elif time in _KAFKAS_OWN:
        raise InvalidOptionError(
            f"Kafka's --time {_KAFKAS_OWN[time]} is not there",
            expected="latest (-1), earliest (-2), ms since 1970 or an ISO time",
            found=time,
        )
    else:
        answers = location.open().offsets_for_times(topic, timestamp_ms(time))
        found = {number: answer[0] if answer else None for number, answer in answers.items()}
    wanted = _numbers(partitions) if partitions else set(found)
    if wanted - set(found):
        raise InvalidOptionError(f"Topic {topic} has no such partition", expected=sorted(found), found=sorted(wanted))
    rows = [(number, found[number]) for number in sorted(wanted)]
    if output is Output.JSON:
        print_json({"topic": topic, "partitions": [{"partition": number, "offset": at} for number, at in rows]})
    else:
        for number, at in rows:
            print(f"{topic}:{number}:{'' if at is None else at}")


def _numbers(text: str) -> set[int]:
    try:
        return {int(number) for number in text.split(",")}
    except ValueError:
        raise InvalidOptionError(
            "The text is no list of partitions", expected="numbers and commas, such as 0,3", found=text
        ) from None
