"""From options to offsets: the offset ranges that a read covers, and how they are split into pieces.

The rules come from Spark's Kafka source: KafkaOffsetReader for the ends, KafkaOffsetRangeCalculator for the pieces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.spark.options import EARLIEST, Limit, ReadOptions, Topics, partition_names

# (snapshot, {partition: timestamp in ms}) -> {partition: (offset, timestamp in ms) or None}
TimeLookup = Callable[[Snapshot, Mapping[int, int]], Mapping[int, tuple[int, int] | None]]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets [start, end) of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def offset_ranges(
    options: ReadOptions, snapshots: Mapping[str, Snapshot], offsets_for_times: TimeLookup
) -> list[OffsetRange]:
    """The offsets to read of every subscribed partition that has records in the range, by topic and partition.

    Raises InvalidOptionError where an option by partition does not name exactly the subscribed partitions, and
    OffsetOutOfRangeError where no record is as late as the starting timestamp, unless the strategy for that is latest.
    Unless failOnDataLoss is off, raises UnknownTopicError for a partition that does not exist, OffsetOutOfRangeError
    where a requested offset is not in the log or a range has a hole, and InvalidOptionError for a start behind its end.
    """
    partitions = subscribed_partitions(options.topics, snapshots, skip_missing=not options.fail_on_data_loss)
    for limit in (options.start, options.end):
        check_complete(limit, partitions)
    ranges = []
    for topic, numbers in partitions.items():
        snapshot = snapshots[topic]
        bounds = snapshot.offset_bounds()
        readable = snapshot.offset_bounds(options.isolation_level)
        ends = {number: readable[number][1] for number in numbers}
        starts = resolve(options.start, snapshot, numbers, bounds, ends, offsets_for_times)
        stops = resolve(options.end, snapshot, numbers, bounds, ends, offsets_for_times)
        for number in numbers:
            start, stop = starts[number], stops[number]
            check_is_there(options, topic, number, start)
            start = ends[number] if start is None else start
            stop = ends[number] if stop is None else stop
            if options.fail_on_data_loss:
                check_in_log(options.start, topic, number, start, bounds[number])
                check_in_log(options.end, topic, number, stop, bounds[number])
                _check_order(options, topic, number, start, stop, ends[number])
            chosen = OffsetRange(topic, number, max(start, bounds[number][0]), min(stop, ends[number]))
            if chosen.size > 0:
                ranges.append(chosen)
                if options.fail_on_data_loss:
                    _check_holes(snapshot, chosen)
    return ranges


def _check_holes(snapshot: Snapshot, chosen: OffsetRange) -> None:
    """Raises OffsetOutOfRangeError for a range in which records are missing that the log should have."""
    for hole in Hole.within(snapshot, chosen.partition, chosen.start, chosen.end):
        raise OffsetOutOfRangeError(
            f"{chosen.topic}-{chosen.partition} has a hole: {hole}",
            expected=f"offsets {chosen.start} to {chosen.end - 1}",
            found=f"none of {hole.start_offset} to {hole.end_offset - 1}",
            hint="Set failOnDataLoss to false to read the rest",
        )


def split(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records_per_partition: int | None
) -> list[OffsetRange]:
    """Splits ranges into pieces of at most `max_records_per_partition` offsets, and into about `min_partitions` pieces.

    Without `min_partitions`, or with enough pieces, there is no further split. Offsets are counted as records: in a
    compacted log a piece has fewer records.
    """
    pieces = [offset_range for offset_range in ranges if offset_range.size > 0]
    if max_records_per_partition is not None:
        pieces = [
            part for piece in pieces for part in _divide(piece, math.ceil(piece.size / max_records_per_partition))
        ]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(piece.size for piece in pieces)
    whole = [piece for piece in pieces if _parts(piece.size, total, min_partitions) == 1]
    # A range that is not split counts as a piece: the other ranges share the rest.
    split_total = total - sum(piece.size for piece in whole)
    split_parts = max(min_partitions - len(whole), 1)
    undivided = set(whole)
    return [
        part
        for piece in pieces
        for part in _divide(piece, 1 if piece in undivided else _parts(piece.size, split_total, split_parts))
    ]


def _parts(size: int, total: int, parts: int) -> int:
    return max(math.floor(size / total * parts + 0.5), 1)


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    cuts = [whole.start]
    for part in range(parts):
        cuts.append(cuts[-1] + (whole.end - cuts[-1]) // (parts - part))
    return [replace(whole, start=start, end=end) for start, end in itertools.pairwise(cuts) if start < end]


def subscribed_partitions(
    topics: Topics, snapshots: Mapping[str, Snapshot], *, skip_missing: bool
) -> dict[str, list[int]]:
    chosen = {}
    for topic, snapshot in sorted(snapshots.items()):
        there = snapshot.offset_bounds()
        wanted = there if topics.partitions is None else topics.partitions[topic]
        chosen[topic] = [number for number in wanted if number in there or not skip_missing]
        for number in chosen[topic]:
            if number not in there:
                snapshot.check_partition(number)  # raises an error that names the existing partitions
    return chosen


def check_complete(limit: Limit, partitions: Mapping[str, Collection[int]]) -> None:
    given = limit.offsets if limit.offsets is not None else limit.timestamps_ms
    if given is None:
        return
    whole = limit.topics or {}
    for topic in sorted(whole):
        if not partitions.get(topic):
            raise InvalidOptionError(
                f"Option {limit.option} has an offset for topic {topic}, of which no partition is read",
                expected=f"some of {', '.join(sorted(partitions))}",
            )
    wanted = {(topic, number) for topic, numbers in partitions.items() if topic not in whole for number in numbers}
    missing, unknown = wanted - given.keys(), given.keys() - wanted
    if not missing and not unknown:
        return
    found = [f"{partition_names(missing)} left out"] if missing else []
    found += [f"{partition_names(unknown)} not being read"] if unknown else []
    raise InvalidOptionError(
        f"Option {limit.option} must name all partitions that are read, and no others",
        expected=partition_names(wanted),
        found=" and ".join(found),
        hint="-2 stands for the earliest and -1 for the latest offset" if limit.offsets is not None else None,
    )


def resolve(
    limit: Limit,
    snapshot: Snapshot,
    numbers: Collection[int],
    bounds: Mapping[int, tuple[int, int]],
    ends: Mapping[int, int],
    offsets_for_times: TimeLookup,
) -> dict[int, int | None]:
    """{partition: offset}; None where a timestamp was given and no record is that late."""
    topic = snapshot.topic
    if limit.timestamp_ms is not None or limit.timestamps_ms is not None:
        times = limit.timestamps_ms or {}
        targets = {number: times.get((topic, number), limit.timestamp_ms or 0) for number in numbers}
        answers = offsets_for_times(snapshot, targets)
        return {number: None if answer is None else answer[0] for number, answer in answers.items()}
    resolved: dict[int, int | None] = {}
    for number in numbers:
        offset = limit.offset
        if limit.offsets is not None:
            whole = (limit.topics or {}).get(topic)
            offset = limit.offsets[topic, number] if whole is None else whole
        if offset == EARLIEST:
            resolved[number] = bounds[number][0]
        else:
            resolved[number] = offset if offset is not None and offset >= 0 else ends[number]
    return resolved


def check_is_there(options: ReadOptions, topic: str, number: int, start: int | None) -> None:
    """Raises OffsetOutOfRangeError where no record is as late as a start says, unless latest stands in for it."""
    if start is None and not options.latest_where_no_time_matches:
        raise OffsetOutOfRangeError(
            f"No record of {topic}-{number} is as late as {options.start.option} says",
            hint="Choose an earlier time, or set startingOffsetsByTimestampStrategy to latest",
        )


def check_in_log(limit: Limit, topic: str, number: int, offset: int, bounds: tuple[int, int]) -> None:
    low, high = bounds
    if limit.offsets is not None and topic not in (limit.topics or {}) and not low <= offset <= high:
        raise OffsetOutOfRangeError(
            f"Option {limit.option} asks for an offset that {topic}-{number} does not have",
            expected=f"{low} to {high}",
            found=offset,
            hint=(
                "Data may have been lost to retention; set failOnDataLoss to false to read the rest"
                if offset < low
                else "No such record is written yet: latest is the log end"
            ),
        )


def _check_order(options: ReadOptions, topic: str, number: int, start: int, stop: int, log_end: int) -> None:
    """Raises InvalidOptionError for a start behind an end. Where the end is the log end, the range is merely empty."""
    if start > stop and stop != log_end:
        raise InvalidOptionError(
            f"{options.start.option} is above {options.end.option} for {topic}-{number}",
            expected=f"a start of at most {stop}",
            found=start,
        )
