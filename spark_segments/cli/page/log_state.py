"""The contents of the page of a log directory: the newest snapshots of as many topics as fit, and the problems found.

However large the log directory, a page has a bound: it begins at a topic and a partition, and names the start of the
next page. So the cost of a page depends on what it shows alone.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from spark_segments.cli.page.view import OVERDUE_MS
from spark_segments.cli.page.words import count, duration
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.face.history import Size, sizes
from spark_segments.log import Group
from spark_segments.quantities import human_bytes

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import GroupLag, Snapshot

PARTITIONS_A_PAGE = 1000
SEGMENTS_A_PAGE = 100_000
TOPICS_A_PAGE = 500
"""A page has at most so many partitions, segments and topics; a single partition may have more segments."""

PARTITIONS_OF_A_FILE = 10 * PARTITIONS_A_PAGE
SEGMENTS_OF_A_FILE = 10 * SEGMENTS_A_PAGE
"""A page in a file has room for more: there is nothing behind it."""

TOPICS_GROWN = 4
VERSIONS_GROWN = 6
"""A page shows how the largest topics grew, by so many versions of each: each version is a read of its rows."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Where a page begins: at the first topic of this name or after it, and there at this partition or after it."""

    topic: str = ""
    partition: int = 0


@dataclass(frozen=True, slots=True)
class TopicsShown:
    """`topics`: with their configurations; the first and the last may be parts, whose partitions are those shown.

    `unreadable`: a sentence for each topic that cannot be read. `topics_there`: how many names the log directory has,
    deleted topics among them. `next`: where the next page begins, None after the last.
    """

    topics: list[tuple[Snapshot, TopicConfig]]
    unreadable: list[str]
    topics_there: int
    begin: Begin
    next: Begin | None

    @property
    def is_all(self) -> bool:
        """Whether the page shows all that there is."""
        return self.next is None and self.begin == Begin()


def read_topics(
    log: LogDir,
    begin: Begin | None = None,
    *,
    most_partitions: int = PARTITIONS_A_PAGE,
    most_segments: int = SEGMENTS_A_PAGE,
    most_topics: int = TOPICS_A_PAGE,
) -> TopicsShown:
    """The topics of a page. Reads the manifests of these topics alone, and the rows of their shown partitions."""
    begin = begin or Begin()
    names = log.directories()
    shown = TopicsShown([], [], len(names), begin, None)
    partitions_left = most_partitions
    segments_left = most_segments
    for looked_at, name in enumerate(name for name in names if name >= begin.topic):
        first = begin.partition if name == begin.topic else 0
        # Topics that cannot be read count, too: a page of nothing else would otherwise read them all.
        if looked_at == most_topics or partitions_left <= 0 or segments_left <= 0:
            return dataclasses.replace(shown, next=Begin(name, first))
        try:
            snapshot = log.topic(name).snapshot
            part = _part(snapshot, first, partitions_left, segments_left)
            config = topic_config(snapshot.config, log.defaults)
        except UnknownTopicError:
            continue  # it was deleted
        except SegmentsError as error:
            shown.unreadable.append(f"{name}: {error}")
            continue
        if part.partitions.num_rows:
            shown.topics.append((part, config))
            last = part.partitions.column("partition")[-1].as_py()
            if last != snapshot.partitions.column("partition")[-1].as_py():
                return dataclasses.replace(shown, next=Begin(name, last + 1))
        partitions_left -= part.partitions.num_rows
        segments_left -= part.live.num_rows
    return shown


def first_topics(
    topics: Sequence[tuple[Snapshot, TopicConfig]],
    *,
    most_partitions: int = PARTITIONS_OF_A_FILE,
    most_segments: int = SEGMENTS_OF_A_FILE,
) -> TopicsShown:
    """As many of these topics as a page in a file has room for. A file has no further pages."""
    shown = TopicsShown([], [], len(topics), Begin(), None)
    partitions_left = most_partitions
    segments_left = most_segments
    for snapshot, config in topics:
        if partitions_left <= 0 or segments_left <= 0:
            return dataclasses.replace(shown, next=Begin(snapshot.topic))
        part = _part(snapshot, 0, partitions_left, segments_left)
        shown.topics.append((part, config))
        if part.partitions.num_rows < snapshot.partitions.num_rows:
            return dataclasses.replace(shown, next=Begin(snapshot.topic, part.partitions.num_rows))
        partitions_left -= part.partitions.num_rows
        segments_left -= part.live.num_rows
    return shown


