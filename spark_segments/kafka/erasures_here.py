"""Imports into a topic that keys were erased from: what an erasure took does not come back, and nothing is lost below
its tombstones.

A topic keeps no erased key. It notes the offsets of the segments that its erasures rewrote, and of the tombstones that
they appended. It also notes the log end that an import left: what others append beyond it, and a policy removes, may
hide a record of Kafka's, too.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from spark_segments.difference import Comparison, History
from spark_segments.errors import LogDirError
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.log import Segment, SegmentFile

_ERASE_AGAIN = "delete the topic here, import it again, and erase the keys again"


@dataclass(frozen=True, slots=True)
class ErasuresHere:
    """What the erasures here have done to a partition: ranges [start, end) of offsets, in order.

    `rewritten`: the segments that lost records. `appends`: the tombstones that were appended.
    """

    rewritten: Sequence[tuple[int, int]] = ()
    appends: Sequence[tuple[int, int]] = ()

    def check_appends(self, ours: History, theirs: History, comparison: Comparison) -> None:
        """Raises LogDirError where Kafka gives the offset of a tombstone that was appended here to another record.

            here    |====erased====|tombstone|
            Kafka   |==============|  record  |=====log end|
                                   ^ the same offset, twice

        A comparison finds the tombstone as long as it is here. When compaction has removed it, Kafka's record looks
        like a record that compaction removed here, and would be lost.
        """
        log_start, log_end = theirs.partition.log_start_offset, theirs.partition.log_end_offset
        appends = [(max(start, log_start), end) for start, end in self.appends if end > log_start]
        foreign = comparison.first_difference
        if foreign is None and ours.partition.log_end_offset > log_end:
            foreign = log_end
        if foreign is None:
            foreign = _first_alone(theirs, ours, appends)
        for start, end in appends:
            if foreign is not None and start <= foreign < end:
                raise LogDirError(
                    f"{_name(ours)} has tombstones that an erasure appended here, from offset {start} on",
                    path=theirs.storage.uri,
                    expected="a log that only imports append to",
                    found=f"a log end of {ours.partition.log_end_offset} here, of {log_end} in the Kafka directory",
                    hint=f"{_ERASE_AGAIN.capitalize()}. An erasure appends no tombstone where the import has brought "
                    "one: write it to Kafka first",
                )

    def check_replacement(self, ours: History, theirs: History) -> None:
        """Raises LogDirError where Kafka's segments, put in the place of all segments here, would bring a record back
        that may have been erased.
        """
        first = max(ours.partition.log_start_offset, theirs.partition.log_start_offset)
        # The segment that has the log start is copied whole:
        #
        #   Kafka   |base ...erased key... log start|=======|=====
        first = max((row.base_offset for row in theirs.segments if row.base_offset <= first), default=first)
        ends = [(max(start, first), min(end, ours.partition.log_end_offset)) for start, end in self.rewritten]
        offset = _first_alone(theirs, ours, [(start, end) for start, end in ends if start < end])
        if offset is not None:
            raise LogDirError(
                f"{_name(ours)} has records that were erased here, from offset {offset} on",
                path=theirs.storage.uri,
                expected="none of them: Kafka's cleaner has removed newer records, so all segments here have to give "
                "way to the directory's",
                found=f"a record at offset {offset}",
                hint="Write a tombstone of each erased key to Kafka, and import again when its cleaner has run. Or "
                + _ERASE_AGAIN,
            )


def check_appended(ours: History, theirs: History, copied_end: int) -> None:
    """Raises LogDirError where Kafka gives the offset of a record that was appended here to another record.

        here    |====copied====|appended|log end
        Kafka   |==============| record |========log end|
                               ^ copied_end

    A comparison finds what was appended as long as it is here. When compaction or retention has removed it, Kafka's
    record looks like a record that was removed here, and would be lost. It may be just that: a log that was exported
    and comes back has what was appended here. That is known where a later record is on both sides. Where all have left
    this log, nothing here says what they were.
    """
    start = max(copied_end, theirs.partition.log_start_offset)
    end = ours.partition.log_end_offset
    if start >= end:
        return
    # A comparison reads neither side below its log start, though the bytes may be there.
    last_shared = _last_shared(theirs, ours, max(start, ours.partition.log_start_offset), end)
    offset = _first_offset(theirs, start if last_shared is None else last_shared + 1, end)
    if offset is not None:
        raise LogDirError(
            f"{_name(ours)} had records appended here, from offset {copied_end} on, that have left the log. "
            f"The record at offset {offset} of the Kafka directory may be another one, and would be lost",
            path=theirs.storage.uri,
            expected=f"a log end of {copied_end} here, as the last import or capture left it",
            found=f"a log end of {end}",
            hint="Import into another log directory, or delete the topic here first. An export of this topic can be "
            "imported for as long as any record that was appended here is on both sides",
        )


def _last_shared(history: History, other: History, start: int, end: int) -> int | None:
    """The last offset in [start, end) that has a record in both, None where none has."""
    for row in reversed(_segments(history, start, end)):
        low, high = max(start, row.base_offset), min(end, row.next_offset)
        shared = np.intersect1d(_offsets(history, low, high), _offsets(other, low, high), assume_unique=True)
        if len(shared):
            return int(shared[-1])
    return None


def _first_offset(history: History, start: int, end: int) -> int | None:
    """The first offset in [start, end) that has a record."""
    for row in _segments(history, start, end):
        offsets = _offsets(history, max(start, row.base_offset), min(end, row.next_offset))
        if len(offsets):
            return int(offsets[0])
    return None


def _name(history: History) -> str:
    return f"{history.topic}-{history.partition.partition}"


def _first_alone(history: History, other: History, ranges: Sequence[tuple[int, int]]) -> int | None:
    """The first offset in these ranges, which are in order, that has a record in `history` and none in `other`.

    Memory is bounded by the offsets of one segment.
    """
    for start, end in ranges:
        for row in _segments(history, start, end):
            low, high = max(start, row.base_offset), min(end, row.next_offset)
            alone = np.setdiff1d(_offsets(history, low, high), _offsets(other, low, high), assume_unique=True)
            if len(alone):
                return int(alone[0])
    return None


def _segments(history: History, start: int, end: int) -> tuple[Segment, ...]:
    """The segments that overlap the offsets [start, end), in order: they are found without a look at the others."""
    rows = history.segments
    first = bisect.bisect_right(rows, start, key=lambda row: row.next_offset)
    last = bisect.bisect_left(rows, end, lo=first, key=lambda row: row.base_offset)
    return rows[first:last] if start < end else ()


def _offsets(history: History, start: int, end: int) -> np.ndarray:
    """int64[n]: the offsets in [start, end) that have a record, in order."""
    offsets = [np.empty(0, np.int64)]
    for row in _segments(history, start, end):
        low, high = max(start, row.base_offset), min(end, row.next_offset)
        file = SegmentFile(history.storage, row)
        for window in file.windows(file.locate(low), check_crc=False):
            decoded = decode_batches(
                window.between(low, high),
                topic=history.topic,
                partition=row.partition,
                start_offset=low,
                end_offset=high,
                columns=("offset",),
            )
            offsets += [batch.column(0).to_numpy() for batch in decoded]
            if int(window.batches.last_offset[-1]) + window.offset_shift >= high - 1:
                break  # what follows has higher offsets alone
    return np.concatenate(offsets)
