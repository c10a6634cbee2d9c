"""Which partitions are to be compacted, from the manifest's rows alone, and why: the rules of Kafka's
LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.log.manifest.rows import SEALED, Segment

DIRTY_RATIO = "min.cleanable.dirty.ratio"
MAX_LAG = "max.compaction.lag.ms"
FORCED = "forced"
NOT_DIRTY = "nothing is cleanable"
BELOW_RATIO = "below min.cleanable.dirty.ratio"

MAX_RELATIVE_OFFSET = 2**31 - 1

LARGE_PARTITION_BYTES = 256 << 20
"""What is smaller is one task's work, whatever else there is."""

LARGE_SHARE = 1.25
"""What is to be done by many tasks has so many times a slot's share of what there is to do."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One partition of a compacted topic. `reason` says why it is picked, or why it is not."""

    partition: int
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    picked: bool
    reason: str

    @property
    def log_bytes(self) -> int:
        """What cleaning reads, about: clean bytes and cleanable ones."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def ratio(self) -> float:
        """The dirty ratio: cleanable bytes in clean and cleanable ones."""
        return self.cleanable_bytes / self.log_bytes if self.log_bytes else 0.0


def plan_compaction(
    live: pa.Table, partitions: pa.Table, config: TopicConfig, now_ms: int, *, force: bool = False
) -> list[Candidate]:
    """All partitions that have sealed segments, filthiest first. `live`: rows sorted by partition and offset.

    Cleanable is what lies from the first dirty offset up to the active segment, the first segment that
    min.compaction.lag.ms protects, and the last stable offset. Picked is what has a ratio strictly above
    min.cleanable.dirty.ratio, or a dirty segment that has waited for longer than max.compaction.lag.ms; with `force`,
    whatever has cleanable bytes.
    """
    if live.num_rows == 0:
        return []
    owner = live.column("partition").to_numpy()
    sealed = live.column("state").to_numpy(zero_copy_only=False) == SEALED
    base, following = live.column("base_offset").to_numpy(), live.column("next_offset").to_numpy()
    log_bytes = live.column("log_bytes").to_numpy()
    largest = live.column("max_timestamp_ms").to_numpy()
    # Kafka's LogSegment.largestTimestamp: where no record has a timestamp, the file's time.
    largest = np.where(largest >= 0, largest, live.column("created_ms").to_numpy())
    first_timestamp = live.column("first_batch_max_timestamp_ms").to_numpy()
    count = partitions.num_rows
    start = partitions.column("log_start_offset").to_numpy()
    dirty = np.maximum(partitions.column("first_dirty_offset").to_numpy(), start)

    bound = np.minimum(
        partitions.column("log_end_offset").to_numpy(), partitions.column("last_stable_offset").to_numpy()
    ).copy()
    np.minimum.at(bound, owner[~sealed], base[~sealed])
    if config.min_compaction_lag_ms > 0:
        young = sealed & (following > dirty[owner]) & (largest > now_ms - config.min_compaction_lag_ms)
        np.minimum.at(bound, owner[young], np.maximum(base[young], dirty[owner[young]]))
    bound = np.maximum(bound, dirty)

    # A segment that the first dirty offset, or the bound, falls into counts on each side by its share of offsets.
    span = np.maximum(following - base, 1)
    below_dirty = np.clip((dirty[owner] - base) / span, 0.0, 1.0)
    below_bound = np.clip((bound[owner] - base) / span, 0.0, 1.0)
    clean = np.bincount(owner[sealed], weights=(log_bytes * below_dirty)[sealed], minlength=count)
    cleanable = np.bincount(owner[sealed], weights=(log_bytes * (below_bound - below_dirty))[sealed], minlength=count)

    waiting = sealed & (following > dirty[owner]) & (base < bound[owner]) & (first_timestamp > 0)
    oldest = np.full(count, now_ms, np.int64)
    np.minimum.at(oldest, owner[waiting], first_timestamp[waiting])
    late = now_ms - oldest > config.max_compaction_lag_ms

    candidates = []
    for number in np.unique(owner[sealed]).tolist():
        total = clean[number] + cleanable[number]
        if cleanable[number] <= 0:
            picked, reason = False, NOT_DIRTY
        elif force:
            picked, reason = True, FORCED
        elif late[number]:
            picked, reason = True, MAX_LAG
        else:
            picked = bool(cleanable[number] / total > config.min_cleanable_dirty_ratio)
            reason = DIRTY_RATIO if picked else BELOW_RATIO
        candidates.append(
            Candidate(
                number,
                int(dirty[number]),
                int(bound[number]),
                round(clean[number]),
                round(cleanable[number]),
                picked,
                reason,
            )
        )
    return sorted(candidates, key=lambda one: (-one.ratio, one.partition))


def count_large(log_bytes: Sequence[int], slots: int) -> int:
    """How many of the partitions of these sizes (the largest first) are to be cleaned by many tasks each, where `slots`
    tasks run at a time.

    Those that have clearly more than a slot's share of their own bytes and of those that are smaller: as a task of its
    own, such a one would be what the other slots wait for in the end.
    """
    left = sum(log_bytes)
    for number, size in enumerate(log_bytes):
        if slots == 1 or size < LARGE_PARTITION_BYTES or size * slots <= left * LARGE_SHARE:
            return number
        left -= size
    return len(log_bytes)


def groups(
    segments: Sequence[Segment], end_offset: int, first_uncleanable_offset: int, config: TopicConfig
) -> list[list[Segment]]:
    """Neighbouring segments that become one: those that begin below `end_offset`, as Kafka's groupSegmentsBySize has
    it.

    A group's .log, .index and .timeindex together are within segment.bytes and segment.index.bytes, and its offsets fit
    an int32 above its base offset.
    """
    found: list[list[Segment]] = []
    chosen = [segment for segment in segments if segment.base_offset < end_offset]
    for segment, last_offset in zip(chosen, _last_offsets(chosen, first_uncleanable_offset), strict=True):
        group = found[-1] if found else []
        if group and (
            sum(one.log_bytes for one in (*group, segment)) <= config.segment_bytes
            and sum(one.index_bytes for one in (*group, segment)) <= config.segment_index_bytes
            and sum(one.time_index_bytes for one in (*group, segment)) <= config.segment_index_bytes
            and last_offset - group[0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            group.append(segment)
        else:
            found.append([segment])
    return found


def _last_offsets(segments: Sequence[Segment], first_uncleanable_offset: int) -> Iterable[int]:
    yield from (segment.base_offset - 1 for segment in segments[1:])
    if segments:
        yield max(segments[-1].next_offset, first_uncleanable_offset) - 1
