"""The content of the page for a topic: the numbers of `describe`, the segments of each partition, and the next jobs.

A partition may have thousands of segments and a page thousands of partitions, so neighbouring segments that would be
hairlines are drawn as one block. A page has about BLOCKS_A_PAGE blocks, and a strip about MOST_BLOCKS at most.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from spark_segments.cli.page.words import count, duration, ratio, when
from spark_segments.config import TopicConfig
from spark_segments.log import Segment, Snapshot, describe
from spark_segments.maintenance.explanation.topic_forecast import NEVER, TopicForecast, forecast_topic
from spark_segments.maintenance.retention.retention_plan import RETENTION_MS
from spark_segments.quantities import human_bytes, plural
from spark_segments.replicas.role import Role

BLOCKS_A_PAGE = 16_000
LEAST_BLOCKS = 8
MOST_BLOCKS = 120

CLEAN = "clean"
DIRTY = "dirty"
SEALED = "sealed"
ACTIVE = "active"
"""Kinds of segments: in the clean tail or the dirty head of a compacted partition, sealed in any other partition, or
active (a chunk; in Kafka's own directories the last segment)."""


@dataclass(frozen=True, slots=True)
class Block:
    """Neighbouring segments that are drawn as one block; mostly a single segment.

    `rows`: [start, end) among the partition's live rows. `clean_share`: the part of a dirty segment that is in the
    clean tail.
    """

    kind: str
    rows: tuple[int, int]
    log_bytes: int
    clean_share: float = 0.0

    @property
    def segments(self) -> int:
        return self.rows[1] - self.rows[0]


def blocks_a_strip(partitions: int) -> int:
    """The limit for `blocks` on a page with so many partitions."""
    return max(LEAST_BLOCKS, min(MOST_BLOCKS, BLOCKS_A_PAGE // max(partitions, 1)))


def blocks(segments: Sequence[Block], limit: int) -> list[Block]:
    """The segments as at most about `limit` blocks, in order.

    With more than `limit` segments, neighbours of the same kind are merged while they are no longer than 2 / `limit` of
    the strip. Two neighbouring blocks of a kind together are then longer than that. So there are at most `limit`
    blocks, plus a block for each change of kind.
    """
    if len(segments) <= limit:
        return list(segments)
    longest = 2 * sum(segment.log_bytes for segment in segments) / limit
    joined: list[Block] = []
    for segment in segments:
        last = joined[-1] if joined else None
        is_alike = last is not None and last.kind == segment.kind and not last.clean_share and not segment.clean_share
        if last is not None and is_alike and last.log_bytes + segment.log_bytes <= longest:
            joined[-1] = Block(segment.kind, (last.rows[0], segment.rows[1]), last.log_bytes + segment.log_bytes)
        else:
            joined.append(segment)
    return joined


ROLL = "roll"
RETAIN = "retain"
COMPACT = "compact"
VACUUM = "vacuum"
JOBS = (ROLL, RETAIN, COMPACT, VACUUM)


@dataclass(frozen=True, slots=True)
class StepView:
    """The next action of a job on a partition.

    `due`: the job acts now. `at_ms`: else the time at which it acts if nothing is appended, NEVER without such a time.
    `since_ms`: since when it has been due, by the clock; NEVER where the clock has no part in it.
    """

    job: str
    text: str
    due: bool = False
    at_ms: int = NEVER
    since_ms: int = NEVER


SETTINGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "segment.bytes",
    "segment.ms",
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
    "file.delete.delay.ms",
)
"""Settings that the page shows for every topic. Other settings are shown only where the topic sets them."""


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block of a strip, and the numbers of its segments.

    Times are ms since 1970, -1 where no record has a timestamp. `path` is None for several segments. `goes` says when
    the segment, or the first and the last of several, can leave the log.
    """

    block: Block
    base_offset: int
    next_offset: int
    records: int
    tombstones: int
    first_ms: int
    last_ms: int
    path: str | None
    goes: str


SOON_MS = (0, 3_600_000, 86_400_000, 7 * 86_400_000, 30 * 86_400_000)
"""Deletions of a topic whose times from now lie between the same two of these limits are shown as one line."""


@dataclass(frozen=True, slots=True)
class Deletion:
    """What retention takes out of a topic by one rule, from `at_ms` on: now, or within one of the spans of SOON_MS."""

    at_ms: int
    rule: str
    segments: int
    records: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """`numbers`: the partition's entry in `describe`. `warnings`: what somebody should look into, a sentence each."""

    numbers: dict[str, Any]
    strip: list[BlockView]
    steps: list[StepView]
    warnings: tuple[str, ...] = ()

    @property
    def due(self) -> list[StepView]:
        return [step for step in self.steps if step.due]

    @property
    def next_step(self) -> StepView | None:
        """The next step that only waits for its time, or None. Vacuum changes no log: it comes last."""
        waiting = [step for step in self.steps if step.at_ms < NEVER and not step.due]
        return min(waiting, key=lambda step: (step.job == VACUUM, step.at_ms), default=None)


@dataclass(frozen=True, slots=True)
class TopicView:
    """`described`: the result of `Topic.describe`. `settings`: (name, value, source) of the settings shown.

    `deletions`: what retention takes next, the soonest first. `removed_bytes`: what waits for vacuum. `newest_ms`: the
    largest timestamp, -1 without one.
    """

    described: dict[str, Any]
    settings: list[tuple[str, str, str]]
    partitions: list[PartitionView]
    deletions: list[Deletion]
    removed_bytes: int
    newest_ms: int

    @property
    def largest(self) -> int:
        """The bytes of the largest partition."""
        return max((view.numbers["size_bytes"] for view in self.partitions), default=0)

    def total(self, name: str) -> int:
        """The sum of a number of the partitions."""
        return sum(view.numbers[name] for view in self.partitions)


def topic_view(snapshot: Snapshot, config: TopicConfig, now_ms: int, most_blocks: int) -> TopicView:
    """The content of the page for a topic at `now_ms`, with at most about `most_blocks` blocks per strip."""
    description = describe(snapshot, config)
    forecast = forecast_topic(snapshot, config, now_ms)
    segments = Segment.of_table(snapshot.live)
    ends = np.searchsorted(forecast.owner, np.arange(len(description["partitions"]) + 1)).tolist()
    views = []
    for row, numbers in enumerate(description["partitions"]):
        start = ends[row]
        partition = _Partition(row, numbers, segments[start : ends[row + 1]], start, config, forecast, now_ms)
        views.append(_partition_view(snapshot, partition, most_blocks))
    effective = config.effective()
    sources = config.sources()
    names = [*SETTINGS, *(name for name in sorted(snapshot.config) if name not in SETTINGS)]
    # A follower loses what its leader loses: its own retention removes nothing.
    deletions = _deletions(segments, forecast, now_ms) if snapshot.role == Role.LEADER else []
    return TopicView(
        described=description,
        settings=[(name, effective[name], sources[name]) for name in names],
        partitions=views,
        deletions=deletions,
        removed_bytes=snapshot.removed_bytes,
        newest_ms=max((segment.max_timestamp_ms for segment in segments), default=-1),
    )


def _partition_view(snapshot: Snapshot, partition: _Partition, most_blocks: int) -> PartitionView:
    steps = partition.steps()
    # Vacuum alone runs on a follower: the other jobs wait there for the leader, and are not late.
    own_steps = [step for step in steps if snapshot.role == Role.LEADER or step.job == VACUUM]
    last_stable = snapshot.partitions.column("last_stable_offset")[partition.row].as_py()
    sealed_ends = [segment.next_offset for segment in partition.segments if segment.state == Segment.SEALED]
    warnings = partition_warnings(
        partition.numbers, own_steps, last_stable, max(sealed_ends, default=0), partition.now_ms
    )
    return PartitionView(partition.numbers, partition.strip(most_blocks), steps, warnings)


def _deletions(rows: Sequence[Segment], forecast: TopicForecast, now_ms: int) -> list[Deletion]:
    """`rows`: the live segments, as the forecast has them."""
    deleted: dict[tuple[int, str], list[tuple[int, Segment]]] = {}
    for row, retain_ms in enumerate(forecast.retain_ms.tolist()):
        rule = forecast.expired.get(row, RETENTION_MS)
        at_ms = retain_ms
        if rows[row].state != Segment.SEALED:  # it goes with its partition, once roll has sealed it
            at_ms = max(int(forecast.expires_ms[forecast.owner[row]]), now_ms)
        if row in forecast.expired:
            at_ms = now_ms
        if at_ms < NEVER:
            span = bisect_left(SOON_MS, at_ms - now_ms)
            deleted.setdefault((span, rule), []).append((at_ms, rows[row]))
    return [
        Deletion(
            min(at_ms for at_ms, _ in several),
            rule,
            len(several),
            sum(segment.records for _, segment in several),
            sum(segment.log_bytes for _, segment in several),
        )
        for (_, rule), several in sorted(deleted.items(), key=lambda item: item[0])
    ]


@dataclass(frozen=True, slots=True)
class _Partition:
    """A partition whose view is being made. `start`: its first row among the topic's live rows."""

    row: int
    numbers: dict[str, Any]
    segments: Sequence[Segment]
    start: int
    config: TopicConfig
    forecast: TopicForecast
    now_ms: int

    def strip(self, most_blocks: int) -> list[BlockView]:
        pieces = [self._piece(place, segment) for place, segment in enumerate(self.segments)]
        return [self._block(block) for block in blocks(pieces, most_blocks)]

    def _piece(self, place: int, segment: Segment) -> Block:
        """The block of a segment, with its share of clean offsets (those below the first dirty offset).

        A Kafka directory does not have the topics' policies: a partition that has been cleaned counts as compacted.
        """
        rows = (place, place + 1)
        first_dirty = self.numbers["first_dirty_offset"]
        if segment.state != Segment.SEALED:
            return Block(ACTIVE, rows, segment.log_bytes)
        if not self.config.compact and first_dirty <= self.numbers["log_start_offset"]:
            return Block(SEALED, rows, segment.log_bytes)
        # The first dirty offset may lie in the segment: |base ==clean== first dirty ==dirty== next|
        share = (first_dirty - segment.base_offset) / max(segment.next_offset - segment.base_offset, 1)
        if share >= 1:
            return Block(CLEAN, rows, segment.log_bytes)
        return Block(DIRTY, rows, segment.log_bytes, max(share, 0.0))

    def _block(self, block: Block) -> BlockView:
        start, end = block.rows
        segments = self.segments[start:end]
        firsts = [segment.first_batch_max_timestamp_ms for segment in segments]
        goes = self._goes(start)
        last_goes = self._goes(end - 1)
        if last_goes != goes:
            goes = f"{goes}; the last: {last_goes}"
        return BlockView(
            block,
            segments[0].base_offset,
            segments[-1].next_offset,
            sum(segment.records for segment in segments),
            sum(max(segment.tombstones, 0) for segment in segments),  # -1: not known
            min((first for first in firsts if first >= 0), default=-1),
            max(segment.max_timestamp_ms for segment in segments),
            segments[0].place if len(segments) == 1 else None,
            goes,
        )

    def _goes(self, place: int) -> str:
        """When a whole segment leaves the log."""
        row = self.start + place
        if row in self.forecast.expired:
            return f"now, by {self.forecast.expired[row]}"
        if self.segments[place].state != Segment.SEALED:
            return "not before it is rolled"
        ways = self._retention(row)
        if ways:
            return " or ".join(ways)
        return "never as a whole: it is compacted" if self.config.compact else "never: nothing limits it"

    def _retention(self, row: int) -> list[str]:
        """The ways in which retention can later remove a sealed segment that stays now."""
        ways = []
        at_ms = int(self.forecast.retain_ms[row])
        if at_ms < NEVER:
            ways.append(f"{when(at_ms, self.now_ms)}, by retention.ms")
        growth_bytes = int(self.forecast.retain_bytes[row])
        if growth_bytes < NEVER:
            ways.append(f"with {human_bytes(growth_bytes)} more, by retention.bytes")
        return ways

    def steps(self) -> list[StepView]:
        steps = [self._roll(), self._retain()]
        steps += [self._compact()] if self.config.compact else []
        return [*steps, self._vacuum()] if self.forecast.removed[self.row] else steps

    def _roll(self) -> StepView:
        active = sum(segment.log_bytes for segment in self.segments if segment.state != Segment.SEALED)
        if not active:
            return StepView(ROLL, "nothing: the active segment is empty")
        idle_ms = int(self.forecast.idle_ms[self.row])
        expires_ms = int(self.forecast.expires_ms[self.row])
        at_ms = min(idle_ms, expires_ms)
        roll = self.forecast.roll.get(self.row)
        if roll:
            return StepView(ROLL, f"now: {', '.join(roll.reasons)}", due=True, since_ms=at_ms)
        full = f"when segment.bytes are full: {human_bytes(active)} of {human_bytes(self.config.segment_bytes)}"
        if at_ms == NEVER:
            return StepView(ROLL, full)
        why = "by segment.ms" if idle_ms <= expires_ms else "because all of it has expired by then"
        return StepView(ROLL, f"{when(at_ms, self.now_ms)} {why}, or {full}", at_ms=at_ms)

    def _retain(self) -> StepView:
        expired = [row for row in range(self.start, self.start + len(self.segments)) if row in self.forecast.expired]
        if expired:
            return self._retain_now(expired)
        if not self.config.delete:
            return StepView(RETAIN, "nothing: cleanup.policy has no delete")
        if not self.segments or self.segments[0].state != Segment.SEALED:
            return self._retain_active()
        ways = self._retention(self.start)
        if not ways:
            return StepView(RETAIN, "nothing: retention.ms and retention.bytes are -1")
        return StepView(
            RETAIN, f"the oldest segment {' or '.join(ways)}", at_ms=int(self.forecast.retain_ms[self.start])
        )

    def _retain_now(self, expired: Sequence[int]) -> StepView:
        """`expired`: rows of the forecast, at least one."""
        size = human_bytes(sum(self.segments[row - self.start].log_bytes for row in expired))
        reasons = ", ".join(dict.fromkeys(self.forecast.expired[row] for row in expired))
        text = f"now: {plural(len(expired), 'sealed segment')}, {size}, by {reasons}"
        newest_ms = self.segments[expired[0] - self.start].max_timestamp_ms
        is_by_time = newest_ms >= 0 and self.forecast.expired[expired[0]] == RETENTION_MS
        since_ms = newest_ms + self.config.retention_ms if is_by_time else NEVER
        return StepView(RETAIN, text, due=True, since_ms=since_ms)

    def _retain_active(self) -> StepView:
        at_ms = int(self.forecast.expires_ms[self.row])
        if at_ms == NEVER:
            return StepView(RETAIN, "nothing: no segment is sealed")
        expires = "has expired" if at_ms <= self.now_ms else f"expires {when(at_ms, self.now_ms)}"
        return StepView(RETAIN, f"all of the active segment {expires}: retain takes it once roll has sealed it")

    def _compact(self) -> StepView:
        candidate = self.forecast.compact.get(self.row)
        if candidate is None:
            return StepView(COMPACT, "nothing: no segment is sealed")
        least = self.config.min_cleanable_dirty_ratio
        sizes = f"{human_bytes(candidate.cleanable_bytes)} cleanable beside {human_bytes(candidate.clean_bytes)} clean"
        if candidate.picked:
            return StepView(
                COMPACT,
                f"now, by {candidate.reason}: {sizes}, ratio {ratio(candidate.ratio)}",
                due=True,
                since_ms=int(self.forecast.max_lag_ms[self.row]),
            )
        text = f"{candidate.reason}: {sizes}, ratio {ratio(candidate.ratio)}, wanted is more than {least:g}"
        if not candidate.cleanable_bytes:
            text = f"nothing is cleanable beside {human_bytes(candidate.clean_bytes)} clean"
        if self.config.min_compaction_lag_ms:
            text += f"; min.compaction.lag.ms protects {duration(self.config.min_compaction_lag_ms)}"
        at_ms = int(self.forecast.max_lag_ms[self.row])
        if at_ms < NEVER:
            text += f"; {when(at_ms, self.now_ms)} at the latest, by max.compaction.lag.ms"
        return StepView(COMPACT, text, at_ms=at_ms)

    def _vacuum(self) -> StepView:
        at_ms = int(self.forecast.vacuum_ms[self.row])
        size = human_bytes(int(self.forecast.removed_bytes[self.row]))
        text = f"{plural(int(self.forecast.removed[self.row]), 'segment')} that left the log, {size}"
        if at_ms <= self.now_ms:
            return StepView(VACUUM, f"now: {text}", due=True, since_ms=at_ms)
        return StepView(VACUUM, f"{text}: from {when(at_ms, self.now_ms)}, by file.delete.delay.ms", at_ms=at_ms)


OVERDUE_MS = 86_400_000
"""A job that has been due for longer than a day is overdue: schedules run by the hour."""


MANY_CHUNKS = 1000


def partition_warnings(
    numbers: Mapping[str, Any], steps: Sequence[StepView], last_stable_offset: int, sealed_end: int, now_ms: int
) -> tuple[str, ...]:
    """Sentences about a partition. `sealed_end`: the next offset after its sealed segments."""
    warnings = [
        f"{step.job} has been due for {duration(now_ms - step.since_ms)}: does the job run?"
        for step in steps
        if step.due and now_ms - step.since_ms > OVERDUE_MS
    ]
    if numbers["chunks"] > MANY_CHUNKS:
        warnings.append(f"{count(numbers['chunks'])} chunks: roll does not run, or appends are very small")
    if last_stable_offset < sealed_end:
        warnings.append(
            f"an open transaction holds the last stable offset at {count(last_stable_offset)}: cleaning and "
            "read_committed readers go no further"
        )
    return tuple(warnings)
