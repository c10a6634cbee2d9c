"""The plan of `retain --max-bytes`: the oldest segments of all topics go until a log directory is under a size.

It adds to what retention_plan.py says of each topic, and never takes an active segment, nor one with a young record.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_segments.config import TopicConfig
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.role import FOLLOWER
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.maintenance.job import Job
from spark_segments.maintenance.retention.retention_plan import (
    MAX_BYTES,
    REASONS,
    Expired,
    is_sealed,
    newest_ms,
    partition_runs,
    plan_retention,
    prefix,
)
from spark_segments.quantities import plural

_NOTHING = -1
_SIZES = ("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes")


@dataclass(frozen=True, slots=True)
class TopicSizes:
    """The sizes of a topic's segments once retention has removed what has expired.

    Segments that may go, in log order: `partition`, `next_offset`, `size_bytes` and `going_ms` (int64[n] each).
    `going_ms` is the largest timestamp of a segment and all before it: it goes with them or after them. Bytes that must
    stay, by reason: `active_bytes` are in active segments; `young_bytes` are in segments with a record younger than the
    floor, or after such a segment; `compacted_bytes` are in a topic that is only compacted. `partitions`: how many the
    topic has.
    """

    partitions: int
    partition: np.ndarray
    next_offset: np.ndarray
    going_ms: np.ndarray
    size_bytes: np.ndarray
    active_bytes: int
    young_bytes: int
    compacted_bytes: int

    @property
    def live_bytes(self) -> int:
        return int(self.size_bytes.sum()) + self.active_bytes + self.young_bytes + self.compacted_bytes


def topic_sizes(
    live: pa.Table, expired: Expired, config: TopicConfig, now_ms: int, min_retention_ms: int, partitions: int
) -> TopicSizes:
    """The sizes of a topic, from its live rows (sorted by partition and offset) without the `expired` rows."""
    owner = live.column("partition").to_numpy()
    left = np.ones(live.num_rows, bool)
    left[expired.rows] = False
    sizes = np.where(left, file_bytes(live), 0)
    may_go = np.zeros(live.num_rows, bool)
    going_ms = np.where(left, newest_ms(live), -1)
    active = left & ~is_sealed(live)
    if config.delete and live.num_rows:
        first_row, rows = partition_runs(owner)
        for start, end in zip(first_row.tolist(), (first_row + rows).tolist(), strict=True):
            # By partition: a young segment keeps all behind it, and none of another partition.
            np.maximum.accumulate(going_ms[start:end], out=going_ms[start:end])
        # Expired rows count as gone, not as misses: else the first of them would end the prefix of all that may go.
        may_go = left & prefix(~left | (~active & (now_ms - going_ms > min_retention_ms)), first_row, rows)
    stays = int(sizes[~may_go & ~active].sum())
    return TopicSizes(
        partitions,
        owner[may_go].astype(np.int64),
        live.column("next_offset").to_numpy()[may_go],
        going_ms[may_go],
        sizes[may_go],
        active_bytes=int(sizes[active].sum()),
        young_bytes=stays if config.delete else 0,
        compacted_bytes=0 if config.delete else stays,
    )


def plan_max_bytes(topics: Sequence[TopicSizes], max_bytes: int) -> list[np.ndarray]:
    """Which segments go so that all topics together are within `max_bytes`: for each topic int64[partitions], the next
    offset of the last segment that goes; -1 if none goes.

    The oldest segments of all topics go first, and no more than necessary. Ties go by topic, partition and offset. If
    removing everything that may go is not enough, all of it goes.
    """
    ends = [np.full(topic.partitions, _NOTHING) for topic in topics]
    over = sum(topic.live_bytes for topic in topics) - max_bytes
    if over <= 0:
        return ends
    oldest_first = np.argsort(np.concatenate([topic.going_ms for topic in topics]), kind="stable")
    running = np.cumsum(np.concatenate([topic.size_bytes for topic in topics])[oldest_first])
    # `running` at a row is what has gone with it. The first row at which that reaches `over` still goes, for it is the
    # one that brings the size under the limit: hence the + 1. Behind the last row the slice takes all.
    taken = np.zeros(len(oldest_first), bool)
    taken[oldest_first[: np.searchsorted(running, over) + 1]] = True
    of_topics = np.split(taken, np.cumsum([len(topic.size_bytes) for topic in topics])[:-1])
    for end, topic, mine in zip(ends, topics, of_topics, strict=True):
        np.maximum.at(end, topic.partition[mine], topic.next_offset[mine])
    return ends


def with_max_bytes(live: pa.Table, expired: Expired, ends: np.ndarray) -> Expired:
    """The expired rows and the sealed rows that end at or below `ends`, which `plan_max_bytes` gives for the topic.

    If `ends` were planned from an earlier snapshot, no more goes than was planned.
    """
    if live.num_rows == 0:
        return expired
    owner = live.column("partition").to_numpy()
    ends = np.append(ends, np.full(max(0, int(owner[-1]) + 1 - len(ends)), _NOTHING))  # partitions that are new
    goes = live.column("next_offset").to_numpy() <= ends[owner]
    goes[expired.rows] = True
    rows = np.flatnonzero(prefix(goes & is_sealed(live), *partition_runs(owner)))
    reason = np.full(live.num_rows, REASONS.index(MAX_BYTES), np.int8)
    reason[expired.rows] = expired.reason
    return Expired(rows, reason[rows])


def file_bytes(rows: pa.Table) -> np.ndarray:
    """int64[n]: the size of each row's files, sidecars included."""
    return sum((rows.column(name).to_numpy() for name in _SIZES), start=np.zeros(rows.num_rows, np.int64))


