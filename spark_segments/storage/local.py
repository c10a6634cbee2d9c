"""Files of this machine."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import io
import os
import stat
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa

from spark_segments.quantities import wall_ms
from spark_segments.storage.filesystem import Found, Names

WRITE_BYTES = 256 * 1024
"""Bytes that a single write passes to a local file. For larger writes Linux allocates its page cache in blocks of 2
MiB. On a virtual machine whose host has to provide these blocks first, that is several times as slow."""

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1
_FORCE_THREADS = 8
_MOST_NOTED = 100_000
_RESTED_NS = 60_000_000_000
"""A directory that has not changed for so long shows its next change by its modification time, however coarse."""


class _PieceWriter(io.FileIO):
    """Writes at most WRITE_BYTES per call. The BufferedWriter above it calls again with the rest."""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:WRITE_BYTES])


def _rename_to_free_name(staged: str, path: str) -> None:
    """Linux's renameat2 with RENAME_NOREPLACE. Raises OSError where the system or the file system does not have it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    number = errno.ENOSYS
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(staged), _AT_FDCWD, os.fsencode(path), _RENAME_NOREPLACE) == 0:
            return
        number = ctypes.get_errno()
    if number in (*_NO_LINKS, errno.EINVAL):
        raise OSError(errno.EOPNOTSUPP, "It can neither link nor rename a file to a name that is free", path)
    raise OSError(number, os.strerror(number), path)  # FileExistsError, where the number says so


class OpenFile:
    """A file that is open to be read for as long as something refers to it."""

    __slots__ = ("descriptor", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # it could not be opened
            os.close(self.descriptor)


class LocalFiles:
    """Files of this machine. Every read opens its file: that costs microseconds and sees renames and growth."""

    def __init__(self) -> None:
        # (device, inode, time of the last change) of what this process has forced to disk
        self._forced: set[tuple[int, int, int]] = set()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        with open(path, "rb", buffering=0) as file:
            # Of the open file: by its path, the size could be that of a file which has taken its place since.
            rest = max(os.fstat(file.fileno()).st_size - offset, 0)
            length_read = rest if length is None else min(length, rest)
            # Arrow's pool keeps its pages: far cheaper than fresh pages when large.
            buffer = pa.allocate_buffer(length_read)
            view = memoryview(buffer)
            got = 0
            while got < length_read:  # Linux returns at most 2 GiB per call
                count = os.preadv(file.fileno(), [view[got:]], offset + got)
                if count == 0:
                    break
                got += count
        return pa.py_buffer(view[:got])

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        """The bytes of ranges [start, end) of a file, one behind the other; fewer where the file ends before."""
        buffer = pa.allocate_buffer(sum(end - start for start, end in ranges))
        view = memoryview(buffer)
        got = 0
        with open(path, "rb", buffering=0) as file:
            for start, end in ranges:
                while start < end:
                    count = os.preadv(file.fileno(), [view[got : got + end - start]], start)
                    if count == 0:
                        return pa.py_buffer(view[:got])
                    start += count
                    got += count
        return pa.py_buffer(view)

    def size(self, path: str) -> int:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise FileNotFoundError(path)
        return status.st_size

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def list(self, path: str, recursive: bool) -> Found:
        entries: Found = []
        for entry in self._entries(path):
            with contextlib.suppress(FileNotFoundError):  # gone since the directory was read
                if not entry.is_dir():
                    status = entry.stat()
                    version = f"{status.st_dev}-{status.st_ino}"
                    entries.append((entry.name, status.st_size, status.st_mtime_ns // 1_000_000, version))
                elif recursive:
                    below = self.list(entry.path, True)
                    entries += [
                        (f"{entry.name}/{name}", size, mtime_ms, version) for name, size, mtime_ms, version in below
                    ]
        return entries

    def directories(self, path: str) -> Names:
        return [entry.name for entry in self._entries(path) if entry.is_dir()]

    def _entries(self, path: str) -> Iterable[os.DirEntry[str]]:
        try:
            with os.scandir(path) as entries:
                return [*entries]
        except FileNotFoundError:
            return []

    def stream(self, path: str, *, unique: bool = False) -> Any:
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
            with self.stream(written) as file:
                file.write(data)
                file.flush()
                _force(file.fileno())  # without it the rename could reach the disk before the bytes
            os.replace(written, path)
        except BaseException:
            self.delete([written])
            raise

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        # Beside the file: a link does not lead to another file system.
        staged = os.path.join(os.path.dirname(path), f"{uuid.uuid4().hex}.tmp")
        try:
            with open(staged, "xb") as file:
                file.write(data)
                if is_forced:
                    file.flush()
                    _force(file.fileno())
            try:
                os.link(staged, path)
            except FileExistsError:
                if os.stat(staged).st_nlink < 2:  # NFS may have lost its reply to this very link
                    raise
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _rename_to_free_name(staged, path)
        finally:
            with contextlib.suppress(OSError):  # vacuum takes what is left
                os.unlink(staged)

    def force(self, paths: Iterable[str], root: str) -> None:
        files = list(dict.fromkeys(paths))
        # A file's name is in its directory, whose own name is in the one above: without them all, a power loss could
        # take the name of a file whose bytes are safe.
        inside = {directory for path in files for directory in _directories(path, root)}
        self._each(self._force_file, files)
        self._each(self._force_directory, inside)
        for directory in _directories(root, "/"):
            with contextlib.suppress(PermissionError):  # another user's; the log directory was made long after it
                self._force_directory(directory)

    def _each(self, force: Callable[[str], None], paths: Collection[str]) -> None:
        if len(paths) < _FORCE_THREADS // 2:
            for path in paths:
                force(path)
            return
        with ThreadPoolExecutor(_FORCE_THREADS) as pool:  # a disk takes many of them at the price of few
            list(pool.map(force, paths))

    def _force_file(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            # A file of a log never changes once it is closed, so its bytes need to be forced once.
            state = (status.st_dev, status.st_ino, status.st_ctime_ns)
            if state not in self._forced:
                _force(descriptor)
                self._note(state)
        finally:
            os.close(descriptor)

    def _force_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            now_ns = time.time_ns()
            state = (status.st_dev, status.st_ino, status.st_mtime_ns)
            if state in self._forced:
                return
            try:
                _force(descriptor)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system that cannot do this for directories
                    raise
            # A directory that changed just now may change again within the same tick of the disk's clock. Noted with
            # that time, the second change would look like one that was forced, and a crash could lose its file.
            if status.st_mtime_ns < now_ns - _RESTED_NS:
                self._note(state)
        finally:
            os.close(descriptor)

    def _note(self, state: tuple[int, int, int]) -> None:
        if len(self._forced) >= _MOST_NOTED:
            # What is forgotten is forced once more: that costs time, and no bytes.
            self._forced.clear()
        self._forced.add(state)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def now_ms(self, probe: str) -> int:
        return wall_ms()


def _force(descriptor: int) -> None:
    """Returns once the file's bytes have reached the disk."""
    if hasattr(fcntl, "F_FULLFSYNC"):  # macOS: fsync alone stops at the disk's own memory
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def _directories(path: str, root: str) -> Iterator[str]:
    """The directories above a path, from the nearest one to `root`, which counts."""
    while path not in (root, "/"):
        path = os.path.dirname(path)
        yield path
