"""How long a topic keeps a record: from a wanted retention to settings and the real maximum, and back.

retention.ms is the least time. A record goes with its whole segment, once the youngest record of that segment is old
enough. A segment takes records until it is full or segment.ms has passed, and cannot go before it is rolled. All times
count from the append, which is taken to be the record's timestamp, too. The rules wait for one ms more than their
settings say: that is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_segments.config import KEYS
from spark_segments.errors import InvalidOptionError

DEFAULT_SEGMENT_MS = KEYS["segment.ms"].default
DEFAULT_DELETE_DELAY_MS = KEYS["file.delete.delay.ms"].default


@dataclass(frozen=True, slots=True)
class RetentionBounds:
    """Settings, and for how long a record is kept under them, in ms.

    `fill_ms`: a segment is full after this time at the latest; None if it may never be full. `every_ms`: the longest
    time between two runs of each job. `delay_ms`: file.delete.delay.ms. Raises InvalidOptionError for a negative value
    and for a segment.ms of 0.
    """

    retention_ms: int
    segment_ms: int = DEFAULT_SEGMENT_MS
    fill_ms: int | None = None
    every_ms: int = 0
    delay_ms: int = 0

    def __post_init__(self) -> None:
        if self.segment_ms < 1 or min(self.retention_ms, self.fill_ms or 0, self.every_ms, self.delay_ms) < 0:
            raise InvalidOptionError("A duration is too short", expected="segment.ms from 1 ms on, the others from 0")

    @property
    def span_ms(self) -> int:
        """The longest time between the first and the last record of a segment."""
        return self.segment_ms if self.fill_ms is None else min(self.segment_ms, self.fill_ms)

    @property
    def readable_ms(self) -> int:
        """The longest time that a record is in the log: it was the first of its segment, and every job ran as late as
        possible. The roll adds nothing if it runs before retention.ms has passed.
        """
        return self.span_ms + max(self.retention_ms, self.every_ms) + self.every_ms

    @property
    def maximum_ms(self) -> int:
        """The longest time until the delete delay of its file is over. Kafka deletes the file at that moment."""
        return self.readable_ms + self.delay_ms

    @property
    def deleted_ms(self) -> int:
        """The longest time until vacuum, which runs as often as the other jobs, has deleted the file."""
        return self.maximum_ms + self.every_ms

    def settings(self) -> dict[str, str]:
        """The topic's settings. A delete delay of 0 was not asked for: the setting is left out."""
        found = {"retention.ms": str(self.retention_ms), "segment.ms": str(self.segment_ms)}
        return found | ({"file.delete.delay.ms": str(self.delay_ms)} if self.delay_ms else {})

    def to_dict(self) -> dict[str, Any]:
        """The bounds as plain values, ready for JSON."""
        names = ("retention_ms", "segment_ms", "fill_ms", "every_ms", "delay_ms")
        results = ("span_ms", "readable_ms", "maximum_ms", "deleted_ms")
        return {**{name: getattr(self, name) for name in (*names, *results)}, "settings": self.settings()}


def bounds_for_deletion_within(
    limit_ms: int, retention_ms: int, *, fill_ms: int | None = None, every_ms: int = 0, delay_ms: int = 0
) -> RetentionBounds:
    """The bounds with the largest segment.ms under which no file holds a record for longer than `limit_ms`.

    Raises InvalidOptionError if there is no such segment.ms: retention, intervals and delay alone take as long.
    """
    rest_ms = RetentionBounds(retention_ms, 1, 0, every_ms, delay_ms).deleted_ms
    if limit_ms <= rest_ms:
        raise InvalidOptionError(
            f"Nothing is gone within {limit_ms} ms, however short segments are",
            expected=f"more than {rest_ms} ms",
            found=limit_ms,
            hint="Choose a shorter retention or delete delay, or let the jobs run more often",
        )
    return RetentionBounds(retention_ms, limit_ms - rest_ms, fill_ms, every_ms, delay_ms)
