"""The offsets of a scan: ranges by partition, and the one place where they are clipped to the log."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

OffsetRanges = tuple[tuple[int, int], ...]
"""Ranges (start, end exclusive) of a partition's offsets. They rise and share no offset.

No part of a scan has offsets of two ranges that meet: so a caller says where a scan is cut.
"""

Offsets = Mapping[int, OffsetRanges]
"""{partition: its ranges}"""


def clipped(offsets: Offsets, bounds: Mapping[int, tuple[int, int]]) -> dict[int, OffsetRanges]:
    """The offsets that lie within the `bounds` (start, end exclusive) of their partitions.

    What a caller asks for was true of an earlier version of the topic, and retention has moved the log start since:

        |start--------------------end|
                 |log start=================log end|      from the log start on
                              |start--------------------end|
                 |log start====last stable|=log end|      read_committed: up to the last stable offset

    Without the second clip a committed read would return data of a transaction that is aborted later, and a reader that
    goes on behind it would never look there again.
    """
    return {number: within(ranges, *bounds[number]) for number, ranges in offsets.items()}


def within(ranges: OffsetRanges, low: int, high: int) -> OffsetRanges:
    """The parts of ranges that lie in [low, high). A range with nothing there is empty: it ends where it starts."""
    parts = []
    for start, end in ranges:
        first = max(start, low)
        parts.append((first, max(first, min(end, high))))
    assert all(end <= start for (_, end), (start, _) in pairwise(parts)), "ranges rise and share no offset"
    return tuple(parts)


def borders(ranges: OffsetRanges) -> list[int]:
    """The offsets at which two of the ranges meet."""
    return [start for (_, end), (start, _) in pairwise(ranges) if start == end]
