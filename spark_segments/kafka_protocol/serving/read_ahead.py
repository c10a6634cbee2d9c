"""Blocks of batches that a server has read and checked: for a reader that goes on, and for readers that come later.

The bytes of a block stay in memory until its reader has passed it. Where they come from a local file, the server
remembers that it has checked them, and sends them to later readers from the file, as a broker does.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spark_segments.storage.local import OpenFile

if TYPE_CHECKING:
    from spark_segments.log import FetchedBatches, Place

BLOCK_BYTES = 2 << 20
"""What is read at a time for a reader that goes on, however little it asks for."""

UNUSED_SECONDS = 2.0
"""How long the bytes of a block stay that nobody asks for."""

CHECKED_SECONDS = 600.0
"""How long batches whose CRC was checked are sent without another look at it."""

_MOST_BATCHES = 1 << 18  # of all blocks: some 12 MiB
_MOST_PLACES = 4096
# Of a batch with another head, on average: below, two calls to the system for each cost more than a read.
_LEAST_SENT_BYTES = 24 << 10


@dataclass(frozen=True, slots=True)
class FileRange:
    """`nbytes` of an open file from byte `position` on, to be sent. At `positions`, which count from the range's begin,
    `heads` go out in place of the file's bytes.
    """

    file: OpenFile
    position: int
    nbytes: int
    positions: Sequence[int] = ()
    heads: Sequence[bytes] = ()

    def __len__(self) -> int:
        return self.nbytes


Held = Sequence[np.ndarray] | OpenFile
"""The bytes of a block, or the file that has them."""


class CheckedBlock:
    """Neighbouring batches of a file, with log offsets from `start` to `next_offset`.

    `data`: their bytes; None once they are given up.
    """

    def __init__(self, start: int, read: FetchedBatches) -> None:
        """`read`: batches of one file, from the offset `start` on."""
        layout = read.layout
        source = read.source
        assert layout is not None and source is not None, "its batches are of one file"
        self.start = start
        self.next_offset = read.next_offset
        self.data: Sequence[np.ndarray] | None = read.data
        self._layout = layout
        self.source = source
        self._ends = layout.byte_position + layout.size
        self.size_bytes = int(self._ends[-1])
        self.largest_bytes = int(layout.size.max())
        self.checked_seconds = 0.0
        self.used_seconds = 0.0

    def __len__(self) -> int:
        return len(self._layout)

    @property
    def first_offset(self) -> int:
        return int(self._layout.base_offset[0])

    @property
    def is_worth_sending(self) -> bool:
        """Whether to send the batches from the file costs less than to read them."""
        return self.source.heads is None or self.size_bytes >= _LEAST_SENT_BYTES * len(self)

    def bytes_from(self, offset: int) -> int:
        """The bytes of the batches from the one that holds `offset` on."""
        first = int(np.searchsorted(self._layout.last_offset, offset))
        return self.size_bytes - int(self._layout.byte_position[first]) if first < len(self) else 0

    def cut(
        self, held: Held, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> tuple[list[np.ndarray | FileRange], int]:
        """What `PartitionLog.read` gives for the same arguments, and the offset behind it: parts of the block's bytes,
        which are `held`.
        """
        layout = self._layout
        ends = self._ends
        first = int(layout.last_offset.searchsorted(offset))
        last = int(layout.base_offset.searchsorted(end_offset))
        if first >= last:
            return [], min(self.next_offset, end_offset)
        start = int(layout.byte_position[first])
        fits = min(last, int(ends.searchsorted(start + max_bytes, side="right")))
        last = max(fits, first + 1 if at_least_one else first)
        if first == last:
            return [], offset
        end = int(ends[last - 1])
        behind = int(layout.last_offset[last - 1]) + 1
        if last == len(layout):
            behind = max(behind, min(self.next_offset, end_offset))
        if isinstance(held, OpenFile):
            heads = self.source.heads
            changed = () if heads is None else [head.tobytes() for head in heads[first:last]]
            positions = () if heads is None else (layout.byte_position[first:last] - start).tolist()
            return [FileRange(held, self.source.byte_position + start, end - start, positions, changed)], behind
        pieces: list[np.ndarray | FileRange] = []
        begin = 0
        for piece in held:
            part = piece[max(start - begin, 0) : max(end - begin, 0)]
            if part.nbytes:
                pieces.append(part)
            begin += piece.nbytes
        return pieces, behind


class ReadAhead:
    """The blocks of all partitions, with `most_bytes` of data in all, and the places in files where reads ended.

    Safe between threads. A block that waits for its reader gives its room to no other: bytes that go before they were
    used cost more than they save. `sends_files`: a block is remembered without its bytes. `seconds`: the clock.
    """

    def __init__(
        self, most_bytes: int, *, sends_files: bool = False, seconds: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_bytes = most_bytes
        self._sends_files = sends_files
        self._seconds = seconds
        self._data_bytes = 0
        self._batches = 0
        self._blocks: dict[Hashable, dict[int, CheckedBlock]] = {}
        self._starts: dict[Hashable, list[int]] = {}
        self._used: OrderedDict[tuple[Hashable, int], CheckedBlock] = OrderedDict()  # the last one was used last
        self._places: OrderedDict[tuple[Hashable, int], Place] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, log: Hashable, offset: int) -> CheckedBlock | None:
        """The block of a partition's log that holds an offset, if there is one that may still be used."""
        with self._lock:
            starts = self._starts.get(log, [])
            number = bisect.bisect_right(starts, offset) - 1
            if number < 0:
                return None
            block = self._blocks[log][starts[number]]
            now = self._seconds()
            if now - block.checked_seconds > CHECKED_SECONDS:
                self._remove(log, block)
                return None
            if offset >= block.next_offset:
                return None
            block.used_seconds = now
            self._used.move_to_end((log, block.start))
            return block

    def has_room(self, size_bytes: int) -> bool:
        """Whether a block of so much data would be kept."""
        with self._lock:
            if self._data_bytes + size_bytes > self._most_bytes:
                now = self._seconds()
                for log, start in [*self._used]:
                    block = self._used[log, start]
                    if now - block.used_seconds <= UNUSED_SECONDS:
                        break
                    self._give_up(log, block)
            return self._data_bytes + size_bytes <= self._most_bytes

    def keep(self, log: Hashable, start: int, read: FetchedBatches) -> CheckedBlock | None:
        """The batches of a log from offset `start` on as a block, where they can be one. It is kept."""
        if read.layout is None or read.source is None or not len(read.layout):
            return None
        block = CheckedBlock(start, read)
        with self._lock:
            before = self._blocks.get(log, {}).get(start)
            if before is not None:
                self._remove(log, before)
            self._blocks.setdefault(log, {})[start] = block
            self._used[log, start] = block
            bisect.insort(self._starts.setdefault(log, []), start)
            block.checked_seconds = self._seconds()
            block.used_seconds = block.checked_seconds
            self._data_bytes += block.size_bytes
            self._batches += len(block)
            while self._batches > _MOST_BATCHES and len(self._used) > 1:
                (other, _), oldest = next(iter(self._used.items()))
                self._remove(other, oldest)
        return block

    def give_up(self, log: Hashable, block: CheckedBlock) -> None:
        """Gives up the bytes of a block that its reader has behind it: the next takes the memory while it is warm."""
        with self._lock:
            if self._blocks.get(log, {}).get(block.start) is block:
                self._give_up(log, block)

    def _give_up(self, log: Hashable, block: CheckedBlock) -> None:
        if not (self._sends_files and block.is_worth_sending):
            self._remove(log, block)
        elif block.data is not None:
            self._data_bytes -= block.size_bytes
            block.data = None

    def _remove(self, log: Hashable, block: CheckedBlock) -> None:
        if block.data is not None:
            self._data_bytes -= block.size_bytes
        self._batches -= len(block)
        del self._blocks[log][block.start], self._used[log, block.start]
        self._starts[log].remove(block.start)
        if not self._starts[log]:
            del self._starts[log], self._blocks[log]

    def place(self, log: Hashable, offset: int) -> Place | None:
        """Where `offset` lies, if a read ended there."""
        return self._places.get((log, offset))

    def remember(self, log: Hashable, place: Place | None) -> None:
        """Remembers where a read ended."""
        if place is not None:
            with self._lock:
                self._places[log, place.offset] = place
                if len(self._places) > _MOST_PLACES:
                    self._places.popitem(last=False)
