"""The explanation of a record: where it is, which steps remain until it is gone, and when they can happen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from spark_segments.log.manifest.rows import Segment
from spark_segments.maintenance.explanation.topic_forecast import NEVER


class RecordState(StrEnum):
    """Where a record is."""

    NOT_WRITTEN = "not written"  # its offset is not given out yet
    ACTIVE = "active"  # in the active segment
    SEALED = "sealed"  # in a segment that was rolled, or rewritten by cleaning since
    REMOVED = "removed"  # out of the log; a file still holds it, for readers that began before
    GONE = "gone"  # no file holds it


class Rule(StrEnum):
    """The rules that keep a record, beside the rules of retention."""

    ACTIVE_SEGMENT = "active segment"
    NEWEST_OF_KEY = "newest of its key"
    FILE_DELETE_DELAY_MS = "file.delete.delay.ms"


class Wait(StrEnum):
    """What a step may wait for, besides the clock."""

    RECORDS = "records"  # more records must be appended
    KEYS = "keys"  # a newer record of its key must be cleaned with it
    CLEANING = "cleaning"  # it may join the segment with younger segments, and retention waits for those
    TIMESTAMPS = "timestamps"  # they are missing, or far ahead of the clock
    LOG_START = "log start"  # it must pass the end of the segment


SETTINGS = ("cleanup.policy", "segment.bytes", "segment.ms", "retention.ms", "retention.bytes", "file.delete.delay.ms")
CLEANING_SETTINGS = (
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
)
"""The settings that decide when records go, and the settings that matter to compacted topics only."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """The earliest and the latest moment at which something happens, in ms since 1970.

    `earliest_ms` is None if it never happens. `latest_ms` is None if the clock alone does not make it happen.
    """

    earliest_ms: int | None
    latest_ms: int | None

    @classmethod
    def of(cls, earliest_ms: int, latest_ms: int) -> TimeBounds:
        """The bounds from two moments, either of which may be NEVER."""
        return cls(*(None if at_ms >= NEVER else int(at_ms) for at_ms in (earliest_ms, latest_ms)))

    def to_dict(self) -> dict[str, int | None]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """What a job is still to do, by which rule, and when. Several steps of the same job are alternatives.

    `waits_for`: what must happen besides the passing of time; None if nothing must. `facts`: figures of the rule.
    """

    job: str
    rule: str
    window: TimeBounds
    waits_for: Wait | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        own = {"job": self.job, "rule": self.rule, **self.window.to_dict(), "waits_for": self.waits_for}
        return own | dict(self.facts)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a record. Times in ms since 1970.

    `settings`: the settings in force that decide when it goes. `timestamp_ms`: its timestamp, if it was looked up by
    time. `segment`: the file that holds it, or the last of several files. `leaves_log`: when new readers stop seeing
    it; None if they do not see it now. `files_deleted`: when the last file that holds it is deleted; None if no file
    does.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    now_ms: int
    every_ms: int
    settings: Mapping[str, str]
    state: RecordState
    segment: Segment | None = None
    steps: tuple[Step, ...] = ()
    leaves_log: TimeBounds | None = None
    files_deleted: TimeBounds | None = None

    @property
    def kept_by(self) -> list[str]:
        """Rules the next job applies. Any one of them can remove the record; none does yet."""
        return [step.rule for step in self.steps if step.job == self.steps[0].job]

    @property
    def waits_for(self) -> list[Wait]:
        """What must happen besides the passing of time until no file holds the record. Empty if time is enough."""
        if self.files_deleted is None or self.files_deleted.latest_ms is not None:
            return []
        return list(dict.fromkeys(step.waits_for for step in self.steps if step.waits_for is not None))

    def to_dict(self) -> dict[str, Any]:
        """The explanation as plain values, ready for JSON."""
        names = ("topic", "partition", "offset", "timestamp_ms", "now_ms", "every_ms", "state", "kept_by", "waits_for")
        of_segment = ("path", "base_offset", "next_offset", "max_timestamp_ms", "created_ms", "removed_ms")
        return {
            **{name: getattr(self, name) for name in names},
            "settings": dict(self.settings),
            "segment": self.segment and {name: getattr(self.segment, name) for name in of_segment},
            "steps": [step.to_dict() for step in self.steps],
            "leaves_log": self.leaves_log and self.leaves_log.to_dict(),
            "files_deleted": self.files_deleted and self.files_deleted.to_dict(),
        }
