"""Reading files that a log names. A file of an object store that is read forward is fetched in blocks, ahead.

A request of a store takes long, however few bytes it brings. So a reader that asks for one range after another would
mostly wait. Local files are read without blocks: the operating system reads them ahead.
"""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import Protocol

import pyarrow as pa

from spark_segments.errors import MissingFileError
from spark_segments.format.kernels.crc32c import crc32c
from spark_segments.format.walk import too_short
from spark_segments.storage import Storage

BLOCK_BYTES = 8 << 20
COPY_BYTES = 8 << 20
MOST_BLOCKS = 4
"""Blocks of a file that are fetched beyond the range asked for, at most."""

_THREADS = 16


def read_file(
    storage: Storage,
    path: str,
    offset: int = 0,
    length: int | None = None,
    *,
    writable: bool = False,
    ranges: Sequence[tuple[int, int]] = (),
) -> pa.Buffer:
    """As `Storage.read`. Raises MissingFileError where the file is gone."""
    try:
        if ranges:
            return storage.read(path, writable=writable, ranges=ranges)
        return storage.read(path, offset, length, writable=writable)
    except FileNotFoundError as error:
        raise MissingFileError.gone(storage.location(path)) from error


class ReadRange(Protocol):
    """Bytes of a file; fewer where it ends. With `writable`, nobody else uses the memory."""

    def __call__(self, byte_position: int, length: int, /, *, writable: bool = False) -> pa.Buffer: ...


@contextlib.contextmanager
def fetch_ahead(storage: Storage, path: str, *ends: int) -> Iterator[ReadRange]:
    """The function to read a file with, forward as a rule. Nothing is fetched ahead over one of the bytes `ends`, which
    rise, and nothing from the last of them on.

    Raises what `read_file` raises. Up to MOST_BLOCKS blocks of BLOCK_BYTES wait in memory. A reader that stops early
    has fetched a few times as much as it has read, at most.
    """
    if storage.is_local:
        yield partial(read_file, storage, path)
        return
    ahead = _Ahead(storage, path, ends)
    try:
        yield ahead.read
    finally:
        ahead.close()


class _Block:
    __slots__ = ("data", "end", "start")

    def __init__(self, start: int, end: int, data: Future[pa.Buffer]) -> None:
        self.start = start
        self.end = end
        self.data = data


class _Ahead:
    """The blocks of a file that are fetched or being fetched, in their order and without gaps."""

    def __init__(self, storage: Storage, path: str, ends: Sequence[int]) -> None:
        self._storage = storage
        self._path = path
        self._ends = ends
        self._end = ends[-1]  # of what may be fetched ahead
        self._blocks: deque[_Block] = deque()
        self._last = range(0)  # the bytes of the read before
        self._block_bytes = 0
        self._depth = 0

    def read(self, byte_position: int, length: int, *, writable: bool = False) -> pa.Buffer:
        """See `ReadRange`. The first read fetches only its own range. Reads that go on from there fetch ahead."""
        byte_range = range(byte_position, byte_position + length)
        # A read goes on where it begins within the one before, or right behind it: decoders read a batch again that the
        # window before had cut.
        #
        #   the read before    |--------------|
        #   goes on                    |--------------|    or from its very end
        #   starts again       |---|   or before it, or beyond its end: blocks ahead would be of no use
        goes_on = self._last.start < byte_position <= self._last.stop
        self._last = byte_range
        self._end = self._ends[min(bisect_right(self._ends, byte_position), len(self._ends) - 1)]
        if not goes_on or byte_range.stop > self._end:
            if not goes_on:
                self.close()
            return read_file(self._storage, self._path, byte_position, length, writable=writable)
        while self._blocks and self._blocks[0].end <= byte_position:
            self._blocks.popleft()
        if not self._blocks:
            self._block_bytes = max(length // 2, 1)
            self._depth = 1
        self._fetch(byte_range)
        self._depth = min(self._depth * 2, MOST_BLOCKS)
        return self._taken(byte_range, writable)

    def close(self) -> None:
        """Forgets the blocks. Requests that have not begun are not made."""
        for block in self._blocks:
            block.data.cancel()
        self._blocks.clear()

    def _fetch(self, byte_range: range) -> None:
        start = self._blocks[-1].end if self._blocks else byte_range.start
        beyond = sum(block.start >= byte_range.stop for block in self._blocks)
        while start < self._end and (start < byte_range.stop or beyond < self._depth):
            # Blocks grow with the reads, so that a reader of a few records does not fetch the file.
            self._block_bytes = min(self._block_bytes * 2, BLOCK_BYTES)
            end = min(start + self._block_bytes, self._end)
            data = _pool().submit(read_file, self._storage, self._path, start, end - start)
            self._blocks.append(_Block(start, end, data))
            beyond += start >= byte_range.stop
            start = end

    def _taken(self, byte_range: range, writable: bool) -> pa.Buffer:
        parts = []
        for block in self._blocks:
            if block.start >= byte_range.stop:
                break
            data = block.data.result()
            # The part of a block that was asked for, as positions in the block. Its data may be shorter than the block,
            # where the file ends in it, and then even end before `low`.
            #
            #   block          |0 --------- data.size|·········|
            #   asked                 |low -------------- high|
            low = max(byte_range.start - block.start, 0)
            high = min(byte_range.stop, block.end) - block.start
            parts.append(data.slice(min(low, data.size), max(min(high, data.size) - low, 0)))
            if data.size < block.end - block.start:
                break  # the file ends here
        if len(parts) == 1 and not writable:
            return parts[0]
        joined = pa.allocate_buffer(sum(part.size for part in parts))
        view = memoryview(joined).cast("B")
        filled = 0
        for part in parts:
            view[filled : filled + part.size] = memoryview(part).cast("B")
            filled += part.size
        return joined if writable else pa.py_buffer(view.toreadonly())


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="fetch-ahead")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def copy_file(source: Storage, path: str, target: Storage, target_path: str, size: int, *, unique: bool = False) -> int:
    """Copies the first `size` bytes of a file, in pieces. Returns the CRC-32C of what was read.

    `unique`: no other file ever has the name of the copy (see `Storage.stream`). Raises CorruptBatchError where the
    file is shorter, MissingFileError where it is gone; then there is no copy.
    """
    crc = 0
    with fetch_ahead(source, path, size) as read:
        first = read(0, min(COPY_BYTES, size)) if size else b""
        with target.stream(target_path, unique=unique) as stream:
            for byte_position in range(0, size, COPY_BYTES):
                length = min(COPY_BYTES, size - byte_position)
                data = read(byte_position, length) if byte_position else first
                if len(data) != length:
                    raise too_short(path, size, byte_position + len(data))
                stream.write(data)
                crc = crc32c(data, crc)
    return crc
