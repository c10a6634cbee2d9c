"""The plan of a compaction: which partitions are cleaned and why, and whether one task or many clean each of them.

The rules come from Kafka's LogCleanerManager. The plan reads the manifest's rows alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.execution import in_bins
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.states import ErasedTombstones
from spark_segments.maintenance.retention.retention_plan import is_sealed, newest_ms

DIRTY_RATIO = "min.cleanable.dirty.ratio"
MAX_LAG = "max.compaction.lag.ms"
FORCED = "forced"
ERASED = "tombstones of an erasure"
NOT_DIRTY = "nothing is cleanable"
BELOW_RATIO = "below min.cleanable.dirty.ratio"

MAX_RELATIVE_OFFSET = 2**31 - 1

LARGE_PARTITION_BYTES = 256 << 20
"""A smaller partition is always cleaned by one task."""

LARGE_SHARE = 1.25
"""A partition is cleaned by many tasks if it has more than this many times the bytes that each task slot would get."""


@dataclass(frozen=True, slots=True)
class CompactionCandidate:
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
        """About the bytes that cleaning reads: the clean and the cleanable ones."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def ratio(self) -> float:
        """The dirty ratio: the cleanable bytes divided by the clean and the cleanable bytes."""
        return self.cleanable_bytes / self.log_bytes if self.log_bytes else 0.0

    @property
    def is_clean(self) -> bool:
        """Whether only tombstones whose time has come are to be cleaned out: no record came since the last cleaning."""
        return self.first_uncleanable_offset <= self.first_dirty_offset

    def line(self, *, is_within: bool) -> dict[str, Any]:
        """The partition's line in the report of a dry run. `is_within`: it would be cleaned."""
        names = ("clean_bytes", "cleanable_bytes", "first_dirty_offset", "first_uncleanable_offset")
        return {
            "partition": self.partition,
            "action": "compact" if is_within else "leave",
            "reason": self.reason if is_within or not self.picked else "above --max-partitions",
            "dirty_ratio": round(self.ratio, 4),
            **{name: getattr(self, name) for name in names},
        }


def plan_compaction(
    live: pa.Table,
    partitions: pa.Table,
    config: TopicConfig,
    now_ms: int,
    *,
    force: bool = False,
    erased: Sequence[ErasedTombstones] = (),
) -> list[CompactionCandidate]:
    """All partitions that have sealed segments, the highest dirty ratio first. `live`: rows sorted by partition and
    offset.

    The cleanable part of a log begins at the first dirty offset. It ends at the active segment, at the first segment
    that min.compaction.lag.ms protects, or at the last stable offset, whichever comes first. A partition is picked if
    its dirty ratio is strictly above min.cleanable.dirty.ratio, or if a dirty segment has waited for longer than
    max.compaction.lag.ms. As in Kafka, a delete horizon that has passed makes no partition dirty. But a partition is
    picked, too, if the horizon of an erasure's tombstones (`erased`) has passed: they have keys that are to go. `force`
    picks every partition with cleanable bytes, or with a tombstone whose horizon has passed.
    """
    if live.num_rows == 0:
        return []
    rows = _LiveRows.of(live)
    # Retention can have passed the cleaner: below the log start is nothing to clean.
    dirty = np.maximum(
        partitions.column("first_dirty_offset").to_numpy(), partitions.column("log_start_offset").to_numpy()
    )
    bound = _first_uncleanable(rows, partitions, config, now_ms, dirty)
    clean, cleanable = _bytes_by_part(rows, dirty, bound)
    late = _is_late(rows, dirty, bound, config, now_ms)
    expired = _expired_tombstones(rows, dirty, now_ms)
    due = {
        tombstones.partition
        for tombstones in erased
        if tombstones.horizon_ms is not None and tombstones.horizon_ms <= now_ms
    }
    candidates = []
    for number in np.unique(rows.owner[rows.sealed]).tolist():
        picked, reason = _decision(
            clean[number],
            cleanable[number],
            config,
            is_forced=force and (cleanable[number] > 0 or number in expired),
            is_erased=number in due,
            is_late=bool(late[number]),
        )
        candidates.append(
            CompactionCandidate(
                number,
                int(dirty[number]),
                int(bound[number]),
                round(clean[number]),
                round(cleanable[number]),
                picked,
                reason,
            )
        )
    return sorted(candidates, key=lambda candidate: (-candidate.ratio, candidate.partition))


