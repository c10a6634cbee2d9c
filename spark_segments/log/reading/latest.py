"""The view `latest` of a range: the newest record of each key, as cleaning the range would leave it.

Below a partition's first dirty offset every key occurs once, for that part was cleaned. So only the dirty head goes
into a map of latest offsets, and all records of the range are compared with the map. The view costs a read of the range
plus a read of the dirty head. Keys are equal if 128 bits of their hash are equal, as in the cleaner.

The view follows cleaning: it works by partition (a key in two partitions has a newest record in each), and leaves out
records without a key and, at either isolation level, data of aborted transactions. Tombstones stay unless they are not
wanted.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.format.cleaner.latest_keys import KeyShare, LatestKeys
from spark_segments.format.layout import RECORD_SCHEMA
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.reading.plan import ReadRange, pack, read_ranges
from spark_segments.log.reading.read import read_range
from spark_segments.log.reading.view_filter import filtered
from spark_segments.storage import Storage

LATEST = "latest"

MAP_BYTES = 128 << 20
"""Upper bound on the memory of a task's map, as Kafka's log.cleaner.dedupe.buffer.size.

Where the keys of a dirty head do not fit, they are split into shares that fit, and the head is read for each share.
"""


_DIRTY = ("partition", "first_dirty_offset")
_ALL_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class LatestRange:
    """A task: the newest records among `ranges`. `head` holds all records that may supersede them.

    Both are of the same partition and by offset.
    """

    ranges: tuple[ReadRange, ...]
    head: tuple[ReadRange, ...]
    include_tombstones: bool = True

    @property
    def topic(self) -> str:
        return self.ranges[0].topic

    @property
    def partition(self) -> int:
        return self.ranges[0].partition

    @property
    def cost_bytes(self) -> int:
        """The cost of the reads as that of reading so many bytes."""
        return sum(one.cost_bytes for one in (*self.ranges, *self.head))

    @property
    def offsets(self) -> int:
        """Upper bound on the records."""
        return sum(one.offsets for one in self.ranges)


@dataclass(frozen=True, slots=True)
class LatestPlan:
    """The view of a range of offsets of a snapshot: {partition: (start, end exclusive)}."""

    snapshot: Snapshot
    offsets: Mapping[int, tuple[int, int]]
    isolation_level: str
    include_tombstones: bool = True

    def tasks(self, max_partition_bytes: int | None = None) -> list[LatestRange]:
        """Tasks of about `max_partition_bytes`; None: a task for each partition."""
        return self.tasks_of(self.heads(), [self.offsets], max_partition_bytes)

    def heads(self) -> dict[int, list[ReadRange]]:
        """The dirty head of each partition that has dirty offsets."""
        rows = self.snapshot.partitions
        first_dirty = dict(zip(*(rows.column(name).to_pylist() for name in _DIRTY), strict=True))
        dirty = {number: (max(start, first_dirty[number]), end) for number, (start, end) in self.offsets.items()}
        found: dict[int, list[ReadRange]] = {}
        for one in self._ranges(dirty, None):
            found.setdefault(one.segment.partition, []).append(one)
        return found

    def tasks_of(
        self,
        heads: Mapping[int, Sequence[ReadRange]],
        pieces: Iterable[Mapping[int, tuple[int, int]]],
        max_partition_bytes: int | None,
    ) -> list[LatestRange]:
        """The tasks for `pieces`, each {partition: (start, end)}. Together the pieces are the view's offsets.

        Every task reads the keys of its partition's head. So a task has at least as many bytes as the head, unless its
        piece is smaller.
        """
        tasks = []
        for piece in pieces:
            by_size: dict[int | None, dict[int, tuple[int, int]]] = {}
            for number, bounds in piece.items():
                size_bytes = max_partition_bytes
                if size_bytes is not None:
                    size_bytes = max(size_bytes, sum(one.size_bytes for one in heads.get(number, ())))
                by_size.setdefault(size_bytes, {})[number] = bounds
            for size_bytes, offsets in by_size.items():
                by_partition = groupby(self._ranges(offsets, size_bytes), lambda one: one.partition)
                for number, ranges in by_partition:
                    packed = pack(ranges, _ALL_BYTES if size_bytes is None else size_bytes)
                    tasks += [self._task(task, heads.get(number, ())) for task in packed]
        return sorted(tasks, key=lambda task: (task.partition, task.ranges[0].start_offset))

    def _task(self, ranges: Sequence[ReadRange], head: Sequence[ReadRange]) -> LatestRange:
        # Only later records supersede a record.
        after = tuple(one for one in head if one.end_offset > ranges[0].start_offset)
        return LatestRange(tuple(ranges), after, self.include_tombstones)

    def _ranges(self, offsets: Mapping[int, tuple[int, int]], max_partition_bytes: int | None) -> list[ReadRange]:
        return read_ranges(
            self.snapshot,
            offsets,
            max_partition_bytes=max_partition_bytes,
            isolation_level=self.isolation_level,
            leave_out_aborted=True,
        )


def read_latest(
    storage: Storage,
    task: LatestRange,
    *,
    columns: Sequence[str] = tuple(RECORD_SCHEMA.names),
    map_bytes: int = MAP_BYTES,
    view_values: bool = False,
) -> Iterator[pa.RecordBatch]:
    """The records of a task, by offset, in batches of a few MiB. Raises CorruptBatchError for damaged bytes.

    Memory is `map_bytes` at most and, where the keys of the head do not fit, a byte for each record of the task.
    """
    needed = list(dict.fromkeys([*columns, "key", "offset"] + ([] if task.include_tombstones else ["value"])))
    keys = _map(storage, task.head, KeyShare(), map_bytes)
    marks = None if keys is not None else _marks(storage, task, map_bytes)
    row = 0
    for batch in _read(storage, task.ranges, needed, view_values):
        if keys is not None:
            superseded = np.zeros(batch.num_rows, np.bool_)
            keys.mark_superseded(batch.column("key"), _offsets(batch), superseded)
        else:
            assert marks is not None
            superseded = marks[row : row + batch.num_rows]
            row += batch.num_rows
        wanted = pa.array(~superseded)
        if not task.include_tombstones:
            wanted = pc.and_(wanted, pc.is_valid(batch.column("value")))
        chosen = batch.select(list(columns))
        yield chosen if wanted.true_count == batch.num_rows else filtered(chosen, wanted)


def _marks(storage: Storage, task: LatestRange, map_bytes: int) -> np.ndarray:
    """bool[n] by record of the task: whether the head has a later record of its key. Each share of keys has a map."""
    marks = np.zeros(0, np.bool_)
    share, seed = KeyShare(0, 2), secrets.randbits(64)  # all shares must use the same seed
    while share.number < share.parts:
        keys = _map(storage, task.head, share, map_bytes, seed)
        if keys is None:  # marks that are set stay true
            share = KeyShare(0, share.parts * 2)
            continue
        row = 0
        for batch in _read(storage, task.ranges, ["key", "offset"]):
            if row + batch.num_rows > len(marks):
                marks = np.concatenate([marks, np.zeros(max(len(marks), batch.num_rows), np.bool_)])
            keys.mark_superseded(batch.column("key"), _offsets(batch), marks[row : row + batch.num_rows])
            row += batch.num_rows
        share = KeyShare(share.number + 1, share.parts)
    return marks


def _map(
    storage: Storage, head: Sequence[ReadRange], share: KeyShare, map_bytes: int, seed: int | None = None
) -> LatestKeys | None:
    """The latest offsets of the share's keys in the head; None where they do not fit `map_bytes`."""
    keys = LatestKeys(map_bytes, share, seed=seed)
    for batch in _read(storage, head, ["key", "offset"]):
        if not keys.put_records(batch.column("key"), _offsets(batch)):
            return None
    return keys


def _read(
    storage: Storage, ranges: Sequence[ReadRange], columns: Sequence[str], view_values: bool = False
) -> Iterator[pa.RecordBatch]:
    for one in ranges:
        yield from read_range(storage, one, columns=columns, view_values=view_values)


def _offsets(batch: pa.RecordBatch) -> np.ndarray:
    offsets: np.ndarray = batch.column("offset").to_numpy()
    return offsets
