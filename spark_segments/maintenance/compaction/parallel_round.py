"""A round of cleaning done by many tasks, for a partition that is much of what a job has to do.

Each task of a first stage reads a slice of the dirty head into a map of its own; merged, these are the map that one
task would build. In a second stage each task rewrites a group of segments, or some. In this process tasks share one
map; on Spark maps go from task to task by files.

Transactions are followed through a log in the order of its batches. A partition with any is left to one task: one with
a .txnindex, or a control batch where a task meets it.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spark_segments.errors import SegmentsError
from spark_segments.execution import run_tasks, try_tasks
from spark_segments.format.cleaner.clean import CleanCounts
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.reader import locate, locate_position, windows
from spark_segments.maintenance.compaction.group_rewrite import Group
from spark_segments.maintenance.compaction.map_file import MapFile, merge_file, read_map, write_map
from spark_segments.maintenance.compaction.round import (
    CleanedRound,
    Round,
    build_map,
    discard_groups,
    put_windows,
    rewrite_groups,
)
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_SLICE_BYTES = 32 << 20
"""What a task for a map of its own is worth, at least."""

TASKS_A_SLOT = 4
"""How many tasks of rewriting Spark gets: the more, the less do slots wait for the last one, but each reads the map."""


@dataclass(frozen=True, slots=True)
class Span:
    """The batches of a segment that begin in [start_position, end_position) of its .log."""

    segment: Segment
    start_position: int
    end_position: int


def slices(segments: Sequence[Segment], start_position: int, count: int) -> list[list[Span]]:
    """The bytes of neighbouring segments, of the first one from `start_position` on, in at most `count` runs of one
    size.
    """
    total = _log_bytes(segments) - start_position
    cuts = [total * number // count for number in range(count + 1)]
    found: list[list[Span]] = [[] for _ in range(count)]
    begin = -start_position
    for segment in segments:
        end = begin + segment.log_bytes
        for number, spans in enumerate(found):
            low, high = max(begin, cuts[number]), min(end, cuts[number + 1])
            if low < high:
                spans.append(Span(segment, low - begin, high - begin))
        begin = end
    return [spans for spans in found if spans]


def runs(groups: Sequence[Sequence[Segment]], least_bytes: int) -> list[list[Sequence[Segment]]]:
    """Neighbouring groups, each run of at least so many bytes but for the last."""
    found: list[list[Sequence[Segment]]] = []
    size = least_bytes
    for group in groups:
        if size >= least_bytes:
            found.append([])
            size = 0
        found[-1].append(group)
        size += _log_bytes(group)
    return found


def _log_bytes(segments: Sequence[Segment]) -> int:
    return sum(segment.log_bytes for segment in segments)


@dataclass(frozen=True, slots=True)
class CleanByTasks:
    """Does a round by tasks, about `slots` at a time: the `clean` of `clean_partition`.

    They run on Spark where there is a session, else in threads of this process. The map of a slice is bounded by
    `slice_map_bytes`, which is not more than `merged_map_bytes`. Answers None where one task has to do it.
    """

    slots: int
    slice_map_bytes: int
    merged_map_bytes: int
    spark: SparkSession | None = None

    def __call__(self, storage: Storage, work: Round) -> CleanedRound | None:
        if any(segment.txn_index_bytes for segment in work.live):
            return None
        built = self._build_map(storage, work)
        if built is None:
            return None
        offset_map, indexed = built
        done = self._rewrite(storage, work, offset_map)
        if done is None:
            return None
        counts = sum((counted for _, counted in done), CleanCounts())
        end_offset = min(offset_map.end_offset, work.first_uncleanable_offset)
        return CleanedRound([group for group, _ in done], counts, indexed, end_offset)

    def _build_map(self, storage: Storage, work: Round) -> tuple[OffsetMap, int] | None:
        """The map of the dirty head, or as far as its memory goes, and how many records went into it."""
        found = self._merged_map(storage, work)
        if found is None:
            return None
        offset_map, indexed, is_all = found
        if is_all or self.merged_map_bytes >= work.settings.map_bytes:
            return offset_map, indexed
        # The maps of slices had shares of the memory. Nothing reaches as far as one map that has all of it.
        del offset_map, found
        try:
            return build_map(storage, work, _NoTransactions())
        except _TransactionMet:
            return None

    def _merged_map(self, storage: Storage, work: Round) -> tuple[OffsetMap, int, bool] | None:
        """The map of the slices up to one that does not fit, the records in it, and whether these are all."""
        settings, segments = work.settings, work.segments
        merged = OffsetMap(
            self.merged_map_bytes,
            start_offset=work.first_dirty_offset,
            load_factor=settings.load_factor,
            seed=secrets.randbits(64),
        )
        head = [segment for segment in segments if segment.next_offset > work.first_dirty_offset]
        found = _merge(storage, merged, self._parts(storage, work, head, merged.seed))
        if found is None:
            return None
        indexed, is_all = found
        if is_all and head:
            merged.advance(min(head[-1].next_offset, work.first_uncleanable_offset))
        return merged, indexed, is_all

    def _parts(
        self, storage: Storage, work: Round, head: Sequence[Segment], seed: int
    ) -> list[tuple[OffsetMap | MapFile | None, int]]:
        """The maps of the slices of the dirty head, and how many records each took."""
        start = 0
        if head and work.first_dirty_offset > head[0].base_offset:
            start = locate(storage, head[0], work.first_dirty_offset)
        count = max(1, min(self.slots, (_log_bytes(head) - start) // MIN_SLICE_BYTES))
        build = _BuildMap(
            storage, dataclasses.replace(work, live=()), self.slice_map_bytes, seed, to_file=self.spark is not None
        )
        return self._run(build, slices(head, start, count))

    def _rewrite(self, storage: Storage, work: Round, offset_map: OffsetMap) -> list[tuple[Group, CleanCounts]] | None:
        """What becomes of each group; None where transactions were met."""
        groups = work.groups(offset_map.end_offset)
        told: OffsetMap | MapFile = offset_map
        task_bytes = 0
        if self.spark is not None:
            told = write_map(storage, work.settings.topic, work.partition.partition, offset_map)
            task_bytes = sum(map(_log_bytes, groups)) // (self.slots * TASKS_A_SLOT)
        tasks = runs(groups, task_bytes)
        order = sorted(range(len(tasks)), key=lambda number: -sum(map(_log_bytes, tasks[number])))
        rewrite = _RewriteGroups(storage, dataclasses.replace(work, live=()), told)
        try:
            found = try_tasks(rewrite, [tasks[number] for number in order], self.spark, at_a_time=self.slots)
        finally:
            if isinstance(told, MapFile):
                storage.delete(told.path)
        done = {number: one for number, one in zip(order, found, strict=True) if isinstance(one, list)}
        if len(done) < len(tasks):
            discard_groups(storage, [one for groups in done.values() for one in groups])
            for one in found:
                if isinstance(one, SegmentsError):
                    raise one
            return None
        return [one for number in range(len(tasks)) for one in done[number]]

    def _run(self, function: Callable[[Any], Any], tasks: Sequence[Any]) -> list[Any]:
        return run_tasks(function, tasks, self.spark, at_a_time=self.slots)


@dataclass(frozen=True, slots=True)
class _BuildMap:
    """Task function: the map of a slice and how many records it took; (None, 0) where transactions were met."""

    storage: Storage
    work: Round
    map_bytes: int
    seed: int
    to_file: bool

    def __call__(self, spans: Sequence[Span]) -> tuple[OffsetMap | MapFile | None, int]:
        work, bound = self.work, self.work.first_uncleanable_offset
        offset_map = OffsetMap(
            self.map_bytes,
            start_offset=max(work.first_dirty_offset, spans[0].segment.base_offset),
            load_factor=work.settings.load_factor,
            seed=self.seed,
        )
        indexed = 0
        for span in spans:
            segment = span.segment
            begin = locate_position(self.storage, segment, span.start_position)
            # CRCs are checked when the segment is rewritten, as every one is that the map is made of.
            found = windows(self.storage, segment, begin, span.end_position, check_crc=False)
            try:
                indexed += put_windows(
                    offset_map, segment, found, bound, _NoTransactions(), start_position=span.start_position
                )
            except _TransactionMet:
                return None, 0
            if offset_map.full:
                break
            if span.end_position == segment.log_bytes:
                offset_map.advance(min(segment.next_offset, bound))
        if not self.to_file:
            return offset_map, indexed
        return write_map(self.storage, work.settings.topic, work.partition.partition, offset_map), indexed


@dataclass(frozen=True, slots=True)
class _RewriteGroups:
    """Task function: rewrites some groups; None where transactions were met."""

    storage: Storage
    work: Round
    told: OffsetMap | MapFile

    def __call__(self, groups: Sequence[Sequence[Segment]]) -> list[tuple[Group, CleanCounts]] | None:
        told, settings = self.told, self.work.settings
        if isinstance(told, MapFile):
            told = read_map(self.storage, told, settings.map_bytes, settings.load_factor)
        cleaning = self.work.cleaning(told)
        try:
            return rewrite_groups(self.storage, self.work, groups, cleaning, _NoTransactions())
        except _TransactionMet:
            return None


class _TransactionMet(Exception):
    """A control batch, where batches are not read in the order of their log."""


class _NoTransactions(CleanedTransactions):
    """What is known of transactions where there are none."""

    def read(self, window: Window) -> tuple[np.ndarray, AbortedTransactions]:
        batches = window.batches
        if batches.is_control.any():
            raise _TransactionMet
        return np.zeros(len(batches), np.bool_), AbortedTransactions.of()


def _merge(
    storage: Storage, merged: OffsetMap, parts: Sequence[tuple[OffsetMap | MapFile | None, int]]
) -> tuple[int, bool] | None:
    """Merges the maps of slices, in their order, as far as they go without a gap, and deletes their files.

    Returns how many records they took, and whether that was all; None where transactions were met.
    """
    indexed = 0
    try:
        if any(part is None for part, _ in parts):
            return None
        for part, read in parts:
            assert part is not None
            merged.advance(part.start_offset)  # slices adjoin: no record lies in between
            fits = merged.merge(part) if isinstance(part, OffsetMap) else merge_file(storage, merged, part)
            if not fits:
                return indexed, False
            indexed += read
            if part.full:  # what it had no room for comes before the next slice
                return indexed, False
        return indexed, True
    finally:
        storage.delete([part.path for part, _ in parts if isinstance(part, MapFile)])