@dataclass(frozen=True, slots=True)
class _LiveRows:
    """The live rows of a topic, and what each rule of the plan asks of them. `owner`: the partition of each row.
    `sealed`: whether it is that of a sealed segment.
    """

    table: pa.Table
    owner: np.ndarray
    sealed: np.ndarray
    base: np.ndarray
    following: np.ndarray

    @classmethod
    def of(cls, live: pa.Table) -> _LiveRows:
        names = ("partition", "base_offset", "next_offset")
        owner, base, following = (live.column(name).to_numpy() for name in names)
        return cls(live, owner, is_sealed(live), base, following)


def _first_uncleanable(
    rows: _LiveRows, partitions: pa.Table, config: TopicConfig, now_ms: int, dirty: np.ndarray
) -> np.ndarray:
    """int64[partitions]: where the cleanable part of each log ends, at the first dirty offset or behind it."""
    #   log start     first dirty              bound            log end
    #   |=clean=======|=cleanable=============|=uncleanable====|
    #
    # The bound is the least of: the active segment, the last stable offset (data of an open transaction may be aborted
    # yet, and must not count as the newest of its key), and the first segment that is too young.
    bound = np.minimum(
        partitions.column("log_end_offset").to_numpy(), partitions.column("last_stable_offset").to_numpy()
    ).copy()
    # minimum.at, since a partition has many rows: an assignment by index would keep the last of them, not the least.
    np.minimum.at(bound, rows.owner[~rows.sealed], rows.base[~rows.sealed])
    if config.min_compaction_lag_ms > 0:
        is_young = newest_ms(rows.table) > now_ms - config.min_compaction_lag_ms
        young = rows.sealed & (rows.following > dirty[rows.owner]) & is_young
        np.minimum.at(bound, rows.owner[young], np.maximum(rows.base[young], dirty[rows.owner[young]]))
    # A lag that was raised, or a restore, can put the bound below what is clean already: then nothing is cleanable.
    # Without this line the cleanable bytes would be negative, and the ratio of such a partition with them.
    first_uncleanable: np.ndarray = np.maximum(bound, dirty)
    return first_uncleanable


def _is_late(rows: _LiveRows, dirty: np.ndarray, bound: np.ndarray, config: TopicConfig, now_ms: int) -> np.ndarray:
    """bool[partitions]: whether a dirty segment has waited since its first batch for longer than
    max.compaction.lag.ms.
    """
    first_timestamp = rows.table.column("first_batch_max_timestamp_ms").to_numpy()
    # A segment without timestamps has waited since nobody knows when: by 0 it would be late for ever.
    waiting = (
        rows.sealed & (rows.following > dirty[rows.owner]) & (rows.base < bound[rows.owner]) & (first_timestamp > 0)
    )
    oldest = np.full(len(dirty), now_ms, np.int64)
    np.minimum.at(oldest, rows.owner[waiting], first_timestamp[waiting])
    is_late: np.ndarray = now_ms - oldest > config.max_compaction_lag_ms
    return is_late


def _expired_tombstones(rows: _LiveRows, dirty: np.ndarray, now_ms: int) -> set[int]:
    """The partitions with a tombstone in the clean part whose delete horizon has passed."""
    # A row without a horizon has no tombstone that was cleaned once: its time has not begun.
    horizon = pc.fill_null(rows.table.column("delete_horizon_ms"), np.iinfo(np.int64).max).to_numpy()
    has_tombstones = rows.table.column("tombstones").to_numpy() != 0
    has_expired = rows.sealed & (rows.base < dirty[rows.owner]) & has_tombstones & (horizon <= now_ms)
    return set(rows.owner[has_expired].tolist())