@dataclass(slots=True)
class MaxBytesPlan:
    """The plan that keeps a log directory under a size, and what came of it.

    By topic id: `ends`, see `plan_max_bytes`, and `planned_bytes`, which were live at the plan. `expired`: what leaves
    each topic by its own rules, by topic id and version. The rest are figures for the report.
    """

    max_bytes: int
    expired: dict[tuple[str, int], Expired] = field(default_factory=dict)
    ends: dict[str, np.ndarray] = field(default_factory=dict)
    planned_bytes: dict[str, int] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    live_bytes: int = 0
    waiting_bytes: int = 0

    def note(self, before: Snapshot, expired: Expired) -> None:
        """Counts the bytes that a topic still has, and the removed bytes."""
        sizes = file_bytes(before.live)
        gone = int(sizes[expired.rows].sum())
        self.live_bytes += int(sizes.sum()) - gone
        self.waiting_bytes += gone

    def note_failed(self, snapshot: Snapshot) -> None:
        """Counts a topic that could not be changed with the bytes that it had."""
        self.live_bytes += self.planned_bytes.get(snapshot.topic_id, 0)

    def figures(self) -> dict[str, int]:
        """Figures for the report. `over_bytes`: by how much the limit was missed. `held_…`: bytes that could not go, by
        reason. `waiting_bytes`: bytes that have left the log and wait for vacuum.
        """
        return {
            "max_bytes": self.max_bytes,
            "live_bytes": self.live_bytes,
            "over_bytes": max(0, self.live_bytes - self.max_bytes),
            "waiting_bytes": self.waiting_bytes,
            **self.held,
        }


def plan_log_directory(job: Job, snapshots: Sequence[Snapshot], max_bytes: int, min_retention_ms: int) -> MaxBytesPlan:
    """Plans for a log directory. `snapshots`: of all topics that jobs may shorten: neither deleted ones nor followers.

    A topic that cannot be read is left out. Raises InvalidOptionError for a negative limit or floor.
    """
    for name, value in (("max_bytes", max_bytes), ("min_retention_ms", min_retention_ms)):
        if value < 0:
            raise InvalidOptionError(f"{name} is below 0", expected="≥ 0", found=value)
    plan = MaxBytesPlan(max_bytes)
    sizes: dict[str, TopicSizes] = {}
    for snapshot in snapshots:
        topic = _planned_topic(job, snapshot, plan, min_retention_ms)
        if topic is not None:
            sizes[snapshot.topic_id] = topic
    for topic in sizes.values():
        plan.held["held_active_bytes"] += topic.active_bytes
        plan.held["held_young_bytes"] += topic.young_bytes
        plan.held["held_compacted_bytes"] += topic.compacted_bytes
    plan.ends = dict(zip(sizes, plan_max_bytes([*sizes.values()], max_bytes), strict=True))
    plan.waiting_bytes += _waiting_bytes_of_others(job, {snapshot.topic for snapshot in snapshots})
    return plan


def _planned_topic(job: Job, snapshot: Snapshot, plan: MaxBytesPlan, min_retention_ms: int) -> TopicSizes | None:
    """The sizes of a topic, noted in the plan with what leaves it by its own rules. None: it cannot be read."""
    try:
        # Not `snapshot.live`, which would keep the rows of all topics in memory at the same time.
        live = row_tables.live(snapshot.load_segments())
        live_bytes = int(file_bytes(live).sum())
        plan.waiting_bytes += _all_bytes(snapshot) - live_bytes
    except SegmentsError:  # retention meets the same error and reports it
        return None
    plan.planned_bytes[snapshot.topic_id] = live_bytes
    config = job.config(snapshot)
    starts = snapshot.partitions.column("log_start_offset").to_numpy()
    expired = plan_retention(live, starts, config, job.now_ms)
    plan.expired[snapshot.topic_id, snapshot.version] = expired
    return topic_sizes(live, expired, config, job.now_ms, min_retention_ms, len(starts))


def _waiting_bytes_of_others(job: Job, topics: Collection[str]) -> int:
    """The bytes of files that wait for vacuum, of topics that are none of these `topics`: deleted ones and followers.

    Followers are warned of: what they hold counts towards no limit, since their leader alone can shorten them.
    """
    waiting_bytes = 0
    followers = []
    for name in job.log.directories():
        if name in topics:
            continue
        with contextlib.suppress(SegmentsError):  # never made, or reported as unreadable already
            snapshot = job.log.manifest(name).snapshot(deleted=True)
            waiting_bytes += _all_bytes(snapshot)
            if snapshot.deleted_ms is None and snapshot.role == FOLLOWER:
                waiting_bytes -= int(file_bytes(snapshot.live).sum())
                followers.append(name)
    if followers:
        job.report.warn(
            f"{plural(len(followers), 'follower')} ({', '.join(followers[:3])}{', …' if len(followers) > 3 else ''}) "
            "not counted by max_bytes: retention at the leader shortens them, by the next mirror"
        )
    return waiting_bytes


def _all_bytes(snapshot: Snapshot) -> int:
    """The bytes of all files that the manifest names, also in removed rows and rows of deleted topics of this name."""
    return int(file_bytes(snapshot.source.read(None)).sum())
