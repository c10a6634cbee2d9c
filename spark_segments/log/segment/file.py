"""The files of a segment: look-ups by its indexes, windows of its record batches, copies of its log.

A read touches the .index once and then only the bytes of the .log that it needs, in windows: memory is bounded by the
window and the largest record batch, not by the size of the file.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from spark_segments.errors import RESTORE, CorruptBatchError, LogDirError
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.index import parse_offset_index, parse_time_index, position_for_offset
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.format.walk import BORDER_BYTES, WINDOW_BYTES, WalkStep, walk
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.ranges import Ranges
from spark_segments.log.segment.rebase import rebased
from spark_segments.storage import Storage
from spark_segments.storage.fetch import fetch_ahead, read_file

FIRST_WINDOW_BYTES = 256 << 10

LARGEST_SHIFT = 1 << 62
"""Upper bound on what is between an offset in a file and in the log, so that a sum of both fits 64 bits."""

SMALL_RUN_BYTES = 1 << 20
"""Up to this size a run of a shared object is read whole: its index would be a request more."""

See = Callable[[Window], None]


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """The files of a segment: where they are, and the row that says what of them is the log's."""

    storage: Storage
    row: Segment

    @property
    def first_read_bytes(self) -> int:
        """How much of a segment is read at first. Of a shared object, where each read is a request, a run's window."""
        return WINDOW_BYTES if self.row.is_shared else FIRST_WINDOW_BYTES

    @property
    def _is_small(self) -> bool:
        return self.row.is_shared and self.row.log_bytes <= SMALL_RUN_BYTES

    def locate(self, offset: int) -> int:
        """The position in the file of a batch at or before the batch that holds log offset `offset`: the segment's
        first where the index has nothing closer.
        """
        return self.seek(offset)[0]

    def seek(self, offset: int) -> tuple[int, int]:
        """(position, size) of bytes of the file that begin with a batch and contain the batch that holds `offset`.

        `offset` is an offset of the log. The size is FIRST_WINDOW_BYTES at least; where the index does not know the end
        of the batch, more bytes may be needed. A small run of a shared object is read whole, without its index.
        """
        relative_offset = offset - self.row.offset_shift - self.row.name_offset
        if self.row.index_bytes == 0 or relative_offset <= 0 or self._is_small:
            return self.row.byte_position, self.first_read_bytes
        return self._between(self._positions(), relative_offset, relative_offset)

    def seek_time(self, timestamp_ms: int) -> tuple[int, int]:
        """(position, size) of the bytes of the file in which to look for the first record not older than
        `timestamp_ms`.

        No record before them has a timestamp ≥ `timestamp_ms`. They contain the first such record, as far as the
        indexes know its place. A time index entry holds the largest timestamp so far. So all records before the last
        entry below the target are older than the target, for any order of timestamps; the next entry's record is not
        older.
        """
        if self.row.time_index_bytes == 0 or self.row.index_bytes == 0 or self._is_small:
            return self.row.byte_position, self.first_read_bytes
        timestamps, relative_offsets = self.time_index()
        after = int(np.searchsorted(timestamps, timestamp_ms, side="left"))
        first = int(relative_offsets[after - 1]) if after else -1
        last = int(relative_offsets[after]) if after < len(timestamps) else None
        return self._between(self._positions(), first, last)

    def offset_before_time(self, timestamp_ms: int) -> int:
        """An offset of the log with older records alone before it, as near to the first other one as the time index has
        it: by the rule of `seek_time`.
        """
        if self.row.time_index_bytes == 0 or self._is_small:
            return self.row.base_offset
        timestamps, relative_offsets = self.time_index()
        after = int(np.searchsorted(timestamps, timestamp_ms, side="left"))
        older = int(relative_offsets[after - 1]) + 1 + self.row.offset_shift + self.row.name_offset if after else 0
        # Entries of a clipped row's file can lie outside of the row: below it, where no read may begin, or above it,
        # where a read of the row finds nothing.
        return min(max(self.row.base_offset, older), self.row.next_offset)

    def locate_position(self, byte_position: int) -> int:
        """The greatest indexed batch position of the file at or before `byte_position`, the segment's first at
        least.
        """
        if self.row.index_bytes == 0 or byte_position <= self.row.byte_position or self._is_small:
            return self.row.byte_position
        _, positions = self._positions()
        entry = int(np.searchsorted(positions, byte_position, side="right")) - 1
        return int(positions[entry]) if entry >= 0 else self.row.byte_position

    def pieces_between(self, offsets: range, positions: range, piece_bytes: int) -> list[tuple[int, int, int]]:
        """[(start, end, begin)]: the batches with log offsets in `offsets` that begin at `positions` of the file begin
        in these pieces, [start, end), which are neighbours. A batch begins at `begin`, at or before `start`.

        The pieces are of about `piece_bytes`, and as close to the offsets as the .index has them, which is read once.
        Without it there is a single piece, whose `begin` is that of the segment.
        """
        if self.row.index_bytes == 0 or self._is_small:
            return [(positions.start, positions.stop, self.row.byte_position)]
        before = self.row.offset_shift + self.row.name_offset
        index = self._positions()
        after = int(np.searchsorted(index[0], offsets.stop - 1 - before, side="left")) + 1  # as in `_between`
        start = max(position_for_offset(index, offsets.start - before), positions.start, self.row.byte_position)
        end = min(int(index[1][after]) if after < len(index[1]) else self.row.end_position, positions.stop)
        first = int(np.searchsorted(index[1], start, side="right")) - 1
        begin = int(index[1][first]) if first >= 0 else self.row.byte_position
        inner = index[1][(index[1] > start) & (index[1] < end)]
        count = max(1, -(-(end - start) // piece_bytes))
        targets = [start + (end - start) * number // count for number in range(1, count)]
        cuts = sorted({int(inner[at]) for at in np.searchsorted(inner, targets) if at < len(inner)})
        return [(low, high, begin if low == start else low) for low, high in itertools.pairwise([start, *cuts, end])]

    def windows(
        self,
        start_position: int = 0,
        end_position: int | None = None,
        *,
        first_window_bytes: int | None = None,
        wanted_position: int = 0,
        check_crc: bool = True,
        writable: bool = False,
        as_written: bool = False,
    ) -> Iterator[Window]:
        """The batches of a segment that begin in [start_position, end_position) of its file.

        They come in windows that grow from `first_window_bytes` to WINDOW_BYTES. `start_position` must be the start of
        a batch; a position before the segment's means its first. Batches before `wanted_position` are left out, of a
        window maybe all. `writable`: their data can mostly be changed in place. Messages of magic 0 and 1 are batches
        of magic 2 here, unless `as_written`. Raises CorruptBatchError where the bytes are damaged or end too early,
        MissingFileError where the file is gone.
        """
        path = self.row.path
        end = self.row.end_position
        self._check_shift()
        fetched_end = end if end_position is None else min(end, end_position + BORDER_BYTES)
        with fetch_ahead(self.storage, path, fetched_end) as read:
            for step in walk(
                partial(read, writable=writable),
                path,
                end,
                start_position=max(start_position, self.row.byte_position),
                end_position=end_position,
                first_window_bytes=first_window_bytes or self.first_read_bytes,
                offset_shift=self.row.offset_shift,
                check_crc=check_crc,
            ):
                for window in _windows_of(step, end):
                    rest = _from_position(window, wanted_position)
                    yield from (rest,) if as_written else opened(rest)

    def windows_in(self, ranges: Ranges, *, check_crc: bool = True) -> Iterator[Window]:
        """As `windows`, the batches in ranges of a segment's file, all of magic 2: what lies between them is not
        read.
        """
        path = self.row.path
        size = ranges.size
        self._check_shift()
        with ranges.reader(self.storage, path, self.row.end_position) as read:
            for step in walk(read, path, size, offset_shift=self.row.offset_shift, check_crc=check_crc):
                with ranges.errors():
                    windows = list(_windows_of(step, size))
                yield from map(ranges.in_file, windows)

    def offset_index(self) -> tuple[np.ndarray, np.ndarray]:
        """The .index of a segment as `parse_offset_index` gives it. Raises CorruptBatchError, or MissingFileError."""
        byte_position = self.row.index_position or 0
        data = read_file(self.storage, self.row.index_path, byte_position, self.row.index_bytes)
        with errors_from(byte_position):
            return parse_offset_index(data, path=self.row.index_path)

    def time_index(self) -> tuple[np.ndarray, np.ndarray]:
        """The .timeindex of a segment as `parse_time_index` gives it. Raises CorruptBatchError, or MissingFileError."""
        byte_position = self.row.time_index_position
        data = read_file(self.storage, self.row.time_index_path, byte_position, self.row.time_index_bytes)
        with errors_from(byte_position):
            return parse_time_index(data, path=self.row.time_index_path)

    def aborted(self) -> AbortedTransactions:
        """The aborted transactions of the .txnindex, at offsets of the log; none where its row gives it no bytes.

        Raises CorruptBatchError for a damaged file, MissingFileError where it is gone.
        """
        return read_txn_index(self.storage, self.row.txn_index_path, self.row.txn_index_bytes, self.row.offset_shift)

    def aborted_in(self, start: int, end: int) -> AbortedTransactions:
        """Those of `aborted` whose marker lies in [start, end)."""
        entries = self.aborted()
        return entries.take((entries.last_offset >= start) & (entries.last_offset < end))

    def copy_log(self, target: Storage, target_path: str, *, unique: bool = False, see: See | None = None) -> None:
        """Copies the .log of a row that is its file's whole log: byte by byte, up to the end of the row.

        Every batch's CRC is checked on the way, so a byte that was read wrong is not copied. Raises CorruptBatchError,
        also where there are fewer or more batches than the row says. `unique`: as in `copy_file`.
        `see` gets each window before it is written, without messages of magic 0 and 1.
        """
        batches = 0
        with target.stream(target_path, unique=unique) as stream:
            for window in self.windows(first_window_bytes=WINDOW_BYTES, as_written=True):
                if see is not None:
                    for part in opened(window):
                        see(part)
                data, _ = rebased(window)
                stream.write(data)
                batches += len(window.batches)
        if batches != self.row.batches:
            raise CorruptBatchError(
                "The file does not hold the batches of its row",
                path=self.row.path,
                expected=f"{self.row.batches} batches",
                found=f"{batches} batches",
                hint=RESTORE,
            )

    def _positions(self) -> tuple[np.ndarray, np.ndarray]:
        """(relative offsets, positions in the file)"""
        offsets, positions = self.offset_index()
        return offsets, positions.astype(np.int64) + self.row.byte_position if self.row.byte_position else positions

    def _between(self, index: tuple[np.ndarray, np.ndarray], first: int, last: int | None) -> tuple[int, int]:
        """(position, size) of the bytes with the relative offsets `first` to `last` (None: to the end of the segment).

        An entry names the last offset of the append that it points to. So an offset above an entry's lies in the append
        of the next entry at the latest. That append ends where the entry after the next points.
        """
        byte_position = max(position_for_offset(index, first), self.row.byte_position)
        after = len(index[0]) if last is None else int(np.searchsorted(index[0], last, side="left")) + 1
        end = int(index[1][after]) if after < len(index[1]) else self.row.end_position
        return byte_position, min(max(end - byte_position, self.first_read_bytes), WINDOW_BYTES)

    def _check_shift(self) -> None:
        if abs(self.row.offset_shift) > LARGEST_SHIFT:
            raise LogDirError(
                "A row of the manifest says offsets that no log has",
                path=self.row.path,
                expected="offsets from 0 to 2**62",
                found=f"{self.row.base_offset}, and {self.row.file_base_offset} in the file",
                hint="Run segments verify",
            )


def read_txn_index(storage: Storage, path: str, size_bytes: int, offset_shift: int) -> AbortedTransactions:
    """The aborted transactions of a .txnindex, at offsets of the log; none where its row gives it no bytes.

    `offset_shift` is added to the offsets of the file. Raises CorruptBatchError for a damaged file, MissingFileError
    where it is gone.
    """
    if not size_bytes:
        return AbortedTransactions.of()
    return parse_txn_index(read_file(storage, path, 0, size_bytes), path=path).shifted(offset_shift)


@contextlib.contextmanager
def errors_from(byte_position: int) -> Iterator[None]:
    """Errors within, whose positions count from byte `byte_position` of a file, get positions of the file."""
    try:
        yield
    except CorruptBatchError as error:
        error.byte_position = byte_position + (error.byte_position or 0)
        raise


def _from_position(window: Window, byte_position: int) -> Window:
    """The batches of a window that begin at a position of the file or behind it, maybe none: the window says all the
    same where it ends.
    """
    if byte_position <= window.byte_position:
        return window
    kept = window.take(window.batches.byte_position >= byte_position)
    return kept if len(kept.batches) else replace(kept, behind=window.end_position)


def _windows_of(step: WalkStep, log_bytes: int) -> Iterator[Window]:
    """The window of a step, where it has batches. Raises CorruptBatchError where the walk cannot go on."""
    if step.is_short:
        raise step.too_short(log_bytes)
    if len(step.window.batches):
        yield step.window
    fault = step.fault(log_bytes)
    if fault is not None:
        fault.hint = fault.hint or RESTORE
        raise fault


@dataclass(frozen=True, slots=True)
class LookUp:
    """Where the wanted batches of a segment lie, as far as that is known before they are read.

    `byte_position`: a batch begins there in the file, and no batch before it is wanted; 0: not known. `offset`: the
    .index has given `byte_position` for this offset. `end_offset`: by the .index, all batches behind the read ones
    begin at or after this offset. An .index may be wrong, so the batches that were read are compared with both.
    """

    byte_position: int = 0
    offset: int | None = None
    end_offset: int | None = None

    def check_begin(self, segment: Segment, first: Window | None) -> None:
        """Raises CorruptBatchError where the batches from `byte_position` on begin behind the offset that was looked
        for: records would be passed over. `first` has the first of them; None: there are no batches.
        """
        if self.offset is None:
            return
        offset = None if first is None else int(first.batches.base_offset[0]) + first.offset_shift
        if offset is None or offset > self.offset:
            raise _untrue(
                segment,
                f"a batch at or before offset {self.offset} at byte {self.byte_position} of the log",
                "no batch" if offset is None else f"offset {offset}",
            )

    def check_end(self, file: SegmentFile, byte_position: int) -> None:
        """Raises CorruptBatchError where the batch at `byte_position`, behind the read batches, begins before
        `end_offset`. (A message of the old magics gives the last offset inside.)
        """
        if self.end_offset is None or byte_position >= file.row.end_position:
            return
        base_offset = int.from_bytes(
            bytes(read_file(file.storage, file.row.path, byte_position, 8)), "big", signed=True
        )
        if base_offset + file.row.offset_shift < self.end_offset:
            expected = f"no batch before offset {self.end_offset} from byte {byte_position} of the log on"
            raise _untrue(file.row, expected, f"offset {base_offset + file.row.offset_shift}")


NOT_LOOKED_UP = LookUp()


def _untrue(segment: Segment, expected: str, found: str) -> CorruptBatchError:
    return CorruptBatchError(
        "An entry of the index is not true",
        path=segment.index_path,
        byte_position=segment.index_position or 0,
        expected=expected,
        found=found,
        hint="segments verify --repair rebuilds the index",
    )
