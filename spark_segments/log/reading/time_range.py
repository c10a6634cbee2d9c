"""A range of record times, and which segments can have a record of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.errors import InvalidOptionError
from spark_segments.format.decoding.fields import FIRST_MS, LAST_MS
from spark_segments.quantities import Time, moment_ms, wall_ms

EXAMPLE = "2026-01-31..2026-02-01"
"""A day, as a text."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The times in [start_ms, end_ms), in ms since 1970; None: no bound. Raises InvalidOptionError for an end that is
    before the start.
    """

    start_ms: int | None = None
    end_ms: int | None = None

    def __post_init__(self) -> None:
        if self.start_ms is not None and self.end_ms is not None and self.end_ms < self.start_ms:
            raise InvalidOptionError(
                "A range of times ends before it starts", expected=f"an end from {self.start_ms} on", found=self.end_ms
            )

    @classmethod
    def of(cls, times: tuple[Time | None, Time | None] | str) -> TimeRange:
        """The range of (start, end), None where there is no bound, or of a text START..END, either of which may be
        missing. Raises InvalidOptionError for what is none.
        """
        bounds = times.split("..") if isinstance(times, str) else times
        if not (isinstance(bounds, (tuple, list)) and len(bounds) == 2):
            raise InvalidOptionError(
                "Not a range of times", expected=f"(start, end), or a text such as {EXAMPLE}", found=repr(times)
            )
        now_ms = wall_ms()  # both ends by one clock reading, also at midnight
        return cls(*(None if bound is None or bound == "" else moment_ms(bound, now_ms) for bound in bounds))

    def within(self, other: TimeRange) -> TimeRange:
        """The times that are in both ranges."""
        starts = [start for start in (self.start_ms, other.start_ms) if start is not None]
        ends = [end for end in (self.end_ms, other.end_ms) if end is not None]
        start_ms, end_ms = max(starts, default=None), min(ends, default=None)
        if start_ms is not None and end_ms is not None:
            end_ms = max(start_ms, end_ms)  # no time is in both
        return TimeRange(start_ms, end_ms)

    def mask(self, timestamps: pa.Array) -> pa.BooleanArray:
        """Which of these timestamps, in microseconds, are in the range."""
        times_us = timestamps.cast(pa.int64()).to_numpy()
        mask = np.ones(len(times_us), np.bool_)
        if self.start_ms is not None:
            mask &= times_us >= _microseconds(self.start_ms)
        if self.end_ms is not None:
            mask &= times_us < _microseconds(self.end_ms)
        return pa.array(mask)

    def segments(self, live: pa.Table) -> pa.Table:
        """The rows of segments that can have a record of the range. A row that does not know its least time can."""
        least_ms = live.column("min_timestamp_ms").fill_null(FIRST_MS).to_numpy()
        largest_ms = live.column("max_timestamp_ms").to_numpy()
        # A reader's timestamp is clipped to what 64 bits have in microseconds, and a row's is not.
        mask = np.ones(live.num_rows, np.bool_)
        if self.start_ms is not None:
            mask &= np.clip(largest_ms, FIRST_MS, LAST_MS) >= self.start_ms
        if self.end_ms is not None:
            mask &= np.clip(least_ms, FIRST_MS, LAST_MS) < self.end_ms
        return live if mask.all() else live.filter(pa.array(mask))


def _microseconds(time_ms: int) -> int:
    """The time in microseconds, or the next one that 64 bits have: beyond them no reader has a timestamp."""
    return max(-(2**63), min(time_ms * 1000, 2**63 - 1))
