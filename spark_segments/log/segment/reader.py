"""Reading a segment: from the sidecar look-up to windows of record batches.

A read touches the .index once and then only the bytes of the .log that it needs, in windows: memory is bounded by the
window and the largest record batch, whatever the size of the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from spark_segments.errors import RESTORE, CorruptBatchError, LogDirError
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.index import position_for_offset
from spark_segments.format.window import Window
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.fetch import fetch_ahead
from spark_segments.log.segment.files import read_file, read_index, read_time_index
from spark_segments.log.segment.ranges import Ranges
from spark_segments.log.segment.walk import BORDER_BYTES, WINDOW_BYTES, WalkStep, walk
from spark_segments.storage import Storage

FIRST_WINDOW_BYTES = 256 << 10

LARGEST_SHIFT = 1 << 62
"""Upper bound on what is between an offset in a file and in the log, so that a sum of both fits 64 bits."""

SMALL_RUN_BYTES = 1 << 20
"""Up to this size a run of a shared object is read whole: its index would be a request more."""


def locate(storage: Storage, segment: Segment, offset: int) -> int:
    """The position in the file of a batch at or before the batch that holds log offset `offset`: the segment's first
    where the index has nothing closer.
    """
    return seek(storage, segment, offset)[0]


def seek(storage: Storage, segment: Segment, offset: int) -> tuple[int, int]:
    """(position, size) of bytes of the file that begin with a batch and contain the batch that holds `offset`.

    `offset` is an offset of the log. The size is FIRST_WINDOW_BYTES at least; where the index does not know the end of
    the batch, more bytes may be needed. A small run of a shared object is read whole, without its index.
    """
    relative_offset = offset - segment.offset_shift - segment.name_offset
    if segment.index_bytes == 0 or relative_offset <= 0 or _is_small(segment):
        return segment.byte_position, first_read_bytes(segment)
    return _between(segment, _offset_index(storage, segment), relative_offset, relative_offset)


def first_read_bytes(segment: Segment) -> int:
    """How much of a segment is read at first. Of a shared object, where each read is a request, a run's window."""
    return WINDOW_BYTES if segment.is_shared else FIRST_WINDOW_BYTES


def _is_small(segment: Segment) -> bool:
    return segment.is_shared and segment.log_bytes <= SMALL_RUN_BYTES


def _offset_index(storage: Storage, segment: Segment) -> tuple[np.ndarray, np.ndarray]:
    """(relative offsets, positions in the file)"""
    offsets, positions = read_index(storage, segment)
    return offsets, positions.astype(np.int64) + segment.byte_position if segment.byte_position else positions


def _between(segment: Segment, index: tuple[np.ndarray, np.ndarray], first: int, last: int | None) -> tuple[int, int]:
    """(position, size) of the bytes with the relative offsets `first` to `last` (None: to the end of the segment).

    An entry names the last offset of the append that it points to. So an offset above an entry's lies in the append of
    the next entry at the latest. That append ends where the entry after the next points.
    """
    byte_position = max(position_for_offset(index, first), segment.byte_position)
    after = len(index[0]) if last is None else int(np.searchsorted(index[0], last, side="left")) + 1
    end = int(index[1][after]) if after < len(index[1]) else segment.end_position
    return byte_position, min(max(end - byte_position, first_read_bytes(segment)), WINDOW_BYTES)


def locate_position(storage: Storage, segment: Segment, byte_position: int) -> int:
    """The greatest indexed batch position of the file at or before `byte_position`, the segment's first at least."""
    if segment.index_bytes == 0 or byte_position <= segment.byte_position or _is_small(segment):
        return segment.byte_position
    _, positions = _offset_index(storage, segment)
    entry = int(np.searchsorted(positions, byte_position, side="right")) - 1
    return int(positions[entry]) if entry >= 0 else segment.byte_position


