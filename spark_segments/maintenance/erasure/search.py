"""The search for records of given keys, file by file: every byte of a .log that a row names part of is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import MissingFileError
from spark_segments.execution import run_tasks
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.log.bins import in_bins
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.reader import windows
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class KeyRecords:
    """The records of a key in a file. `key`: the place of the key among those searched for.

    `records` have offsets in the row's range, `tombstones` of them have a null value. `first_offset`, `last_offset` and
    `last_is_tombstone` are of the first and the last of them (-1 where there is none).
    `outside`: records in bytes of the file that the row does not name.
    """

    key: int
    records: int
    tombstones: int
    first_offset: int
    last_offset: int
    last_is_tombstone: bool
    outside: int


def _search_segments(
    storage: Storage, topic: str, keys: tuple[bytes, ...], segments: Sequence[Segment]
) -> list[tuple[KeyRecords, ...]]:
    """Task function: for each of some segments, the keys that its file has records of. CRCs are checked on the way."""
    matches = []
    for segment in segments:
        try:
            matches.append(_search_segment(storage, topic, keys, segment))
        except MissingFileError:
            if segment.is_live:
                raise
            matches.append(())  # vacuum has deleted it
    return matches


def _search_segment(storage: Storage, topic: str, keys: tuple[bytes, ...], segment: Segment) -> tuple[KeyRecords, ...]:
    wanted = pa.array(keys, pa.binary())
    matches: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for window in windows(storage, segment):
        # Values are decoded only where a window has any of the keys.
        columns: tuple[str, ...] = ("key",)
        for batch in decode_batches(window, topic=topic, partition=segment.partition, columns=columns):
            if pc.any(pc.is_in(batch.column("key"), value_set=wanted)).as_py():
                columns = ("key", "value", "offset")
                break
        if columns == ("key",):
            continue
        for batch in decode_batches(window, topic=topic, partition=segment.partition, columns=columns):
            places = pc.index_in(batch.column("key"), value_set=wanted)
            rows = np.flatnonzero(places.is_valid().to_numpy(zero_copy_only=False))
            matches.append(
                (
                    places.fill_null(-1).to_numpy()[rows],
                    batch.column("offset").to_numpy()[rows],
                    batch.column("value").is_null().to_numpy(zero_copy_only=False)[rows],
                )
            )
    if not matches:
        return ()
    numbers, offsets, tombstones = (np.concatenate(parts) for parts in zip(*matches, strict=True))
    inside = (offsets >= segment.base_offset) & (offsets < segment.next_offset)
    return tuple(
        _summary(int(key), offsets[numbers == key], tombstones[numbers == key], inside[numbers == key])
        for key in np.unique(numbers)
    )


def search(
    storage: Storage,
    topic: str,
    keys: Sequence[bytes],
    segments: Iterable[Segment],
    spark: SparkSession | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[tuple[KeyRecords, ...]]:
    """For each segment, in order, the keys that its file has records of.

    () stands for none, and for a removed file that is gone. Raises CorruptBatchError for damaged bytes,
    MissingFileError for a live segment without its file.
    """
    tasks = in_bins(
        segments,
        lambda one: np.array([one.log_bytes], np.int64),
        lambda task, total, one: int(total[0]) + one.log_bytes > TASK_BYTES,
    )
    done = run_tasks(partial(_search_segments, storage, topic, tuple(keys)), list(tasks), spark, progress=progress)
    return [found for task in done for found in task]


def _summary(key: int, offsets: np.ndarray, tombstones: np.ndarray, inside: np.ndarray) -> KeyRecords:
    named = offsets[inside]
    last = int(named.argmax()) if len(named) else -1
    return KeyRecords(
        key,
        len(named),
        int(tombstones[inside].sum()),
        int(named.min()) if len(named) else -1,
        int(named[last]) if len(named) else -1,
        bool(tombstones[inside][last]) if len(named) else False,
        int((~inside).sum()),
    )
