"""A round of cleaning, done by one task or by many: how many tasks run at a time is a count.

One task reads the log in its order: the dirty head into the map, then all groups. Many tasks clean a partition that is
a large part of what the job has to do. In a first stage each puts a slice of the dirty head into a map. Merged, these
maps are the map that one task would build. In a second stage each task rewrites some groups of segments. In this
process all tasks share one map; on Spark the maps go from task to task as files. A group is one file, which one task
writes. So a large group is cleaned by several threads of its task: in this process by all, on Spark by as many as an
executor has slots.

Transactions can only be followed through a whole log, in the order of its batches. Where a partition has transactions,
a stage between the two reads what headers and markers say of them, and each task of the second stage begins with the
state of the log before its groups.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import secrets
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from spark_segments.errors import SegmentsError
from spark_segments.execution import in_bins, run_tasks, slots_of_a_process, try_tasks
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter
from spark_segments.format.cleaner.layout import BYTES_PER_SLOT
from spark_segments.format.cleaner.live_records import LiveRecords
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions, TransactionalBatches, WholeLogNeededError
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance.compaction.group_rewrite import RewrittenGroup, named
from spark_segments.maintenance.compaction.noted_batches import NotedBatches
from spark_segments.maintenance.compaction.plan import count_large
from spark_segments.maintenance.compaction.round import (
    ByteRange,
    MapNotes,
    RoundPlan,
    RoundResult,
    aborted_transactions,
    build_map,
    discard_groups,
    put_windows,
    rewrite_groups,
)
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUFFIX = ".offsetmap"
PIECE_BYTES = (8 << 20) // BYTES_PER_SLOT * BYTES_PER_SLOT


@dataclass(frozen=True, slots=True)
class MapFile:
    """The file with the slots of a map, and the map's other attributes: see `OffsetMap`."""

    path: str
    start_offset: int
    end_offset: int
    entries: int
    full: bool
    seed: int

    def pieces(self, storage: Storage) -> Iterator[np.ndarray]:
        """The slots, as `OffsetMap.used_slots` gave them, a piece of the file at a time."""
        file_bytes = self.entries * BYTES_PER_SLOT
        for byte_position in range(0, file_bytes, PIECE_BYTES):
            data = storage.read(self.path, byte_position, min(PIECE_BYTES, file_bytes - byte_position))
            yield np.frombuffer(data, np.uint64).copy()  # the kernel takes writable arrays


def write_map(storage: Storage, topic: str, partition: int, offset_map: OffsetMap) -> MapFile:
    """Writes the slots of a map into a new file."""
    path = f"{topic}-{partition}/{uuid.uuid4().hex}{SUFFIX}"
    with storage.stream(path, unique=True) as stream:
        for used in offset_map.used_slots(PIECE_BYTES):
            stream.write(used)
    return MapFile(
        path,
        offset_map.start_offset,
        offset_map.end_offset,
        offset_map.entries,
        offset_map.full,
        offset_map.seed,
    )


def merge_file(storage: Storage, offset_map: OffsetMap, file: MapFile) -> bool:
    """As `OffsetMap.merge`, of a map that is in a file."""
    return offset_map.merge_slots(lambda: file.pieces(storage), file.entries, file.end_offset)


def read_map(storage: Storage, file: MapFile, memory_bytes: int, load_factor: float) -> OffsetMap:
    """The map that was written, with the same bound on its memory."""
    offset_map = OffsetMap(memory_bytes, start_offset=file.start_offset, load_factor=load_factor, seed=file.seed)
    fits = merge_file(storage, offset_map, file)
    assert fits, "a map fits into a map of the same size"
    return offset_map


_States = list[CleanedTransactions]

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
    slices_of: list[list[ByteRange]] = [[] for _ in range(count)]
    begin = -start_position
    for segment in segments:
        end = begin + segment.log_bytes
        for number, ranges in enumerate(slices_of):
            low, high = max(begin, edges[number]), min(end, edges[number + 1])
            if low < high:
                ranges.append(ByteRange(segment, low - begin, high - begin))
        begin = end
    return [ranges for ranges in slices_of if ranges]


def rewriting_tasks(groups: Sequence[Sequence[Segment]], least_bytes: int) -> list[list[Sequence[Segment]]]:
    """Neighbouring groups for each task: at least so many bytes, but for the last task."""
    return list(in_bins(groups, _log_bytes, lambda _, total, group: total >= least_bytes))


def _log_bytes(segments: Sequence[Segment]) -> int:
    return sum(segment.log_bytes for segment in segments)


