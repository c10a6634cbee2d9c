"""The small interface to a file system: read a range, write once, list, delete, and the store's clock.

Every byte that this package reads or writes of a log directory goes through `Storage` (the manifest's Delta tables go
through delta-rs, at the address that `Storage.delta_uri` gives). Which file system an address means and how storage
options are said to it is storage_options.py's business; what the files mean is log/'s.

What is assumed of a store: a file is there whole once `close` has returned, a listing shows it from then on, and a
local `O_EXCL` create is exclusive. A file under a fresh name is nobody's until a commit names it, so nothing is renamed
and a half-written file does no harm: vacuum finds it. As with Kafka's default for flush.messages, a local file is not
synced: when its bytes reach the disk is the operating system's choice.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import re
import stat
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.storage.locations import Location, open_filesystem, parse_location

ATTEMPTS = 5
"""How often an idempotent operation is tried in all, above the retries of the stores' own clients."""

WRITE_BYTES = 256 * 1024
"""What goes to a local file at a time. For more, Linux takes memory for its cache in blocks of 2 MiB; where a machine
is virtual and its host has to give these first, that is several times as slow."""

OPEN_FILES = 32
"""How many input files of an object store are kept open: opening one costs a request, a range read another."""

CLOCK_PROBE = "_clock"
"""The file of an object store whose modification time tells the store's clock. It is no part of any log."""

CLOCK_MS = 60_000
"""How long a reading of the store's clock is trusted before the probe is written again."""

_DELETE_THREADS = 16
_TRANSIENT_LOCAL = {errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE}
_PERMANENT_REMOTE = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE|NO_SUCH_|NOT_FOUND|PermissionDenied|Unauthenticated|AuthenticationFailed"
    r"|AuthorizationFailure|HTTP status 4(?!08|29)\d\d",
    re.IGNORECASE,
)

T = TypeVar("T")
Names = list[str]  # inside the classes below, `list` is a method
Found = list[tuple[str, int, int]]  # name, size, modification time in ms


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a listing: its path relative to the storage's root, its size in bytes, its modification time (ms)."""

    path: str
    size: int
    mtime_ms: int


