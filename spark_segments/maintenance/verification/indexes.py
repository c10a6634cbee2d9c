"""The check of a segment's .index and .timeindex during the scan of its .log: are they true, would a rebuild differ?

Missing indexes and indexes of a wrong size are found where files are compared with rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spark_segments.config import SegmentLimits
from spark_segments.config.values import INT_MAX
from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable
from spark_segments.format.sidecars.check import OffsetIndexCheck, TimeIndexCheck, TimeLookUpCheck
from spark_segments.format.sidecars.index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    IndexBuilder,
    parse_offset_index,
    parse_time_index,
)
from spark_segments.format.walk import WalkStep
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import errors_from


@dataclass(slots=True)
class _Index:
    """An index of a segment: the file with its entries, the position of the first, the bytes of each. `content`: their
    bytes, None where they could not be read; `check`: None where they could not be parsed. `rule`: of true entries.
    """

    name: str
    rule: str
    path: str
    first_position: int
    entry_bytes: int
    content: bytes | None
    check: OffsetIndexCheck | TimeIndexCheck | None = None


class IndexLook:
    """Checks the indexes of a segment against the batches of its .log and adds faults to `findings`.

    `index` and `time_index` are the files' bytes, None for a file that could not be read.
    """

    def __init__(
        self,
        segment: Segment,
        limits: SegmentLimits,
        index: bytes | None,
        time_index: bytes | None,
        findings: Findings,
    ) -> None:
        self._segment = segment
        self._limits = limits
        self._findings = findings
        first_position = segment.index_position or 0
        self._index = _Index("offset", "I2", segment.index_path, first_position, OFFSET_ENTRY_BYTES, index)
        self._time_index = _Index(
            "time", "I4", segment.time_index_path, segment.time_index_position, TIME_ENTRY_BYTES, time_index
        )
        self._look_up_check: TimeLookUpCheck | None = None
        self._builder: IndexBuilder | None = IndexBuilder(
            segment.name_offset, limits.index_interval_bytes, limits.segment_index_bytes
        )
        self._open_checks()

    def _open_checks(self) -> None:
        segment = self._segment
        index = self._index
        time_index = self._time_index
        offsets = times = None
        try:
            if index.content is not None:
                with errors_from(index.first_position):
                    offsets = parse_offset_index(index.content, path=index.path)
                index.check = OffsetIndexCheck(offsets, segment.name_offset)
                self._check_used(index, len(offsets[0]))
            if time_index.content is not None:
                with errors_from(time_index.first_position):
                    times = parse_time_index(time_index.content, path=time_index.path)
                if time_index.content == bytes(TIME_ENTRY_BYTES):  # the row names it: an entry, and no tail of zeros
                    times = np.zeros(1, np.int64), np.zeros(1, np.int32)
                time_index.check = TimeIndexCheck(times, segment.name_offset)
                self._check_used(time_index, len(times[0]))
        except CorruptBatchError as error:
            self._findings.add_error(error, rebuilds=segment.place, rule="I9")
        if offsets is not None and times is not None:
            self._look_up_check = TimeLookUpCheck(times, offsets)

    def _check_used(self, index: _Index, entries: int) -> None:
        """Only an index that a broker is writing to ends in zeros. A row counts the used bytes alone."""
        used_bytes = entries * index.entry_bytes
        size = len(index.content or b"")
        if used_bytes != size:
            self._add(
                "The index does not end with an entry",
                rule="I9",
                path=index.path,
                byte_position=index.first_position + used_bytes,
                expected=f"entries up to byte {size}",
                found="zeros, or a part of an entry",
            )

    def _add(self, message: str, **finding: Any) -> None:
        self._findings.add(message, rebuilds=self._segment.place, **finding)

    def add(self, batches: BatchTable) -> None:
        """Adds the next batches of the file. Raises CorruptBatchError for a batch that no index can hold."""
        batches = self._of_segment(batches)
        for check in (self._index.check, self._time_index.check, self._look_up_check):
            if check is not None:
                check.add(batches)
        if self._builder is not None:
            try:
                self._builder.add(batches)
            except CorruptBatchError:
                self._builder = None
                raise

    def _of_segment(self, batches: BatchTable) -> BatchTable:
        """The batches with positions that count from the segment's first byte, as its index entries count."""
        byte_position = self._segment.byte_position
        return replace(batches, byte_position=batches.byte_position - byte_position) if byte_position else batches

    def check_entries(self) -> bool:
        """Whether both indexes are there and all their entries are true for the batches seen."""
        before = len(self._findings.found)
        for index in (self._index, self._time_index):
            if index.check is not None:
                self._untrue(f"An entry of the {index.name} index is not true", index, index.check.untrue())
        if self._look_up_check is not None and len(self._findings.found) == before:
            message = "A look-up by this entry begins behind a record that is not older"
            self._untrue(message, self._time_index, self._look_up_check.misled())
        is_whole = self._index.content is not None and self._time_index.content is not None
        return is_whole and len(self._findings.found) == before

    def _untrue(self, message: str, index: _Index, numbers: np.ndarray) -> None:
        for number in numbers:
            at = {"path": index.path, "byte_position": index.first_position + int(number) * index.entry_bytes}
            expected = "what a scan of the .log finds"
            self._add(message, rule=index.rule, **at, expected=expected, found="something else")

    def check_rebuilt(self, max_timestamp_ms: int, *, by_broker: bool, steps: Iterable[WalkStep]) -> None:
        """Compares indexes that this package wrote with a rebuild. For Kafka's indexes true entries suffice.

        `max_timestamp_ms`: the largest of the batches seen. `by_broker`: a batch has a leader epoch, so a broker has
        written the file. `steps`: another walk of the file, begun only if needed. The topic's index.interval.bytes and
        segment.index.bytes may have changed since the file was written, so values that the entries imply are tried as
        well.
        """
        index = self._index
        time_index = self._time_index
        if self._builder is None or index.content is None or time_index.content is None:
            return
        contents = (index.content, time_index.content)
        rebuilt = self._builder.finish()
        if rebuilt == contents:
            return
        if not time_index.content and max_timestamp_ms >= 0:
            self._not_rebuilt(time_index, "at least one entry", "none")
        if by_broker or contents in self._rebuilt_with_others(len(index.content), len(time_index.content), steps):
            return
        for wrong, expected, content in zip((index, time_index), rebuilt, contents, strict=True):
            if expected != content:
                found = f"{len(content)} other bytes"
                self._not_rebuilt(wrong, f"{len(expected)} bytes as the .log gives them", found)

    def _not_rebuilt(self, index: _Index, expected: str, found: str) -> None:
        at = {"path": index.path, "byte_position": index.first_position, "severity": Findings.WARNING}
        self._add("The index is not what its .log gives", rule="I3", **at, expected=expected, found=found)

    def _rebuilt_with_others(
        self, index_bytes: int, time_index_bytes: int, steps: Iterable[WalkStep]
    ) -> list[tuple[bytes, bytes]]:
        """The indexes rebuilt with each pair of settings that can give these sizes, in one walk of the file."""
        intervals: set[int | None] = {self._limits.index_interval_bytes}
        if isinstance(self._index.check, OffsetIndexCheck):
            intervals |= {self._index.check.interval_bytes(), self._index.check.interval_bytes(full=True)}
        # A time index keeps its last slot for the end; where neither index was full, any limit above them will do.
        limits = {INT_MAX, index_bytes, index_bytes + OFFSET_ENTRY_BYTES - 1}
        limits |= {time_index_bytes, time_index_bytes + TIME_ENTRY_BYTES}
        builders = [
            IndexBuilder(self._segment.name_offset, interval_bytes, limit)
            for interval_bytes in intervals
            for limit in limits
            if interval_bytes is not None
        ]
        for step in steps:
            for builder in builders:
                builder.add(self._of_segment(step.window.batches))
        return [builder.finish() for builder in builders]
