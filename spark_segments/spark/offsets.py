"""From options to offsets: which offsets a read asks for, and how the ranges of its scans are split into pieces.

The rules come from Spark's Kafka source: KafkaOffsetReader for the ends, KafkaOffsetRangeCalculator for the pieces.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from spark_segments.errors import InvalidOptionError, OffsetOutOfRangeError
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import Hole
from spark_segments.log.reading.clip import OffsetRanges, Offsets
from spark_segments.spark.options import ReadOptions
from spark_segments.spark.options.limits import EARLIEST, LATEST_OFFSET, Limit, partition_names
from spark_segments.spark.options.topics import Topics

# (snapshot, {partition: timestamp in ms}) -> {partition: (offset, timestamp in ms) or None}
TimeLookup = Callable[[Snapshot, Mapping[int, int]], Mapping[int, tuple[int, int] | None]]


def wanted_offsets(
    options: ReadOptions, snapshots: Mapping[str, Snapshot], offsets_for_times: TimeLookup
) -> dict[str, dict[int, tuple[int, int]]]:
    """{topic: {partition: (start, end exclusive)}} of every subscribed partition, as the options name them.

    They may lie outside of the log: a `Scan` clips them.

    Raises InvalidOptionError where an option by partition does not name exactly the subscribed partitions, and
    OffsetOutOfRangeError where no record is as late as the starting timestamp, unless the strategy for that is latest.
    Unless failOnDataLoss is off, raises UnknownTopicError for a partition that does not exist, OffsetOutOfRangeError
    where a requested offset is not in the log, and InvalidOptionError for a start behind its end.
    """
    partitions = subscribed_partitions(options.topics, snapshots, skip_missing=not options.fail_on_data_loss)
    for limit in (options.start, options.end):
        check_complete(limit, partitions)
    bounds = {}
    for topic, numbers in partitions.items():
        bounds[topic] = _wanted_of_topic(options, snapshots[topic], numbers, offsets_for_times)
    return bounds


def _wanted_of_topic(
    options: ReadOptions, snapshot: Snapshot, numbers: Collection[int], offsets_for_times: TimeLookup
) -> dict[int, tuple[int, int]]:
    topic = snapshot.topic
    bounds = snapshot.offset_bounds()
    borders = Borders.of(snapshot, numbers, options.isolation_level)
    ends = borders.ends
    starts = resolve_limit(options.start, borders, offsets_for_times)
    stops = resolve_limit(options.end, borders, offsets_for_times)
    ranges = {}
    for number in numbers:
        start = starts[number]
        stop = stops[number]
        check_is_there(options, topic, number, start)
        # No record is as late as the time: the range begins, or ends, behind the last record that can be read.
        start = ends[number] if start is None else start
        stop = ends[number] if stop is None else stop
        if options.fail_on_data_loss:
            check_in_log(options.start, topic, number, start, bounds[number])
            check_in_log(options.end, topic, number, stop, bounds[number])
            _check_order(options, topic, number, start, stop, ends[number])
        ranges[number] = start, stop
    return ranges


def check_holes(snapshot: Snapshot, offsets: Offsets) -> None:
    """Raises OffsetOutOfRangeError where records are missing in `offsets` of the log that it should have."""
    for partition, ranges in offsets.items():
        for start, end in ranges:
            for hole in Hole.within(snapshot, partition, start, end):
                raise OffsetOutOfRangeError(
                    f"{snapshot.topic}-{partition} has a hole: {hole}",
                    expected=f"offsets {start} to {end - 1}",
                    found=f"none of {hole.start_offset} to {hole.end_offset - 1}",
                    hint="Set failOnDataLoss to false to read the rest",
                )


def split(
    offsets: Mapping[str, Offsets], min_partitions: int | None, max_records_per_partition: int | None
) -> dict[str, dict[int, OffsetRanges]]:
    """Splits ranges of topics into ranges of at most `max_records_per_partition` offsets, and into about
    `min_partitions` ranges. Empty ranges are left out.

    Without `min_partitions`, or with enough ranges, there is no further split. Offsets are counted as records: in a
    compacted log a range has fewer records.
    """
    most = max_records_per_partition
    ranges = _divided(offsets, lambda size: 1 if most is None else math.ceil(size / most))
    sizes = [end - start for topic in ranges.values() for of_one in topic.values() for start, end in of_one]
    if min_partitions is None or len(sizes) >= min_partitions:
        return ranges
    total = sum(sizes)
    large = [size for size in sizes if _parts(size, total, min_partitions) > 1]
    # A range that is not split counts as a piece: the other ranges share the rest.
    #
    #   min_partitions 4:  |a|  |b . . . . . . .|      a is one piece, so that b has to become three
    large_parts = max(min_partitions - (len(sizes) - len(large)), 1)
    large_total = sum(large)

    def parts(size: int) -> int:
        return 1 if _parts(size, total, min_partitions) == 1 else _parts(size, large_total, large_parts)

    return _divided(ranges, parts)


def _parts(size: int, total: int, parts: int) -> int:
    # Half up, as Scala rounds. Python's round goes to the even number, and pieces would differ from those of Spark's
    # Kafka source.
    return max(math.floor(size / total * parts + 0.5), 1)


def _divided(offsets: Mapping[str, Offsets], parts: Callable[[int], int]) -> dict[str, dict[int, OffsetRanges]]:
    """The ranges, each cut into as many `parts` as its size says, without empty ones."""
    divided: dict[str, dict[int, OffsetRanges]] = {}
    for topic, partitions in offsets.items():
        for number, ranges in partitions.items():
            pieces = [piece for start, end in ranges for piece in _cut(start, end, parts(end - start))]
            if pieces:
                divided.setdefault(topic, {})[number] = tuple(pieces)
    return divided


def _cut(start: int, end: int, parts: int) -> list[tuple[int, int]]:
    # Each cut divides what is left by the parts that are left, so that sizes differ by one offset at most. Parts beyond
    # the number of offsets would be empty, and fall away.
    cuts = [start]
    for part in range(parts):
        cuts.append(cuts[-1] + (end - cuts[-1]) // (parts - part))
    return [(low, high) for low, high in itertools.pairwise(cuts) if low < high]


def subscribed_partitions(
    topics: Topics, snapshots: Mapping[str, Snapshot], *, skip_missing: bool
) -> dict[str, list[int]]:
    subscribed = {}
    for topic, snapshot in sorted(snapshots.items()):
        existing = snapshot.offset_bounds()
        numbers = existing if topics.partitions is None else topics.partitions[topic]
        subscribed[topic] = [number for number in numbers if number in existing or not skip_missing]
        for number in subscribed[topic]:
            if number not in existing:
                snapshot.check_partition(number)  # raises an error that names the existing partitions
    return subscribed


def check_complete(limit: Limit, partitions: Mapping[str, Collection[int]]) -> None:
    """Raises InvalidOptionError for an option by partition that does not name exactly the `partitions` to read."""
    by_partition = limit.offsets if limit.offsets is not None else limit.timestamps_ms
    if by_partition is None:
        return
    by_topic = limit.topics or {}
    for topic in sorted(by_topic):
        if not partitions.get(topic):
            raise InvalidOptionError(
                f"Option {limit.option} has an offset for topic {topic}, of which no partition is read",
                expected=f"some of {', '.join(sorted(partitions))}",
            )
    to_name = {(topic, number) for topic, numbers in partitions.items() if topic not in by_topic for number in numbers}
    missing = to_name - by_partition.keys()
    unknown = by_partition.keys() - to_name
    if not missing and not unknown:
        return
    found = [f"{partition_names(missing)} left out"] if missing else []
    found += [f"{partition_names(unknown)} not being read"] if unknown else []
    raise InvalidOptionError(
        f"Option {limit.option} must name all partitions that are read, and no others",
        expected=partition_names(to_name),
        found=" and ".join(found),
        hint="-2 stands for the earliest and -1 for the latest offset" if limit.offsets is not None else None,
    )


@dataclass(frozen=True, slots=True)
class Borders:
    """What the earliest and the latest offset are, in the partitions of a topic that are read.

        log start              last stable offset         log end
        |------------------------------|---------------------|
        starts                         ends                  with isolation.level=read_committed

    Where no transaction is open, or with read_uncommitted, `ends` are the log ends.
    """

    snapshot: Snapshot
    starts: dict[int, int]
    ends: dict[int, int]

    @classmethod
    def of(cls, snapshot: Snapshot, numbers: Collection[int], isolation_level: str) -> Borders:
        """Of the partitions `numbers`."""
        bounds = snapshot.offset_bounds()
        readable = snapshot.offset_bounds(isolation_level)
        return cls(
            snapshot,
            starts={number: bounds[number][0] for number in numbers},
            ends={number: readable[number][1] for number in numbers},
        )


def resolve_limit(limit: Limit, borders: Borders, offsets_for_times: TimeLookup) -> dict[int, int | None]:
    """{partition: offset}; None where the limit is a time and no record is that late."""
    if limit.timestamp_ms is not None or limit.timestamps_ms is not None:
        return _offsets_of_times(limit, borders, offsets_for_times)
    topic = borders.snapshot.topic
    offsets: dict[int, int | None] = {}
    for number, end in borders.ends.items():
        offset = _offset_of(limit, topic, number)
        if offset == EARLIEST:
            offsets[number] = borders.starts[number]
        elif offset == LATEST_OFFSET:
            offsets[number] = end
        else:
            offsets[number] = offset
    return offsets


def _offsets_of_times(limit: Limit, borders: Borders, offsets_for_times: TimeLookup) -> dict[int, int | None]:
    topic = borders.snapshot.topic
    times = limit.timestamps_ms or {}
    targets = {number: times.get((topic, number), limit.timestamp_ms or 0) for number in borders.ends}
    answers = offsets_for_times(borders.snapshot, targets)
    return {number: None if answer is None else answer[0] for number, answer in answers.items()}


def _offset_of(limit: Limit, topic: str, number: int) -> int:
    """The offset that a limit without a time names for a partition: EARLIEST, LATEST_OFFSET or a number."""
    if limit.offsets is None:
        return LATEST_OFFSET if limit.offset is None else limit.offset
    of_topic = (limit.topics or {}).get(topic)
    return limit.offsets[topic, number] if of_topic is None else of_topic


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
