"""Record batches of a partition as they lie in its files, from an offset on: what a broker gives to a fetch.

Nothing is decoded. A batch gets its offset in the log, and an epoch where it has none, in its header, outside the CRC.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_segments.errors import CorruptBatchError, MissingFileError
from spark_segments.format.layout import MAGIC_POSITION
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.isolation import load_aborted, transaction_indexes
from spark_segments.log.segment.file import LookUp, SegmentFile
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.log.segment.rebase import rebased, trimmed
from spark_segments.storage import Storage

HEAD_BYTES = MAGIC_POSITION
"""The bytes of a batch that depend on where in the log it is: base offset, length, leader epoch."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file: no batch before `byte_position` holds `offset` or a later offset."""

    offset: int
    path: str
    byte_position: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where batches lie: arrays of n, all int64. `byte_position` counts from the first of them, without gaps."""

    byte_position: np.ndarray
    size: np.ndarray
    base_offset: np.ndarray
    last_offset: np.ndarray

    def __len__(self) -> int:
        return len(self.byte_position)


@dataclass(frozen=True, slots=True)
class CheckedBytes:
    """The bytes of a file that batches were read from: neighbours, from `byte_position` on.

    `heads`: uint8[n, HEAD_BYTES], what each of them begins with instead; None: they are as they lie.
    """

    path: str
    byte_position: int
    heads: np.ndarray | None


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Neighbouring record batches of a partition.

    `data`: buffers (uint8[]), one after the other. `next_offset`: behind the last batch; where the read passed no
    batch, the offset that it ended at. `place`: where the next read can go on without a look at an index. `layout` and
    `source`: set where all batches are unchanged from one file, but for their heads.
    """

    data: Sequence[np.ndarray]
    next_offset: int
    place: Place | None = None
    layout: Layout | None = None
    source: CheckedBytes | None = None

    @property
    def size_bytes(self) -> int:
        return sum(piece.nbytes for piece in self.data)


@dataclass(slots=True)
class _Fetch:
    """What a read asks for, and what it has taken so far. `epochs`: for batches without one. `left_bytes`: what it may
    still take; `at_least_one`: a first batch that is larger, too. `next_offset`, `place`: as in `FetchedBatches`.
    """

    epochs: LeaderEpochs | None
    end_offset: int
    left_bytes: int
    at_least_one: bool
    next_offset: int
    place: Place | None
    data: list[np.ndarray] = field(default_factory=list)
    pieces: list[Window] = field(default_factory=list)
    are_as_read: bool = True

    def take(self, window: Window, base_offset: int) -> bool:
        """Takes the batches of a window of a segment that have offsets in [`next_offset`, `end_offset`), as far as they
        fit. Returns whether to go on with the window behind it.

        The segment begins at `base_offset`: the first batch may begin below it, and is cut there.
        """
        batches = window.between(self.next_offset, self.end_offset)
        sizes = batches.batches.size.cumsum()
        fits = int(np.searchsorted(sizes, self.left_bytes, side="right"))
        fits = max(fits, int(self.at_least_one and not self.data))
        taken = batches if fits >= len(sizes) else batches.take(slice(0, fits))
        for piece in trimmed(taken, base_offset):
            piece_bytes, _ = rebased(piece, self.epochs)
            self.are_as_read &= piece.data is window.data and window.is_as_written
            self.pieces.append(piece)
            self.data.append(piece_bytes)
            self.left_bytes -= piece_bytes.nbytes
        count = len(taken.batches)
        if count:
            self.next_offset = int(taken.batches.last_offset[-1]) + window.offset_shift + 1
            # Of messages of magic 0 and 1 the window is not what lies in the file: its positions are no places there.
            self.place = Place(self.next_offset, window.path, taken.end_position) if window.is_as_written else None
        # Where less is left than a batch of this window took, the next would be read in vain.
        is_full = bool(self.data) and self.left_bytes < window.batches.size.max()
        return count == len(batches.batches) and not is_full

    def batches(self) -> FetchedBatches:
        return FetchedBatches(self.data, self.next_offset, self.place, *self._source())

    def _source(self) -> tuple[Layout | None, CheckedBytes | None]:
        """Where the batches lie, if they are neighbours in a file and unchanged but for their heads."""
        if not self.are_as_read or len({window.path for window in self.pieces}) != 1:
            return None, None
        first = self.pieces[0]
        tables = [window.batches for window in self.pieces]
        byte_position, size, base_offset, last_offset, epoch = (
            np.concatenate([getattr(table, name) for table in tables])
            for name in ("byte_position", "size", "base_offset", "last_offset", "leader_epoch")
        )
        if (byte_position[1:] != byte_position[:-1] + size[:-1]).any():
            return None, None
        begin = int(byte_position[0])
        shift = first.offset_shift
        layout = Layout(byte_position - begin, size, base_offset + shift, last_offset + shift)
        heads = None
        if shift or (self.epochs is not None and (epoch < 0).any()):
            joined = self.data[0] if len(self.data) == 1 else np.concatenate(self.data)
            heads = joined[layout.byte_position[:, np.newaxis] + np.arange(HEAD_BYTES)]
        return layout, CheckedBytes(first.path, begin, heads)


