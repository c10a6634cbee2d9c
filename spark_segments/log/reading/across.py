"""The view `latest` of a topic to which partitions were added: a key may have records in several partitions.

In each partition the newest record of a key is the one that latest.py finds. Of those the view has the one of the
latest era (`Eras`), whose commits came after all commits of the eras before; within an era the one with the largest
timestamp, then with the largest offset, then of the highest partition. Tombstones take part.

Whoever reads a part of the view reads the keys of all partitions first. So a view has few parts, and costs two to three
reads of the topic. Keys are equal if 128 bits of their hash are equal, as in the cleaner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from spark_segments.execution import in_bins
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.log.eras import Eras
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.clip import Offsets, borders
from spark_segments.log.reading.filtering import filtered
from spark_segments.log.reading.latest import MAP_BYTES, LatestPart, PartWithRivals, read_latest
from spark_segments.log.reading.scan_plan import Selection
from spark_segments.storage import Storage

MOST_PARTS = 8
"""How many parts a view has at most, unless it is asked for pieces: each reads the keys of the whole topic."""


_HASH_BYTES = 16  # half a hash, and what sorting takes
_RECORD_BYTES = 128  # a record's hash and rank, and what sorting takes


@dataclass(frozen=True, slots=True)
class AcrossPart(PartWithRivals[LatestPart]):
    """A part of the view: the records of `parts` whose keys have no newer record in another partition.

    `rivals`: the view of each partition, with the columns RANKED.
    """

    eras: Eras


ViewPart = LatestPart | AcrossPart


def view_parts(
    snapshot: Snapshot,
    offsets: Offsets,
    selection: Selection,
    max_partition_bytes: int | None = None,
) -> Iterator[ViewPart]:
    """As `latest_parts`; where keys may have records in several partitions, as parts across them."""
    parts = LatestPart.planned(snapshot, offsets, selection, max_partition_bytes)
    eras = Eras.of(snapshot)
    if eras is None:
        return parts
    ranked = Selection(Eras.RANKED, selection.isolation, selection.view, keys=selection.keys)
    rivals = tuple(LatestPart.planned(snapshot, offsets, ranked))
    if len(rivals) < 2:
        return parts
    size_bytes = sum(part.cost_bytes for part in rivals)
    if max_partition_bytes is not None:
        size_bytes = max(max_partition_bytes, -(-size_bytes // MOST_PARTS))
    if any(borders(ranges) for ranges in offsets.values()):  # a caller says where the view is cut
        size_bytes = 0
    together = in_bins(parts, lambda part: part.cost_bytes, lambda _, total, part: total + part.cost_bytes > size_bytes)
    return (AcrossPart(tuple(some), rivals, eras) for some in together)


def read_across(storage: Storage, part: AcrossPart, *, map_bytes: int = MAP_BYTES) -> Iterator[pa.RecordBatch]:
    """The records of a part, by partition and offset, in batches of a few MiB. Raises CorruptBatchError.

    Memory is about three times `map_bytes`, and 8 bytes for each record that another partition has a newer one of.
    """
    older = _older(storage, part, map_bytes)
    for own in part.parts:
        columns = list(own.parts[0].selection.columns)
        beaten = older.get(own.partition)
        if beaten is not None and "offset" not in columns:
            selection = replace(own.parts[0].selection, columns=(*columns, "offset"))
            own = replace(own, parts=tuple(replace(plain, selection=selection) for plain in own.parts))
        for batch in read_latest(storage, own, map_bytes=map_bytes):
            if beaten is not None:
                is_newest = ~_among(batch.column("offset").to_numpy(), beaten)
                batch = filtered(batch.select(columns), pa.array(is_newest))
            yield batch


def _older(storage: Storage, part: AcrossPart, map_bytes: int) -> dict[int, np.ndarray]:
    """{partition: int64[], sorted}: the offsets of records that another partition has a newer one of.

    Keys are looked at in shares of which the hashes fit `map_bytes`. A first pass finds hashes that several partitions
    have, and further ones their records.
    """
    hasher = LatestKeys(1 << 10)
    older: dict[int, list[np.ndarray]] = {own.partition: [] for own in part.parts}
    number = 0
    shares = 1
    while number < shares:
        hashes = _hashes(storage, part.rivals, hasher, (number, shares), map_bytes)
        if hashes is None:
            number = 0
            shares = shares * 2
            continue
        hashes.sort()
        several = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        for first in range(0, len(several), map_bytes // _RECORD_BYTES):
            some = several[first : first + map_bytes // _RECORD_BYTES]
            for partition, offsets in _beaten(storage, part, hasher, some, map_bytes).items():
                older.get(partition, []).append(offsets)
        number += 1
    return {partition: np.unique(np.concatenate(offsets)) for partition, offsets in older.items() if offsets}


def _among(values: np.ndarray, members: np.ndarray) -> np.ndarray:
    """bool[n]: which values are known: those are sorted, and one at least. `isin` would sort them for each batch."""
    nearest = np.minimum(np.searchsorted(members, values), len(members) - 1)
    return np.asarray(members[nearest] == values)


def _hashes(
    storage: Storage, rivals: Sequence[LatestPart], hasher: LatestKeys, share: tuple[int, int], map_bytes: int
) -> np.ndarray | None:
    """uint64[]: half of each key's hash, of a (number, of so many) share of the keys; None where they do not fit."""
    number, shares = share
    hashes = [np.empty(0, np.uint64)]
    left = map_bytes // _HASH_BYTES
    for rival in rivals:
        for batch in read_latest(storage, rival, map_bytes=map_bytes):
            halves = hasher.hashes(batch.column("key"))[::3].view(np.uint64)
            hashes.append(halves[halves % np.uint64(shares) == number])
            left -= len(hashes[-1])
            if left < 0:
                return None
    return np.concatenate(hashes)


def _beaten(
    storage: Storage, part: AcrossPart, hasher: LatestKeys, several: np.ndarray, map_bytes: int
) -> dict[int, np.ndarray]:
    """{partition: offsets} of the records of keys with these hashes, without the newest of each key."""
    rows = []
    for rival in part.rivals:
        for batch in read_latest(storage, rival, map_bytes=map_bytes):
            hashes = hasher.hashes(batch.column("key")).reshape(-1, 3)
            chosen = _among(hashes[:, 0].copy().view(np.uint64), several)
            rows.append(np.vstack([part.eras.ranks(batch), hashes[:, 1], hashes[:, 0]])[:, chosen])
    every = np.hstack(rows)
    every = every[:, np.lexsort(every)]
    beaten = every[:, :-1][:, (every[4:, 1:] == every[4:, :-1]).all(axis=0)]
    return {int(partition): beaten[1][beaten[0] == partition] for partition in np.unique(beaten[0])}
