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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_segments.errors import SegmentsError
from spark_segments.execution import in_bins, run_tasks, slots_of_a_process, try_tasks
from spark_segments.format.cleaner.clean import CleanerStats, RecordFilter
from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.cleaner.transactions import CleanedTransactions, TransactionalBatches, WholeLogNeededError
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.maintenance.compaction.compaction_plan import count_large
from spark_segments.maintenance.compaction.first_pass import ByteRange, FirstPass, MapFile, SliceMap, merged, slices
from spark_segments.maintenance.compaction.group_rewrite import RewrittenGroup, discard_groups, named
from spark_segments.maintenance.compaction.noted_batches import NotedBatches
from spark_segments.maintenance.compaction.round import RoundPlan, RoundResult
from spark_segments.maintenance.compaction.second_pass import GroupsTask, SecondPass
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_SLICE_BYTES = 32 << 20
"""The least bytes of the dirty head for which a task builds a map."""

TASKS_PER_SLOT = 4
"""How many rewriting tasks Spark gets for each slot. With more tasks the slots wait less for the last task, but each
task reads the map."""


def rewriting_tasks(groups: Sequence[Sequence[Segment]], least_bytes: int) -> list[list[Sequence[Segment]]]:
    """Neighbouring groups for each task: at least so many bytes, but for the last task."""
    return list(in_bins(groups, _log_bytes, lambda _, total, group: total >= least_bytes))


def _log_bytes(segments: Sequence[Segment]) -> int:
    return sum(segment.log_bytes for segment in segments)


