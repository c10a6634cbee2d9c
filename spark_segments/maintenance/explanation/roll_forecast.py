"""A forecast of a segment before it is rolled: when that happens at the latest, and which timestamps it will have.

The forecast reads the manifest's rows alone. It holds for any appends until then, as long as later records have
timestamps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.manifest import row_tables
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.maintenance.explanation.record_explanation import TimeBounds
from spark_segments.maintenance.explanation.topic_forecast import NEVER, later, vacuum_moments
from spark_segments.maintenance.rolling.planned_segments import fills_a_segment
from spark_segments.maintenance.rolling.roll_plan import (
    OFFSET_OVERFLOW,
    SEGMENT_BYTES,
    SEGMENT_MS,
    SMALL_SHARE,
    RollRules,
    plan_roll,
)

_CERTAIN = {SEGMENT_BYTES, SEGMENT_MS, OFFSET_OVERFLOW}
"""The reasons for which a segment certainly ends. Of a full index the rows only say that it may end."""


@dataclass(frozen=True, slots=True)
class RollForecast:
    """The sealed segment that will hold a record of the active segment. Times in ms since 1970.

    `due_ms`: the latest moment at which a roll is due to seal it; NEVER if more records must come first. `least_ms` and
    `most_ms`: bounds of the largest timestamp in it and in all before it in the active segment; -1 and NEVER if nothing
    is known. `first_ms`: upper bound of its first batch's largest timestamp; NEVER if that batch may have none.
    """

    due_ms: int
    least_ms: int
    most_ms: int
    first_ms: int


def forecast_roll(
    chunks: pa.Table, row: int, rules: RollRules, now_ms: int, *, record_timestamp_ms: int | None = None
) -> RollForecast:
    """The segment that a record in `row` of `chunks` will be in. `chunks`: the rows of one partition's active segment,
    in order.

    A batch does not join a segment if its timestamp is more than segment.ms after that of the segment's first batch. So
    the largest timestamp is bounded before the records have come.
    """
    segments = Segment.of_table(chunks)
    before = [chunk for chunk in segments[: row + 1] if chunk.log_bytes]
    if _reasons(chunks.slice(0, row + 1), rules, now_ms):
        forecast = _of_some_segment(before, rules, record_timestamp_ms)
        is_due = False
    else:
        starts = list(_starts(before, rules))
        forecast = _of_first_segment(before, starts, segments[0], rules)
        is_due = len(starts) == 1 and bool(_CERTAIN & _reasons(chunks, rules, now_ms))
    if is_due or sum(chunk.log_bytes for chunk in segments[row + 1 :]) > rules.limits.segment_bytes:
        forecast = dataclasses.replace(forecast, due_ms=now_ms)
    if any(chunk.first_batch_max_timestamp_ms < 0 for chunk in segments if chunk.log_bytes):
        # After a merge the wait of the segment begins again at its new file's time. Its first timestamp is unknown.
        due_ms = forecast.due_ms if forecast.due_ms <= now_ms else NEVER
        forecast = dataclasses.replace(forecast, due_ms=due_ms, most_ms=NEVER, first_ms=NEVER)
    # segment.ms may be as large as a time can be: a sum beyond it is no moment that anybody could wait for.
    return dataclasses.replace(forecast, most_ms=min(forecast.most_ms, NEVER))


def _of_first_segment(
    before: Sequence[Segment], starts: Sequence[Segment], first: Segment, rules: RollRules
) -> RollForecast:
    """The forecast where no segment ends before the record, nor within its chunk, after any appends. `before`: the
    chunks up to the record's. `starts`: the chunks among them at which the segment may begin.
    """
    due_ms = 0
    most_ms = 0
    for chunk in starts:
        roll_ms = _roll_ms(chunk, first, rules)
        # A segment waits from its first timestamp on, or from its file's time where that is later, as roll has it.
        opened_ms = max(chunk.first_batch_max_timestamp_ms, chunk.created_ms)
        due_ms = max(due_ms, int(later(opened_ms, roll_ms)))
        most_ms = max(most_ms, chunk.first_batch_max_timestamp_ms + roll_ms)
    first_ms = max(chunk.first_batch_max_timestamp_ms for chunk in starts)
    least_ms = max(chunk.max_timestamp_ms for chunk in before)
    return RollForecast(due_ms, least_ms, most_ms, first_ms)


def _of_some_segment(before: Sequence[Segment], rules: RollRules, record_timestamp_ms: int | None) -> RollForecast:
    """The forecast where a segment may end anywhere up to the record: its own begins at any of the chunks."""
    first_ms = max(chunk.max_timestamp_ms for chunk in before)
    due_ms = max(int(later(max(chunk.max_timestamp_ms, chunk.created_ms), rules.segment_ms)) for chunk in before)
    # The segment's last chunk may lose its end to the next segment, so that only the chunks before count for sure.
    least_ms = max((chunk.max_timestamp_ms for chunk in before[:-1]), default=-1)
    if record_timestamp_ms is not None:
        least_ms = max(least_ms, record_timestamp_ms)
    return RollForecast(due_ms, least_ms, first_ms + rules.segment_ms, first_ms)


def _reasons(chunks: pa.Table, rules: RollRules, now_ms: int) -> set[str]:
    """Why a segment may end within these chunks; empty if none does."""
    return {
        reason
        for partition in plan_roll(chunks, rules, now_ms).partitions
        if partition.needs_headers
        for reason in partition.reasons
    }


def _starts(chunks: Sequence[Segment], rules: RollRules) -> Iterator[Segment]:
    """The chunks at which the segment of the last chunk may begin, if no segment has to end in between.

    It begins at the first chunk, unless one chunk fills a segment: an existing chunk, or a merged one. Merging leaves
    out the chunks before only if they are large enough by then.
    """
    log_bytes = 0
    for chunk in chunks:
        if not log_bytes or log_bytes >= rules.limits.segment_bytes * SMALL_SHARE or fills_a_segment(chunk, rules):
            yield chunk
        log_bytes += chunk.log_bytes


def _roll_ms(chunk: Segment, first: Segment, rules: RollRules) -> int:
    """segment.ms less the jitter of a segment that begins at `chunk`, or at an empty file (`first`) before it."""
    offsets = {chunk.base_offset} | ({first.base_offset} if first.log_bytes == 0 else set())
    return max(rules.roll_ms(chunk.partition, offset) for offset in offsets)


def object_deleted(snapshot: Snapshot, config: TopicConfig, path: str, now_ms: int, every_ms: int) -> TimeBounds:
    """When vacuum deletes a shared object that rows of `snapshot` name. `every_ms`: how often each job runs."""
    rows = snapshot.segments.filter(pc.equal(snapshot.segments.column("path"), path))
    bounds = []
    for run, removed_ms in zip(Segment.of_table(rows), vacuum_moments(rows, config).tolist(), strict=True):
        if run.is_live:
            copied_ms = _copied_ms(snapshot, config, run, now_ms)
            by_ms = copied_ms + every_ms if copied_ms < NEVER else NEVER
            moments = [int(later(at_ms, config.file_delete_delay_ms)) for at_ms in (now_ms, by_ms)]
        else:
            moments = [max(removed_ms, now_ms)] * 2
        bounds.append(TimeBounds.of(moments[0], moments[1] + every_ms))
    return last_of(bounds)


def _copied_ms(snapshot: Snapshot, config: TopicConfig, run: Segment, now_ms: int) -> int:
    """The latest moment at which a roll is due to copy a live run."""
    active = snapshot.live_table(run.partition)
    active = row_tables.in_states(active, Segment.CHUNK)
    row = active.column("base_offset").to_pylist().index(run.base_offset)
    return max(forecast_roll(active, row, RollRules.of(snapshot.topic_id, config), now_ms).due_ms, now_ms)


def last_of(bounds: Sequence[TimeBounds]) -> TimeBounds:
    """When the last of several things happens."""
    earliest, latest = ([getattr(window, name) for window in bounds] for name in ("earliest_ms", "latest_ms"))
    return TimeBounds(*(None if None in moments else max(moments) for moments in (earliest, latest)))
