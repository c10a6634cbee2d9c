"""Copying what a roll planned: a sealed segment into a file, and merged chunks into a file or a shared object."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_segments.errors import SegmentsError
from spark_segments.execution import in_bins, task_slots, try_tasks
from spark_segments.log.appending.appender import CHUNK_BYTES, FEWEST_RUNS, WAITING_BYTES
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.copying import copy_batches, copy_run
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.shared_object import SharedObjectWriter
from spark_segments.maintenance.rolling.planned_segments import PlannedSegment
from spark_segments.maintenance.rolling.roll_plan import RollRules
from spark_segments.progress import Progress
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class CopyTask:
    """A planned segment to be copied, and the leader epochs for batches that have none."""

    planned: PlannedSegment
    leader_epochs: LeaderEpochs

    @property
    def may_share(self) -> bool:
        """Whether the copy is a merged chunk so small that it goes into a shared object."""
        planned = self.planned
        # A run of an object has no .txnindex: without it a reader would take aborted records for committed ones.
        aborted = any(chunk.txn_index_bytes for chunk in planned.chunks)
        return not planned.sealed and not aborted and planned.log_bytes < CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class CopySegments:
    """Task function: copies the batches of planned segments and returns a row for each.

    A single one gets a file; several go into a shared object.
    """

    storage: Storage
    topic: str
    rules: RollRules

    def __call__(self, tasks: Sequence[CopyTask]) -> list[Segment]:
        return [self._to_file(tasks[0])] if len(tasks) == 1 else self._to_object(tasks)

    def _to_file(self, task: CopyTask) -> Segment:
        planned = task.planned
        return copy_batches(
            self.storage,
            self.topic,
            planned.chunks,
            planned.base_offset,
            planned.next_offset,
            sealed=planned.sealed,
            leader_epochs=task.leader_epochs,
            limits=self.rules.limits,
        )

    def _to_object(self, tasks: Sequence[CopyTask]) -> list[Segment]:
        with SharedObjectWriter(self.storage, self.topic, self.rules.topic_id, self.rules.limits) as writer:
            for task in tasks:
                planned = task.planned
                copy_run(
                    self.storage,
                    writer,
                    planned.chunks,
                    planned.base_offset,
                    planned.next_offset,
                    leader_epochs=task.leader_epochs,
                )
            rows = writer.close()
        return [
            dataclasses.replace(row.at(task.planned.base_offset), next_offset=task.planned.next_offset)
            for task, row in zip(tasks, rows, strict=True)
        ]


def copied(
    copy: CopySegments,
    copies: Sequence[CopyTask],
    spark: SparkSession | None,
    *,
    progress: Progress | None,
) -> list[Segment | SegmentsError]:
    """The row of each copy, or its error. Small merged chunks may share an object.

    Copies that were to share an object get files where the object fails: one damaged chunk stops its partition alone.
    """
    numbers = range(len(copies))
    sharing = [number for number in numbers if copies[number].may_share]
    objects = _objects(copies, sharing, task_slots(spark))
    in_objects = set(itertools.chain.from_iterable(objects))
    tasks = [*objects, *([number] for number in numbers if number not in in_objects)]
    rows = _run(copy, copies, tasks, spark, progress)
    # An object fails as a whole. Copied by themselves, only those fail whose own chunks are damaged.
    again = [[number] for number in sorted(in_objects) if isinstance(rows[number], SegmentsError)]
    rows |= _run(copy, copies, again, spark, None)
    return [rows[number] for number in numbers]


def _objects(copies: Sequence[CopyTask], sharing: Sequence[int], slots: int) -> list[list[int]]:
    """The numbers of the copies that share an object each: about one for each task slot, of FEWEST_RUNS at least."""
    total_bytes = sum(copies[number].planned.log_bytes for number in sharing)
    # About one object for each slot, so that all of them have work, and none larger than appends write: an object stays
    # until all of its runs have left the log.
    most_bytes = min(WAITING_BYTES, max(total_bytes // slots, CHUNK_BYTES))

    def begins(runs: list[int], log_bytes: int, number: int) -> bool:
        return len(runs) >= FEWEST_RUNS and log_bytes + copies[number].planned.log_bytes > most_bytes

    bins = in_bins(sharing, lambda number: copies[number].planned.log_bytes, begins)
    return [runs for runs in bins if len(runs) >= FEWEST_RUNS]


def _run(
    copy: CopySegments,
    copies: Sequence[CopyTask],
    tasks: Sequence[Sequence[int]],
    spark: SparkSession | None,
    progress: Progress | None,
) -> dict[int, Segment | SegmentsError]:
    """{number of the copy: its row or error} after these tasks, each the numbers of copies."""

    def log_bytes(task: Sequence[int]) -> int:
        return sum(copies[number].planned.log_bytes for number in task)

    ordered = sorted(tasks, key=log_bytes, reverse=True)  # so that no slot waits for a long task at the end
    work = [[copies[number] for number in task] for task in ordered]
    done = try_tasks(copy, work, spark, progress=progress, at_a_time=copy.storage.tasks_at_a_time)
    return {
        number: rows if isinstance(rows, SegmentsError) else rows[place]
        for task, rows in zip(ordered, done, strict=True)
        for place, number in enumerate(task)
    }
