"""What is told of one record: where it is, what is still to happen before it is gone, and when that can be."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_segments.log.manifest.rows import Segment
from spark_segments.maintenance.explanation.topic_forecast import NEVER

# Where a record is.
NOT_WRITTEN = "not written"  # its offset is not given out yet
ACTIVE = "active"  # in the active segment
SEALED = "sealed"  # in a segment that was rolled, or in what cleaning made of it
REMOVED = "removed"  # out of the log; a file still has it, for readers that began before
GONE = "gone"  # no file has it

# The rules that keep it, beside those of retention.
ACTIVE_SEGMENT = "active segment"
NEWEST_OF_KEY = "newest of its key"
FILE_DELETE_DELAY_MS = "file.delete.delay.ms"

# What a step may wait for beside the clock.
RECORDS = "records"  # more are to be appended
KEYS = "keys"  # a newer record of its key is to be cleaned with it
CLEANING = "cleaning"  # may join its segment with younger ones, which retention then waits for
TIMESTAMPS = "timestamps"  # are missing, or far ahead
LOG_START = "log start"  # is to pass the end of the segment


SETTINGS = ("cleanup.policy", "segment.bytes", "segment.ms", "retention.ms", "retention.bytes", FILE_DELETE_DELAY_MS)
CLEANING_SETTINGS = (
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
)
"""The settings that say what goes when, and those that matter to compacted topics only."""


@dataclass(frozen=True, slots=True)
class TimeBounds:
    """From the first moment at which something can have happened to the one by which it has, in ms since 1970.

    `earliest_ms` is None where it never happens, `latest_ms` where the clock alone does not bring it.
    """

    earliest_ms: int | None
    latest_ms: int | None

    @classmethod
    def of(cls, earliest_ms: int, latest_ms: int) -> TimeBounds:
        """The same from moments that may be NEVER."""
        return cls(*(None if at_ms >= NEVER else int(at_ms) for at_ms in (earliest_ms, latest_ms)))

    def to_dict(self) -> dict[str, int | None]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """What a job is still to do, by which rule, and when it can have done so. Steps of one job are alternatives.

    `waits_for`: what it takes beside the clock, None where the clock brings it. `facts`: figures that the rule goes by.
    """

    job: str
    rule: str
    window: TimeBounds
    waits_for: str | None = None
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        own = {"job": self.job, "rule": self.rule, **self.window.to_dict(), "waits_for": self.waits_for}
        return own | dict(self.facts)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one record. Times in ms since 1970.

    `settings`: those in force that say what goes when. `timestamp_ms`: the record's own, where it was looked for by
    time. `segment`: the file that has it, the last one where there are several. `leaves_log`: when readers that begin
    then do not see it any more, None where they do not now. `files_deleted`: when no file has it any more, None where
    none has now.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int | None
    now_ms: int
    every_ms: int
    settings: Mapping[str, str]
    state: str
    segment: Segment | None = None
    steps: tuple[Step, ...] = ()
    leaves_log: TimeBounds | None = None
    files_deleted: TimeBounds | None = None

    @property
    def kept_by(self) -> list[str]:
        """The rules that the next job goes by: none of them lets the record go yet, and one is enough."""
        return [step.rule for step in self.steps if step.job == self.steps[0].job]

    @property
    def waits_for(self) -> list[str]:
        """What it takes beside the clock, where nothing else brings the moment at which no file has it."""
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
