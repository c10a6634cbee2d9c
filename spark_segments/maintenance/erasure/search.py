"""The search for records of given keys, file by file: every byte of a .log that a row names part of is looked at."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.errors import MissingFileError, SegmentsError
from spark_segments.execution import in_bins, run_tasks
from spark_segments.format.cleaner.active_producers import ActiveProducers
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter, clean_batches
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.format.cleaner.transactions import UntouchedTransactions
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.log.segment.writer import discard
from spark_segments.maintenance.compaction.group_rewrite import GroupRewrite, named
from spark_segments.maintenance.rolling.copies import CopySegments, CopyTask, copied
from spark_segments.maintenance.rolling.plan import RollRules
from spark_segments.maintenance.rolling.planned_segments import PlannedSegment
from spark_segments.progress import Progress
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
    for window in SegmentFile(storage, segment).windows():
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
    progress: Progress | None = None,
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


THREADS = 16  # of this process: on an object store, reading footers is mostly waiting


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
    objects = [list(group) for _, group in groupby(shared, lambda row: row.path)]
    incomplete = [
        one for one in objects if one[0].byte_position or one[0].index_position != sum(r.log_bytes for r in one)
    ]
    done = run_tasks(partial(_unnamed_runs, storage), incomplete, spark, at_a_time=THREADS)
    return [run for runs in done for run in runs]


def copied_out(
    storage: Storage,
    topic: str,
    config: TopicConfig,
    leader_epochs: Mapping[int, LeaderEpochs],
    rows: Sequence[Segment],
    spark: SparkSession | None,
    progress: Progress | None,
) -> list[ErasedSegment]:
    """Copies runs, with all their records, into new shared objects or files, as a roll that empties objects does."""
    tasks = [
        CopyTask(
            PlannedSegment(row.partition, row.base_offset, row.next_offset, (row,), sealed=False),
            leader_epochs[row.partition],
        )
        for row in rows
    ]
    copy = CopySegments(storage, topic, RollRules.of(rows[0].topic_id, config))
    outputs = copied(copy, tasks, spark, progress=progress)
    done = [
        ErasedSegment(row, (output,), CleanerStats(records_read=output.records))
        for row, output in zip(rows, outputs, strict=True)
        if isinstance(output, Segment)
    ]
    errors = [output for output in outputs if isinstance(output, SegmentsError)]
    if errors:
        discard_erased(storage, done)
        raise errors[0]
    return done


_BYTES_A_KEY = 64  # of the map; at least 4096


@dataclass(frozen=True, slots=True)
class ErasedSegment:
    """A segment, the segments that take its place, and what became of its records."""

    source: Segment
    outputs: tuple[Segment, ...]
    stats: CleanerStats


def erase_from_segment(
    storage: Storage,
    topic: str,
    config: TopicConfig,
    leader_epochs: Mapping[int, LeaderEpochs],
    task: tuple[Segment, Mapping[bytes, int]],
) -> ErasedSegment:
    """Task function: writes a segment again without the records of keys below an offset, {key: that offset}.

    Every other record keeps its offset and its bytes, batch headers stay even where no record of a batch does, and so
    do tombstones, transaction markers, and the entries of the .txnindex. The new file has the state of the old one, and
    bytes that the row does not name are not in it.
    """
    segment, ends = task
    offsets = np.array(list(ends.values()), np.int64)
    latest = LatestKeys(max(4096, _BYTES_A_KEY * len(ends)))
    fits = latest.put_records(pa.array(list(ends), pa.binary()), offsets)
    assert fits, "the map has room for all keys"
    latest.advance(int(offsets.max()))
    rules = RecordFilter(latest, 0, 0, -1, ActiveProducers.of(), only_superseded=True)
    aborted = SegmentFile(storage, segment).aborted_in(segment.base_offset, segment.next_offset)
    transactions, stats = UntouchedTransactions(), CleanerStats()
    with GroupRewrite(storage, topic, config, [segment], leader_epochs[segment.partition]) as rewrite:
        for window in (named(one, segment) for one in SegmentFile(storage, segment).windows()):
            _check_begin(window, segment)
            for cleaned in clean_batches(window, rules, transactions):
                # The file is written in any case: bytes that the row does not name may have the keys, too.
                rewrite.add(segment, dataclasses.replace(cleaned, changed=True, aborted=aborted))
                aborted = cleaned.aborted  # none: the entries are written once
                stats += cleaned.stats
        outputs = rewrite.close().outputs
    return ErasedSegment(segment, tuple(dataclasses.replace(one, state=segment.state) for one in outputs), stats)


def _check_begin(window: Window, segment: Segment) -> None:
    """Raises SegmentsError for a row that begins inside a batch: a file of that name could not hold the batch."""
    if len(window.batches) and int(window.batches.base_offset[0]) + segment.offset_shift < segment.base_offset:
        raise SegmentsError(
            "The row of a segment begins inside a batch",
            path=segment.path,
            byte_position=int(window.batches.byte_position[0]),
            expected=f"a batch that begins at offset {segment.base_offset} or later",
            found=int(window.batches.base_offset[0]) + segment.offset_shift,
            hint="Roll the topic, which cuts the batch, and erase again",
        )


def discard_erased(storage: Storage, done: Sequence[ErasedSegment]) -> None:
    """Deletes the files of segments that no commit will name."""
    discard(storage, [segment for one in done for segment in one.outputs])