def _bytes_by_part(rows: _LiveRows, dirty: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(clean bytes, cleanable bytes) of each partition, about: float64[partitions] each.

    The first dirty offset or the bound may fall into a segment: each side then gets bytes in proportion to offsets.
    """
    sealed_owner = rows.owner[rows.sealed]
    log_bytes = rows.table.column("log_bytes").to_numpy()
    span = np.maximum(rows.following - rows.base, 1)
    # Clipped to the segment: one that lies above the offset has nothing below it, and not a negative part.
    below_dirty = np.clip((dirty[rows.owner] - rows.base) / span, 0.0, 1.0)
    below_bound = np.clip((bound[rows.owner] - rows.base) / span, 0.0, 1.0)
    clean = (log_bytes * below_dirty)[rows.sealed]
    cleanable = (log_bytes * (below_bound - below_dirty))[rows.sealed]
    count = len(dirty)
    return (
        np.bincount(sealed_owner, weights=clean, minlength=count),
        np.bincount(sealed_owner, weights=cleanable, minlength=count),
    )


def _decision(
    clean: float, cleanable: float, config: TopicConfig, *, is_forced: bool, is_erased: bool, is_late: bool
) -> tuple[bool, str]:
    """(whether a partition is picked, why or why not)"""
    if is_forced:
        return True, FORCED
    if is_erased:
        return True, ERASED
    if cleanable <= 0:
        return False, NOT_DIRTY
    if is_late:
        return True, MAX_LAG
    if cleanable / (clean + cleanable) > config.min_cleanable_dirty_ratio:
        return True, DIRTY_RATIO
    return False, BELOW_RATIO


def count_large(log_bytes: Sequence[int], slots: int) -> int:
    """How many of the partitions are large, given their sizes in falling order, where `slots` tasks run at a time.

    A large partition has clearly more bytes than each slot would get if its bytes and the bytes of all smaller
    partitions were shared out evenly. As a single task it would run on when all other slots have finished.
    """
    remaining_bytes = sum(log_bytes)
    for number, size in enumerate(log_bytes):
        if slots == 1 or size < LARGE_PARTITION_BYTES or size * slots <= remaining_bytes * LARGE_SHARE:
            return number
        remaining_bytes -= size
    return len(log_bytes)


def groups(
    segments: Sequence[Segment], end_offset: int, first_uncleanable_offset: int, config: TopicConfig
) -> list[list[Segment]]:
    """The neighbouring segments that become one each, as Kafka's Cleaner.groupSegmentsBySize has it.

    Segments that begin at or above `end_offset` are left out. The .log files of a group together are within
    segment.bytes, the .index files and the .timeindex files within segment.index.bytes each, and its offsets fit an
    int32 above its base offset.
    """
    chosen = [segment for segment in segments if segment.base_offset < end_offset]
    sizes = [
        np.array([segment.log_bytes, segment.index_bytes, segment.time_index_bytes, offsets])
        for segment, offsets in zip(chosen, _offsets_taken(chosen, first_uncleanable_offset), strict=True)
    ]
    limits = np.array(
        [config.segment_bytes, config.segment_index_bytes, config.segment_index_bytes, MAX_RELATIVE_OFFSET + 1]
    )
    sized = zip(chosen, sizes, strict=True)
    groups = in_bins(sized, lambda pair: pair[1], lambda _, total, pair: bool((total + pair[1] > limits).any()))
    return [[segment for segment, _ in group] for group in groups]


def _offsets_taken(segments: Sequence[Segment], first_uncleanable_offset: int) -> Iterator[int]:
    """The offsets from each segment's base offset up to where the next segment begins."""
    for segment, following in itertools.pairwise(segments):
        yield following.base_offset - segment.base_offset
    if segments:
        last = segments[-1]
        yield max(last.next_offset, first_uncleanable_offset) - last.base_offset
