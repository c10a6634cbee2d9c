"""`segments offsets` and `segments delete-records`: offsets as kafka-get-offsets prints them, and log starts moved up
as by kafka-delete-records.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.cli.arguments import numbers, offsets_at
from spark_segments.cli.command_options import DRY_RUN, OUTPUT, TOPICS, YES, LogOptions, option, with_options
from spark_segments.cli.confirmation import confirm, print_way_back
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
    chosen = numbers(partitions) if partitions else None
    for name in log.named(topic):
        rows = _offsets(log.topic(name), time, chosen)
        if output is Output.JSON:
            print_json({"topic": name, "partitions": [{"partition": number, "offset": at} for number, at in rows]})
            continue
        for number, at in rows:
            print(f"{name}:{number}:{'' if at is None else at}")


def _offsets(topic: Topic, time: str, partitions: set[int] | None) -> list[tuple[int, int | None]]:
    """(partition, offset) of these partitions, or of all."""
    offsets: dict[int, int | None]
    if time in ("latest", "-1"):
        offsets = {number: log_end for number, (_, log_end) in topic.offsets().items()}
    elif time in ("earliest", "-2"):
        offsets = {number: log_start for number, (log_start, _) in topic.offsets().items()}
    else:
        offsets = dict(offsets_at(topic, time))
    chosen = sorted(offsets if partitions is None else partitions)
    for number in chosen:
        topic.snapshot.check_partition(number)
    return [(number, offsets[number]) for number in chosen]


MOVES_SHOWN = 8


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
    _check_one(before_offset, before_time, offset_json_file)
    if offset_json_file is not None and partition is not None:
        raise InvalidOptionError(
            "The file says which partitions", expected="--partition or --offset-json-file", found="both"
        )
    log = location.open()
    topics = {name: log.topic(name) for name in log.named(topic)}
    # Of all topics before the first is changed: an offset that one of them lacks must not leave the others half done.
    offsets_before: dict[str, dict[int, int]] = {}
    for name, handle in topics.items():
        if partition is not None:
            handle.snapshot.check_partition(partition)
        if offset_json_file is not None:
            offsets_before[name] = _offsets_of(offset_json_file, name)
        else:
            offsets_before[name] = _chosen_offsets(handle, partition, before_offset, before_time)
    moves = {name: _moves(handle, offsets_before[name]) for name, handle in topics.items()}
    moves_text = "; ".join(_moves_text(name, moves[name]) for name in topics)
    if dry_run:
        for name in topics:
            _print_log_starts(name, {number: end for number, (_, end) in moves[name].items()}, output)
        print(f"Nothing was deleted. This would move {moves_text}.", file=sys.stderr)
        return
    confirm(f"Move {moves_text}?", yes)
    for name, handle in topics.items():
        _print_log_starts(name, handle.delete_records(offsets_before[name]), output)
        print_way_back(location.log_dir, name, handle.version)


def _check_one(*bounds: object) -> None:
    if sum(bound is not None for bound in bounds) != 1:
        raise InvalidOptionError(
            "No records to delete are named", expected="one of --before-offset, --before-time, --offset-json-file"
        )


def _chosen_offsets(
    topic: Topic, partition: int | None, before_offset: int | None, before_time: str | None
) -> dict[int, int]:
    """{partition: the offset below which records are deleted}; -1 for all records. A time after all records is the log
    end: a record that is appended meanwhile stays, which -1 would take.
    """
    bounds = topic.offsets()
    numbers = list(bounds) if partition is None else [partition]
    if before_time is None:
        assert before_offset is not None
        return dict.fromkeys(numbers, before_offset)
    firsts = offsets_at(topic, before_time)
    offsets: dict[int, int] = {}
    for number in numbers:
        first = firsts[number]
        offsets[number] = bounds[number][1] if first is None else first
    return offsets


def _moves(topic: Topic, offsets_before: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """{partition: (its log start, the log start that it gets)}"""
    bounds = topic.offsets()
    moves: dict[int, tuple[int, int]] = {}
    for number, offset in offsets_before.items():
        if number in bounds:
            log_start, log_end = bounds[number]
            target = log_end if offset == -1 else offset
            moves[number] = log_start, max(log_start, target)  # a log start never goes back
    return moves


def _moves_text(topic: str, moves: Mapping[int, tuple[int, int]]) -> str:
    text = ", ".join(f"{number}: {start} to {end}" for number, (start, end) in islice(moves.items(), MOVES_SHOWN))
    more = ", …" if len(moves) > MOVES_SHOWN else ""
    return f"the log start of {topic}, partition {text}{more}"


def _print_log_starts(topic: str, log_starts: Mapping[int, int], output: Output) -> None:
    if output is Output.JSON:
        lines = [{"partition": number, "low_watermark": offset} for number, offset in log_starts.items()]
        print_json({"topic": topic, "partitions": lines})
        return
    for number, offset in log_starts.items():
        print(f"partition: {topic}-{number}\tlow_watermark: {offset}")


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
