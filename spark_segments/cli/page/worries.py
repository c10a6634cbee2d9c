"""What somebody should look into: jobs that do not run, readers that stand still, a disk that is nearly full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spark_segments.cli.page.steps import StepView
from spark_segments.cli.page.words import count, duration, human_bytes
from spark_segments.log.groups.lag import GroupLag

OVERDUE_MS = 86_400_000
"""A job that has been due for longer than a day is overdue: schedules run by the hour."""

MANY_CHUNKS = 1000
LEAST_FREE_SHARE = 0.1


def partition_worries(
    numbers: Mapping[str, Any], steps: Sequence[StepView], last_stable_offset: int, sealed_end: int, now_ms: int
) -> tuple[str, ...]:
    """Sentences about a partition. `sealed_end`: the next offset after its sealed segments."""
    worries = [
        f"{step.job} has been due for {duration(now_ms - step.since_ms)}: does the job run?"
        for step in steps
        if step.due and now_ms - step.since_ms > OVERDUE_MS
    ]
    if numbers["chunks"] > MANY_CHUNKS:
        worries.append(f"{count(numbers['chunks'])} chunks: roll does not run, or appends are very small")
    if last_stable_offset < sealed_end:
        worries.append(
            f"an open transaction holds the last stable offset at {count(last_stable_offset)}: cleaning and "
            "read_committed readers go no further"
        )
    return tuple(worries)


def group_worries(lags: Iterable[GroupLag], now_ms: int) -> list[str]:
    """Sentences about groups whose readers stand still while there are records, or came too late for some."""
    worries = []
    for lag in lags:
        name = f"group {lag.group} in {lag.topic}-{lag.partition}"
        if lag.gone:
            worries.append(f"{name}: {count(lag.gone)} offsets left the log before it read them")
        if lag.lag and now_ms - lag.committed_ms > OVERDUE_MS:
            still = duration(now_ms - lag.committed_ms)
            worries.append(f"{name}: a lag of {count(lag.lag)} offsets, and no commit for {still}")
    return worries


def disk_worry(free_bytes: int, total_bytes: int) -> str | None:
    """A sentence about a disk with little room; None where there is enough."""
    if free_bytes >= LEAST_FREE_SHARE * total_bytes:
        return None
    return f"the disk is nearly full: {human_bytes(free_bytes)} of {human_bytes(total_bytes)} are free"
