"""The eras of a topic: the times between additions of partitions, which a key may have outlived."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import PARTITIONS_ADDED, Captured
from spark_segments.log.manifest.topic_row import TopicRow

MOST_ADDITIONS = 100
"""How many additions a topic remembers. Beyond that the records before and after the oldest are told apart no more."""


@dataclass(frozen=True, slots=True)
class Eras:
    """The times between additions of partitions: what was committed in an era came after all of the eras before it.

    `ends`: by addition, oldest first, the log end of each partition at that commit. Partitions that it added have none:
    all that is in them came after it.
    """

    ends: tuple[tuple[int, ...], ...]

    def at(self, partitions: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        """int64[n]: the era of each offset, counted from 0."""
        eras = np.zeros(len(offsets), np.int64)
        for ends in self.ends:
            first = np.zeros(max(int(partitions.max(initial=0)) + 1, len(ends)), np.int64)
            first[: len(ends)] = ends
            eras += offsets >= first[partitions]
        return eras

    @classmethod
    def of(cls, snapshot: Snapshot) -> Eras | None:
        """The eras of a topic whose keys may have records in several partitions; None: each partition has keys of its
        own.

        A capture by an earlier version of this package has not noted that nobody knows when partitions were added.
        """
        noted = snapshot.states.get(PARTITIONS_ADDED)
        if snapshot.partitions.num_rows < 2 or (noted is None and not Captured.of(snapshot.states)):
            return None
        return cls(tuple(map(tuple, json.loads(noted or "[]"))))

    @staticmethod
    def unknown(row: TopicRow) -> TopicRow:
        """The row of a topic to which others may have added partitions: nobody knows when."""
        return dataclasses.replace(row, states={PARTITIONS_ADDED: "[]"} | dict(row.states))

    @staticmethod
    def begun(snapshot: Snapshot, appended: Iterable[Partition] = ()) -> TopicRow:
        """The topic's row with an era that begins at the log ends of a snapshot, or behind what is `appended` to these
        partitions, unless nothing came since the last.
        """
        row = snapshot.topic_row
        noted = json.loads(row.states.get(PARTITIONS_ADDED, "[]"))
        ends = [end for _, end in snapshot.offset_bounds().values()]
        for partition in appended:
            ends[partition.partition] = partition.log_end_offset
        last = noted[-1] if noted else []
        if ends == last + [0] * (len(ends) - len(last)):
            return row
        kept = [*noted, ends][-MOST_ADDITIONS:]
        return dataclasses.replace(
            row, states={**row.states, PARTITIONS_ADDED: json.dumps(kept, separators=(",", ":"))}
        )
