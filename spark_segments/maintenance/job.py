"""A run of a job: what all jobs take, the topics that it works on, and their snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from spark_segments.config import TopicConfig, selected_topics, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.role import FOLLOWER
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.report import Report
from spark_segments.progress import Progress
from spark_segments.quantities import Time, moment_ms
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Job:
    """A run of a job: where it works, on which topics, who does its tasks, and the report that it fills.

    `now_ms`: the moment that it plans by. `planned`: in dry runs of several jobs, one after the other, the topics as
    the jobs before this one would leave them, by name; it adds what it would do itself.
    """

    log: LogDirectory
    report: Report
    topics: Sequence[str] | None
    spark: SparkSession | None
    progress: Progress | None
    now_ms: int
    planned: dict[str, Snapshot] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        log: LogDirectory,
        topics: Sequence[str] | None,
        spark: SparkSession | None,
        dry_run: bool,
        progress: Progress | None,
        now_ms: Time | None = None,
        planned: dict[str, Snapshot] | None = None,
    ) -> Job:
        """The job of this name, now, or at `now_ms`. Raises LogDirError for a directory of Kafka's."""
        log.check_writable()
        at_ms = log.storage.now_ms() if now_ms is None else moment_ms(now_ms)
        return cls(log, Report(name, dry_run), topics, spark, progress, at_ms, planned if dry_run else None)

    @property
    def storage(self) -> Storage:
        return self.log.storage

    @property
    def dry_run(self) -> bool:
        return self.report.dry_run

    def config(self, snapshot: Snapshot) -> TopicConfig:
        """A topic's configuration, with the log directory's defaults."""
        return topic_config(snapshot.config, self.log.defaults)

    def run(self, function: Callable[[Task], Result], tasks: Sequence[Task], **options: Any) -> list[Result]:
        """As `run_tasks`, with the job's progress."""
        return run_tasks(function, tasks, self.spark, progress=self.progress, **options)

    def names(self) -> list[str]:
        """The topics that are selected. Raises UnknownTopicError if one of `topics` is not there."""
        return selected_topics(self.log.directories(), self.topics)

    def as_planned(self, snapshot: Snapshot) -> Snapshot:
        """The topic as the jobs before this one would leave it."""
        planned = (self.planned or {}).get(snapshot.topic)
        return planned if planned is not None and planned.topic_id == snapshot.topic_id else snapshot

    def snapshots(self, policy: str | None = None, *, load: bool = True) -> Iterator[tuple[Snapshot, TopicConfig]]:
        """Yields (snapshot, configuration) of the topics that are selected. `policy`: only topics whose cleanup.policy
        has it. `load`: the live rows are read here.

        A topic that cannot be read, or that takes no job because it is a follower or fenced, goes into the report as
        failed; a follower only if its name is in `topics`. Raises UnknownTopicError if a topic of `topics` is not
        there.
        """
        for name in self.names():
            is_named = self.topics is not None and name in self.topics
            try:
                snapshot = self.as_planned(self.log.snapshot(name))
                config = self.config(snapshot)
                if policy is not None and policy not in config.cleanup_policy:
                    continue
                if snapshot.role == FOLLOWER and not is_named:
                    continue  # its mirror brings what this job does at its leader
                snapshot.check_role(self.report.job)
                if load:
                    _ = snapshot.live
            except UnknownTopicError:
                if is_named:
                    raise
                continue  # it was deleted
            except SegmentsError as error:
                self.report.fail(name, None, error)
                continue
            yield snapshot, config
