"""`segments offsets`: log starts, log ends, or the offsets of a time, as Kafka's kafka-get-offsets prints them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_segments.cli.arguments import numbers, offsets_at
from spark_segments.cli.options import OUTPUT, TOPICS, LogOptions, option, with_options
from spark_segments.cli.output import Output, print_json
from spark_segments.errors import InvalidOptionError

if TYPE_CHECKING:
    from spark_segments.face.topic import Topic

_KAFKAS_OWN = {
    text: name
    for number, name in ((-3, "max-timestamp"), (-4, "earliest-local"), (-5, "latest-tiered"))
    for text in (str(number), name)
}


@with_options
def offsets(
    location: LogOptions,
    topic: list[str] = TOPICS,
    time: str = option(
        "latest (or -1), earliest (or -2), ms since 1970 or an ISO time.",
        default="latest",
        metavar="TIME|earliest|latest",
    ),
    partitions: str | None = option("Print these partitions only.", metavar="N,N"),
    output: Output = OUTPUT,
) -> None:
    """Prints topic:partition:offset lines: the log end, the log start, or the first offset of a time or later.

    Example: segments offsets /data/log orders --time 2026-01-31T12:00:00Z
    Example: segments offsets /data/log 'orders*' --partitions 0
    """
    if time in _KAFKAS_OWN:
        raise InvalidOptionError(
            f"Kafka's --time {_KAFKAS_OWN[time]} is not there",
            expected="latest (-1), earliest (-2), ms since 1970 or an ISO time",
            found=time,
        )
    log = location.open()
    wanted = numbers(partitions) if partitions else None
    for name in log.named(topic):
        rows = _offsets(log.topic(name), time, wanted)
        if output is Output.JSON:
            print_json({"topic": name, "partitions": [{"partition": number, "offset": at} for number, at in rows]})
            continue
        for number, at in rows:
            print(f"{name}:{number}:{'' if at is None else at}")


def _offsets(topic: Topic, time: str, partitions: set[int] | None) -> list[tuple[int, int | None]]:
    """(partition, offset) of the partitions wanted, or of all."""
    bounds, offsets = topic.offsets(), dict[int, int | None]()
    if time in ("latest", "-1", "earliest", "-2"):
        offsets |= {number: bounds[number][time in ("latest", "-1")] for number in bounds}
    else:
        offsets = offsets_at(topic, time)
    wanted = sorted(offsets if partitions is None else partitions)
    for number in wanted:
        topic.snapshot.check_partition(number)
    return [(number, offsets[number]) for number in wanted]