@dataclass(frozen=True, slots=True)
class RoundTasks:
    """Does a round by tasks, about `slots` at a time: on Spark where there is a session, else in threads. One slot is
    the calling task, whose map has all of the memory.

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
        with contextlib.suppress(WholeLogNeededError):
            return _Round.of(self, storage, work).done()
        return run_tasks(partial(ONE_TASK, storage), [work], self.spark)[0]  # it makes its own map

    def second_pass(
        self,
        groups: Sequence[Sequence[Segment]],
        task_bytes: int,
        noted: NotedBatches,
        states: list[CleanedTransactions] | None,
    ) -> list[GroupsTask]:
        """The tasks of the second pass, in the order of their groups. A large group is a task by itself."""
        slots = self.slots
        spark = self.spark
        if slots == 1 and states is not None:
            return [GroupsTask(0, groups, noted, states[0], 1)]
        by_size = sorted(range(len(groups)), key=lambda number: -_log_bytes(groups[number]))
        large = set(by_size[: count_large([_log_bytes(groups[number]) for number in by_size], slots)])
        threads = slots if spark is None else slots_of_a_process(spark) // max(1, len(large))
        tasks = []
        first = 0
        for is_large, neighbours in itertools.groupby(range(len(groups)), lambda n: threads > 1 and n in large):
            mine = [groups[number] for number in neighbours]
            for some in rewriting_tasks(mine, 0 if is_large else task_bytes):
                transactions = CleanedTransactions(whole_log=False) if states is None else states[first]
                notes = noted.of(segment for group in some for segment in group)
                tasks.append(GroupsTask(first, some, notes, transactions, threads if is_large else 1))
                first += len(some)
        return tasks


ONE_TASK = RoundTasks()


@dataclass(frozen=True, slots=True)
class _Round:
    """A round under way. `aborted`: all aborted transactions of the partition, with the log's offsets."""

    tasks: RoundTasks
    storage: Storage
    work: RoundPlan
    aborted: AbortedTransactions

    @classmethod
    def of(cls, tasks: RoundTasks, storage: Storage, work: RoundPlan) -> _Round:
        """Reads the transaction indexes of the partition."""
        aborted = [SegmentFile(storage, row).aborted() for row in work.live]
        return cls(tasks, storage, work, AbortedTransactions.concatenate(aborted))

    def done(self) -> RoundResult:
        """Does both passes. Raises WholeLogNeededError where only one task can."""
        head = self._mapped()
        assert isinstance(head.map, OffsetMap)
        groups = self._rewritten(head, self.work.groups(head.map.end_offset))
        stats = sum((group.stats for group in groups), CleanerStats())
        return RoundResult(groups, stats, head.indexed, min(head.map.end_offset, self.work.first_uncleanable_offset))

    # The first pass

    def _mapped(self) -> SliceMap:
        """The map of the dirty head, as far as its memory goes."""
        head, is_all = self._merged()
        if is_all or self.tasks.slots == 1 or self.tasks.merged_map_bytes >= self.work.settings.map_bytes:
            return head
        # Each slice's map had a share of the memory. A single map that has all of it reaches further.
        has_transactions = head.has_transactions
        del head
        offset_map, _ = dataclasses.replace(self, tasks=ONE_TASK)._merged()
        return dataclasses.replace(offset_map, has_transactions=offset_map.has_transactions or has_transactions)

    def _merged(self) -> tuple[SliceMap, bool]:
        """(the merged map of the slices, up to a slice that does not fit; whether all slices are in it)"""
        work = self.work
        tasks = self.tasks
        offset_map = OffsetMap(
            work.settings.map_bytes if tasks.slots == 1 else tasks.merged_map_bytes,
            start_offset=work.first_dirty_offset,
            load_factor=work.settings.load_factor,
            seed=secrets.randbits(64),
        )
        head = [segment for segment in work.segments if segment.next_offset > work.first_dirty_offset]
        parts = self._slice_maps(head, offset_map)
        try:
            done, is_all = merged(self.storage, offset_map, parts, work.notes_bytes)
        finally:
            self._delete_files(parts)
        if is_all and head:
            offset_map.advance(min(head[-1].next_offset, work.first_uncleanable_offset))
        return done, is_all

    def _slice_maps(self, head: Sequence[Segment], offset_map: OffsetMap) -> list[SliceMap]:
        """The maps of the slices of the dirty head, in their order. `offset_map`: that of the first in this process."""
        work = self.work
        tasks = self.tasks
        start = 0
        if head and work.first_dirty_offset > head[0].base_offset:
            start = SegmentFile(self.storage, head[0]).locate(work.first_dirty_offset)
        count = max(1, min(tasks.slots, (_log_bytes(head) - start) // MIN_SLICE_BYTES))
        first_pass = FirstPass(
            self.storage,
            dataclasses.replace(work, live=()),
            self.aborted.overlapping(work.first_dirty_offset, work.first_uncleanable_offset),
            tasks.slice_map_bytes,
            offset_map.seed,
            tasks.slots,
            to_file=tasks.spark is not None,
        )
        slice_tasks: list[tuple[Sequence[ByteRange], OffsetMap | None]]
        slice_tasks = [(ranges, None) for ranges in slices(head, start, count)]
        if slice_tasks and tasks.spark is None:
            slice_tasks[0] = slice_tasks[0][0], offset_map
        results = try_tasks(first_pass, slice_tasks, tasks.spark, at_a_time=tasks.slots)
        parts = [result for result in results if isinstance(result, SliceMap)]
        error = _first_error(results)
        if error:
            self._delete_files(parts)
            raise error
        return parts

    def _delete_files(self, parts: Iterable[SliceMap]) -> None:
        self.storage.delete([part.map.path for part in parts if isinstance(part.map, MapFile)])

    # The second pass

    def _rewritten(self, head: SliceMap, groups: Sequence[Sequence[Segment]]) -> list[RewrittenGroup]:
        """What becomes of each group, with the transactions before it followed where there are any."""
        if self.tasks.slots > 1 and not head.has_transactions and not len(self.aborted):
            with contextlib.suppress(WholeLogNeededError):  # the clean tail has markers, the dirty head nothing of them
                return self._rewrite(head, groups, None)
        return self._rewrite(head, groups, self._transactions_before(groups))

    def _transactions_before(self, groups: Sequence[Sequence[Segment]]) -> list[CleanedTransactions]:
        """The state of the partition's transactions before each task's first group: what the last group has is not
        asked for. Read in waves, so that a log with more of them than memory is given for does not fill it first.
        """
        work = self.work
        slots = self.tasks.slots
        read = partial(_read_transactions, self.storage)
        wave = slots * TASKS_PER_SLOT
        before = groups[:-1] if slots > 1 else ()  # one task meets them itself
        parts: list[TransactionalBatches] = []
        for start in range(0, len(before), wave):
            results = try_tasks(read, before[start : start + wave], self.tasks.spark, at_a_time=slots)
            error = _first_error(results)
            if error:
                raise error
            parts += [result for result in results if isinstance(result, TransactionalBatches)]
            if sum(part.size_bytes for part in parts) > work.notes_bytes:
                partition = f"{work.settings.topic}-{work.partition.partition}"
                raise WholeLogNeededError("The log has very many batches of transactions", path=partition)
        transactions = CleanedTransactions()
        transactions.add_aborted(self.aborted)
        states = [transactions.copy()]
        for part in parts:
            transactions.follow(part)
            states.append(transactions.copy())
        return states

    def _rewrite(
        self, head: SliceMap, groups: Sequence[Sequence[Segment]], states: list[CleanedTransactions] | None
    ) -> list[RewrittenGroup]:
        """What becomes of each group, in their order. If a task fails, the files of all tasks are deleted.

        `states`: of the transactions before each group; None where there are none, as far as is known.
        """
        assert isinstance(head.map, OffsetMap)
        work = self.work
        tasks = self.tasks
        record_filter = work.record_filter(head.map)
        shared: RecordFilter | MapFile = record_filter
        task_bytes = 0
        if tasks.spark is not None:
            shared = MapFile.written(self.storage, work.settings.topic, work.partition.partition, head.map)
            task_bytes = sum(map(_log_bytes, groups)) // (tasks.slots * TASKS_PER_SLOT)
        rewrite = SecondPass(self.storage, dataclasses.replace(work, live=()), shared)
        largest_first = sorted(
            tasks.second_pass(groups, task_bytes, head.noted, states),
            key=lambda task: -task.live_bytes(record_filter.live),
        )
        done: dict[int, list[RewrittenGroup]] = {}
        try:
            # A task of several threads has the threads of this process to itself.
            for in_threads, at_a_time in ((True, 1), (False, tasks.slots)):
                mine = [task for task in largest_first if (task.threads > 1) == in_threads]
                results = try_tasks(rewrite, mine, tasks.spark, at_a_time=at_a_time)
                tried = zip(mine, results, strict=True)
                done |= {task.first: result for task, result in tried if isinstance(result, list)}
                error = _first_error(results)
                if error:
                    discard_groups(self.storage, itertools.chain.from_iterable(done.values()))
                    raise error
        finally:
            if isinstance(shared, MapFile):
                self.storage.delete(shared.path)
        return [group for first in sorted(done) for group in done[first]]


def _read_transactions(storage: Storage, group: Sequence[Segment]) -> TransactionalBatches:
    """Task function: the batches of a group that have to do with transactions."""
    return TransactionalBatches.join(
        TransactionalBatches.of(named(window, segment))
        for segment in group
        for window in SegmentFile(storage, segment).windows()
    )


def _first_error(results: Iterable[object]) -> SegmentsError | None:
    return next((result for result in results if isinstance(result, SegmentsError)), None)