def pieces_between(
    storage: Storage, segment: Segment, offsets: range, positions: range, piece_bytes: int
) -> list[tuple[int, int, int]]:
    """[(start, end, begin)]: the batches with log offsets in `offsets` that begin at `positions` of the file begin in
    these pieces, [start, end), which are neighbours. A batch begins at `begin`, at or before `start`.

    The pieces are of about `piece_bytes`, and as close to the offsets as the .index has them, which is read once.
    Without it there is a single piece, whose `begin` is that of the segment.
    """
    if segment.index_bytes == 0 or _is_small(segment):
        return [(positions.start, positions.stop, segment.byte_position)]
    before = segment.offset_shift + segment.name_offset
    index = _offset_index(storage, segment)
    after = int(np.searchsorted(index[0], offsets.stop - 1 - before, side="left")) + 1  # as in `_between`
    start = max(position_for_offset(index, offsets.start - before), positions.start, segment.byte_position)
    end = min(int(index[1][after]) if after < len(index[1]) else segment.end_position, positions.stop)
    first = int(np.searchsorted(index[1], start, side="right")) - 1
    begin = int(index[1][first]) if first >= 0 else segment.byte_position
    inner = index[1][(index[1] > start) & (index[1] < end)]
    count = max(1, -(-(end - start) // piece_bytes))
    wanted = [start + (end - start) * number // count for number in range(1, count)]
    cuts = sorted({int(inner[at]) for at in np.searchsorted(inner, wanted) if at < len(inner)})
    return [(low, high, begin if low == start else low) for low, high in itertools.pairwise([start, *cuts, end])]


def seek_time(storage: Storage, segment: Segment, timestamp_ms: int) -> tuple[int, int]:
    """(position, size) of the bytes of the file in which to look for the first record not older than `timestamp_ms`.

    No record before them has a timestamp ≥ `timestamp_ms`. They contain the first such record, as far as the indexes
    know its place. A time index entry holds the largest timestamp so far. So all records before the last entry below
    the target are older than the target, in whatever order the timestamps are; the next entry's record is not older.
    """
    if segment.time_index_bytes == 0 or segment.index_bytes == 0 or _is_small(segment):
        return segment.byte_position, first_read_bytes(segment)
    timestamps, relative_offsets = read_time_index(storage, segment)
    after = int(np.searchsorted(timestamps, timestamp_ms, side="left"))
    first = int(relative_offsets[after - 1]) if after else -1
    last = int(relative_offsets[after]) if after < len(timestamps) else None
    return _between(segment, _offset_index(storage, segment), first, last)


def windows(
    storage: Storage,
    segment: Segment,
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

    They come in windows that grow from `first_window_bytes` to WINDOW_BYTES. `start_position` must be the start of a
    batch; a position before the segment's means its first. Batches before `wanted_position` are left out, of a window
    maybe all. `writable`: their data can mostly be changed in place. Messages of magic 0 and 1 are batches of magic 2
    here, unless `as_written`. Raises CorruptBatchError where the bytes are damaged or end too early, MissingFileError
    where the file is gone.
    """
    path, end = segment.path, segment.end_position
    _check_shift(segment)
    fetched_end = end if end_position is None else min(end, end_position + BORDER_BYTES)
    with fetch_ahead(storage, path, fetched_end) as read:
        for step in walk(
            partial(read, writable=writable),
            path,
            end,
            start_position=max(start_position, segment.byte_position),
            end_position=end_position,
            first_window_bytes=first_window_bytes or first_read_bytes(segment),
            offset_shift=segment.offset_shift,
            check_crc=check_crc,
        ):
            for window in _windows_of(step, end):
                if wanted_position > window.byte_position:
                    end, window = window.end_position, window.take(window.batches.byte_position >= wanted_position)
                    window = window if len(window.batches) else replace(window, behind=end)
                yield from (window,) if as_written else opened(window)


def windows_in(storage: Storage, segment: Segment, ranges: Ranges, *, check_crc: bool = True) -> Iterator[Window]:
    """As `windows`, the batches in ranges of a segment's file, all of magic 2: what lies between them is not read."""
    path, size = segment.path, ranges.size
    _check_shift(segment)
    with ranges.reader(storage, path, segment.end_position) as read:
        for step in walk(read, path, size, offset_shift=segment.offset_shift, check_crc=check_crc):
            with ranges.errors():
                found = list(_windows_of(step, size))
            yield from map(ranges.in_file, found)


def _check_shift(segment: Segment) -> None:
    if abs(segment.offset_shift) > LARGEST_SHIFT:
        raise LogDirError(
            "A row of the manifest says offsets that no log has",
            path=segment.path,
            expected="offsets from 0 to 2**62",
            found=f"{segment.base_offset}, and {segment.file_base_offset} in the file",
            hint="Run segments verify",
        )


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
    """Where the batches that are wanted of a segment lie, as far as that is known before they are read.

    `byte_position`: a batch begins there in the file, and no batch before it is wanted; 0: not known. `offset`: the
    .index has given `byte_position` for this offset. `end_offset`: it has said that all batches behind those that are
    read begin at or after this offset. An .index may lie, so the batches that were read are held against both.
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
        found = None if first is None else int(first.batches.base_offset[0]) + first.offset_shift
        if found is None or found > self.offset:
            raise _untrue(
                segment,
                f"a batch at or before offset {self.offset} at byte {self.byte_position} of the log",
                "no batch" if found is None else f"offset {found}",
            )

    def check_end(self, storage: Storage, segment: Segment, byte_position: int) -> None:
        """Raises CorruptBatchError where the batch at `byte_position`, behind those that were read, begins before
        `end_offset`. (A message of the old magics gives the last offset inside.)
        """
        if self.end_offset is None or byte_position >= segment.end_position:
            return
        there = int.from_bytes(bytes(read_file(storage, segment.path, byte_position, 8)), "big", signed=True)
        if there + segment.offset_shift < self.end_offset:
            expected = f"no batch before offset {self.end_offset} from byte {byte_position} of the log on"
            raise _untrue(segment, expected, f"offset {there + segment.offset_shift}")


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