class Storage:
    """Byte access to everything under one root; picklable, cheap to make, safe to share between threads.

    `uri`: a local path, file://, s3://, s3a://, gs://, abfs:// or abfss://. `storage_options`: credentials and
    endpoints in delta-rs's names. All paths are relative to the root, with `/` between their parts. A missing file is
    Python's FileNotFoundError; everything else that fails after bounded retries is a StorageError.
    """

    retry_backoff_seconds = 0.2

    def __init__(self, uri: str | os.PathLike[str], storage_options: dict[str, str] | None = None) -> None:
        self._location: Location = parse_location(os.fspath(uri), storage_options or {})
        self.uri: str = self._location.uri
        self.storage_options: dict[str, str] = dict(self._location.options)
        self._start()

    def _start(self) -> None:
        self._store: _LocalFiles | _Objects | None = None
        self._lock = threading.Lock()
        self._clock: tuple[float, int] | None = (
            None  # (time.monotonic() of the reading, store's clock - time.time(), ms)
        )

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_store", "_lock", "_clock"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    def __repr__(self) -> str:
        return f"Storage({self.uri!r})"  # never the options: they may hold secrets

    @property
    def is_local(self) -> bool:
        """Whether the root is a directory of this machine."""
        return self._location.is_local

    def location(self, path: str = "") -> str:
        """The full address of `path`, as errors and reports show it."""
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri

    def delta_uri(self, path: str = "") -> tuple[str, dict[str, str]]:
        """The address and the storage options under which delta-rs finds `path`."""
        if self.is_local and re.search("%[0-9A-Fa-f]{2}", self.uri):
            hint = "delta-rs takes % and two hexadecimal digits for an escape: use another directory"
            raise InvalidOptionError("A log directory cannot be at such a path", found=self.uri, hint=hint)
        return self.location(path), self._location.delta_options()

    # Reading

    def read(self, path: str, offset: int = 0, length: int | None = None, *, writable: bool = False) -> pa.Buffer:
        """Bytes [offset, offset + length) of a file by one positional read; to its end without `length`.

        Short, or empty, where the file ends earlier. A file that has grown since an earlier read shows its new bytes.
        `writable`: the memory, which is nobody else's, may be written to.
        """
        if offset < 0 or (length is not None and length < 0):
            raise InvalidOptionError("Negative offset or length", path=path, expected="≥ 0", found=(offset, length))
        data = self._retried(path, lambda store, full: store.read(full, offset, length))
        if writable:
            return data if data.is_mutable else pa.py_buffer(bytearray(data))
        return pa.py_buffer(memoryview(data).toreadonly()) if data.is_mutable else data

    def size(self, path: str) -> int:
        """Size of a file in bytes, looked up afresh."""
        return int(self._retried(path, lambda store, full: store.size(full)))

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory of this name."""
        return bool(self._retried(path, lambda store, full: store.exists(full)))

    def list(self, path: str = "", recursive: bool = False) -> list[FileInfo]:
        """The files of a directory (`recursive`: and below), sorted by path; none where the directory is missing."""
        found = self._retried(path, lambda store, full: store.list(full, recursive))
        prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        return sorted((FileInfo(prefix + name, size, mtime) for name, size, mtime in found), key=lambda info: info.path)

    def directories(self, path: str = "") -> Names:
        """The names (not paths) of the directories directly in a directory, sorted; none where it is missing."""
        return sorted(self._retried(path, lambda store, full: store.directories(full)))

    # Writing

    def create(self, path: str) -> WriteStream:
        """Starts a file that must not exist yet, and makes its parents: a binary stream, to be closed.

        A stream that fails leaves what it wrote under its name (vacuum takes it in time); nothing is tried again,
        because half of the bytes may be there.
        """
        full = self._full(path)
        try:
            return WriteStream(self._files().create(full), self.location(path))
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.location(path)) from None
        except (OSError, pa.ArrowException) as error:
            raise _failure(error, self.location(path)) from error

    def write(self, path: str, data: Any) -> None:
        """Creates a file with these bytes (any buffer)."""
        with self.create(path) as stream:
            stream.write(data)

    def delete(self, paths: str | Iterable[str]) -> None:
        """Removes files. Missing ones are fine; directories stay."""
        wanted = [paths] if isinstance(paths, str) else list(paths)
        if len(wanted) < 2 or self.is_local:
            for path in wanted:
                self._retried(path, lambda store, full: store.delete(full))
            return
        with ThreadPoolExecutor(_DELETE_THREADS) as pool:
            for _ in pool.map(lambda path: self._retried(path, lambda store, full: store.delete(full)), wanted):
                pass

    # The clock

    def now_ms(self) -> int:
        """The store's own clock in ms since 1970: what file ages are measured against.

        Local: this machine's. An object store: the modification time of a probe file, good to its resolution (S3: a
        second), read at most once a minute. Needs permission to write there.
        """
        if self.is_local:
            return time.time_ns() // 1_000_000
        with self._lock:
            clock = self._clock
        if clock is None or (time.monotonic() - clock[0]) * 1000 >= CLOCK_MS:
            taken, before_ms = time.monotonic(), time.time_ns() // 1_000_000
            mtime_ms = self._retried(CLOCK_PROBE, lambda store, full: store.touch(full))
            clock = (taken, mtime_ms - before_ms)
            with self._lock:
                self._clock = clock
        return time.time_ns() // 1_000_000 + clock[1]

    # How it is done

    def _full(self, path: str) -> str:
        # Paths come out of manifests, and delete() is one of the callers: nothing may lead out of the root.
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise InvalidOptionError("A path must stay inside the log directory", found=repr(path))
        return self._location.join(path.strip("/"))

    def _files(self) -> _LocalFiles | _Objects:
        with self._lock:
            if self._store is None:
                self._store = _LocalFiles() if self.is_local else _Objects(open_filesystem(self._location))
            return self._store

    def _retried(self, path: str, operation: Callable[[Any, str], T]) -> T:
        """Runs an idempotent operation, again after transient errors: bounded, with exponential backoff and jitter."""
        full, store = self._full(path), self._files()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return operation(store, full)
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.location(path)) from None
            except (OSError, pa.ArrowException) as error:
                if attempt == ATTEMPTS or not _is_transient(error, self.is_local):
                    raise _failure(error, self.location(path)) from error
            time.sleep(random.uniform(0.5, 1.0) * self.retry_backoff_seconds * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")


class WriteStream:
    """A file that is being written: `write` any buffer, then `close`. As a context manager it closes itself."""

    def __init__(self, file: Any, location: str) -> None:
        self._file = file
        self.location = location
        self.bytes_written = 0

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def write(self, data: Any) -> int:
        """Appends a buffer of bytes; returns its size."""
        size = memoryview(data).nbytes
        try:
            self._file.write(data)
        except (OSError, pa.ArrowException) as error:
            raise _failure(error, self.location) from error
        self.bytes_written += size
        return size

    def close(self) -> None:
        """Ends the file: when this returns, it is there whole. Closing twice does nothing."""
        try:
            self._file.close()
        except (OSError, pa.ArrowException) as error:
            raise _failure(error, self.location) from error

    def __enter__(self) -> WriteStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(OSError, pa.ArrowException):  # the first error is the one to show
            self._file.close()


class _PieceWriter(io.FileIO):
    """Writes a little of what it is given; the BufferedWriter above it comes back with the rest."""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:WRITE_BYTES])


class _LocalFiles:
    """Files of this machine. A read opens and closes its file: that costs microseconds, and sees renames and growth."""

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        with open(path, "rb", buffering=0) as file:
            rest = max(os.fstat(file.fileno()).st_size - offset, 0)
            wanted = rest if length is None else min(length, rest)
            buffer = pa.allocate_buffer(wanted)  # Arrow's pool keeps its pages: far cheaper than fresh ones when large
            view = memoryview(buffer)
            got = 0
            while got < wanted:  # the kernel gives at most 2 GiB at once
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

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


class _Objects:
    """Files of an object store through pyarrow.fs, with a bounded number of input files kept open."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
        # An open file knows the size it was opened with, so one that seems to end too early is looked at anew.
        if file is None or length is None or offset + length > file.size():
            file = self._filesystem.open_input_file(path)
            with self._lock:
                self._open[path] = file
                while len(self._open) > OPEN_FILES:
                    self._open.popitem(last=False)  # not closed: another thread may be reading it
        rest = max(file.size() - offset, 0)
        wanted = rest if length is None else min(length, rest)
        if wanted == 0:
            return pa.py_buffer(b"")
        try:
            return pa.py_buffer(file.read_at(wanted, offset))
        except (OSError, pa.ArrowException):
            self._forget(path)
            raise

    def _forget(self, path: str) -> None:
        with self._lock:
            self._open.pop(path, None)

    def _info(self, path: str) -> Any:
        return self._filesystem.get_file_info(path)

    def size(self, path: str) -> int:
        info = self._info(path)
        if not info.is_file:
            raise FileNotFoundError(path)
        return int(info.size)

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type.name != "NotFound")

    def list(self, path: str, recursive: bool) -> Found:
        below = len(path.rstrip("/")) + 1
        files = [info for info in self._select(path, recursive) if info.is_file]
        return [(info.path[below:], info.size, info.mtime_ns // 1_000_000) for info in files]

    def directories(self, path: str) -> Names:
        return [info.base_name for info in self._select(path, False) if not info.is_file]

    def _select(self, path: str, recursive: bool) -> Any:
        from pyarrow.fs import FileSelector

        return self._filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))

    def create(self, path: str) -> Any:
        # The store would replace an object of this name without a word. Names are unique, so asking first is enough.
        if self._info(path).type.name != "NotFound":
            raise FileExistsError(path)
        return self._filesystem.open_output_stream(path, compression=None)

    def delete(self, path: str) -> None:
        self._forget(path)
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def touch(self, path: str) -> int:
        with self._filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(uuid.uuid4().bytes)
        return int(self._info(path).mtime_ns // 1_000_000)


def _is_transient(error: BaseException, is_local: bool) -> bool:
    if is_local:
        return isinstance(error, OSError) and error.errno in _TRANSIENT_LOCAL
    # pyarrow tells kinds of remote failures apart by their text only, so what is not known to last is tried again.
    return (
        isinstance(error, OSError)
        and not isinstance(error, PermissionError | FileExistsError)
        and not (_PERMANENT_REMOTE.search(str(error)))
    )


def _failure(error: BaseException, location: str) -> StorageError:
    text, number = str(error), getattr(error, "errno", None)
    if isinstance(error, PermissionError) or _PERMANENT_REMOTE.search(text):
        hint = "Check that the location exists, and the permissions or the credentials in storage_options"
    elif isinstance(error, FileNotFoundError):
        hint = "Create the bucket or container first"
    elif number in (errno.ENOSPC, errno.EDQUOT):
        hint = "Free space there, then run it again: nothing was committed"
    else:
        hint = "Check the location, its endpoint and the network, then run it again: nothing was committed"
    return StorageError(f"The file system failed ({text.strip() or type(error).__name__})", path=location, hint=hint)