def _part(snapshot: Snapshot, first: int, most_partitions: int, most_segments: int) -> Snapshot:
    """The snapshot with its first partitions from number `first` on, as many as there is room for, and their rows."""
    numbers = snapshot.partitions.column("partition").to_numpy()
    start = int(np.searchsorted(numbers, first))
    end = min(start + most_partitions, len(numbers))
    if (start, end) != (0, len(numbers)):
        snapshot = _of_rows(snapshot, start, end)
    numbers = numbers[start:end]
    # How many segments the partitions up to each of them have together. One partition is shown in any case.
    ends = np.searchsorted(snapshot.live.column("partition").to_numpy(), numbers, side="right")
    fitting = max(1, int(np.searchsorted(ends, most_segments, side="right")))
    return snapshot if fitting >= len(numbers) else _of_rows(snapshot, 0, fitting)


def _of_rows(snapshot: Snapshot, start: int, end: int) -> Snapshot:
    """The snapshot with rows [start, end) of its partitions, and their segments."""
    partitions = snapshot.partitions.slice(start, end - start)
    rows = snapshot.source.read(partitions.column("partition").to_pylist())
    return snapshot.holding(rows, partitions)


def sizes_now(snapshots: Iterable[Snapshot]) -> dict[str, int]:
    """{topic: the bytes of its log}"""
    return {snapshot.topic: pc.sum(snapshot.live.column("log_bytes")).as_py() or 0 for snapshot in snapshots}


def largest(log_bytes: Mapping[str, int]) -> list[str]:
    """The topics whose growth is shown, the largest first."""
    return sorted(log_bytes, key=lambda topic: (-log_bytes[topic], topic))[:TOPICS_GROWN]


def growth(log: LogDir, log_bytes: Mapping[str, int]) -> dict[str, list[Size]]:
    """{topic: its sizes over time, oldest first} of the largest of these topics that have several versions."""
    if log.is_kafka:
        return {}
    sizes_of: dict[str, list[Size]] = {}
    for topic in largest(log_bytes):
        try:
            sizes_of[topic] = sizes(log.manifest(topic), VERSIONS_GROWN)
        except SegmentsError:  # it was deleted, or cannot be read: what the page says of it stands
            continue
    return {topic: several for topic, several in sizes_of.items() if len(several) > 1}


def log_warnings(log: LogDir, snapshots: Iterable[Snapshot], now_ms: int) -> tuple[list[str], list[GroupLag]]:
    """Sentences about the log directory as a whole: its disk, and the groups that read these topics; and these groups'
    positions.
    """
    lags: list[GroupLag] = []
    warnings = []
    if "://" not in log.uri or log.uri.startswith("file://"):  # object stores have no end
        usage = shutil.disk_usage(Path(log.uri.removeprefix("file://")))
        warning = disk_warning(usage.free, usage.total)
        warnings += [] if warning is None else [warning]
    try:
        lags = [lag for group in Group.with_positions(log) for lag in group.lags(snapshots)]
        warnings += group_warnings(lags, now_ms)
    except SegmentsError as error:
        warnings.append(f"the groups cannot be read: {error}")
    return warnings, lags


LEAST_FREE_SHARE = 0.1


def group_warnings(lags: Iterable[GroupLag], now_ms: int) -> list[str]:
    """Sentences about groups whose readers stand still while there are records, or came too late for some: at most two
    for a group in a topic.
    """
    by_topic: dict[tuple[str, str], list[GroupLag]] = {}
    for lag in lags:
        by_topic.setdefault((lag.group, lag.topic), []).append(lag)
    warnings = []
    for of_topic in by_topic.values():
        late = [lag for lag in of_topic if lag.gone]
        if late:
            gone = sum(lag.gone for lag in late)
            warnings.append(f"{_place(late)}: {count(gone)} offsets left the log before it read them")
        # Only with a lag: a group that has read all commits nothing, however long nothing is appended.
        still = [lag for lag in of_topic if lag.lag and now_ms - lag.committed_ms > OVERDUE_MS]
        if still:
            behind = sum(lag.lag for lag in still)
            silence = duration(now_ms - max(lag.committed_ms for lag in still))
            warnings.append(f"{_place(still)}: a lag of {count(behind)} offsets, and no commit for {silence}")
    return warnings


def _place(lags: Sequence[GroupLag]) -> str:
    """The group and its partition, or how many of a topic's: `lags` are of one group in one topic."""
    first = lags[0]
    partition = f"{first.topic}-{first.partition}" if len(lags) == 1 else f"{len(lags)} partitions of {first.topic}"
    return f"group {first.group} in {partition}"


def disk_warning(free_bytes: int, total_bytes: int) -> str | None:
    """A sentence about a disk with little room; None where there is enough."""
    if free_bytes >= LEAST_FREE_SHARE * total_bytes:
        return None
    return f"the disk is nearly full: {human_bytes(free_bytes)} of {human_bytes(total_bytes)} are free"