class PartitionLog:
    """The batches of a partition in a snapshot. Any number of threads may use it."""

    def __init__(self, storage: Storage, snapshot: Snapshot, partition: int) -> None:
        self._storage = storage
        self._rows: pa.Table = snapshot.live_table(partition)
        self._ends = self._rows.column("next_offset").to_numpy()
        sizes = self._rows.column("log_bytes").to_numpy()
        self._bytes_behind = np.append(sizes[::-1].cumsum()[::-1], 0)  # of each segment and all behind it
        row = snapshot.partition(partition)
        self._epochs = LeaderEpochs.of_copies(snapshot, row) if row.leader_epochs else None
        self._segments: dict[int, Segment] = {}
        self._aborted = snapshot.aborted

    def aborted(self, start: int, end: int) -> AbortedTransactions:
        """The aborted transactions that may have data in [start, end)."""
        later = self._rows.slice(self._first(start))
        return load_aborted(self._storage, transaction_indexes(later, self._aborted), start, end)

    def bytes_from(self, offset: int) -> int:
        """The bytes of the segments that hold `offset` and later offsets: what reads from there can give at most."""
        return int(self._bytes_behind[self._first(offset)])

    def _segment(self, number: int) -> Segment:
        if number not in self._segments:
            (self._segments[number],) = Segment.of_table(self._rows.slice(number, 1))
        return self._segments[number]

    def segment_at(self, offset: int) -> Segment | None:
        """The segment that holds an offset, or the first one behind it."""
        number = self._first(offset)
        return self._segment(number) if number < len(self._ends) else None

    def _first(self, offset: int) -> int:
        return int(self._ends.searchsorted(offset, side="right"))

    def read(
        self,
        offset: int,
        end_offset: int,
        max_bytes: int,
        *,
        place: Place | None = None,
        at_least_one: bool = True,
        most_files: int = sys.maxsize,
    ) -> FetchedBatches:
        """Batches with offsets in [`offset`, `end_offset`): the first holds `offset` or is the first one after it.

        They are of `max_bytes` at most, save a single batch that is larger by itself (`at_least_one`, KIP-74), and from
        `most_files`. `place`: as an earlier read of this partition gave it. The CRC of each batch is checked. Raises
        CorruptBatchError and MissingFileError.
        """
        fetch = _Fetch(self._epochs, end_offset, max_bytes, at_least_one, offset, place)
        try:
            self._fill(fetch, most_files)
        except (CorruptBatchError, MissingFileError):
            if not fetch.data:  # batches before the damage are returned; the next read raises the error
                raise
        return fetch.batches()

    def _fill(self, fetch: _Fetch, most_files: int) -> None:
        """Has a read take batches of one segment after the other, as far as it goes."""
        first = self._first(fetch.next_offset)
        for number in range(first, len(self._ends)):
            segment = self._segment(number)
            if segment.base_offset >= fetch.end_offset or (fetch.data and number - first >= most_files):
                return
            start = max(fetch.next_offset, segment.base_offset)
            for window in self._windows(segment, start, fetch.left_bytes, fetch.place):
                if not fetch.take(window, segment.base_offset):
                    return
            # Compaction may have left out what follows its last batch: the read has passed that, too.
            fetch.next_offset = max(fetch.next_offset, min(segment.next_offset, fetch.end_offset))

    def _windows(self, segment: Segment, start: int, wanted_bytes: int, place: Place | None) -> Iterator[Window]:
        """The batches of a segment from the one that holds `start` on: of about `wanted_bytes` at first, then more.

        Of an object store nothing is fetched that a reader who stops does not want: the first fetch is of what it asks
        for, and each further one of as much more.
        """
        wanted_bytes = max(wanted_bytes, 1)  # a reader may ask for none, and gets a batch
        look_up: LookUp | None = None
        if place is not None and (place.offset, place.path) == (start, segment.path):
            byte_position = place.byte_position
            size = 0
        elif start > segment.base_offset or segment.file_base_offset > segment.name_offset:
            byte_position, size = SegmentFile(self._storage, segment).seek(start)
            look_up = LookUp(byte_position, start) if byte_position > segment.byte_position else None
        else:
            byte_position = segment.byte_position
            size = 0
        while byte_position < segment.end_position:
            end = min(byte_position + size + wanted_bytes, segment.end_position)
            for window in SegmentFile(self._storage, segment).windows(
                byte_position, end, first_window_bytes=max(end - byte_position, 1), writable=True
            ):
                if look_up is not None:
                    look_up.check_begin(segment, window)
                    look_up = None
                yield window
                byte_position = window.end_position
            size += wanted_bytes
