"""Files of this machine."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import time
import uuid
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_segments.storage.filesystem import Found, Names

WRITE_BYTES = 256 * 1024
"""Bytes that a single write passes to a local file. For larger writes Linux allocates its page cache in blocks of 2
MiB. On a virtual machine whose host has to provide these blocks first, that is several times as slow."""


class _PieceWriter(io.FileIO):
    """Writes at most WRITE_BYTES per call. The BufferedWriter above it calls again with the rest."""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:WRITE_BYTES])


def link_new_file(path: str, data: bytes) -> bool:
    """Makes a file whole, or not at all: of several makers of the same name, one succeeds. False where the file system
    has no links: nothing was done.

    Raises FileExistsError where the file is there already, OSError for any other failure.
    """
    staged = os.path.join(os.path.dirname(path), f"{uuid.uuid4().hex}.tmp")
    try:
        with open(staged, "xb") as file:
            file.write(data)
        try:
            os.link(staged, path)
        except FileExistsError:
            raise
        except OSError:
            return False
    finally:
        with contextlib.suppress(OSError):  # vacuum takes what is left
            os.unlink(staged)
    return True


class LocalFiles:
    """Files of this machine. Every read opens its file anew: that costs microseconds and sees renames and growth."""

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        with open(path, "rb", buffering=0) as file:
            rest = max(os.fstat(file.fileno()).st_size - offset, 0)
            wanted = rest if length is None else min(length, rest)
            buffer = pa.allocate_buffer(wanted)  # Arrow's pool keeps its pages: far cheaper than fresh pages when large
            view = memoryview(buffer)
            got = 0
            while got < wanted:  # Linux returns at most 2 GiB per call
                count = os.preadv(file.fileno(), [view[got:]], offset + got)
                if count == 0:
                    break
                got += count
        return pa.py_buffer(view[:got])

    def size(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise FileNotFoundError(path)
        return status.st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str, recursive: bool) -> Found:
        found: Found = []
        for entry in self._entries(path):
            with contextlib.suppress(FileNotFoundError):  # gone since the directory was read
                if not entry.is_dir():
                    status = entry.stat()
                    found.append((entry.name, status.st_size, status.st_mtime_ns // 1_000_000))
                elif recursive:
                    below = self.list(entry.path, True)
                    found += [(f"{entry.name}/{name}", size, mtime_ms) for name, size, mtime_ms in below]
        return found

    def directories(self, path: str) -> Names:
        return [entry.name for entry in self._entries(path) if entry.is_dir()]

    def _entries(self, path: str) -> Iterable[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                return [*entries]
        except FileNotFoundError:
            return []

    def create(self, path: str) -> Any:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            descriptor = os.open(path, flags, 0o666)
        return io.BufferedWriter(_PieceWriter(descriptor, "wb"), WRITE_BYTES)

    def replace(self, path: str, data: Any) -> None:
        written = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            with self.create(written) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # without it the rename could reach the disk before the bytes
            os.replace(written, path)
        except BaseException:
            self.delete(written)
            raise

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def now_ms(self, probe: str) -> int:
        return time.time_ns() // 1_000_000
