"""Tombstones that stay although their time has come: another partition has an older value of the key.

Partitions were added to the topic since, and the key moved to another one. Cleaning a partition removes what it has
superseded itself; without the tombstone, the view latest would have the value of the other partition again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.execution import run_tasks
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.log.eras import Eras
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.plan import Part, ScanPart, Selection
from spark_segments.log.reading.scan import Scan
from spark_segments.maintenance.job import Job
from spark_segments.storage import Storage

MOST_KEYS = 1 << 20
"""Upper bound on the keys of a topic that are looked for. Of more than that, all tombstones stay."""

_READ = Selection(("key", "partition", "value"), value_type=Selection.BINARY_VIEW)
_KEY = ["key", "partition"]
_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("partition", pa.int32())])
_NEVER = np.iinfo(np.int64).max


def held_keys(job: Job, snapshot: Snapshot, partitions: Collection[int]) -> pa.Array | None:
    """binary[n]: the keys of which cleaning these partitions keeps the tombstones; None: it keeps all tombstones.

    Nothing is read of a topic to which no partitions were added, or that has no tombstone whose time
    has come.
    """
    eras = Eras.of(snapshot)
    nothing = pa.array([], pa.binary())
    if eras is None or not eras.ends:
        return nothing
    due = _due_tombstones(snapshot, partitions, eras.ends[0], job.now_ms)
    parts = _parts(job.storage, snapshot, due)
    tombstones = _once(run_tasks(partial(_tombstones, job.storage), parts, job.spark))
    keys = tombstones.column("key").unique()
    if len(keys) > MOST_KEYS:
        return None
    if not len(keys):
        return nothing
    earlier = {number: (0, end) for number, end in enumerate(eras.ends[-1])}
    parts = _parts(job.storage, snapshot, earlier)
    values = _once(run_tasks(partial(_values, job.storage, keys), parts, job.spark))
    both = values.join(tombstones, "key", right_suffix="_of_tombstone", join_type="inner")
    elsewhere = pc.not_equal(both.column("partition"), both.column("partition_of_tombstone"))
    return both.filter(elsewhere).column("key").unique()


def _parts(storage: Storage, snapshot: Snapshot, offsets: Mapping[int, tuple[int, int]]) -> list[ScanPart]:
    return list(Scan.of(storage, snapshot, offsets=offsets, selection=_READ).parts(Part.DEFAULT_BYTES))


def _due_tombstones(
    snapshot: Snapshot, partitions: Collection[int], first: Sequence[int], now_ms: int
) -> dict[int, tuple[int, int]]:
    """Offsets that have all tombstones which cleaning may drop, and which came after partitions were first added."""
    due = {}
    for number in partitions:
        rows = snapshot.live_table(number)
        begin = first[number] if number < len(first) else 0
        horizon = pc.fill_null(rows.column("delete_horizon_ms"), _NEVER).to_numpy()
        base, following = (rows.column(name).to_numpy() for name in ("base_offset", "next_offset"))
        mine = np.flatnonzero((horizon <= now_ms) & (following > begin))
        if len(mine):
            due[number] = (max(begin, int(base[mine[0]])), int(following[mine[-1]]))
    return due


def _tombstones(storage: Storage, part: ScanPart) -> pa.Table:
    """Task function: the keys of a part that have a tombstone, each with its partition."""
    return _keys(storage, part, lambda batch: pc.and_(batch.column("value").is_null(), batch.column("key").is_valid()))


def _values(storage: Storage, keys: pa.Array, part: ScanPart) -> pa.Table:
    """Task function: the keys among `keys` that have a value in a part, each with its partition."""
    latest_keys = LatestKeys.of(keys)
    return _keys(
        storage,
        part,
        lambda batch: pc.and_(batch.column("value").is_valid(), pa.array(latest_keys.contains(batch.column("key")))),
    )


def _keys(storage: Storage, part: ScanPart, condition: Callable[[pa.RecordBatch], pa.Array]) -> pa.Table:
    return _once(
        [pa.Table.from_batches([batch.select(_KEY).filter(condition(batch))]) for batch in Scan.read(storage, [part])]
    )


def _once(tables: Sequence[pa.Table]) -> pa.Table:
    every = pa.concat_tables([_SCHEMA.empty_table(), *tables], promote_options="default")
    return every.group_by(_KEY).aggregate([])
