"""Where a stream begins: the starting options, resolved for each partition.

Spark does not keep the initial offset of a Python source. A query that died in its first batch asks for it again, maybe
much later, and begins the batch there. So options are resolved leniently, and checked only where a stream is new.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_segments.errors import UnknownTopicError
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.positions import TopicPartition
from spark_segments.spark.offsets import (
    Borders,
    TimeLookup,
    check_complete,
    check_in_log,
    check_is_there,
    resolve_limit,
    subscribed_partitions,
)
from spark_segments.spark.options import ReadOptions
from spark_segments.spark.options.limits import LATEST_OFFSET, Limit

StartOffsets = dict[TopicPartition, int | None]


def start_offsets(
    options: ReadOptions, snapshots: Mapping[str, Snapshot], offsets_for_times: TimeLookup
) -> StartOffsets:
    """{(topic, partition): the offset that the options name} of all existing subscribed partitions.

    None where no record is late enough. A partition that an option by partition does not name begins at its earliest
    offset: it is newer than the stream, or else `check_start` refuses it.
    """
    starts: StartOffsets = {}
    for topic, numbers in subscribed_partitions(options.topics, snapshots, skip_missing=True).items():
        snapshot = snapshots[topic]
        bounds = snapshot.offset_bounds()
        named = [number for number in numbers if _names(options.start, topic, number)]
        borders = Borders.of(snapshot, named, options.isolation_level)
        offsets = resolve_limit(options.start, borders, offsets_for_times)
        for number in numbers:
            # A partition that was added since the option was written begins at its first record: none is left out.
            starts[topic, number] = offsets[number] if number in offsets else bounds[number][0]
    return starts


def check_start(options: ReadOptions, snapshots: Mapping[str, Snapshot], starts: StartOffsets) -> None:
    """Checks what `start_offsets` found for a stream that is new.

    Raises InvalidOptionError where an option by partition does not name exactly the subscribed partitions, and
    OffsetOutOfRangeError where no record is late enough, unless the strategy for that is latest. Unless failOnDataLoss
    is off, raises UnknownTopicError for a topic or a partition that is not there, OffsetOutOfRangeError for an offset
    that is not in the log.
    """
    if options.fail_on_data_loss:
        for topic in (*options.topics.names, *(options.topics.partitions or ())):
            if topic not in snapshots:
                raise UnknownTopicError(f"Unknown topic {topic!r}", path=options.location.uri)
    partitions = subscribed_partitions(options.topics, snapshots, skip_missing=not options.fail_on_data_loss)
    check_complete(options.start, partitions)
    for topic, numbers in partitions.items():
        bounds = snapshots[topic].offset_bounds()
        for number in numbers:
            offset = starts.get((topic, number), bounds[number][0])
            check_is_there(options, topic, number, offset)
            if offset is not None and options.fail_on_data_loss:
                check_in_log(options.start, topic, number, offset, bounds[number])


def is_repeatable(start: Limit) -> bool:
    """Whether a start resolved again later is the same, as long as its records are there.

    The latest offset and a time are not: the first batch of such a stream ends where it begins, and from then on Spark
    keeps where it was.
    """
    words = [start.offset, *(start.topics or {}).values(), *(start.offsets or {}).values()]
    return start.timestamp_ms is None and start.timestamps_ms is None and LATEST_OFFSET not in words


def _names(start: Limit, topic: str, number: int) -> bool:
    starts = start.offsets if start.offsets is not None else start.timestamps_ms
    return starts is None or (topic, number) in starts or topic in (start.topics or {})
