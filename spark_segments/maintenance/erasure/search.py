"""The search for records of given keys, file by file: every byte of a .log that a row names part of is looked at.

A live segment need not be read where the index of keys says that none of its offsets has one of the keys, if its file
has no other offsets: the index knows records of the log, and no bytes. So a removed file is read, a run that no row
names, and a row that begins below the log start.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import MissingFileError, SegmentsError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.log.key_offsets import KeyOffsets
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.progress import Progress
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Place = tuple[str, int, int, int, int]
"""What a row names: path, partition, position in the file, base offset, next offset."""

TASK_BYTES = 64 << 20
ENDS_BYTES = 1 << 20
"""What a look at the ends of a file costs, in bytes that are read."""

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


@dataclass(frozen=True, slots=True)
class SearchedSegment:
    """What a search says of a segment: of which keys its file has records, and whether it was read for that.

    Where it was not, the index spared it (`is_spared`), or it is a removed file that is gone.
    """

    records: tuple[KeyRecords, ...] = ()
    is_read: bool = False
    is_spared: bool = False


SPARED = SearchedSegment(is_spared=True)

_Task = tuple[Segment, bool]
"""A segment, and whether by the index none of its offsets has a record of the keys."""


def _search_segments(
    storage: Storage, topic: str, keys: tuple[bytes, ...], tasks: Sequence[_Task]
) -> list[SearchedSegment]:
    """Task function: for each of some segments, the keys that its file has records of. CRCs are checked on the way."""
    searched = []
    for segment, is_without in tasks:
        if is_without and _has_no_other_offsets(storage, segment):
            searched.append(SPARED)
            continue
        try:
            searched.append(SearchedSegment(_search_segment(storage, topic, keys, segment), is_read=True))
        except MissingFileError:
            if segment.is_live:
                raise
            searched.append(SearchedSegment())  # vacuum has deleted it
    return searched


def _has_no_other_offsets(storage: Storage, segment: Segment) -> bool:
    """Whether all records in the bytes of a row have offsets of the row, as the first and the last of its batches show:
    offsets rise in a file. Few bytes are read. False where these do not show it, or cannot be read.
    """
    if segment.is_shared or not segment.index_bytes:
        return False  # the .index is what leads to the last batch
    file = SegmentFile(storage, segment)
    try:
        first_window = next(file.windows(end_position=1), None)
        last_window = deque(file.windows(file.locate_position(segment.end_position)), maxlen=1)
    except (SegmentsError, FileNotFoundError):
        return False  # the search says what is wrong
    if first_window is None or not last_window:
        return False
    first_offset = int(first_window.batches.base_offset[0]) + segment.offset_shift
    last_offset = int(last_window[0].batches.last_offset[-1]) + segment.offset_shift
    return segment.base_offset <= first_offset and last_offset < segment.next_offset


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


def place_of(segment: Segment) -> Place:
    """What the row of a segment names."""
    return *segment.identity, segment.base_offset, segment.next_offset


def places_without(
    index: KeyOffsets, snapshot: Snapshot, segments: Iterable[Segment], keys: Sequence[bytes]
) -> frozenset[Place]:
    """The live segments of a snapshot, among others, in whose offsets no record has any of the keys, by an index. Their
    files may have such records beside these offsets.
    """
    bounds = snapshot.offset_bounds()
    asked: dict[int, dict[tuple[int, int], Place]] = defaultdict(dict)
    for segment in segments:
        if segment.is_live and segment.topic_id == snapshot.topic_id:
            # A row of a partition that the topic does not have lies in no log: it is read.
            start, end = bounds.get(segment.partition, (0, 0))
            if start <= segment.base_offset < segment.next_offset <= end:
                asked[segment.partition][segment.base_offset, segment.next_offset] = place_of(segment)
    without = index.ranges_without(snapshot, {number: tuple(sorted(own)) for number, own in asked.items()}, keys)
    return frozenset(asked[number][offsets] for number, ranges in without.items() for offsets in ranges)


def search(
    storage: Storage,
    topic: str,
    keys: Sequence[bytes],
    segments: Iterable[Segment],
    spark: SparkSession | None = None,
    *,
    progress: Progress | None = None,
    without: Collection[Place] = frozenset(),
) -> list[SearchedSegment]:
    """For each segment, in order, the keys that its file has records of. `without`: see `places_without`.

    Raises CorruptBatchError for damaged bytes, MissingFileError for a live segment without its file.
    """
    tasks = [(segment, place_of(segment) in without) for segment in segments]
    # A row with a record at each of its offsets, and no further ones, names all that its file has.
    is_spared = [is_without and segment.is_full for segment, is_without in tasks]
    bins = in_bins(
        (task for task, spared in zip(tasks, is_spared, strict=True) if not spared),
        _cost,
        lambda _, total, task: total + _cost(task) > TASK_BYTES,
    )
    done = run_tasks(partial(_search_segments, storage, topic, tuple(keys)), list(bins), spark, progress=progress)
    searched = itertools.chain.from_iterable(done)
    return [SPARED if spared else next(searched) for spared in is_spared]


def _cost(task: _Task) -> int:
    segment, is_without = task
    return min(segment.log_bytes, ENDS_BYTES) if is_without else segment.log_bytes


def search_figures(searched: Iterable[SearchedSegment]) -> dict[str, int]:
    """How many segments a search read, and how many the index spared."""
    figures = dict.fromkeys(("segments_read", "segments_by_index"), 0)
    for segment in searched:
        figures["segments_read"] += segment.is_read
        figures["segments_by_index"] += segment.is_spared
    return figures


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
