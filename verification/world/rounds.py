"""Rounds of a partition's compaction as a test runs them: what is planned, how many threads and slices clean it."""

from __future__ import annotations

from spark_segments.maintenance.compaction.compaction_plan import (
    NOT_DIRTY,
    CompactionCandidate,
    count_large,
    groups,
    plan_compaction,
)
from spark_segments.maintenance.compaction.first_pass import slices
from spark_segments.maintenance.compaction.partition_cleaner import PartitionResult, clean_partition
from spark_segments.maintenance.compaction.round import CleanerSettings, RoundPlan, RoundResult
from spark_segments.maintenance.compaction.round_tasks import ONE_TASK, RoundTasks, rewriting_tasks

__all__ = [
    "NOT_DIRTY",
    "ONE_TASK",
    "CleanerSettings",
    "CompactionCandidate",
    "PartitionResult",
    "RoundPlan",
    "RoundResult",
    "RoundTasks",
    "clean_partition",
    "count_large",
    "groups",
    "plan_compaction",
    "rewriting_tasks",
    "slices",
]
