"""Which topics a job looks into, and what all jobs share: their snapshots, and for how long their work is good."""

from __future__ import annotations

from collections.abc import Iterator

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import CommitConflictError, LogDirError, UnknownTopicError
from spark_segments.log.append import OLDEST_CHUNK_MS
from spark_segments.log.logdir import LogDir
from spark_segments.log.snapshot import Snapshot
from spark_segments.storage import Storage


def check_managed(log: LogDir) -> None:
    """Raises LogDirError for a directory of Kafka's, which no job may touch."""
    if log.is_kafka:
        raise LogDirError(
            "Maintenance does not touch a directory of Kafka's",
            path=log.uri,
            hint="Import it into a log directory of its own: segments import KAFKA_DIR LOG_DIR",
        )


def selected_topics(log: LogDir, topic: str | None) -> Iterator[tuple[Snapshot, TopicConfig]]:
    """The snapshot and configuration of one topic, or of all. Raises UnknownTopicError, and as `check_managed`."""
    check_managed(log)
    for name in [topic] if topic is not None else log.topics():
        try:
            snapshot = log.snapshot(name)
        except UnknownTopicError:
            if topic is not None:
                raise
            continue  # deleted since it was listed
        yield snapshot, topic_config(snapshot.config, log.defaults)


def check_young(storage: Storage, started_ms: int) -> None:
    """Raises CommitConflictError where files written since `started_ms`, by the store's clock, are too old to commit.

    Vacuum takes what nothing names once it is old enough. A job may be that slow: a machine was asleep, say.
    """
    now_ms = storage.now_ms()
    if now_ms - started_ms > OLDEST_CHUNK_MS:
        raise CommitConflictError(
            "The files of this job are too old to be committed: vacuum might have taken them",
            expected=f"at most {OLDEST_CHUNK_MS // 3_600_000} hours",
            found=f"{(now_ms - started_ms) // 3_600_000} hours",
            hint="Run it again",
        )
