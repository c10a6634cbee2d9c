"""The settings of a topic when each of its offsets was assigned, as far as Delta's log still says.

A writer is bound by the settings at the commit that adds its batches. Records that an import, a capture, a mirror or a
restore brought were judged by others: they are passed over, and so is what came before the oldest version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.log.directory import LogDirectory
from spark_segments.log.manifest.files.delta.actions import added_file, is_fence
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.role import FOLLOWER
from spark_segments.log.manifest.schemas import TOPIC_KIND
from spark_segments.log.manifest.state.captures import Captured
from spark_segments.log.manifest.state.recovery_copy import UNREADABLE
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.topic_log import TopicLog
from spark_segments.log.manifest.topic_row import topic_of
from spark_segments.storage.delta import Action, commit_info

_BRING_RECORDS = frozenset(
    (
        Operation.CAPTURE,
        Operation.CREATE,
        Operation.ERASE,
        Operation.IMPORT,
        Operation.MIRROR,
        Operation.PROMOTE,
        Operation.RESTORE,
    )
)

UNREADABLE_VERSION = (*UNREADABLE, SegmentsError)
"""The errors for an earlier version whose actions, rows or settings another program got wrong, or a disk."""


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """What binds a writer."""

    segment_bytes: int
    max_message_bytes: int
    is_compacted: bool

    @classmethod
    def of(cls, config: TopicConfig) -> WriterLimits:
        return cls(config.segment_bytes, config.max_message_bytes, config.compact)


@dataclass(frozen=True, slots=True)
class EarlierSettings:
    """The limits of a partition by offset: from each of `starts` on those beside it. Below the first they are unknown.

    A chunk may have been written right before a change of its settings, and committed right after it: so sizes are
    held against both.
    """

    starts: tuple[int, ...] = ()
    limits: tuple[WriterLimits, ...] = ()

    @property
    def has_compaction(self) -> bool:
        return any(limits.is_compacted for limits in self.limits)

    def known_at(self, offsets: np.ndarray) -> np.ndarray:
        """bool[]: whether the settings at these offsets are known."""
        is_known: np.ndarray = self._periods(offsets) >= 0
        return is_known

    def most_message_bytes(self, offsets: np.ndarray) -> np.ndarray:
        """int64[]: the largest batch that could be appended at each offset."""
        sizes = np.array([limits.max_message_bytes for limits in self.limits], np.int64)
        most: np.ndarray = self._largest(sizes)[self._periods(offsets)]
        return most

    def is_compacted_at(self, offsets: np.ndarray) -> np.ndarray:
        """bool[]: whether the topic was compacted when each offset was assigned."""
        periods = self._periods(offsets)
        flags = np.array([limits.is_compacted for limits in self.limits], bool)
        is_compacted: np.ndarray = flags[periods] & (periods >= 0)
        return is_compacted

    def most_segment_bytes(self, offset: int) -> int | None:
        """The largest chunk from an offset on, which may have been merged since; None where that is unknown."""
        period = int(self._periods(np.array([offset]))[0])
        if period < 0:
            return None
        return max(limits.segment_bytes for limits in self.limits[max(period - 1, 0) :])

    def _periods(self, offsets: np.ndarray) -> np.ndarray:
        periods: np.ndarray = np.searchsorted(np.array(self.starts, np.int64), offsets, side="right") - 1
        return periods

    @staticmethod
    def _largest(values: np.ndarray) -> np.ndarray:
        largest: np.ndarray = np.maximum(values, np.concatenate([values[:1], values[:-1]]))
        return largest


def earlier_settings(log: LogDirectory, snapshot: Snapshot, warnings: list[str]) -> dict[int, EarlierSettings]:
    """By partition, what Delta's log says; empty where it says nothing. What a follower has is its leader's.

    `warnings`: gets a sentence for each commit that cannot be read. What came up to the next change is passed over.
    """
    if snapshot.role == FOLLOWER:
        return {}
    topic_log = log.manifest(snapshot.topic).log
    periods: list[_Period] = []
    for version in _starts(topic_log, snapshot.version, warnings):
        try:
            period = _period(topic_log, version, log.defaults)
        except UNREADABLE_VERSION as error:
            _warn(warnings, snapshot.topic, version, error)
            period = None
        periods = [] if period is None else [*periods, period]
    settings = {}
    for row in snapshot.partition_rows if periods else ():
        number = row.partition
        captured = Captured.end(snapshot.states, number)
        starts = tuple(max(ends.get(number, 0), captured) for ends, _ in periods)
        settings[number] = EarlierSettings(starts, tuple(limits for _, limits in periods))
    return settings


_Period = tuple[dict[int, int], WriterLimits]
"""The log ends of the partitions when settings came, and these."""

_WARNING = "The settings"


def _warn(warnings: list[str], topic: str, version: int, error: Exception) -> None:
    """Once for each reason: a file that cannot be read is that of many versions."""
    if any(warning.startswith(_WARNING) and str(error) in warning for warning in warnings):
        return
    warnings.append(
        f"{_WARNING} of topic {topic} at version {version} cannot be read ({error}): the records that were appended "
        "before it, and from there to the next change of settings, are held against none"
    )


def _starts(topic_log: TopicLog, last: int, warnings: list[str]) -> list[int]:
    """The versions from which other settings hold, of the last versions among which all commits are appends or jobs."""
    starts: list[int] = []
    properties: object = None
    for version in [version for version in topic_log.versions() if version <= last]:
        try:
            actions = topic_log.delta.actions(version)
            config = _config_in(topic_log, actions)
        except FileNotFoundError:  # vacuum took it
            starts = []
            properties = None
            continue
        except UNREADABLE_VERSION as error:
            _warn(warnings, topic_log.topic, version, error)
            starts = []
            properties = None
            continue
        if is_fence(actions):
            continue
        if commit_info(actions).get("change") in _BRING_RECORDS:
            starts = [version]
            properties = None
        elif not starts:
            starts = [version]
        elif config is not None and config != properties:
            starts.append(version)
            properties = config
    return starts


def _config_in(topic_log: TopicLog, actions: Sequence[Action]) -> dict[str, str] | None:
    """The settings in a topic row that a commit writes; None where it writes none."""
    files = [added_file(action["add"]) for action in actions if "add" in action]
    topics = [file for file in files if file.kind == TOPIC_KIND]
    if not topics:
        return None
    [rows] = topic_log.store.read_all(topics)
    return dict(topic_of(rows).config)


def _period(topic_log: TopicLog, version: int, defaults: Mapping[str, str]) -> _Period | None:
    """None where vacuum took what would say it."""
    try:
        snapshot = topic_log.state(version).snapshot
        ends = {row.partition: row.log_end_offset for row in snapshot.partition_rows}
    except (FileNotFoundError, InvalidOptionError):
        return None
    return ends, WriterLimits.of(topic_config(snapshot.config, defaults))
