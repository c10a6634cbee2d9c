"""Counts the records that a producer appends although retention takes them at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig


@dataclass(slots=True)
class Appended:
    """The rows that go by: how many there are, and how many are older than the topic's retention.ms."""

    config: TopicConfig
    now_ms: int
    rows: int = 0
    expired: int = 0

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, counted as they go by."""
        for batch in batches:
            self.rows += batch.num_rows
            if self.config.delete and self.config.retention_ms >= 0 and "timestamp" in batch.schema.names:
                oldest_us = (self.now_ms - self.config.retention_ms) * 1000
                times = batch.column("timestamp").cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.int64())
                self.expired += pc.sum(pc.less(times, oldest_us)).as_py() or 0
            yield batch

    def warning(self) -> str | None:
        """A line about the records that the next retain takes; None where there are none."""
        if not self.expired:
            return None
        return (
            f"{self.expired:,} of {self.rows:,} records are older than retention.ms: the next retain takes them once "
            "their segments are rolled. segments topic alter --config retention.ms=… keeps them"
        )
