"""The next actions of the jobs on a partition, as the page shows them."""

from __future__ import annotations

from dataclasses import dataclass

from spark_segments.maintenance.explanation.topic_forecast import NEVER

JOBS = ROLL, RETAIN, COMPACT, VACUUM = ("roll", "retain", "compact", "vacuum")


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
