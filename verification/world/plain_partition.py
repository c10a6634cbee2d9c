"""A partition of a compacted topic in plain Python: the records that were written, and Kafka's rules for what stays.

It knows nothing of files. Where its segments end it is told: the rules only say what follows from that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Bounds = Sequence[tuple[int, int]]  # [base offset, next offset) of each sealed segment, in order
Record = tuple[bytes | None, bytes | None]  # key, value


@dataclass
class PlainBatch:
    """One append. `horizon_ms`: from when on its tombstones may go."""

    base_offset: int
    next_offset: int
    time_ms: int
    records: dict[int, Record]
    horizon_ms: int | None = None


@dataclass(frozen=True)
class Rules:
    """The part of a topic's configuration that compaction and retention ask, in its own words."""

    min_ratio: float
    delete_retention_ms: int
    min_lag_ms: int
    max_lag_ms: int
    retention_ms: int | None  # None: cleanup.policy is compact alone


@dataclass
class PlainPartition:
    rules: Rules
    batches: list[PlainBatch] = field(default_factory=list)
    appended_ms: list[int] = field(default_factory=list)  # of every offset, whatever became of it
    start_offset: int = 0
    first_dirty_offset: int = 0

    @property
    def end_offset(self) -> int:
        return len(self.appended_ms)

    def visible(self) -> dict[int, tuple[bytes | None, bytes | None, int]]:
        """{offset: (key, value, time)} of all records that a reader sees."""
        return {
            offset: (*record, batch.time_ms)
            for batch in self.batches
            for offset, record in batch.records.items()
            if offset >= self.start_offset
        }

    def append(self, rows: Sequence[Record], now_ms: int) -> None:
        base = self.end_offset
        self.appended_ms += [now_ms] * len(rows)
        self.batches.append(PlainBatch(base, self.end_offset, now_ms, dict(enumerate(rows, start=base))))

    def delete_records(self, before_offset: int) -> None:
        self.start_offset = max(self.start_offset, before_offset)
        self.first_dirty_offset = max(self.first_dirty_offset, self.start_offset)

    def retain(self, sealed: Bounds, now_ms: int) -> None:
        """Whole segments from the head: those below the log start, then those whose newest batch is too old."""
        for base, following in sealed:
            age_ms = now_ms - self._largest_ms(base, following)
            expired = self.rules.retention_ms is not None and age_ms > self.rules.retention_ms
            if following > self.start_offset and not expired:
                return
            self.batches = [batch for batch in self.batches if batch.base_offset >= following]
            self.delete_records(following)

    def cleanable(self, sealed: Bounds, now_ms: int) -> tuple[int, bool | None]:
        """(first uncleanable offset, whether the partition is to be cleaned; None: that is up to its bytes)."""
        dirty = self.first_dirty_offset
        bound = sealed[-1][1] if sealed else dirty
        for base, following in sealed:
            too_young = self._largest_ms(base, following) > now_ms - self.rules.min_lag_ms
            if self.rules.min_lag_ms > 0 and following > dirty and too_young:
                bound = base
                break
        bound = max(bound, dirty)
        if bound == dirty:
            return bound, False
        waiting = [base for base, following in sealed if following > dirty and base < bound]
        oldest_ms = min(next(one.time_ms for one in self.batches if one.base_offset >= base) for base in waiting)
        if now_ms - oldest_ms > self.rules.max_lag_ms or self.rules.min_ratio == 0:
            return bound, True
        return bound, None

    def clean(self, bound: int, now_ms: int) -> None:
        """Cleans up to `bound`, in as many rounds as it may take: they have one clock and so leave the same."""
        newest = {
            key: offset
            for batch in self.batches
            for offset, (key, _) in batch.records.items()
            if key is not None and offset < bound
        }
        for batch in self.batches:
            if batch.base_offset >= bound:
                continue
            expired = batch.horizon_ms is not None and now_ms >= batch.horizon_ms
            batch.records = {
                offset: (key, value)
                for offset, (key, value) in batch.records.items()
                if key is not None and newest[key] == offset and not (value is None and expired)
            }
            if batch.horizon_ms is None and any(value is None for _, value in batch.records.values()):
                batch.horizon_ms = now_ms + self.rules.delete_retention_ms
        # The last batch stays, empty if need be, so that the end of what is clean is not lost.
        self.batches = [batch for batch in self.batches if batch.records or batch.next_offset >= bound]
        self.first_dirty_offset = bound

    def _largest_ms(self, base: int, following: int) -> int:
        """A segment's largest timestamp; where cleaning left no batch at all, when it was last appended to."""
        times = [batch.time_ms for batch in self.batches if base <= batch.base_offset < following]
        return max(times, default=self.appended_ms[following - 1])
