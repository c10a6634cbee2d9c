"""The eras of a topic: the times between additions of partitions, which a key may have outlived.

An erasure ends an era, too. Its tombstones are in the partitions that had values, and a later value of the key may go
to another one. Only the order of commits says that the value is newer: its record time may be anything.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.captures import Captured
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import PARTITIONS_ADDED, reading
from spark_segments.log.manifest.topic_row import TopicRow

MOST_ADDITIONS = 100
"""How many ends of eras a topic remembers. Records before and after a forgotten one count as of one era."""


@dataclass(frozen=True, slots=True)
class Eras:
    """The times between additions of partitions and erasures: what was committed in an era came after all of the eras
    before it.

    `ends`: by addition or erasure, oldest first, the log end of each partition then. Partitions that it added have
    none: all that is in them came after it.
    """

    ends: tuple[tuple[int, ...], ...]

    RANKED: ClassVar = ("key", "partition", "offset", "timestamp")
    """The columns that `ranks` looks at, and the key."""

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
        with reading(PARTITIONS_ADDED):
            return cls(tuple(tuple(map(int, ends)) for ends in json.loads(noted or "[]")))

    @staticmethod
    def unknown(row: TopicRow) -> TopicRow:
        """The row of a topic to which others may have added partitions: nobody knows when."""
        return dataclasses.replace(row, states={PARTITIONS_ADDED: "[]", **row.states})

    @staticmethod
    def topic_row(snapshot: Snapshot, appended: Iterable[Partition] = ()) -> TopicRow:
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
        kept = [*noted, ends]
        while len(kept) > MOST_ADDITIONS:
            del kept[_least_needed(kept)]
        return dataclasses.replace(
            row, states={**row.states, PARTITIONS_ADDED: json.dumps(kept, separators=(",", ":"))}
        )

    @staticmethod
    def topic_row_after_erasure(snapshot: Snapshot, appended: Iterable[Partition]) -> TopicRow:
        """The topic's row with an era that ends behind the tombstones of an erasure, which are `appended` to these
        partitions. It does not change where each partition has keys of its own.
        """
        return snapshot.topic_row if Eras.of(snapshot) is None else Eras.topic_row(snapshot, appended)

    def ranks(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        """int64[4, n] of rows with the columns RANKED: partition, offset, timestamp and era. Of records of a key in
        several partitions the last one is the newest, by the last of these first.
        """
        partitions, offsets = (np.asarray(rows.column(name), np.int64) for name in ("partition", "offset"))
        timestamps = np.asarray(pc.fill_null(rows.column("timestamp").cast(pa.int64()), -1))
        return np.stack([partitions, offsets, timestamps, self.at(partitions, offsets)])


def _least_needed(ends: Sequence[Sequence[int]]) -> int:
    """Which of the ends of eras is forgotten: the oldest that added no partitions, or the oldest where all added some.
    Tombstones of an old erasure are gone by then, and values of before an addition may stay for ever.
    """
    return next((at for at in range(len(ends) - 1) if len(ends[at]) == len(ends[at + 1])), 0)
