"""Where a read starts and ends: the options starting* and ending*, of which a side has three forms.

    startingTimestamp              a time, for all partitions
    startingOffsetsByTimestamp     a time for each partition
    startingOffsets                earliest, latest, or an offset for each partition

The first form that is set counts, as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from spark_segments.errors import InvalidOptionError
from spark_segments.spark.options.option_values import OptionValues, TopicPartition

EARLIEST = -2
LATEST_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Limit:
    """Where to start or end, one of: EARLIEST or LATEST_OFFSET (`offset`), a time, or offsets or times by partition.

    `topics` goes with `offsets`: EARLIEST or LATEST_OFFSET for all partitions of a topic. `option` is the name of the
    option that says so, for errors.
    """

    option: str
    offset: int | None = None
    timestamp_ms: int | None = None
    offsets: dict[TopicPartition, int] | None = None
    timestamps_ms: dict[TopicPartition, int] | None = None
    topics: dict[str, int] | None = None


def limit_of(values: OptionValues, side: str, default: int) -> Limit:
    """The first of the three ways to say it, in the order in which Spark's Kafka source prefers them."""
    name = f"{side}Timestamp"
    timestamp_ms = values.number(name, at_least=0)
    if timestamp_ms is not None:
        return Limit(name, timestamp_ms=timestamp_ms)
    name = f"{side}OffsetsByTimestamp"
    timestamps_ms = values.by_partition(name, 'JSON such as {"topicA":{"0":1700000000000}}', at_least=0)
    if timestamps_ms is not None:
        return Limit(name, timestamps_ms=timestamps_ms)
    name = f"{side}Offsets"
    words = {"earliest": EARLIEST, "latest": LATEST_OFFSET}
    value = values.text(name)
    if value is None or value.lower() in words:
        return Limit(name, offset=default if value is None else words[value.lower()])
    expected = (
        'earliest, latest, or JSON such as {"topicA":{"0":23,"1":-1},"topicB":"earliest"}, where -2 is the earliest '
        "and -1 the latest offset"
    )
    numbers = values.by_topic(name, expected, words, at_least=EARLIEST)
    if numbers is None:
        return Limit(name, offset=default)
    topics, offsets = numbers
    return Limit(name, offsets=offsets, topics=topics)


def refuse_word(limit: Limit, offset: int, word: str, why: str) -> None:
    wrong = [topic for topic, number in (limit.topics or {}).items() if number == offset]
    wrong += [f"{topic}-{number}" for (topic, number), at in (limit.offsets or {}).items() if at == offset]
    if limit.offset == offset or wrong:
        where = f" for {wrong[0]}" if wrong else ""
        raise InvalidOptionError(f"Option {limit.option} cannot be {word}{where}: {why}")


def check_order(start: Limit, end: Limit) -> None:
    if start.timestamp_ms is not None and end.timestamp_ms is not None and start.timestamp_ms > end.timestamp_ms:
        raise InvalidOptionError(
            f"{start.option} is above {end.option}", expected=f"at most {end.timestamp_ms}", found=start.timestamp_ms
        )
    # Topics that one side names by a word have no number to compare: the snapshot says later what the word is.
    by_word = (start.topics or {}).keys() | (end.topics or {}).keys()
    for start_numbers, end_numbers in ((start.offsets, end.offsets), (start.timestamps_ms, end.timestamps_ms)):
        if start_numbers is not None and end_numbers is not None:
            _check_order_by_partition(start, end, _without(start_numbers, by_word), _without(end_numbers, by_word))


def _without(numbers: Mapping[TopicPartition, int], topics: Set[str]) -> dict[TopicPartition, int]:
    return {place: number for place, number in numbers.items() if place[0] not in topics}


def _check_order_by_partition(
    start: Limit, end: Limit, firsts: Mapping[TopicPartition, int], lasts: Mapping[TopicPartition, int]
) -> None:
    """`firsts` and `lasts`: the offsets, or times, by partition that the limits name."""
    if firsts.keys() != lasts.keys():
        raise InvalidOptionError(
            f"Options {start.option} and {end.option} must name the same partitions",
            expected=partition_names(firsts.keys()),
            found=partition_names(lasts.keys()),
        )
    for (topic, partition), first in firsts.items():
        last = lasts[topic, partition]
        # A number below 0 stands for the earliest or the latest offset, which no number is above.
        if 0 <= last < first:
            raise InvalidOptionError(
                f"{start.option} is above {end.option} for {topic}-{partition}",
                expected=f"at most {last}",
                found=first,
            )


def partition_names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{topic}-{partition}" for topic, partition in sorted(partitions))
