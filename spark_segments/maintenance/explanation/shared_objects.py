"""When a shared object goes: after the last of its runs, whichever partition that is of."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from spark_segments.config import TopicConfig
from spark_segments.log.manifest.rows import CHUNK, Segment, segments_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.maintenance.explanation.record_explanation import TimeBounds
from spark_segments.maintenance.explanation.roll_forecast import forecast_roll
from spark_segments.maintenance.explanation.topic_forecast import NEVER, later, vacuum_moments
from spark_segments.maintenance.rolling.plan import RollRules


def object_deleted(snapshot: Snapshot, config: TopicConfig, path: str, now_ms: int, every_ms: int) -> TimeBounds:
    """When vacuum deletes a shared object that rows of `snapshot` name. `every_ms`: how often each job runs."""
    rows = snapshot.segments.filter(pc.equal(snapshot.segments.column("path"), path))
    bounds = []
    for run, removed_ms in zip(segments_of(rows), vacuum_moments(rows, config).tolist(), strict=True):
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
    active = active.filter(pc.equal(active.column("state"), CHUNK))
    row = active.column("base_offset").to_pylist().index(run.base_offset)
    return max(forecast_roll(active, row, RollRules.of(snapshot.topic_id, config), now_ms).due_ms, now_ms)


def last_of(bounds: Sequence[TimeBounds]) -> TimeBounds:
    """When the last of several things happens."""
    earliest, latest = ([getattr(one, name) for one in bounds] for name in ("earliest_ms", "latest_ms"))
    return TimeBounds(*(None if None in moments else max(moments) for moments in (earliest, latest)))
