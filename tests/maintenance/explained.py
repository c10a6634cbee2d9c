"""Explanations of records in rows that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence

from spark_segments.maintenance.explanation.explain import explain_record
from spark_segments.maintenance.explanation.record_explanation import Explanation, TimeBounds
from tests.maintenance.rows import TOPIC_ID, snapshot
from tests.maintenance.schedule import TOPIC
from verification.world.manifest_rows import Partition, Segment

NOW_MS = 1_000_000
EVERY_MS = 100
DELAY_MS = 5000
NEVER = TimeBounds(None, None)


def explained(
    rows: Sequence[Segment],
    offset: int = 5,
    *,
    now_ms: int = NOW_MS,
    log_start: int = 0,
    first_dirty: int = 0,
    cleaner: bool = True,
    every_ms: int = EVERY_MS,
    timestamp_ms: int | None = None,
    **overrides: object,
) -> Explanation:
    """Of a topic with these rows and settings; deleted are files after DELAY_MS."""
    config = {"file.delete.delay.ms": DELAY_MS} | {name.replace("_", "."): one for name, one in overrides.items()}
    end = max((one.next_offset for one in rows), default=0)
    partition = Partition(TOPIC_ID, 0, log_start, end, max(first_dirty, log_start), end)
    made, typed = snapshot(TOPIC, {name: str(value) for name, value in config.items()}, rows, [partition])
    return explain_record(made, typed, 0, offset, now_ms, every_ms=every_ms, cleaner=cleaner, timestamp_ms=timestamp_ms)


def after(first_ms: int, last_ms: int | None) -> TimeBounds:
    """When a file is deleted that leaves the log between these moments."""
    return TimeBounds(first_ms + DELAY_MS + 1, None if last_ms is None else last_ms + DELAY_MS + 1 + EVERY_MS)


def rules(one: Explanation) -> list[tuple[str, str]]:
    return [(step.job, step.rule) for step in one.steps]