@dataclass(frozen=True, slots=True)
class RoundTasks:
    """Does a round by tasks, about `slots` at a time: on Spark where there is a session, else in threads. One slot is
    the calling task.

    Where there are more, the map of a slice is bounded by `slice_map_bytes`, the merged map by `merged_map_bytes`,
    which is not smaller. In this process the first slice goes into the merged map at once.
    """

    slots: int = 1
    slice_map_bytes: int = 0
    merged_map_bytes: int = 0
    spark: SparkSession | None = None

    def __call__(self, storage: Storage, work: RoundPlan) -> RoundResult:
        """What the round made. Raises CorruptBatchError for damaged bytes.

        One task does the round where what many would have to know of the partition's transactions takes more memory
        than the notes of the first pass may.
        """
        aborted = aborted_transactions(storage, work.live)
        offset_map, indexed, noted, has_transactions = self._build_map(storage, work, aborted)
        groups = work.groups(offset_map.end_offset)
        with contextlib.suppress(WholeLogNeededError):
            done = self._rewrite_all(storage, work, offset_map, groups, noted, aborted, has_transactions)
            return RoundResult.of(work, offset_map, indexed, done)
        del offset_map, noted  # one task makes its own
        return run_tasks(partial(ONE_TASK, storage), [work], self.spark)[0]

    def _rewrite_all(
        self,
        storage: Storage,
        work: RoundPlan,
        offset_map: OffsetMap,
        groups: Sequence[Sequence[Segment]],
        noted: NotedBatches,
        aborted: AbortedTransactions,
        has_transactions: bool,
    ) -> list[tuple[RewrittenGroup, CleanerStats]]:
        """What becomes of each group, with the transactions before it followed where there are any."""
        if self.slots > 1 and not has_transactions and not len(aborted):
            with contextlib.suppress(WholeLogNeededError):  # the clean tail has markers, the dirty head nothing of them
                return self._rewrite(storage, work, offset_map, groups, noted, None)
        states = self._follow_transactions(storage, work, groups, aborted)
        return self._rewrite(storage, work, offset_map, groups, noted, states)

    def _build_map(
        self, storage: Storage, work: RoundPlan, aborted: AbortedTransactions
    ) -> tuple[OffsetMap, int, NotedBatches, bool]:
        """As `round.build_map`, and whether the dirty head has transactions."""
        has_transactions = False
        if self.slots > 1:
            offset_map, indexed, noted, is_all, has_transactions = self._merged_map(storage, work, aborted)
            if is_all or self.merged_map_bytes >= work.settings.map_bytes:
                return offset_map, indexed, noted, has_transactions
            # Each slice's map had a share of the memory. A single map that has all of it reaches further.
            del offset_map
        transactions = CleanedTransactions()
        transactions.add_aborted(aborted.overlapping(work.first_dirty_offset, work.first_uncleanable_offset))
        return *build_map(storage, work, transactions), has_transactions or transactions.has_met_any

    def _follow_transactions(
        self, storage: Storage, work: RoundPlan, groups: Sequence[Sequence[Segment]], aborted: AbortedTransactions
    ) -> _States:
        """The state of the partition's transactions before each task's first group: what the last group has is not
        asked for. Read in waves, so that a log with more of them than memory is given for does not fill it first.
        """
        read, wave = partial(_read_transactions, storage), self.slots * TASKS_PER_SLOT
        before = groups[:-1] if self.slots > 1 else ()  # one task meets them itself
        parts: list[TransactionalBatches] = []
        for start in range(0, len(before), wave):
            found = try_tasks(read, before[start : start + wave], self.spark, at_a_time=self.slots)
            if error := _first_error(found):
                raise error
            parts += [one for one in found if isinstance(one, TransactionalBatches)]
            if sum(part.size_bytes for part in parts) > work.notes_bytes:
                partition = f"{work.settings.topic}-{work.partition.partition}"
                raise WholeLogNeededError("The log has very many batches of transactions", path=partition)
        transactions = CleanedTransactions()
        transactions.add_aborted(aborted)
        states = [transactions.copy()]
        for part in parts:
            transactions.follow(part)
            states.append(transactions.copy())
        return states

    def _merged_map(
        self, storage: Storage, work: RoundPlan, aborted: AbortedTransactions
    ) -> tuple[OffsetMap, int, NotedBatches, bool, bool]:
        """The merged map of the slices, up to a slice that does not fit.

        Also returned: the records in it, the notes of its slices, whether all slices are in it, and whether any has
        transactions.
        """
        merged = OffsetMap(
            self.merged_map_bytes,
            start_offset=work.first_dirty_offset,
            load_factor=work.settings.load_factor,
            seed=secrets.randbits(64),
        )
        head = [segment for segment in work.segments if segment.next_offset > work.first_dirty_offset]
        parts = self._slice_maps(storage, work, head, aborted, merged)
        try:
            indexed, noted, is_all = _merge(storage, merged, parts, work.notes_bytes)
        finally:
            _delete_files(storage, parts)
        if is_all and head:
            merged.advance(min(head[-1].next_offset, work.first_uncleanable_offset))
        return merged, indexed, noted, is_all, any(part.has_transactions for part in parts)

    def _slice_maps(
        self,
        storage: Storage,
        work: RoundPlan,
        head: Sequence[Segment],
        aborted: AbortedTransactions,
        merged: OffsetMap,
    ) -> list[_SliceMap]:
        """The maps of the slices of the dirty head, in their order. `merged`: that of the first one in this process."""
        start = 0
        if head and work.first_dirty_offset > head[0].base_offset:
            start = SegmentFile(storage, head[0]).locate(work.first_dirty_offset)
        count = max(1, min(self.slots, (_log_bytes(head) - start) // MIN_SLICE_BYTES))
        build = partial(
            _build_map,
            storage,
            dataclasses.replace(work, live=()),
            self.slice_map_bytes,
            merged.seed,
            aborted.overlapping(work.first_dirty_offset, work.first_uncleanable_offset),
            slots=self.slots,
            to_file=self.spark is not None,
        )
        tasks: list[tuple[Sequence[ByteRange], OffsetMap | None]] = [(one, None) for one in slices(head, start, count)]
        if tasks and self.spark is None:
            tasks[0] = tasks[0][0], merged
        found = try_tasks(build, tasks, self.spark, at_a_time=self.slots)
        parts = [one for one in found if isinstance(one, _SliceMap)]
        if error := _first_error(found):
            _delete_files(storage, parts)
            raise error
        return parts

    def _rewrite(
        self,
        storage: Storage,
        work: RoundPlan,
        offset_map: OffsetMap,
        groups: Sequence[Sequence[Segment]],
        noted: NotedBatches,
        states: _States | None,
    ) -> list[tuple[RewrittenGroup, CleanerStats]]:
        """What becomes of each group, in their order. If a task fails, the files of all tasks are deleted.

        `states`: of the transactions before each group; None where there are none, as far as is known.
        """
        record_filter = work.record_filter(offset_map)
        shared: RecordFilter | MapFile = record_filter
        task_bytes = 0
        if self.spark is not None:
            shared = write_map(storage, work.settings.topic, work.partition.partition, offset_map)
            task_bytes = sum(map(_log_bytes, groups)) // (self.slots * TASKS_PER_SLOT)
        tasks = self._rewriting_tasks(groups, task_bytes, noted, states)
        rewrite = partial(_rewrite_groups, storage, dataclasses.replace(work, live=()), shared)
        largest_first = sorted(tasks, key=lambda task: -task.live_bytes(record_filter.live))
        done: dict[int, list[tuple[RewrittenGroup, CleanerStats]]] = {}
        try:
            # A task of several threads has the threads of this process to itself.
            for in_threads, at_a_time in ((True, 1), (False, self.slots)):
                mine = [task for task in largest_first if (task.threads > 1) == in_threads]
                found = try_tasks(rewrite, mine, self.spark, at_a_time=at_a_time)
                done |= {task.first: one for task, one in zip(mine, found, strict=True) if isinstance(one, list)}
                if error := _first_error(found):
                    discard_groups(storage, [one for rewritten in done.values() for one in rewritten])
                    raise error
        finally:
            if isinstance(shared, MapFile):
                storage.delete(shared.path)
        return [one for first in sorted(done) for one in done[first]]

    def _rewriting_tasks(
        self,
        groups: Sequence[Sequence[Segment]],
        task_bytes: int,
        noted: NotedBatches,
        states: _States | None,
    ) -> list[_GroupsTask]:
        """The tasks of the second stage, in the order of their groups. A large group is a task by itself."""
        if self.slots == 1 and states is not None:
            return [_GroupsTask(0, list(groups), noted, states[0], 1)]
        by_size = sorted(range(len(groups)), key=lambda number: -_log_bytes(groups[number]))
        large = set(by_size[: count_large([_log_bytes(groups[number]) for number in by_size], self.slots)])
        threads = self.slots if self.spark is None else slots_of_a_process(self.spark) // max(1, len(large))
        tasks, first = [], 0
        for is_large, neighbours in itertools.groupby(range(len(groups)), lambda n: threads > 1 and n in large):
            mine = [groups[number] for number in neighbours]
            for some in rewriting_tasks(mine, 0 if is_large else task_bytes):
                transactions = CleanedTransactions(whole_log=False) if states is None else states[first]
                notes = noted.of(segment for group in some for segment in group)
                tasks.append(_GroupsTask(first, some, notes, transactions, threads if is_large else 1))
                first += len(some)
        return tasks


ONE_TASK = RoundTasks()


@dataclass(frozen=True, slots=True)
class _SliceMap:
    """The map of a slice, how many records it took, the notes of its batches, and whether it has transactions."""

    map: OffsetMap | MapFile
    indexed: int
    noted: NotedBatches
    has_transactions: bool


def _build_map(
    storage: Storage,
    work: RoundPlan,
    map_bytes: int,
    seed: int,
    aborted: AbortedTransactions,
    task: tuple[Sequence[ByteRange], OffsetMap | None],
    *,
    slots: int,
    to_file: bool,
) -> _SliceMap:
    """Task function: the map of a slice. `task`: its ranges, and the map that takes it, if there is one."""
    bound = work.first_uncleanable_offset
    ranges, offset_map = task
    if offset_map is None:
        offset_map = OffsetMap(
            map_bytes,
            start_offset=max(work.first_dirty_offset, ranges[0].segment.base_offset),
            load_factor=work.settings.load_factor,
            seed=seed,
        )
    # Which data were aborted follows from the index alone, wherever a slice begins.
    transactions = CleanedTransactions()
    transactions.add_aborted(aborted)
    notes = MapNotes.of(work, slots=slots)
    indexed = 0
    for part in ranges:
        begin = SegmentFile(storage, part.segment).locate_position(part.start_position)
        indexed += put_windows(storage, offset_map, part, notes, transactions, begin=begin)
        if offset_map.full:
            break
        if part.end_position == part.segment.log_bytes:
            offset_map.advance(min(part.segment.next_offset, bound))
    if not to_file:
        return _SliceMap(offset_map, indexed, notes.noted, transactions.has_met_any)
    file = write_map(storage, work.settings.topic, work.partition.partition, offset_map)
    return _SliceMap(file, indexed, notes.noted, transactions.has_met_any)


@dataclass(frozen=True, slots=True)
class _GroupsTask:
    """Neighbouring groups, the notes of their segments, and the state of the transactions before the first of them.

    `first`: the number of the first group. `threads`: how many threads clean them.
    """

    first: int
    groups: list[Sequence[Segment]]
    noted: NotedBatches
    transactions: CleanedTransactions
    threads: int

    def live_bytes(self, live: LiveRecords) -> float:
        """About how many bytes stay of what is noted, and all bytes of what is not: those take the time."""
        segments = [segment for group in self.groups for segment in group]
        shares = [live.share(one.base_offset, one.next_offset) if one in self.noted else 1 for one in segments]
        return sum(one.log_bytes * share for one, share in zip(segments, shares, strict=True))


def _read_transactions(storage: Storage, group: Sequence[Segment]) -> TransactionalBatches:
    """Task function: the batches of a group that have to do with transactions."""
    return TransactionalBatches.join(
        TransactionalBatches.of(named(window, segment))
        for segment in group
        for window in SegmentFile(storage, segment).windows()
    )


def _rewrite_groups(
    storage: Storage, work: RoundPlan, shared: RecordFilter | MapFile, task: _GroupsTask
) -> list[tuple[RewrittenGroup, CleanerStats]]:
    """Task function: rewrites some groups."""
    record_filter, settings = shared, work.settings
    if isinstance(record_filter, MapFile):
        offset_map = read_map(storage, record_filter, settings.map_bytes, settings.load_factor)
        record_filter = work.record_filter(offset_map)
    transactions = task.transactions.copy()  # threads share the task's own
    return rewrite_groups(storage, work, task.groups, record_filter, transactions, task.noted, task.threads)


def _merge(
    storage: Storage, merged: OffsetMap, parts: Sequence[_SliceMap], notes_bytes: int
) -> tuple[int, NotedBatches, bool]:
    """Merges the maps of slices, in their order, as far as they go without a gap. `merged` may be that of the first.

    Returns (how many records they took, their notes, whether these are all).
    """
    indexed, noted = 0, NotedBatches(notes_bytes)
    for part in parts:
        if part.map is not merged:
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
