"""The partitions of a snapshot: which there are, where their logs start and end, and when partitions were added."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_segments.errors import InvalidOptionError, UnknownTopicError
from spark_segments.log.manifest.rows import LONGEST_NAME, Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import PARTITIONS_ADDED, captured_of
from spark_segments.log.manifest.topic_row import TopicRow

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


MOST_ADDITIONS = 100
"""How many additions a topic remembers. Beyond that the records before and after the oldest are told apart no more."""


@dataclass(frozen=True, slots=True)
class Eras:
    """The times between additions of partitions: what was committed in an era came after all of the eras before it.

    `ends`: by addition, oldest first, the log end of each partition at that commit. Partitions that it added have none:
    all that is in them came after it.
    """

    ends: tuple[tuple[int, ...], ...]

    def of(self, partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """int64[n]: the era of each offset, counted from 0."""
        eras = np.zeros(len(offsets), np.int64)
        for ends in self.ends:
            first = np.zeros(max(int(partitions.max(initial=0)) + 1, len(ends)), np.int64)
            first[: len(ends)] = ends
            eras += offsets >= first[partitions]
        return eras


def eras_of(snapshot: Snapshot) -> Eras | None:
    """The eras of a topic whose keys may have records in several partitions; None: each partition has keys of its own.

    A capture by an earlier version of this package has not noted that nobody knows when partitions were added.
    """
    noted = snapshot.states.get(PARTITIONS_ADDED)
    if snapshot.partitions.num_rows < 2 or (noted is None and not captured_of(snapshot.states)):
        return None
    return Eras(tuple(map(tuple, json.loads(noted or "[]"))))


def without_eras(row: TopicRow) -> TopicRow:
    """The row of a topic to which others may have added partitions: nobody knows when."""
    return dataclasses.replace(row, states={PARTITIONS_ADDED: "[]"} | dict(row.states))


def with_era(snapshot: Snapshot, appended: Iterable[Partition] = ()) -> TopicRow:
    """The topic's row with an era that begins at the log ends of a snapshot, or behind what is `appended` to these
    partitions, unless nothing came since the last.
    """
    row = snapshot.topic_row
    noted = json.loads(row.states.get(PARTITIONS_ADDED, "[]"))
    ends = [end for _, end in offset_bounds(snapshot).values()]
    for partition in appended:
        ends[partition.partition] = partition.log_end_offset
    last = noted[-1] if noted else []
    if ends == last + [0] * (len(ends) - len(last)):
        return row
    kept = [*noted, ends][-MOST_ADDITIONS:]
    return dataclasses.replace(row, states={**row.states, PARTITIONS_ADDED: json.dumps(kept, separators=(",", ":"))})
