"""A round of cleaning done by many tasks, for a partition that is a large part of what the job has to do.

In a first stage each task puts a slice of the dirty head into a map. Merged, these maps are the map that one task would
build. In a second stage each task rewrites some groups of segments. In this process all tasks share one map; on Spark
the maps go from task to task as files.

Transactions can only be followed through a whole log, in the order of its batches. A partition that has transactions is
cleaned by one task: the plan says so where a segment has a .txnindex. Where a task meets a marker all the same, the
round ends with a WholeLogNeededError and changes nothing.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_segments.errors import SegmentsError
from spark_segments.execution import try_tasks
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions, WholeLogNeededError
from spark_segments.log.bins import in_bins
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.reader import locate, locate_position
from spark_segments.maintenance.compaction.group_rewrite import RewrittenGroup
from spark_segments.maintenance.compaction.map_file import MapFile, merge_file, read_map, write_map
from spark_segments.maintenance.compaction.noted_batches import NotedBatches
from spark_segments.maintenance.compaction.round import (
    ByteRange,
    MapNotes,
    RoundPlan,
    RoundResult,
    build_map,
    discard_groups,
    put_windows,
    rewrite_groups,
)
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_SLICE_BYTES = 32 << 20
"""The least bytes of the dirty head for which a task builds a map."""

TASKS_PER_SLOT = 4
"""How many rewriting tasks Spark gets for each slot. With more tasks the slots wait less for the last task, but each
task reads the map."""


def slices(segments: Sequence[Segment], start_position: int, count: int) -> list[list[ByteRange]]:
    """The bytes of neighbouring segments in at most `count` slices of the same size.

    `start_position` is the first byte of the first segment that counts.
    """
    total = _log_bytes(segments) - start_position
    edges = [total * number // count for number in range(count + 1)]
    found: list[list[ByteRange]] = [[] for _ in range(count)]
    begin = -start_position
    for segment in segments:
        end = begin + segment.log_bytes
        for number, ranges in enumerate(found):
            low, high = max(begin, edges[number]), min(end, edges[number + 1])
            if low < high:
                ranges.append(ByteRange(segment, low - begin, high - begin))
        begin = end
    return [ranges for ranges in found if ranges]


def rewriting_tasks(groups: Sequence[Sequence[Segment]], least_bytes: int) -> list[list[Sequence[Segment]]]:
    """Neighbouring groups for each task: at least so many bytes, but for the last task."""
    return list(in_bins(groups, _log_bytes, lambda _, total, group: total >= least_bytes))


def _log_bytes(segments: Sequence[Segment]) -> int:
    return sum(segment.log_bytes for segment in segments)


@dataclass(frozen=True, slots=True)
class ManyTasks:
    """Does a round by tasks, about `slots` at a time: on Spark where there is a session, else in threads.

    The map of a slice is bounded by `slice_map_bytes`, the merged map by `merged_map_bytes`, which is not smaller.
    """

    slots: int
    slice_map_bytes: int
    merged_map_bytes: int
    spark: SparkSession | None = None

    def __call__(self, storage: Storage, work: RoundPlan) -> RoundResult:
        """As `clean_in_one_task`. Raises WholeLogNeededError where the partition has transactions."""
        if work.has_aborted:
            raise WholeLogNeededError(
                "A segment has a .txnindex", path=f"{work.settings.topic}-{work.partition.partition}"
            )
        offset_map, indexed, noted = self._build_map(storage, work)
        return RoundResult.of(work, offset_map, indexed, self._rewrite(storage, work, offset_map, noted))

    def _build_map(self, storage: Storage, work: RoundPlan) -> tuple[OffsetMap, int, NotedBatches]:
        """As `round.build_map`."""
        offset_map, indexed, noted, is_all = self._merged_map(storage, work)
        if is_all or self.merged_map_bytes >= work.settings.map_bytes:
            return offset_map, indexed, noted
        # Each slice's map had a share of the memory. A single map that has all of it reaches further.
        del offset_map
        return build_map(storage, work, CleanedTransactions())

    def _merged_map(self, storage: Storage, work: RoundPlan) -> tuple[OffsetMap, int, NotedBatches, bool]:
        """The merged map of the slices, up to a slice that does not fit.

        Also returned: the records in it, the notes of its slices, whether all slices are in it.
        """
        merged = OffsetMap(
            self.merged_map_bytes,
            start_offset=work.first_dirty_offset,
            load_factor=work.settings.load_factor,
            seed=secrets.randbits(64),
        )
        head = [segment for segment in work.segments if segment.next_offset > work.first_dirty_offset]
        parts = self._slice_maps(storage, work, head, merged.seed)
        try:
            indexed, noted, is_all = _merge(storage, merged, parts, work.notes_bytes)
        finally:
            _delete_files(storage, parts)
        if is_all and head:
            merged.advance(min(head[-1].next_offset, work.first_uncleanable_offset))
        return merged, indexed, noted, is_all

    def _slice_maps(self, storage: Storage, work: RoundPlan, head: Sequence[Segment], seed: int) -> list[_SliceMap]:
        """The maps of the slices of the dirty head, in their order."""
        start = 0
        if head and work.first_dirty_offset > head[0].base_offset:
            start = locate(storage, head[0], work.first_dirty_offset)
        count = max(1, min(self.slots, (_log_bytes(head) - start) // MIN_SLICE_BYTES))
        build = _BuildMap(
            storage,
            dataclasses.replace(work, live=()),
            self.slice_map_bytes,
            seed,
            slots=self.slots,
            to_file=self.spark is not None,
        )
        found = try_tasks(build, slices(head, start, count), self.spark, at_a_time=self.slots)
        parts = [one for one in found if isinstance(one, _SliceMap)]
        if error := _first_error(found):
            _delete_files(storage, parts)
            raise error
        return parts

    def _rewrite(
        self, storage: Storage, work: RoundPlan, offset_map: OffsetMap, noted: NotedBatches
    ) -> list[tuple[RewrittenGroup, CleanerStats]]:
        """What becomes of each group, in their order. If a task fails, the files of all tasks are deleted."""
        groups = work.groups(offset_map.end_offset)
        shared: RecordFilter | MapFile
        task_bytes = 0
        if self.spark is not None:
            shared = write_map(storage, work.settings.topic, work.partition.partition, offset_map)
            task_bytes = sum(map(_log_bytes, groups)) // (self.slots * TASKS_PER_SLOT)
        else:
            shared = work.record_filter(offset_map)
        tasks = [
            _GroupsTask(mine, noted.of(segment for group in mine for segment in group))
            for mine in rewriting_tasks(groups, task_bytes)
        ]
        largest_first = sorted(range(len(tasks)), key=lambda number: -sum(map(_log_bytes, tasks[number].groups)))
        rewrite = _RewriteGroups(storage, dataclasses.replace(work, live=()), shared)
        try:
            found = try_tasks(rewrite, [tasks[number] for number in largest_first], self.spark, at_a_time=self.slots)
        finally:
            if isinstance(shared, MapFile):
                storage.delete(shared.path)
        done = {number: one for number, one in zip(largest_first, found, strict=True) if isinstance(one, list)}
        if error := _first_error(found):
            discard_groups(storage, [one for rewritten in done.values() for one in rewritten])
            raise error
        return [one for number in range(len(tasks)) for one in done[number]]


@dataclass(frozen=True, slots=True)
class _SliceMap:
    """The map of a slice, how many records it took, and the notes of its batches."""

    map: OffsetMap | MapFile
    indexed: int
    noted: NotedBatches


@dataclass(frozen=True, slots=True)
class _BuildMap:
    """Task function: the map of a slice."""

    storage: Storage
    work: RoundPlan
    map_bytes: int
    seed: int
    slots: int
    to_file: bool

    def __call__(self, ranges: Sequence[ByteRange]) -> _SliceMap:
        work, bound = self.work, self.work.first_uncleanable_offset
        offset_map = OffsetMap(
            self.map_bytes,
            start_offset=max(work.first_dirty_offset, ranges[0].segment.base_offset),
            load_factor=work.settings.load_factor,
            seed=self.seed,
        )
        transactions = CleanedTransactions(whole_log=False)
        notes = MapNotes.of(work, slots=self.slots)
        indexed = 0
        for part in ranges:
            begin = locate_position(self.storage, part.segment, part.start_position)
            indexed += put_windows(self.storage, offset_map, part, notes, transactions, begin=begin)
            if offset_map.full:
                break
            if part.end_position == part.segment.log_bytes:
                offset_map.advance(min(part.segment.next_offset, bound))
        if not self.to_file:
            return _SliceMap(offset_map, indexed, notes.noted)
        file = write_map(self.storage, work.settings.topic, work.partition.partition, offset_map)
        return _SliceMap(file, indexed, notes.noted)


@dataclass(frozen=True, slots=True)
class _GroupsTask:
    """Neighbouring groups, and the notes of their segments."""

    groups: list[Sequence[Segment]]
    noted: NotedBatches


@dataclass(frozen=True, slots=True)
class _RewriteGroups:
    """Task function: rewrites some groups."""

    storage: Storage
    work: RoundPlan
    shared: RecordFilter | MapFile

    def __call__(self, task: _GroupsTask) -> list[tuple[RewrittenGroup, CleanerStats]]:
        record_filter, settings = self.shared, self.work.settings
        if isinstance(record_filter, MapFile):
            offset_map = read_map(self.storage, record_filter, settings.map_bytes, settings.load_factor)
            record_filter = self.work.record_filter(offset_map)
        transactions = CleanedTransactions(whole_log=False)
        return rewrite_groups(self.storage, self.work, task.groups, record_filter, transactions, task.noted)


def _merge(
    storage: Storage, merged: OffsetMap, parts: Sequence[_SliceMap], notes_bytes: int
) -> tuple[int, NotedBatches, bool]:
    """Merges the maps of slices, in their order, as far as they go without a gap.

    Returns (how many records they took, their notes, whether these are all).
    """
    indexed, noted = 0, NotedBatches(notes_bytes)
    for part in parts:
        merged.advance(part.map.start_offset)  # slices adjoin: no record lies in between
        fits = merged.merge(part.map) if isinstance(part.map, OffsetMap) else merge_file(storage, merged, part.map)
        if not fits:
            return indexed, noted, False
        indexed += part.indexed
        noted.take(part.noted)
        if part.map.full:  # the records that it had no room for come before the next slice
            return indexed, noted, False
    return indexed, noted, True


def _delete_files(storage: Storage, parts: Iterable[_SliceMap]) -> None:
    storage.delete([part.map.path for part in parts if isinstance(part.map, MapFile)])


def _first_error(results: Iterable[object]) -> SegmentsError | None:
    return next((one for one in results if isinstance(one, SegmentsError)), None)
