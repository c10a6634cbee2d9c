"""The search for records of given keys, file by file: every byte of a .log that a row names part of is looked at."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import MissingFileError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.progress import Progress
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TASK_BYTES = 64 << 20
THREADS = 16  # of this process: on an object store, reading footers is mostly waiting


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
    key_array = pa.array(keys, pa.binary())
    matches: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for window in SegmentFile(storage, segment).windows():
        # Values are decoded only where a window has any of the keys.
        columns: tuple[str, ...] = ("key",)
        for batch in decode_batches(window, topic=topic, partition=segment.partition, columns=columns):
            if pc.any(pc.is_in(batch.column("key"), value_set=key_array)).as_py():
                columns = ("key", "value", "offset")
                break
        if columns == ("key",):
            continue
        for batch in decode_batches(window, topic=topic, partition=segment.partition, columns=columns):
            places = pc.index_in(batch.column("key"), value_set=key_array)
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
    # Bytes beside the row's offsets count, too: a file that keeps them keeps the key.
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
    progress: Progress | None = None,
) -> list[tuple[KeyRecords, ...]]:
    """For each segment, in order, the keys that its file has records of.

    () stands for none, and for a removed file that is gone. Raises CorruptBatchError for damaged bytes,
    MissingFileError for a live segment without its file.
    """
    tasks = in_bins(segments, lambda row: row.log_bytes, lambda _, total, row: total + row.log_bytes > TASK_BYTES)
    done = run_tasks(partial(_search_segments, storage, topic, tuple(keys)), list(tasks), spark, progress=progress)
    return list(itertools.chain.from_iterable(done))


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


def _unnamed_runs(storage: Storage, rows: Sequence[Segment]) -> list[Segment]:
    """Task function: the runs of an object that are not among `rows`, all rows that name it."""
    path = rows[0].path
    try:
        footer = read_footer(storage, path, storage.size(path))
    except (MissingFileError, FileNotFoundError):
        return []  # vacuum has deleted it; of a live row, the search says that the file is gone
    named = {(row.partition, row.byte_position) for row in rows}
    return [
        dataclasses.replace(
            rows[0],
            base_offset=0,
            next_offset=0,
            file_base_offset=0,
            state=Segment.DELETING,
            byte_position=run["position"].item(),
            **{
                name: run[name].item()
                for name in (
                    "partition", "log_bytes", "index_position", "index_bytes", "time_index_bytes",
                    "records", "batches",
                )
            },
        )
        for run in footer.runs
        if (run["partition"], run["position"]) not in named
    ]  # fmt: skip


def unnamed_runs(storage: Storage, rows: Iterable[Segment], spark: SparkSession | None) -> list[Segment]:
    """The runs that lie in shared objects of `rows`, and that no row names: vacuum drops the rows of an object one by
    one, and its bytes stay while any row is left.

    `rows`: all rows of each object. The runs come as rows of no offsets, which are being deleted. Footers are read
    only of objects that have such runs.
    """
    shared = sorted((row for row in rows if row.is_shared), key=lambda row: (row.path, row.byte_position))
    objects = [list(group) for _, group in itertools.groupby(shared, lambda row: row.path)]
    incomplete = [
        runs for runs in objects if runs[0].byte_position or runs[0].index_position != sum(r.log_bytes for r in runs)
    ]
    done = run_tasks(partial(_unnamed_runs, storage), incomplete, spark, at_a_time=THREADS)
    return list(itertools.chain.from_iterable(done))
