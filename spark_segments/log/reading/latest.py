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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config.values import LONG_MAX
from spark_segments.format.cleaner.latest_keys import KeyShare, LatestKeys
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.clip import OffsetRanges, Offsets, within
from spark_segments.log.reading.filtering import filtered
from spark_segments.log.reading.read import read_part
from spark_segments.log.reading.scan_plan import AnyWork, Part, Selection, pack, runs_of
from spark_segments.storage import Storage

MAP_BYTES = 128 << 20
"""Upper bound on the memory of a task's map, as Kafka's log.cleaner.dedupe.buffer.size.

Where the keys of a dirty head do not fit, they are split into shares that fit, and the head is read for each share.
"""


_OF_HEAD = ("key", "offset")
_DIRTY = ("partition", "first_dirty_offset")
_ALL_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class PartWithRivals(Generic[AnyWork]):
    """A part of a view: the records of `parts` that no record of `rivals` supersedes."""

    parts: tuple[AnyWork, ...]
    rivals: tuple[AnyWork, ...]

    @property
    def topic(self) -> str:
        return self.parts[0].topic

    @property
    def partition(self) -> int:
        return self.parts[0].partition

    @property
    def end_offset(self) -> int:
        return self.parts[-1].end_offset

    @property
    def cost_bytes(self) -> int:
        """The cost of the reads as that of reading so many bytes."""
        return sum(part.cost_bytes for part in (*self.parts, *self.rivals))

    @property
    def offsets(self) -> int:
        """Upper bound on the records."""
        return sum(part.offsets for part in self.parts)


@dataclass(frozen=True, slots=True)
class LatestPart(PartWithRivals[Part]):
    """A part of the view of a partition. `rivals`: the dirty head, as far as it may supersede records of the part.

    Both are by offset.
    """

    @classmethod
    def planned(
        cls, snapshot: Snapshot, offsets: Offsets, selection: Selection, max_partition_bytes: int | None = None
    ) -> Iterator[LatestPart]:
        """The parts of the view of `offsets`, which a `Scan` has clipped to the snapshot, by partition and offset.

        They are of about `max_partition_bytes`; None: as large as they come. No part has offsets of two ranges that
        meet.

        Every part reads the keys of its partition's head. So a part has at least as many bytes as the head, unless its
        ranges are smaller.
        """
        heads = _heads(snapshot, offsets, selection)
        by_size: dict[int | None, dict[int, OffsetRanges]] = {}
        for number, ranges in offsets.items():
            size_bytes = max_partition_bytes
            if size_bytes is not None:
                size_bytes = max(size_bytes, sum(head.size_bytes for head in heads.get(number, ())))
            by_size.setdefault(size_bytes, {})[number] = ranges
        latest = []
        for size_bytes, alike in by_size.items():
            for run in runs_of(Part.planned(snapshot, alike, selection, size_bytes), alike):
                for parts in pack(run, _ALL_BYTES if size_bytes is None else size_bytes):
                    # Only later records supersede a record.
                    first = parts[0]
                    head = heads.get(parts[0].partition, ())
                    after = tuple(part for part in head if part.end_offset > first.start_offset)
                    latest.append(cls(tuple(parts), after))
        return iter(sorted(latest, key=lambda part: (part.partition, part.parts[0].start_offset)))


def _heads(snapshot: Snapshot, offsets: Offsets, selection: Selection) -> dict[int, list[Part]]:
    """{partition: the parts of its dirty head, by offset}: what of `offsets` was not cleaned, with keys alone. A record
    of any time and with any fields supersedes an older one.
    """
    first_dirty = dict(zip(*(snapshot.partitions.column(name).to_pylist() for name in _DIRTY), strict=True))
    dirty = {number: within(ranges, first_dirty[number], LONG_MAX) for number, ranges in offsets.items()}
    keys = replace(selection, columns=_OF_HEAD, value_type=Selection.BINARY, times=None, where=())
    heads: dict[int, list[Part]] = {}
    for part in Part.planned(snapshot, dirty, keys):
        heads.setdefault(part.partition, []).append(part)
    return heads


def read_latest(storage: Storage, part: LatestPart, *, map_bytes: int = MAP_BYTES) -> Iterator[pa.RecordBatch]:
    """The records of a part, by offset, in batches of a few MiB. Raises CorruptBatchError for damaged bytes.

    Memory is `map_bytes` at most and, where the keys of the head do not fit, a byte for each record of the part.
    """
    selection = part.parts[0].selection
    columns = list(selection.columns)
    needed = list(dict.fromkeys([*columns, *_OF_HEAD] + ([] if selection.include_tombstones else ["value"])))
    keys = _map(storage, part.rivals, KeyShare(), map_bytes)
    marks = None if keys is not None else _marks(storage, part, map_bytes)
    row = 0
    for batch in _read(storage, part.parts, replace(selection, columns=tuple(needed))):
        if keys is not None:
            superseded = np.zeros(batch.num_rows, np.bool_)
            keys.mark_superseded(batch.column("key"), _offsets(batch), superseded)
        else:
            assert marks is not None
            superseded = marks[row : row + batch.num_rows]
            row += batch.num_rows
        mask = pa.array(~superseded)
        if selection.include_keyless and batch.column("key").null_count:
            mask = pc.or_(mask, pc.is_null(batch.column("key")))
        if not selection.include_tombstones:
            mask = pc.and_(mask, pc.is_valid(batch.column("value")))
        chosen = batch.select(columns)
        yield chosen if mask.true_count == batch.num_rows else filtered(chosen, mask)


def _marks(storage: Storage, part: LatestPart, map_bytes: int) -> np.ndarray:
    """bool[n] by record of the part: whether the head has a later record of its key. Each share of keys has a map."""
    marks = np.zeros(0, np.bool_)
    share = KeyShare(0, 2)
    seed = secrets.randbits(64)  # all shares must use the same seed
    while share.number < share.parts:
        keys = _map(storage, part.rivals, share, map_bytes, seed)
        if keys is None:  # marks that are set stay true
            share = KeyShare(0, share.parts * 2)
            continue
        row = 0
        for batch in _read(
            storage, part.parts, replace(part.parts[0].selection, columns=_OF_HEAD, value_type=Selection.BINARY)
        ):
            if row + batch.num_rows > len(marks):
                marks = np.concatenate([marks, np.zeros(max(len(marks), batch.num_rows), np.bool_)])
            keys.mark_superseded(batch.column("key"), _offsets(batch), marks[row : row + batch.num_rows])
            row += batch.num_rows
        share = KeyShare(share.number + 1, share.parts)
    return marks


def _map(
    storage: Storage, head: Sequence[Part], share: KeyShare, map_bytes: int, seed: int | None = None
) -> LatestKeys | None:
    """The latest offsets of the share's keys in the head; None where they do not fit `map_bytes`."""
    keys = LatestKeys(map_bytes, share, seed=seed)
    for batch in _read(storage, head):
        if not keys.put_records(batch.column("key"), _offsets(batch)):
            return None
    return keys


def _read(storage: Storage, parts: Sequence[Part], selection: Selection | None = None) -> Iterator[pa.RecordBatch]:
    for part in parts:
        yield from read_part(storage, part if selection is None else replace(part, selection=selection))


def _offsets(batch: pa.RecordBatch) -> np.ndarray:
    offsets: np.ndarray = batch.column("offset").to_numpy()
    return offsets
