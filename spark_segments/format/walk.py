"""The walk over the batches of a .log: window by window, to its end or to bytes that are no record batch.

Every reader of batches uses this walk. Each decides how to answer bad bytes: an error, a finding, a cut log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_segments.errors import RESTORE, CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.legacy import first_bad_crc
from spark_segments.format.window import Window

WINDOW_BYTES = 8 << 20
BORDER_BYTES = 256 << 10
"""Bytes behind the end of a range that are read with it: the batch that begins before the end goes on there."""

CUT = "A record batch is cut"


@dataclass(frozen=True, slots=True)
class WalkStep:
    """A window of a walk. More of the log lies behind its batches, unless a field says otherwise."""

    window: Window  # good batches; empty where the walk ends at once
    end_position: int  # behind the last good batch
    read_bytes: int
    is_short: bool  # the file ended within the read
    needed_bytes: int  # of the batch at `end_position`, as far as known; 0 if no batch begins there
    error: CorruptBatchError | None  # the batch at `end_position` is bad

    @property
    def is_last(self) -> bool:
        """Whether the walk ends here for lack of good batches."""
        return self.error is not None or not len(self.window.batches)

    def fault(self, log_bytes: int) -> CorruptBatchError | None:
        """Why the walk over the `log_bytes` of a file ends at `end_position`; None where it does not."""
        if self.error is not None:
            return self.error
        if self.is_short:
            return self.too_short(log_bytes)
        return self.cut(log_bytes) if self.is_last else None

    def too_short(self, log_bytes: int) -> CorruptBatchError:
        """The error of a file that ended within the read, though the log says that it has `log_bytes`."""
        return too_short(self.window.path, log_bytes, self.window.byte_position + self.read_bytes)

    def cut(self, log_bytes: int) -> CorruptBatchError:
        """The error of a batch that goes beyond the `log_bytes` of the file."""
        left = log_bytes - self.end_position
        return _ended(CUT, self.window.path, self.end_position, self.needed_bytes, left)


def too_short(path: str, log_bytes: int, file_bytes: int) -> CorruptBatchError:
    """The error of a file that ends at `file_bytes`, though the log says that it has `log_bytes`."""
    return _ended("The file is shorter than the log says", path, file_bytes, log_bytes, file_bytes)


def _ended(message: str, path: str, byte_position: int, expected: int, found: int) -> CorruptBatchError:
    return CorruptBatchError(
        message,
        path=path,
        byte_position=byte_position,
        expected=f"{expected} bytes",
        found=f"{found} bytes",
        hint=RESTORE,
    )


def walk(
    read: Callable[[int, int], pa.Buffer],
    path: str,
    log_bytes: int,
    *,
    start_position: int = 0,
    end_position: int | None = None,
    first_window_bytes: int | None = None,
    most_window_bytes: int | None = None,
    offset_shift: int = 0,
    check_crc: bool = True,
) -> Iterator[WalkStep]:
    """The batches that begin in [start_position, end_position) of the first `log_bytes` of a file.

    `start_position` must be the start of a batch. `read(position, length)` gives the file's bytes, fewer where it ends.
    Windows grow from `first_window_bytes` to `most_window_bytes` (WINDOW_BYTES for both unless given), and beyond that
    only for a larger batch. The larger of `most_window_bytes` and the largest batch bounds the memory. The walk ends at
    the first step without a good batch or with an error. `check_crc`: a batch with a wrong CRC is bad, whatever its
    magic.
    """
    end_position = log_bytes if end_position is None else min(end_position, log_bytes)
    most = WINDOW_BYTES if most_window_bytes is None else most_window_bytes
    byte_position = start_position
    window_bytes = min(most, first_window_bytes or most)
    least_bytes = 0
    while byte_position < end_position:
        # How much to read, where a batch may begin before `end_position` and end behind it:
        #
        #   byte_position            end_position          log_bytes
        #   |-- window_bytes … --------|-- BORDER_BYTES --|    |      a batch that begins before the end, mostly whole
        #   |-- least_bytes: the batch that the last read cut, even far behind the end --|
        length = min(window_bytes, end_position - byte_position + BORDER_BYTES)
        length = min(max(length, least_bytes), log_bytes - byte_position)
        data = read(byte_position, length)
        scan = scan_batches(data, file_position=byte_position, path=path, check_crc=check_crc)
        is_short = data.size < length
        if not scan.consumed and scan.error is None and not is_short and byte_position + scan.needed <= log_bytes:
            # Not one whole batch in the window, though the file has the rest: read again from the same place.
            window_bytes = least_bytes = max(scan.needed, min(window_bytes * 2, most))
            continue
        least_bytes = 0
        window = Window(data, scan.batches, byte_position, path, offset_shift)
        bad_message = first_bad_crc(window) if check_crc else None
        error = bad_message or scan.error
        good_bytes = scan.consumed
        if bad_message is not None:
            good_bytes = int(bad_message.byte_position or 0) - byte_position
        byte_position += good_bytes
        # The next range begins with the batches from `end_position` on: kept here, they would be read twice.
        last_position = min(byte_position, end_position)
        if len(window.batches) and window.batches.byte_position[-1] >= last_position:
            window = window.take(window.batches.byte_position < last_position)
        error = error if byte_position < end_position else None
        yield WalkStep(window, byte_position, data.size, is_short, scan.needed, error)
        if error is not None or not good_bytes:
            return
        window_bytes = min(window_bytes * 2, most)
