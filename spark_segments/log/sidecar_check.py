"""Whether the entries of a segment's .index and .timeindex are true, told while the .log is scanned window by window.

An entry is true if a look-up by it never passes over what is looked for. This is a little wider than what Kafka 4
writes, because older brokers and the cleaner put other offsets of the same batches into their entries.
"""

from __future__ import annotations

import numpy as np

from spark_segments.format.batches import BatchTable
from spark_segments.format.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from spark_segments.format.layout import NO_TIMESTAMP


class OffsetIndexCheck:
    """The entries (relative offset, position) of one .index against the batches of its .log.

    An entry is true if a batch begins at its position, and its offset lies behind all batches before that one and not
    behind the last one before the next entry's position.
    """

    def __init__(self, index: tuple[np.ndarray, np.ndarray], base_offset: int) -> None:
        self._offset = index[0].astype(np.int64) + base_offset
        self._position = index[1].astype(np.int64)
        self._lowest = np.full(len(self._offset), -1, np.int64)  # the first offset behind all batches before
        self._next_offset = base_offset

    def add(self, batches: BatchTable) -> None:
        """The batches that come next in the file."""
        if not len(batches) or not len(self._offset):
            return
        end = int(batches.position[-1] + batches.size[-1])
        first, last = np.searchsorted(self._position, [int(batches.position[0]), end])
        at = np.minimum(np.searchsorted(batches.position, self._position[first:last]), len(batches) - 1)
        lowest = np.append(self._next_offset, batches.last_offset[:-1] + 1)[at]
        self._lowest[first:last] = np.where(batches.position[at] == self._position[first:last], lowest, -1)
        self._next_offset = int(batches.last_offset[-1]) + 1

    def usable_bytes(self, log_bytes: int) -> int | None:
        """Bytes of the index that hold for a .log that ends at `log_bytes`, None if one of its entries is untrue.

        Entries for what lies behind that end are left out, not untrue: a log may have been cut, or be written to.
        """
        count = int(np.searchsorted(self._position, log_bytes))
        lowest = self._lowest[:count]
        limit = np.append(lowest, self._next_offset)[1:]
        true = (lowest >= 0) & (self._offset[:count] >= lowest) & (self._offset[:count] < limit)
        return count * OFFSET_ENTRY_BYTES if true.all() else None


class TimeIndexCheck:
    """The entries (timestamp, relative offset) of one .timeindex against the batches of its .log.

    An entry is true if its offset lies in a batch with its timestamp as the largest, and none before has a larger one.
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
        self._largest, self._next_offset = int(largest[-1]), next_offset

    def usable_bytes(self) -> int | None:
        """Bytes of the index that hold for the batches seen, None if an entry for one of them is untrue."""
        count = int(np.searchsorted(self._offset, self._next_offset))
        return count * TIME_ENTRY_BYTES if self._true[:count].all() else None
