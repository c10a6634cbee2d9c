"""Shared objects that have erased records: every run in the log moves out of them, whichever partition it is of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from spark_segments.config import TopicConfig
from spark_segments.errors import MissingFileError, SegmentsError
from spark_segments.execution import run_tasks
from spark_segments.format.cleaner.clean import CleanerStats
from spark_segments.log.manifest.rows import DELETING, Segment
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.shared_object import read_footer
from spark_segments.maintenance.erasure.rewrite import ErasedSegment, discard_erased
from spark_segments.maintenance.rolling.copies import CopySegments, CopyTask, copied
from spark_segments.maintenance.rolling.plan import RollRules
from spark_segments.maintenance.rolling.planned_segments import PlannedSegment
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
            state=DELETING,
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
    progress: Callable[[int, int], None] | None,
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
    outputs = copied(copy, tasks, spark, with_objects=True, progress=progress)
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
