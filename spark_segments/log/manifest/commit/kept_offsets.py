"""Offsets and records that stay in the log when other rows take the place of the rows that hold them.

Every commit that replaces rows is checked, by its rows alone: no file is read. A log loses offsets only below its log
start, and records only where a policy takes them. Anything else is a fault of a plan, and ends before the commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.errors import SegmentsError

_HINT = (
    "Nothing was changed. This is a fault of the program, which planned a commit that loses records: report it with "
    "the command and with the output of segments history"
)


def check_kept_offsets(
    topic: str,
    operation: str,
    leaving: pa.Table,
    arriving: pa.Table,
    starts: Mapping[int, int],
    thinned: Mapping[int, int],
) -> None:
    """Raises SegmentsError where rows that are `leaving` the log hold offsets, or records, that the `arriving` rows do
    not hold.

    `starts`: {partition: its log start after the change}; offsets below it may go. `thinned`: {partition: an offset};
    records below it may go, but their offsets stay.
    """
    gone = _Ranges.of(leaving).above(starts)
    if not len(gone.partition):
        return
    both = _Overlaid.of(gone, _Ranges.of(arriving))
    _check_offsets(topic, operation, both)
    _check_records(topic, operation, both, thinned)


@dataclass(frozen=True, slots=True)
class _Ranges:
    """Rows that hold any offsets, as arrays. `is_cut`: the row begins below the log start, and counts more records."""

    partition: np.ndarray
    base: np.ndarray
    following: np.ndarray
    records: np.ndarray
    is_cut: np.ndarray

    @classmethod
    def of(cls, rows: pa.Table) -> _Ranges:
        names = ("partition", "base_offset", "next_offset", "records")
        partition, base, following, records = (rows.column(name).to_numpy() for name in names)
        ranges = cls(partition, base, following, records, np.zeros(len(base), bool))
        return ranges.take(following > base)

    def take(self, rows: np.ndarray) -> _Ranges:
        return _Ranges(
            self.partition[rows], self.base[rows], self.following[rows], self.records[rows], self.is_cut[rows]
        )

    def above(self, starts: Mapping[int, int]) -> _Ranges:
        """The ranges from the log starts on."""
        low = _by_partition(self.partition, starts)
        cut = _Ranges(self.partition, np.maximum(self.base, low), self.following, self.records, self.base < low)
        return cut.take(cut.following > cut.base)


@dataclass(frozen=True, slots=True)
class _Overlaid:
    """`gone` and `come` on one axis: the bounds of all ranges, in order of partition and offset.

    `begin` and `end`: the place on the axis of each range's bounds, of `gone` and then of `come`. Between two places
    next to each other no range begins or ends.
    """

    gone: _Ranges
    come: _Ranges
    offset: np.ndarray  # of each place
    begin: np.ndarray
    end: np.ndarray

    @classmethod
    def of(cls, gone: _Ranges, come: _Ranges) -> _Overlaid:
        partition = np.concatenate([gone.partition, come.partition, gone.partition, come.partition])
        offset = np.concatenate([gone.base, come.base, gone.following, come.following])
        order = np.lexsort((offset, partition))
        sorted_partition, sorted_offset = partition[order], offset[order]
        is_new = np.ones(len(order), bool)
        is_new[1:] = (np.diff(sorted_partition) != 0) | (np.diff(sorted_offset) != 0)
        place = np.empty(len(order), np.int64)
        place[order] = np.cumsum(is_new) - 1
        count = len(order) // 2
        return cls(gone, come, sorted_offset[is_new], place[:count], place[count:])

    def held(self) -> np.ndarray:
        """bool[places]: whether a range of `come` holds the offsets from this place to the next."""
        change = np.zeros(len(self.offset), np.int64)
        np.add.at(change, self.begin[len(self.gone.base) :], 1)
        np.add.at(change, self.end[len(self.gone.base) :], -1)
        return np.cumsum(change) > 0

    def shares(self) -> np.ndarray:
        """int64[ranges]: the number of the share that a range is in. Ranges with a common offset are in the same."""
        within = np.zeros(len(self.offset) + 1, np.int64)
        np.add.at(within, self.begin + 1, 1)
        np.add.at(within, self.end, -1)
        parts_here = np.cumsum(within)[:-1] == 0  # no range reaches across this place
        number = np.cumsum(parts_here) - 1
        shares: np.ndarray = number[self.begin]
        return shares


def _check_offsets(topic: str, operation: str, both: _Overlaid) -> None:
    """Raises where offsets of a range that goes are in no range that comes."""
    held = both.held()
    count = len(both.gone.base)
    bare = np.concatenate([[0], np.cumsum(~held)])
    lost = bare[both.end[:count]] > bare[both.begin[:count]]
    if not lost.any():
        return
    row = int(lost.argmax())
    begin, end = int(both.begin[row]), int(both.end[row])
    first = begin + int((~held[begin:end]).argmax())
    rest = held[first:end]
    last = first + int(rest.argmax()) if rest.any() else end
    raise _lost(
        topic,
        operation,
        int(both.gone.partition[row]),
        f"segments that hold the offsets {both.offset[first]} to {both.offset[last] - 1}",
        "none in the place of those that hold them now",
    )


def _check_records(topic: str, operation: str, both: _Overlaid, thinned: Mapping[int, int]) -> None:
    """Raises where ranges have fewer records than those in whose place they come, and no policy takes records there."""
    gone = both.gone
    come = both.come
    count = len(both.gone.base)
    share = both.shares()
    had, has, may_go = (np.zeros(int(share.max()) + 1, np.int64) for _ in range(3))
    np.add.at(had, share[:count], gone.records)
    np.add.at(has, share[count:], come.records)
    np.add.at(may_go, share[:count], gone.is_cut | (gone.base < _by_partition(gone.partition, thinned)))
    lost = (has < had) & (may_go == 0)
    if not lost.any():
        return
    number = int(lost.argmax())
    rows = np.flatnonzero(share[:count] == number)
    raise _lost(
        topic,
        operation,
        int(gone.partition[rows[0]]),
        f"{had[number]} records at the offsets {gone.base[rows].min()} to {gone.following[rows].max() - 1}",
        f"{has[number]} records",
    )


def _lost(topic: str, operation: str, partition: int, expected: str, found: str) -> SegmentsError:
    return SegmentsError(
        f"A commit ({operation}) would lose records of {topic}-{partition} that no policy removes",
        expected=expected,
        found=found,
        hint=_HINT,
    )


def _by_partition(partition: np.ndarray, offsets: Mapping[int, int]) -> np.ndarray:
    """int64[rows]: the offset of each row's partition, 0 where it has none."""
    numbers, index = np.unique(partition, return_inverse=True)
    return np.array([offsets.get(number, 0) for number in numbers.tolist()], np.int64)[index]
