"""The partitions of a snapshot: which there are, and where their logs start and end."""

from __future__ import annotations

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log.manifest.rows import LONGEST_NAME
from spark_segments.log.manifest.snapshot import Snapshot

MOST_PARTITIONS = 1_000_000
"""Upper bound on a topic's partitions: a mistyped number makes no billion rows."""


def check_partition_count(topic: str, count: int) -> None:
    """Raises InvalidOptionError for a number of partitions that the topic cannot have."""
    most = min(MOST_PARTITIONS, 10 ** (LONGEST_NAME - len(topic) - 1))  # of directories `<topic>-<partition>`
    if not 1 <= count <= most:
        raise InvalidOptionError("A topic cannot have so many partitions", expected=f"1 to {most}", found=count)


def offset_bounds(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    """{partition: (log start offset, log end offset)} of a snapshot."""
    table = snapshot.partitions
    return {
        partition: (start, end)
        for partition, start, end in zip(
            table.column("partition").to_pylist(),
            table.column("log_start_offset").to_pylist(),
            table.column("log_end_offset").to_pylist(),
            strict=True,
        )
    }


def check_partition(snapshot: Snapshot, partition: int) -> None:
    """Raises UnknownTopicError unless the topic has that partition."""
    numbers = snapshot.partitions.column("partition").to_pylist()  # to_numpy() would import pandas
    if partition in numbers:
        return
    dense = numbers == list(range(len(numbers)))  # Kafka's directory may lack some partitions
    expected = f"0 to {len(numbers) - 1}" if dense else f"one of {', '.join(map(str, numbers[:20]))}"
    raise UnknownTopicError(f"Topic {snapshot.topic} has no such partition", expected=expected, found=partition)
