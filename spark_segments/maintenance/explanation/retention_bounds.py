"""How long a topic keeps a record: from a wanted retention to settings and the real maximum, and back.

retention.ms is a least time. A record goes with its whole segment, once the youngest one in it is that old; and a
segment takes records until it is full or segment.ms have passed, and cannot go before it is rolled. Everything counts
from the moment of the append, which is taken to be the record's timestamp, too. That the rules want a ms more than
their settings say is left out.
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
    """Settings and what comes of them, in ms.

    `fill_ms`: a segment is full after so long at the latest, None where it may never be. `every_ms`: each job runs
    again at most so long after it last ran. `delay_ms`: file.delete.delay.ms. Raises InvalidOptionError for a negative
    one, or a segment.ms of 0.
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
        """How much younger than its first record the last one of a segment is at most."""
        return self.segment_ms if self.fill_ms is None else min(self.segment_ms, self.fill_ms)

    @property
    def readable_ms(self) -> int:
        """How long a record is in the log at most: it was the first of its segment, and every job came as late as it
        may. The roll costs nothing where retention.ms are longer than the time until it comes.
        """
        return self.span_ms + max(self.retention_ms, self.every_ms) + self.every_ms

    @property
    def maximum_ms(self) -> int:
        """The same until the delete delay of its file is over: Kafka deletes it right then."""
        return self.readable_ms + self.delay_ms

    @property
    def deleted_ms(self) -> int:
        """The same until vacuum, which comes as often as the other jobs, has deleted it."""
        return self.maximum_ms + self.every_ms

    def settings(self) -> dict[str, str]:
        """The topic's settings. A delete delay of 0 is one that is not to count, and is left as it is."""
        found = {"retention.ms": str(self.retention_ms), "segment.ms": str(self.segment_ms)}
        return found | ({"file.delete.delay.ms": str(self.delay_ms)} if self.delay_ms else {})

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, ready for JSON."""
        names = ("retention_ms", "segment_ms", "fill_ms", "every_ms", "delay_ms")
        results = ("span_ms", "readable_ms", "maximum_ms", "deleted_ms")
        return {**{name: getattr(self, name) for name in (*names, *results)}, "settings": self.settings()}


def bounds_for_deletion_within(
    limit_ms: int, retention_ms: int, *, fill_ms: int | None = None, every_ms: int = 0, delay_ms: int = 0
) -> RetentionBounds:
    """The settings with the largest segment.ms under which no file has a record any more after `limit_ms`.

    Raises InvalidOptionError where there are none: retention, intervals and delay alone take as long.
    """
    rest_ms = RetentionBounds(retention_ms, 1, 0, every_ms, delay_ms).deleted_ms
    if limit_ms <= rest_ms:
        raise InvalidOptionError(
            f"Nothing is gone within {limit_ms} ms, however short segments are",
            expected=f"more than {rest_ms} ms",
            found=limit_ms,
            hint="Want a shorter retention or delete delay, or let the jobs run more often",
        )
    return RetentionBounds(retention_ms, limit_ms - rest_ms, fill_ms, every_ms, delay_ms)
