"""What the page shows of a log directory: its topics as they are now, and what is wrong with it as a whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from spark_segments.cli.page.worries import disk_worry, group_worries
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.log.groups.lag import group_lags

if TYPE_CHECKING:
    from spark_segments.log.manifest.snapshot import Snapshot
    from spark_segments.log.topics import Topics


def read_topics(log: Topics) -> tuple[list[tuple[Snapshot, TopicConfig]], list[str]]:
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


def log_worries(log: Topics, snapshots: Iterable[Snapshot], now_ms: int) -> list[str]:
    """Sentences about the log directory as a whole: its disk, and the groups that read these topics."""
    worries = []
    if "://" not in log.uri or log.uri.startswith("file://"):  # object stores have no end
        usage = shutil.disk_usage(Path(log.uri.removeprefix("file://")))
        worry = disk_worry(usage.free, usage.total)
        worries += [] if worry is None else [worry]
    try:
        worries += group_worries(group_lags(log, snapshots), now_ms)
    except SegmentsError as error:
        worries.append(f"the groups cannot be read: {error}")
    return worries
