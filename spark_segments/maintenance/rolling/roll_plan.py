"""The plan of a roll, from the manifest's rows alone: which partitions have something to roll or merge, and why.

The rows cannot say between which batches a segment ends, only whether a segment may end: planned_segments.py reads the
batch headers then. A partition that is idle, or made of many small chunks, needs no such look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import SegmentLimits, TopicConfig
from spark_segments.format.layout import BATCH_OVERHEAD
from spark_segments.format.rolling import segment_jitter_ms
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.format.sidecars.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.rows import Segment
from spark_segments.maintenance.retention.retention_plan import partition_runs

SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
SEGMENT_INDEX_BYTES = "segment.index.bytes"
OFFSET_OVERFLOW = "offset overflow"
IDLE = "idle"
EXPIRED = "all expired"
MERGE = "merge"
SHARED_OBJECT = "shared object"

NO_PARTITIONS = np.empty(0, np.int64)

MERGE_CHUNKS = 8
"""The least number of neighbouring chunks that are merged: a record is copied a logarithmic number of times before it
is sealed."""

SMALL_SHARE = 1 / 16
"""A chunk is merged only if it is smaller than this part of segment.bytes: copying larger chunks gains little."""


MOST_CHUNKS = 10_000
"""While a topic has more chunks than this, two neighbours are enough for a merge: the manifest's rows stay few."""

LIVE_SHARE = 1 / 4
"""A shared object of which no more than this part is in the log is emptied: the runs that are left move elsewhere, so
that a few idle partitions do not keep the object."""


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Which chunks are merged: runs of `least_chunks`, and each chunk in a shared object that is to be `emptied`."""

    least_chunks: int = MERGE_CHUNKS
    emptied: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RollRules:
    """The settings of a topic that decide where its segments end. Times in ms."""

    topic_id: str
    segment_ms: int
    segment_jitter_ms: int
    limits: SegmentLimits

    @classmethod
    def of(cls, topic_id: str, config: TopicConfig) -> RollRules:
        """The rules of one topic. A compacted one rolls at min(segment.ms, max.compaction.lag.ms)."""
        return cls(topic_id, config.max_segment_ms, config.segment_jitter_ms, SegmentLimits.of(config))

    def roll_ms(self, partition: int, base_offset: int) -> int:
        """segment.ms less the jitter of the segment that begins at `base_offset`."""
        jitter_ms = segment_jitter_ms(self.topic_id, partition, base_offset, self.segment_ms, self.segment_jitter_ms)
        return self.segment_ms - jitter_ms

    @property
    def full_index_bytes(self) -> int:
        """The fewest bytes of log that may bring an index to its limit."""
        index_bytes = self.limits.segment_index_bytes
        # As in Kafka, the last slot of a time index is kept free: the largest timestamp gets it when the segment ends.
        entries = min(index_bytes // OFFSET_ENTRY_BYTES, index_bytes // TIME_ENTRY_BYTES - 1)
        # More than index.interval.bytes lie between two entries, and at least one batch.
        return max(0, entries) * max(self.limits.index_interval_bytes + 1, BATCH_OVERHEAD)


@dataclass(frozen=True, slots=True)
class PartitionToRoll:
    """A partition with something to roll or merge, and why.

    Its chunks are rows [first_row, first_row + rows) of the plan's `chunks`.
    """

    partition: int
    reasons: tuple[str, ...]
    first_row: int
    rows: int
    records: int
    log_bytes: int

    @property
    def needs_headers(self) -> bool:
        """Whether a segment may end within a chunk. Then batch headers must be read."""
        return not {IDLE, EXPIRED, MERGE, SHARED_OBJECT}.issuperset(self.reasons)

    @property
    def is_expired(self) -> bool:
        """Whether all of the partition has expired by the topic's own retention, so that all of it is sealed."""
        return EXPIRED in self.reasons

    def line(self) -> dict[str, Any]:
        """The partition's line in the report of a dry run."""
        figures = {"records_in": self.records, "records_out": self.records}
        figures |= {"bytes_in": self.log_bytes, "bytes_out": self.log_bytes}
        return {
            "partition": self.partition,
            "action": "roll",
            "reasons": list(self.reasons),
            "chunks": self.rows,
            **figures,
        }


