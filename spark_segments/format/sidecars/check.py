"""Whether the entries of a segment's .index and .timeindex are true, checked during a scan of the .log by windows.

An entry is true if a look-up that follows it never skips its target. Kafka 4 writes a subset of the true entries: older
brokers and the cleaner put other offsets of the same batches into their entries.
"""

from __future__ import annotations

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.layout import NO_TIMESTAMP
from spark_segments.format.sidecars.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES


class OffsetIndexCheck:
    """The entries (relative offset, position) of one .index against the batches of its .log.

    An entry is true if a batch begins at its position and its offset is in range: above the last offset of the batch
    before that position, and not above the last offset of the batches before the next entry's position.
    """

    def __init__(self, index: tuple[np.ndarray, np.ndarray], base_offset: int) -> None:
        self._offset = index[0].astype(np.int64) + base_offset
        self._position = index[1].astype(np.int64)
        self._lowest = np.full(len(self._offset), -1, np.int64)  # lowest true offset of each entry; -1: no batch there
        self._batch_before = np.zeros(len(self._offset), np.int64)  # position of the batch before the entry's batch
        self._next_offset = base_offset
        self._last_position = 0

    def add(self, batches: BatchTable) -> None:
        """Takes the batches that come next in the file."""
        if not len(batches):
            return
        end = int(batches.byte_position[-1] + batches.size[-1])
        first, last = np.searchsorted(self._position, [int(batches.byte_position[0]), end])
        at = np.minimum(np.searchsorted(batches.byte_position, self._position[first:last]), len(batches) - 1)
        lowest = np.append(self._next_offset, batches.last_offset[:-1] + 1)[at]
        self._lowest[first:last] = np.where(batches.byte_position[at] == self._position[first:last], lowest, -1)
        self._batch_before[first:last] = np.append(self._last_position, batches.byte_position[:-1])[at]
        self._next_offset = int(batches.last_offset[-1]) + 1
        self._last_position = int(batches.byte_position[-1])

    def untrue(self, count: int | None = None) -> np.ndarray:
        """int64[]: numbers of the entries, or of the first `count`, that do not hold for the batches seen."""
        lowest = self._lowest[:count]
        offset = self._offset[:count]
        limit = np.append(lowest, self._next_offset)[1:]
        return np.flatnonzero((lowest < 0) | (offset < lowest) | (offset >= limit))

    def usable_bytes(self, log_bytes: int, *, goes_on: bool) -> int | None:
        """Bytes of the index that are true for a .log that ends at `log_bytes`; None if any entry there is untrue.

        `goes_on`: the file goes on behind that end, because the log was cut there or is being written to. Entries for
        positions behind the end are then left out.
        """
        count = int(np.searchsorted(self._position, log_bytes)) if goes_on else len(self._position)
        return None if len(self.untrue(count)) else count * OFFSET_ENTRY_BYTES

    def interval_bytes(self, *, full: bool = False) -> int | None:
        """An index.interval.bytes with which appending these batches, each by itself, writes exactly these entries.

        None where no such value exists. An entry is due once more bytes than the interval have been appended since the
        entry before. So no entry was due at the batch before each entry, nor at the last batch unless the index was
        `full`.
        """
        if not len(self._position):
            return None if full else self._last_position
        begins = np.append(0, self._position)
        due = self._position - begins[:-1]
        not_due = (self._batch_before if full else np.append(self._batch_before, self._last_position)) - begins[
            : len(begins) - full
        ]
        lowest = max(0, int(not_due.max()))
        return lowest if lowest < int(due.min()) else None


class TimeIndexCheck:
    """The entries (timestamp, relative offset) of one .timeindex against the batches of its .log.

    An entry is true if its offset lies in a batch whose largest timestamp is the entry's, and no batch before has a
    larger timestamp.
    """

    def __init__(self, index: tuple[np.ndarray, np.ndarray], base_offset: int) -> None:
        self._timestamp = index[0]
        self._offset = index[1].astype(np.int64) + base_offset
        self._true = np.zeros(len(self._offset), bool)
        self._largest = NO_TIMESTAMP
        self._next_offset = base_offset

    def add(self, batches: BatchTable) -> None:
        """The batches that come next in the file."""
        if not len(batches):
            return
        largest = np.maximum.accumulate(np.append(self._largest, batches.max_timestamp))
        next_offset = int(batches.last_offset[-1]) + 1
        first, last = np.searchsorted(self._offset, [self._next_offset, next_offset])
        at = np.searchsorted(batches.last_offset, self._offset[first:last])
        timestamp = self._timestamp[first:last]
        self._true[first:last] = (batches.max_timestamp[at] == timestamp) & (largest[at] <= timestamp)
        self._largest = int(largest[-1])
        self._next_offset = next_offset

    def untrue(self) -> np.ndarray:
        """int64[]: numbers of the entries that do not hold for the batches seen."""
        return np.flatnonzero(~self._true)

    def usable_bytes(self, *, goes_on: bool) -> int | None:
        """Bytes of the index that are true for the batches seen; None if any is untrue. `goes_on`: more may follow."""
        count = int(np.searchsorted(self._offset, self._next_offset)) if goes_on else len(self._offset)
        return count * TIME_ENTRY_BYTES if self._true[:count].all() else None


class TimeLookUpCheck:
    """Whether a look-up of a time by both indexes begins at or before the first batch that is not older than the time.

    The check covers all times at once. A look-up of a time above an entry's timestamp begins at the position that the
    offset index gives for the entry's offset. So no batch before that position may have a larger timestamp than the
    entry.
    """

    def __init__(self, time_index: tuple[np.ndarray, np.ndarray], offset_index: tuple[np.ndarray, np.ndarray]) -> None:
        entry = np.searchsorted(offset_index[0], time_index[1], side="right") - 1
        positions = offset_index[1].astype(np.int64)
        begins = positions[np.maximum(entry, 0)] if len(positions) else np.zeros(len(entry), np.int64)
        self._timestamp = time_index[0]
        self._begin = np.where(entry >= 0, begins, 0)
        self._passed_over = np.full(len(self._begin), NO_TIMESTAMP, np.int64)  # largest timestamp before `_begin`
        self._largest = NO_TIMESTAMP
        self._checked = 0

    def add(self, batches: BatchTable) -> None:
        """The batches that come next in the file."""
        if not len(batches):
            return
        largest = np.maximum.accumulate(np.append(self._largest, batches.max_timestamp))
        end = int(batches.byte_position[-1] + batches.size[-1])
        first = self._checked
        last = int(np.searchsorted(self._begin, end))
        if first < last:
            before = np.searchsorted(batches.byte_position, self._begin[first:last])
            self._passed_over[first:last] = largest[before]
            self._checked = last
        self._largest = int(largest[-1])

    def misled(self) -> np.ndarray:
        """int64[]: numbers of the time entries that make a look-up begin too late."""
        self._passed_over[self._checked :] = self._largest
        return np.flatnonzero(self._passed_over > self._timestamp)
