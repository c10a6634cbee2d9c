"""The cut of tails: the rows that leave a topic's log, and copies of the segments that reach into a tail."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.execution import run_tasks
from spark_segments.log.divergence import Tail
from spark_segments.log.manifest.rows import SEALED, Segment, segments_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.segment.copying import copy_batches
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.reader import locate, windows
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NONE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class CutRows:
    """The rows of a cut. `leaving`: rows that leave the log. `shortened`: copies of those that reach into a tail, up to
    the tail.
    """

    tails: tuple[Tail, ...]
    leaving: pa.Table
    shortened: tuple[Segment, ...]


def leaving_rows(live: pa.Table, tails: Sequence[Tail]) -> pa.Table:
    """The live rows that hold offsets of the tails."""
    if not tails:
        return live.slice(0, 0)
    first = np.full(1 + max(tail.partition for tail in tails), _NONE)
    for tail in tails:
        first[tail.partition] = tail.first_offset
    partition = live.column("partition").to_numpy()
    limit = np.where(partition < len(first), first[np.minimum(partition, len(first) - 1)], _NONE)
    within = (live.column("next_offset").to_numpy() > limit) | (live.column("base_offset").to_numpy() >= limit)
    return live.filter(pa.array(within))


def cut_off(
    snapshot: Snapshot, storage: Storage, config: TopicConfig, tails: Sequence[Tail], spark: SparkSession | None = None
) -> CutRows:
    """Writes what is left of the segments that reach into a tail. Each is a task, at most one a partition."""
    leaving = leaving_rows(snapshot.live, tails)
    first = {tail.partition: tail.first_offset for tail in tails}
    across = [(row, first[row.partition]) for row in segments_of(leaving) if row.base_offset < first[row.partition]]
    shortened = run_tasks(partial(_shortened, storage, snapshot.topic, SegmentLimits.of(config)), across, spark)
    return CutRows(tuple(tails), leaving, tuple(row for row in shortened if row is not None))


def _shortened(storage: Storage, topic: str, limits: SegmentLimits, task: tuple[Segment, int]) -> Segment | None:
    """Task function: copies the batches of a segment that end below an offset. None where there are none.

    A batch that holds the offset goes as a whole, as in Kafka's truncation: the leader has what it held below.
    """
    row, end = task
    last = _end_of_batches(storage, row, end)
    if last <= row.base_offset:
        return None
    copied = copy_batches(
        storage,
        topic,
        [row],
        row.base_offset,
        last,
        sealed=row.state == SEALED,
        leader_epochs=None,
        limits=limits,
    )
    return dataclasses.replace(copied, next_offset=end)


def _end_of_batches(storage: Storage, row: Segment, end: int) -> int:
    """`end`, or the first offset of the batch that holds it where that is lower."""
    for window in windows(storage, row, locate(storage, row, end)):
        batches = window.batches
        holds = (batches.base_offset + row.offset_shift < end) & (batches.last_offset + row.offset_shift >= end)
        if holds.any():
            return int(batches.base_offset[holds][0]) + row.offset_shift
        if len(batches) and int(batches.last_offset[-1]) + row.offset_shift >= end:
            break
    return end