@dataclass(frozen=True, slots=True)
class RollPlan:
    """`chunks`: rows of all active segments, sorted by partition and offset. `partitions`: rows with work."""

    chunks: pa.Table
    partitions: list[PartitionToRoll]
    merge: MergeRules = MergeRules()

    def chunks_of(self, partition: PartitionToRoll) -> tuple[Segment, ...]:
        return tuple(Segment.of_table(self.chunks.slice(partition.first_row, partition.rows)))


def plan_roll(
    live: pa.Table,
    rules: RollRules,
    now_ms: int,
    emptied: np.ndarray = NO_PARTITIONS,
) -> RollPlan:
    """Which partitions have something to roll or merge at `now_ms`. `live`: rows sorted by partition and offset.

    `emptied`: the partitions of which all has expired, the active segment too (`emptied_partitions`). Retention takes
    sealed segments alone. So the active segment is rolled first, as a broker does it before it deletes the last one.
    """
    chunks = row_tables.in_states(live, Segment.CHUNK).combine_chunks()
    if chunks.num_rows == 0:
        return RollPlan(chunks, [])
    active = _ActiveSegments.of(chunks)
    merge = _merge_rules(chunks)
    reasons = active.ends(rules, now_ms)
    reasons[EXPIRED] = np.isin(active.partition, emptied)
    reasons[MERGE] = _to_merge(active, rules, merge)
    is_in_object = pc.is_in(chunks.column("path"), pa.array(sorted(merge.emptied), pa.string()))
    reasons[SHARED_OBJECT] = np.logical_or.reduceat(is_in_object.to_numpy(zero_copy_only=False), active.first_row)
    return RollPlan(chunks, active.to_roll(reasons), merge)


@dataclass(frozen=True, slots=True)
class _ActiveSegments:
    """The active segments of a topic as arrays, one value for each partition, and `log_bytes` of all their chunks.

    `first_timestamp` and `first_created`: of the first batch, and of the chunk that it is in.
    """

    partition: np.ndarray
    first_row: np.ndarray
    rows: np.ndarray
    records: np.ndarray
    size: np.ndarray
    base_offset: np.ndarray
    next_offset: np.ndarray
    first_timestamp: np.ndarray
    largest_timestamp: np.ndarray
    first_created: np.ndarray
    last_created: np.ndarray
    log_bytes: np.ndarray

    @classmethod
    def of(cls, chunks: pa.Table) -> _ActiveSegments:
        """The active segments of these chunks, which are sorted by partition and offset."""
        names = ("partition", "log_bytes", "records", "base_offset", "next_offset", "created_ms")
        partition, log_bytes, records, base, end, created = (chunks.column(name).to_numpy() for name in names)
        first, rows = partition_runs(partition)
        last = first + rows - 1
        # reduceat sums from each first row up to the next. A partition without rows would get one of its neighbour's:
        # `partition_runs` has none.
        size = np.add.reduceat(log_bytes, first)
        # An imported active segment may be an empty file: the first batch is in the next one then.
        filled = np.minimum(np.searchsorted(np.cumsum(log_bytes), np.cumsum(size) - size, side="right"), last)
        return cls(
            partition=partition[first],
            first_row=first,
            rows=rows,
            records=np.add.reduceat(records, first),
            size=size,
            base_offset=base[first],
            next_offset=end[last],
            first_timestamp=chunks.column("first_batch_max_timestamp_ms").to_numpy()[filled],
            largest_timestamp=np.maximum.reduceat(chunks.column("max_timestamp_ms").to_numpy(), first),
            first_created=created[filled],
            last_created=created[last],
            log_bytes=log_bytes,
        )

    def ends(self, rules: RollRules, now_ms: int) -> dict[str, np.ndarray]:
        """{reason: bool[partitions]}: where a segment may end by Kafka's rules."""
        # As in Kafka, by the records' own time where they have one, else by the time of the files. Never one minus the
        # other: a topic that is imported after a year has old timestamps and new files.
        has_time = self.first_timestamp >= 0
        by_records = self.largest_timestamp - self.first_timestamp
        waited = np.where(has_time, by_records, self.last_created - self.first_created)
        roll_ms = self._roll_ms(rules)
        # The later of both: a record with a time in the past would seal its segment at once, and each record after it.
        opened = np.maximum(self.first_timestamp, self.first_created)
        return {
            SEGMENT_BYTES: self.size > rules.limits.segment_bytes,
            SEGMENT_MS: waited > roll_ms,
            SEGMENT_INDEX_BYTES: self.size >= rules.full_index_bytes,
            OFFSET_OVERFLOW: self.next_offset - 1 - self.base_offset > MAX_RELATIVE_OFFSET,
            IDLE: now_ms - opened > roll_ms,
        }

    def _roll_ms(self, rules: RollRules) -> np.ndarray:
        if rules.segment_jitter_ms <= 0:
            return np.full(len(self.partition), rules.segment_ms, np.int64)
        # By the offset of each segment: with one jitter a topic, all of its partitions would roll in the same run.
        segments = zip(self.partition.tolist(), self.base_offset.tolist(), strict=True)
        return np.array([rules.roll_ms(number, offset) for number, offset in segments], np.int64)

    def to_roll(self, reasons: dict[str, np.ndarray]) -> list[PartitionToRoll]:
        """The partitions with records for which any of the reasons is true."""
        # An imported active segment may be an empty file. It would be due in each run, and there is nothing to seal.
        flags = np.column_stack(list(reasons.values())) & (self.size > 0)[:, None]
        partitions = []
        for row in np.flatnonzero(flags.any(axis=1)):
            names = tuple(name for name, flag in zip(reasons, flags[row].tolist(), strict=True) if flag)
            partitions.append(
                PartitionToRoll(
                    int(self.partition[row]),
                    names,
                    int(self.first_row[row]),
                    int(self.rows[row]),
                    int(self.records[row]),
                    int(self.size[row]),
                )
            )
        return partitions


