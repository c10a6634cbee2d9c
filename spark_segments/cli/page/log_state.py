"""What the page shows of a log directory: its topics as they are now, and what is wrong with it as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.cli.page.worries import disk_worry
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError

if TYPE_CHECKING:
    from spark_segments.log.logdir import LogDir
    from spark_segments.log.manifest.snapshot import Snapshot


def read_topics(log: LogDir) -> tuple[list[tuple[Snapshot, TopicConfig]], list[str]]:
    """(the topics with their configurations, a sentence for each topic that cannot be read)"""
    topics, unreadable = [], []
    for name in log.topics():
        try:
            snapshot = log.snapshot(name)
            _ = snapshot.live
            topics.append((snapshot, topic_config(snapshot.config, log.defaults)))
        except UnknownTopicError:
            continue  # it was deleted after it was listed
        except SegmentsError as error:
            unreadable.append(f"{name}: {error}")
    return topics, unreadable


def log_worries(uri: str) -> list[str]:
    """Sentences about the log directory as a whole: a disk that is nearly full. Object stores have no end."""
    if "://" in uri and not uri.startswith("file://"):
        return []
    usage = shutil.disk_usage(Path(uri.removeprefix("file://")))
    worry = disk_worry(usage.free, usage.total)
    return [] if worry is None else [worry]
