"""The settings of a topic that decide how large the files of a segment become, and whether they are forced to disk."""

from __future__ import annotations

from dataclasses import dataclass

from spark_segments.config.table import TopicConfig


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """segment.bytes, index.interval.bytes and segment.index.bytes, in bytes each.

    `forced`: the files have reached the disk once their writer is closed.
    """

    segment_bytes: int
    index_interval_bytes: int
    segment_index_bytes: int
    forced: bool = False

    @classmethod
    def of(cls, config: TopicConfig) -> SegmentLimits:
        """The limits of a topic."""
        return cls(config.segment_bytes, config.index_interval_bytes, config.segment_index_bytes, config.forced)