def _to_merge(active: _ActiveSegments, rules: RollRules, merge: MergeRules) -> np.ndarray:
    """bool[partitions]: where small chunks are merged."""
    values = np.zeros(len(active.partition), bool)
    for row in np.flatnonzero(active.rows >= merge.least_chunks):
        first = active.first_row[row]
        sizes = active.log_bytes[first : first + active.rows[row]].tolist()
        values[row] = bool(runs_to_merge(sizes, rules.limits.segment_bytes, merge.least_chunks))
    return values


def _merge_rules(chunks: pa.Table) -> MergeRules:
    least_chunks = MERGE_CHUNKS if chunks.num_rows <= MOST_CHUNKS else 2
    shared = chunks.filter(pc.is_valid(chunks.column("index_position")))
    if not shared.num_rows:  # the grouping imports Arrow's engine
        return MergeRules(least_chunks, frozenset())
    objects = shared.group_by("path").aggregate([("log_bytes", "sum"), ("index_position", "max")])
    # The index entries lie behind all runs of an object: their position is at least the size of all runs.
    most_bytes = pc.multiply(pc.cast(objects.column("index_position_max"), pa.float64()), LIVE_SHARE)
    mostly_dead = pc.less_equal(pc.cast(objects.column("log_bytes_sum"), pa.float64()), most_bytes)
    return MergeRules(least_chunks, frozenset(objects.filter(mostly_dead).column("path").to_pylist()))


def runs_to_merge(sizes: Sequence[int], segment_bytes: int, least_chunks: int = MERGE_CHUNKS) -> list[tuple[int, int]]:
    """The [start, end) runs of chunks that are merged into one chunk each. `sizes`: the bytes of each chunk.

    A run has `least_chunks` or more small neighbours, none of which is larger than all others of the run together. So a
    chunk is merged only with at least its own size in other chunks, and a byte is copied O(log(segment.bytes)) times.
    """
    limit = segment_bytes * SMALL_SHARE
    runs = []
    # Backward from the log end, for the small chunks are the new ones. A chunk joins while it is no larger than all
    # behind it: else each run would copy the large one again for a few small ones.
    end = len(sizes)
    while end >= least_chunks:
        total = 0
        largest = 0
        start = end
        while start > 0 and sizes[start - 1] < limit and (end - start < least_chunks or sizes[start - 1] <= total):
            start -= 1
            total += sizes[start]
            largest = max(largest, sizes[start])
        # Only the first chunks of a run were taken whatever their size: one of them may be most of it.
        if end - start >= least_chunks and largest * 2 <= total:
            runs.append((start, end))
            end = start
        else:
            end -= 1
    return runs[::-1]
