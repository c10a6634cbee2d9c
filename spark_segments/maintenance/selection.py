"""The topics that a job works on, their snapshots, and how old a job's files may be when they are committed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import InvalidOptionError, SegmentsError, UnknownTopicError
from spark_segments.execution import run_tasks
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.report import Report
from spark_segments.progress import Progress

TOPICS_AT_A_TIME = 8

T = TypeVar("T")


def selected_topics(
    log: LogDirectory, topics: Sequence[str] | None, report: Report, policy: str | None = None, *, load: bool = True
) -> Iterator[tuple[Snapshot, TopicConfig]]:
    """Yields (snapshot, configuration) of the topics that are `selected`. `policy`: only topics whose cleanup.policy
    has it. `load`: the live rows are read here.

    A topic that cannot be read, or that takes no job because it is a follower or fenced, goes into the report as
    failed. Raises UnknownTopicError if a topic of `topics` is not there, LogDirError for a directory of Kafka's.
    """
    log.check_writable()
    for name in LogDirectory.selected(log.directories(), topics):
        try:
            snapshot = log.snapshot(name)
            config = topic_config(snapshot.config, log.defaults)
            if policy is not None and policy not in config.cleanup_policy:
                continue
            snapshot.role.check(name, report.job)
            if load:
                _ = snapshot.live
        except UnknownTopicError:
            if topics is not None and name in topics:
                raise
            continue  # it was deleted
        except SegmentsError as error:
            report.fail(name, None, error)
            continue
        yield snapshot, config


def each_topic(
    report: Report,
    topics: Sequence[str],
    run: Callable[[str], T],
    note: Callable[[T], None],
    progress: Progress | None,
    *,
    lacking: str,
) -> None:
    """Runs a job for each topic, several at a time: with small topics it is mostly waiting for the stores.

    `note` gets what `run` returns; a topic that fails goes into the report. Raises InvalidOptionError, with the text
    `lacking`, where there is no topic.
    """
    if not topics:
        raise InvalidOptionError(lacking, expected="the names of topics", found="none")

    def tried(topic: str) -> T | Exception:
        try:
            return run(topic)
        except (SegmentsError, OSError) as error:
            return error

    done = run_tasks(tried, topics, progress=progress, at_a_time=TOPICS_AT_A_TIME)
    for topic, one in zip(topics, done, strict=True):
        if isinstance(one, Exception):
            report.add(topic, None, Report.FAILED, error=str(one))
        else:
            note(one)
