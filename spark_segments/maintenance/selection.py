"""Which topics a job looks into, and what all jobs share: their clock and their snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import LogDirError, UnknownTopicError
from spark_segments.log.logdir import LogDir
from spark_segments.log.snapshot import Snapshot


def selected_topics(log: LogDir, topic: str | None) -> Iterator[tuple[Snapshot, TopicConfig]]:
    """The snapshot and configuration of one topic, or of all. Raises for a Kafka directory, which no job may touch."""
    if log.is_kafka:
        raise LogDirError(
            "Maintenance does not touch a directory of Kafka's",
            path=log.uri,
            hint="Import it into a log directory of its own: segments import KAFKA_DIR LOG_DIR",
        )
    for name in [topic] if topic is not None else log.topics():
        try:
            snapshot = log.snapshot(name)
        except UnknownTopicError:
            if topic is not None:
                raise
            continue  # deleted since it was listed
        yield snapshot, topic_config(snapshot.config, log.defaults)
