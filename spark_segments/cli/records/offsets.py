"""`segments offsets` and `segments delete-records`: offsets as kafka-get-offsets prints them, and log starts moved up
as by kafka-delete-records.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.cli.arguments import numbers, offsets_at
from spark_segments.cli.confirmation import confirm, print_way_back
from spark_segments.cli.options import DRY_RUN, OUTPUT, TOPICS, YES, LogOptions, option, with_options
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


@with_options
def delete_records(
    location: LogOptions,
    topic: list[str] = TOPICS,
    partition: int | None = option("Delete from this partition only; from all by default."),
    before_offset: int | None = option("Delete the records below this offset; -1: all records."),
    before_time: str | None = option(
        "Delete the records below the first record of this time or later.", metavar="TIME"
    ),
    offset_json_file: Path | None = option("Kafka's JSON file with partitions and offsets.", exists=True),
    dry_run: bool = DRY_RUN,
    yes: bool = YES,
    output: Output = OUTPUT,
) -> None:
    """Moves the log start up. On a terminal it says how far, and asks first.

    The next retain and vacuum delete the files. Until then `segments topic
    restore` brings the records back.

    Example: segments delete-records /data/log orders --before-time 2026-01-01
    """
    if (before_offset is not None) + (before_time is not None) + (offset_json_file is not None) != 1:
        raise InvalidOptionError(
            "No records to delete are named", expected="one of --before-offset, --before-time, --offset-json-file"
        )
    if offset_json_file is not None and partition is not None:
        raise InvalidOptionError(
            "The file says which partitions", expected="--partition or --offset-json-file", found="both"
        )
    log = location.open()
    topics = {name: log.topic(name) for name in log.named(topic)}
    before, moves, shown = {}, {}, []
    for name, handle in topics.items():
        bounds = handle.offsets()
        if partition is not None:
            handle.snapshot.check_partition(partition)
        chosen = list(bounds) if partition is None else [partition]
        if offset_json_file is not None:
            before[name] = _offsets_of(offset_json_file, name)
        elif before_time is not None:
            firsts = offsets_at(handle, before_time)
            before[name] = {
                number: bounds[number][1] if (first := firsts[number]) is None else first for number in chosen
            }
        else:
            assert before_offset is not None
            before[name] = dict.fromkeys(chosen, before_offset)
        ends = {
            number: bounds[number][1] if at == -1 else at for number, at in before[name].items() if number in bounds
        }
        moves[name] = {number: (bounds[number][0], max(bounds[number][0], at)) for number, at in ends.items()}
        text = ", ".join(f"{number}: {a} to {b}" for number, (a, b) in list(moves[name].items())[:8])
        shown.append(f"the log start of {name}, partition {text}{', …' if len(moves[name]) > 8 else ''}")
    what = "; ".join(shown)
    if not dry_run:
        confirm(f"Move {what}?", yes)
    for name, handle in topics.items():
        planned = {number: at for number, (_, at) in moves[name].items()}
        started = planned if dry_run else handle.delete_records(before[name])
        if output is Output.JSON:
            lines = [{"partition": number, "low_watermark": at} for number, at in started.items()]
            print_json({"topic": name, "partitions": lines})
        else:
            for number, at in started.items():
                print(f"partition: {name}-{number}\tlow_watermark: {at}")
        if not dry_run:
            print_way_back(location.log_dir, name, handle.version)
    if dry_run:
        print(f"Nothing was deleted. This would move {what}.", file=sys.stderr)


def _offsets_of(file: Path, topic: str) -> dict[int, int]:
    """{partition: offset} of one topic in the file that kafka-delete-records takes."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))["partitions"]
        offsets = {int(entry["partition"]): int(entry["offset"]) for entry in entries if entry["topic"] == topic}
        others = sorted({str(entry["topic"]) for entry in entries} - {topic})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidOptionError(
            "The file is no JSON file of offsets",
            path=str(file),
            expected='{"partitions": [{"topic": "orders", "partition": 0, "offset": 100}], "version": 1}',
        ) from error
    if not offsets:
        raise InvalidOptionError(
            f"The file names no partition of topic {topic}", path=str(file), found=", ".join(others) or "no partition"
        )
    return offsets
