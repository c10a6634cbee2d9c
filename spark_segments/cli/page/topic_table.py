"""The table of topics with which a page begins: a line for each topic, and what a server remembers of the lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_segments.cli.page.log_state import TOPICS_A_PAGE, Begin, TopicsShown
from spark_segments.cli.page.view import LEAST_BLOCKS, VACUUM, Deletion, StepView, TopicView, topic_view
from spark_segments.cli.page.words import duration
from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import SegmentsError, UnknownTopicError
from spark_segments.maintenance.explanation.topic_forecast import NEVER
from spark_segments.quantities import human_bytes, plural

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Snapshot

PARTITIONS_A_TABLE = 10_000
"""A table ends with the topic that reaches so many partitions: the rows of all of them are read."""

REMEMBERED_MS = 60_000
"""A remembered line is used for so long at most, and never past the time at which a job has work next."""


@dataclass(frozen=True, slots=True)
class TopicLine:
    """A topic in the table. `due`: {job: how many partitions it has work in now}. `next`: the next step that waits for
    its time. `newest_ms`: the largest timestamp, -1 without one. `ratio`: the highest dirty ratio, -1 without one.
    """

    topic: str
    policy: str
    retention: str
    partitions: int
    sealed: int
    chunks: int
    records: int
    size_bytes: int
    removed_bytes: int
    newest_ms: int
    ratio: float
    due: Mapping[str, int]
    next: StepView | None
    warnings: tuple[tuple[int, str], ...]
    deletions: tuple[Deletion, ...]

    @classmethod
    def of(cls, view: TopicView) -> TopicLine:
        """The line of a topic's view."""
        config = view.described["config"]
        next_steps = [partition.next_step for partition in view.partitions]
        waiting = [step for step in next_steps if step is not None]
        return cls(
            view.described["topic"],
            config["cleanup.policy"],
            _retention(config),
            len(view.partitions),
            view.total("segments"),
            view.total("chunks"),
            view.total("records"),
            view.total("size_bytes"),
            view.removed_bytes,
            view.newest_ms,
            max((view.numbers["dirty_ratio"] or 0.0 for view in view.partitions), default=-1.0),
            Counter(step.job for partition in view.partitions for step in partition.due),
            min(waiting, key=lambda step: (step.job == VACUUM, step.at_ms), default=None),
            tuple(
                (partition.numbers["partition"], text) for partition in view.partitions for text in partition.warnings
            ),
            tuple(view.deletions),
        )


def _retention(config: Mapping[str, str]) -> str:
    """What takes records by itself: "7 d or 1.0 GiB", "compact", "no limit"."""
    rules = ["compact"] if "compact" in config["cleanup.policy"] else []
    if "delete" in config["cleanup.policy"]:
        lasting = [duration(int(config["retention.ms"]))] if 0 <= int(config["retention.ms"]) < NEVER else []
        if int(config["retention.bytes"]) >= 0:
            lasting.append(human_bytes(int(config["retention.bytes"])) + " a partition")
        rules.append(" or ".join(lasting) or "no limit")
    return ", ".join(rules) or "no limit"


def shared_facts(lines: Sequence[TopicLine], lags: Mapping[str, int]) -> dict[str, str]:
    """{a column's head: what all lines have there, as text}. Such a column is said once, above the table."""
    if len(lines) < 2:
        return {}
    first = lines[0]
    facts = {}
    if all(line.partitions == first.partitions for line in lines):
        facts["Partitions"] = plural(first.partitions, "partition")
    if all(line.retention == first.retention for line in lines):
        facts["Retention"] = f"retention: {first.retention}"
    if not any(line.removed_bytes for line in lines):
        facts["Waits for vacuum"] = "nothing waits for vacuum"
    if all(line.newest_ms < 0 for line in lines):
        facts["Last record"] = "no record has a time"
    if not lags:
        facts["Lag"] = "no group reads it"
    return facts


@dataclass(slots=True)
class TopicLines:
    """Lines of a log directory's topics. A line is made once for a version of its topic, and made again with time."""

    log: LogDir
    _remembered: dict[str, tuple[tuple[str, int], int, TopicLine]] = field(default_factory=dict)

    def read(self, begin: Begin, now_ms: int) -> tuple[TopicsShown, list[TopicLine]]:
        """The topics from `begin.topic` on for which a page has room, each whole, and their lines."""
        names = self.log.directories()
        for gone in self._remembered.keys() - {*names}:
            self._remembered.pop(gone, None)
        topics: list[tuple[Snapshot, TopicConfig]] = []
        lines: list[TopicLine] = []
        unreadable: list[str] = []
        following = None
        partitions = 0
        for place, name in enumerate(name for name in names if name >= begin.topic):
            if place == TOPICS_A_PAGE or partitions >= PARTITIONS_A_TABLE:
                following = Begin(name)
                break
            try:
                snapshot = self.log.topic(name).snapshot
                config = topic_config(snapshot.config, self.log.defaults)
                lines.append(self._line(snapshot, config, now_ms))
            except UnknownTopicError:
                continue  # it was deleted
            except SegmentsError as error:
                unreadable.append(f"{name}: {error}")
                continue
            topics.append((snapshot, config))
            partitions += snapshot.partitions.num_rows
        return TopicsShown(topics, unreadable, len(names), Begin(begin.topic), following), lines

    def _line(self, snapshot: Snapshot, config: TopicConfig, now_ms: int) -> TopicLine:
        version = (snapshot.topic_id, snapshot.version)
        remembered = self._remembered.get(snapshot.topic)
        # Kafka's own directory has no versions: its files can change under one and the same number.
        if remembered is not None and not self.log.is_kafka:
            line_version, line_until_ms, line = remembered
            if line_version == version and now_ms < line_until_ms:
                return line
        line = TopicLine.of(topic_view(snapshot, config, now_ms, LEAST_BLOCKS))
        until_ms = min(now_ms + REMEMBERED_MS, NEVER if line.next is None else line.next.at_ms)
        self._remembered[snapshot.topic] = (version, until_ms, line)
        return line
