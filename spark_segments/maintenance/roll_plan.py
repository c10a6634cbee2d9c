"""Which partitions have something to roll, from the manifest's rows alone, and why.

The rows cannot say between which batches a segment ends, only that it may: roll.py looks there. A partition whose
active segment is idle, or made of many small chunks, needs no such look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.format.index import MAX_RELATIVE_OFFSET, OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from spark_segments.format.rolling import segment_jitter_ms
from spark_segments.log.rows import CHUNK, Segment, segments_of

SEGMENT_BYTES = "segment.bytes"
SEGMENT_MS = "segment.ms"
SEGMENT_INDEX_BYTES = "segment.index.bytes"
OFFSET_OVERFLOW = "offset overflow"
IDLE = "idle"
MERGE = "merge"

# Merging: this many neighbouring chunks of about the same size become one, so a record is copied a logarithmic number
# of times before it is sealed.
MERGE_CHUNKS = 8


@dataclass(frozen=True, slots=True)
class RollRules:
    """What of a topic's configuration decides where its segments end. Times in ms, sizes in bytes."""

    topic_id: str
    segment_bytes: int
    segment_ms: int
    segment_jitter_ms: int
    segment_index_bytes: int
    index_interval_bytes: int

    @classmethod
    def of(cls, topic_id: str, config: TopicConfig) -> RollRules:
        """A compacted topic rolls at min(segment.ms, max.compaction.lag.ms), so that nothing waits longer to be
        cleaned.
        """
        segment_ms = config.segment_ms
        if "compact" in config.cleanup_policy:
            segment_ms = min(segment_ms, config.max_compaction_lag_ms)
        return cls(
            topic_id,
            config.segment_bytes,
            segment_ms,
            config.segment_jitter_ms,
            config.segment_index_bytes,
            config.index_interval_bytes,
        )

    def roll_ms(self, partition: int, base_offset: int) -> int:
        """segment.ms less the jitter of the segment that begins at `base_offset`."""
        return self.segment_ms - segment_jitter_ms(
            self.topic_id,
            partition,
            base_offset,
            segment_ms=self.segment_ms,
            segment_jitter_ms=self.segment_jitter_ms,
        )

    @property
    def max_offset_entries(self) -> int:
        return self.segment_index_bytes // OFFSET_ENTRY_BYTES

    @property
    def max_time_entries(self) -> int:
        return self.segment_index_bytes // TIME_ENTRY_BYTES - 1

    def index_may_fill(self, log_bytes: int, chunks: int) -> bool:
        """Whether that many bytes in that many files can bring an index to its limit."""
        entries = log_bytes // max(1, self.index_interval_bytes) + chunks
        return entries >= min(self.max_offset_entries, self.max_time_entries)


@dataclass(frozen=True, slots=True)
class RollTask:
    """One partition's active segment, and why it is looked into. `seal_all`: nothing of it stays active."""

    partition: int
    chunks: tuple[Segment, ...]
    reasons: tuple[str, ...]

    @property
    def seal_all(self) -> bool:
        return IDLE in self.reasons


def plan_roll(live: pa.Table, rules: RollRules, now_ms: int) -> list[RollTask]:
    """The partitions with something to roll or merge at `now_ms`. `live`: rows sorted by partition and offset."""
    chunks = live.filter(np.asarray(live.column("state").to_numpy(zero_copy_only=False) == CHUNK))
    if chunks.num_rows == 0:
        return []
    owner = chunks.column("partition").to_numpy()
    first = np.flatnonzero(np.concatenate(([True], owner[1:] != owner[:-1])))
    counts = np.diff(np.append(first, len(owner)))
    last = first + counts - 1
    log_bytes = chunks.column("log_bytes").to_numpy()
    size = np.add.reduceat(log_bytes, first)
    base = chunks.column("base_offset").to_numpy()[first]
    first_timestamp = chunks.column("first_batch_max_timestamp_ms").to_numpy()[first]
    largest = np.maximum.reduceat(chunks.column("max_timestamp_ms").to_numpy(), first)
    opened = np.maximum(first_timestamp, chunks.column("created_ms").to_numpy()[first])
    next_offset = chunks.column("next_offset").to_numpy()[last]
    partitions = owner[first]
    if rules.segment_jitter_ms > 0:
        roll_ms = np.array([rules.roll_ms(int(p), int(b)) for p, b in zip(partitions, base, strict=True)])
    else:
        roll_ms = np.full(len(first), rules.segment_ms)
    entries = size // max(1, rules.index_interval_bytes) + counts
    found = {
        SEGMENT_BYTES: size > rules.segment_bytes,
        SEGMENT_MS: (first_timestamp >= 0) & (largest - first_timestamp > roll_ms),
        SEGMENT_INDEX_BYTES: entries >= min(rules.max_offset_entries, rules.max_time_entries),
        OFFSET_OVERFLOW: next_offset - base > MAX_RELATIVE_OFFSET,
        IDLE: now_ms - opened > roll_ms,
        MERGE: counts >= MERGE_CHUNKS,
    }
    tasks = []
    for row in np.flatnonzero(np.logical_or.reduce(list(found.values()))):
        reasons = [name for name, flags in found.items() if flags[row]]
        mine = tuple(segments_of(chunks.slice(int(first[row]), int(counts[row]))))
        if reasons == [MERGE] and not merges(mine):
            continue
        tasks.append(RollTask(int(partitions[row]), mine, tuple(reasons)))
    return tasks


def merges(chunks: Sequence[Segment]) -> list[tuple[int, int]]:
    """[start, end) runs of chunks to be put into one: MERGE_CHUNKS or more neighbours, none larger than the rest of the
    run together.

    A chunk is merged again only with as much as itself, so each byte is copied O(log size) times.
    """
    runs = []
    end = len(chunks)
    while end >= MERGE_CHUNKS:
        total, start = 0, end
        while start > 0 and (end - start < MERGE_CHUNKS - 1 or chunks[start - 1].log_bytes <= total):
            start -= 1
            total += chunks[start].log_bytes
        run = chunks[start:end]
        if len(run) >= MERGE_CHUNKS and max(chunk.log_bytes for chunk in run) * 2 <= total:
            runs.append((start, end))
            end = start
        else:
            end -= 1
    return runs[::-1]


def may_cut(rules: RollRules, roll_ms: int, chunks: Iterable[Segment], first_timestamp_ms: int) -> bool:
    """Whether a segment made of `chunks` may have to end inside the last one of them."""
    chunks = list(chunks)
    size = sum(chunk.log_bytes for chunk in chunks)
    largest = max(chunk.max_timestamp_ms for chunk in chunks)
    return (
        size > rules.segment_bytes
        or (first_timestamp_ms >= 0 and largest - first_timestamp_ms > roll_ms)
        or rules.index_may_fill(size, len(chunks))
        or chunks[-1].next_offset - chunks[0].base_offset > MAX_RELATIVE_OFFSET
    )
