"""Byte access to one log directory: ranged reads, files written once, bounded retries, and errors that name the file.

Every byte that this package reads or writes of a log directory goes through `Storage`. Only the manifest's Delta tables
are read and written by delta-rs, at the address that `Storage.delta_uri` gives. filesystem.py has the interface that
local files and object stores implement, and its assumptions. locations.py parses addresses.

A new file belongs to the log once a commit names it. So a half-written file does no harm, and vacuum deletes it. As
with Kafka's default for flush.messages, the operating system decides when the bytes of a local file reach the disk,
unless `force` is called.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from spark_segments.errors import InvalidOptionError, StorageError
from spark_segments.storage.filesystem import FileSystem, Names, WritableFile
from spark_segments.storage.local import LocalFiles, OpenFile
from spark_segments.storage.locations import Location, parse_location
from spark_segments.storage.objects import ObjectStore

ATTEMPTS = 5
"""Attempts of an idempotent operation on local files, in all. For object stores see objects.py."""

CLOCK_PROBE = "_clock"
"""The file whose modification time gives the clock of an object store. It is part of no log."""

_THREADS = 16
_TASKS = 8
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_DESCRIPTORS = "Too many files are open: raise the limit (ulimit -n), then run it again"
_TRANSIENT = {errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.ESTALE, errno.ECONNRESET}

S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file of a listing: its path relative to the storage's root, its size in bytes, its modification time (ms).

    `version`: differs for another file that takes the name later, as `Found` says.
    """

    path: str
    size: int
    mtime_ms: int
    version: str = ""


class Storage:
    """Byte access to everything under one root; picklable, cheap to make, safe to share between threads.

    `uri`: a local path, file://, s3://, s3a://, gs://, abfs:// or abfss://. `storage_options`: credentials and
    endpoints in delta-rs's names. All paths are relative to the root, with `/` between their parts. A missing file is
    Python's FileNotFoundError; everything else that fails after bounded retries is a StorageError.
    """

    retry_backoff_seconds = 0.2

    def __init__(
        self,
        uri: str | os.PathLike[str],
        storage_options: dict[str, str] | None = None,
        *,
        filesystem: FileSystem | None = None,
    ) -> None:
        """`filesystem` replaces the file system of the address, for tests and simulations. It must be picklable where
        other processes use this storage.
        """
        self._location: Location = parse_location(os.fspath(uri), storage_options or {})
        self.uri: str = self._location.uri
        self.storage_options: dict[str, str] = dict(self._location.options)
        self._replacement = filesystem
        self._refused = ""
        self._start()

    def _start(self) -> None:
        self._opened: FileSystem | None = self._replacement
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_opened", "_lock"):
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

    @property
    def tasks_at_a_time(self) -> int | None:
        """How many tasks that read and write files here a process does at a time; None: as many as it has cores."""
        return None if self.is_local else max(_TASKS, os.cpu_count() or 1)

    @property
    def keeps_unfinished_uploads(self) -> bool:
        """Whether the store keeps the parts of uploads that never ended, until a lifecycle rule of the bucket aborts
        them. No listing of files shows them. Azure and Google Cloud Storage drop them within a week.
        """
        return self._location.scheme == "s3" and self._replacement is None

    def location(self, path: str = "") -> str:
        """The full address of `path`, as errors and reports show it."""
        return f"{self.uri.rstrip('/')}/{path}" if path else self.uri

    def hidden(self, text: str) -> str:
        """A text without the credentials of this storage."""
        return self._location.hidden(text)

    def delta_uri(self, path: str = "") -> tuple[str, dict[str, str]]:
        """The address and the storage options under which delta-rs finds `path`."""
        self._full(path)
        if "%" in path:
            hint = "delta-rs takes % for the begin of an escape"
            raise InvalidOptionError("A path must stay inside the log directory", found=repr(path), hint=hint)
        hint = ""
        if self.is_local and re.search("%[0-9A-Fa-f]{2}", self.uri):
            hint = "delta-rs takes % and two hexadecimal digits for an escape: use another directory"
        elif re.search(r"[\x00-\x1f\x7f\\]", self.uri):
            hint = "delta-rs takes no control characters, and a backslash for a slash: use another directory"
        if hint:
            raise InvalidOptionError("A log directory cannot lie at this path", found=repr(self.uri), hint=hint)
        return self.location(path), self._location.delta_options()

    # Reading

    def read(
        self,
        path: str,
        offset: int = 0,
        length: int | None = None,
        *,
        writable: bool = False,
        ranges: Sequence[tuple[int, int]] = (),
    ) -> pa.Buffer:
        """Bytes [offset, offset + length) of a file, or up to its end without `length`, by one positional read.

        The result is shorter, or empty, where the file ends earlier. A file that has grown since an earlier read shows
        its new bytes. With `writable` the caller may write to the returned memory, which nobody else uses. `ranges`
        [start, end) of the file, which rise, are read in place of those bytes, and come one behind the other.
        """
        if offset < 0 or (length is not None and length < 0):
            raise InvalidOptionError(
                "The offset or the length is negative", path=path, expected="≥ 0", found=(offset, length)
            )
        files = self._files()
        if not ranges:
            data = self._retried(files.read, path, offset, length)
        elif isinstance(files, LocalFiles):
            data = self._retried(files.read_ranges, path, ranges)
        else:
            data = pa.py_buffer(b"".join(self.read(path, start, end - start) for start, end in ranges))
        if writable:
            return data if data.is_mutable else pa.py_buffer(bytearray(data))
        # Batches and columns are views of these bytes: whoever wrote to one would change all of them.
        return pa.py_buffer(memoryview(data).toreadonly()) if data.is_mutable else data

    def open_file(self, path: str) -> OpenFile | None:
        """A file of this machine, to be sent by the operating system; None where files are elsewhere."""
        if not isinstance(self._files(), LocalFiles):
            return None
        return self._retried(OpenFile, path)

    def size(self, path: str) -> int:
        """The current size of a file in bytes, never a cached value."""
        return int(self._retried(self._files().size, path))

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory of this name."""
        return bool(self._retried(self._files().exists, path))

    def list(self, path: str = "", recursive: bool = False) -> list[FileInfo]:
        """The files of a directory (`recursive`: and below), sorted by path; none where the directory is missing."""
        listed = self._retried(self._files().list, path, recursive)
        prefix = f"{path.strip('/')}/" if path.strip("/") else ""
        infos = (FileInfo(prefix + name, size, mtime_ms, version) for name, size, mtime_ms, version in listed)
        return sorted(infos, key=lambda info: info.path)

    def directories(self, path: str = "") -> Names:
        """The names (not paths) of the directories directly in a directory, sorted; none where it is missing."""
        return sorted(self._retried(self._files().directories, path))

    def leads_out(self, path: str) -> bool:
        """Whether `path` is, or lies below, a symbolic link of this machine that leads out of the root."""
        if not self.is_local:
            return False
        root = os.path.realpath(self._location.root)
        full = os.path.realpath(self._full(path))
        return os.path.commonpath([root, full]) != root

    # Writing

    def refuse_writing(self, reason: str) -> None:
        """From now on each call that would change a file raises StorageError with this reason."""
        self._refused = reason

    def _changed(self, path: str) -> str:
        """The full path of a file that is about to be changed."""
        if self._refused:
            raise StorageError(self._refused, path=self.uri)
        return self._full(path)

    def stream(self, path: str, *, unique: bool = False) -> WriteStream:
        """Creates a file and its parent directories, and returns a binary stream that the caller closes.

        Raises FileExistsError where the file exists. `unique`: no other file ever has this name, as a name with a UUID
        in it; an object store is not asked for it, which saves a request. A stream that fails leaves a part of a local
        file, or parts of an upload: vacuum deletes them later. A failed write is not tried again, because a part of its
        bytes may have been written.
        """
        full = self._changed(path)
        try:
            return WriteStream(self._files().stream(full, unique=unique), self.location(path), self.hidden)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.location(path)) from None
        except OSError as error:
            raise _failure(error, self.location(path), self.hidden) from _cause(error, self.hidden)

    def write(self, path: str, data: Any, *, unique: bool = False) -> None:
        """Creates a file with these bytes (any buffer). `unique` as in `stream`: a request that fails is then sent
        again, since any bytes that the store already has of the file are the same.
        """
        self.write_all([(path, data)], unique=unique)

    def write_all(self, files: Iterable[tuple[str, Any]], *, unique: bool = False) -> None:
        """Creates files, each of (path, bytes), as `write` does, and at the same time where each is a request."""
        if not self.is_local:
            self.at_once(partial(self._upload, unique), files)
            return
        for path, data in files:
            with self.stream(path, unique=unique) as stream:
                stream.write(data)

    def _upload(self, unique: bool, file: tuple[str, Any]) -> None:
        path, data = file
        if unique:
            self._changed(path)
            self._retried(self._files().replace, path, data)
            return
        with self.stream(path) as stream:
            stream.write(data)

    def replace(self, path: str, data: Any) -> None:
        """Writes a file whole (any buffer), in place of an existing file. A crash leaves the old or the new file.

        For files that other programs know by a fixed name. Files of a log are never replaced.
        """
        self._changed(path)
        self._retried(self._files().replace, path, data)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        """Creates a file (any buffer) that exists whole or not at all; where `is_forced`, after a power loss as well.

        Of several callers that create it, one succeeds; the others get FileExistsError. After another error the file
        may exist. On an object store the bytes must be the caller's alone, as with an id in them: a store says that the
        file exists also where its reply to this very call was lost, and then its bytes show who created it.
        """
        full = self._changed(path)
        try:
            self._files().create(full, data, is_forced=is_forced)
        except FileExistsError:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.location(path)) from None
        except OSError as error:
            raise _failure(error, self.location(path), self.hidden) from _cause(error, self.hidden)

    def force(self, paths: Iterable[str]) -> None:
        """Returns once files that this host wrote, and their names, have reached the disk.

        Raises FileNotFoundError for a file that is gone. After any other error nobody knows what reached the disk: a
        second attempt could succeed although bytes are lost, so there is none.
        """
        full = [self._full(path) for path in paths]
        try:
            self._files().force(full, self._location.root)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(
                f"The disk failed while files were forced to it ({error})",
                path=error.filename or self.uri,
                hint=_DESCRIPTORS
                if error.errno in _NO_DESCRIPTORS
                else "Look after the disk first. What was not forced to it may be lost",
            ) from error

    def delete(self, paths: str | Iterable[str]) -> None:
        """Removes files. A missing file is no error. Directories stay."""
        all_paths = [paths] if isinstance(paths, str) else list(paths)
        full = [self._changed(path) for path in all_paths]
        if full:
            self._retried(lambda _: self._files().delete(full), all_paths[0] if len(all_paths) == 1 else "")

    def at_once(self, work: Callable[[S], T], items: Iterable[S]) -> Sequence[T]:
        """`[work(item) for item in items]`, by threads on an object store, where the work is mostly waiting.

        The first error is raised once all work that had begun has ended.
        """
        all_items = list(items)
        if len(all_items) < 2 or self.is_local:
            return list(map(work, all_items))
        with ThreadPoolExecutor(min(_THREADS, len(all_items))) as pool:
            return list(pool.map(work, all_items))

    # The clock

    def now_ms(self) -> int:
        """The store's clock in ms since 1970, against which the ages of files are measured.

        For local files it is this machine's clock. For an object store it is the modification time of a probe file with
        the store's resolution (S3: a second), read at most once a minute. That needs permission to write to the store.
        """
        return int(self._retried(self._files().now_ms, CLOCK_PROBE))

    # Paths, file systems and retries

    def _full(self, path: str) -> str:
        # Paths come out of manifests, and delete() uses them: no path may lead out of the root.
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "\0" in path:
            raise InvalidOptionError("A path must stay inside the log directory", found=repr(path))
        return self._location.join(path.strip("/"))

    def _files(self) -> FileSystem:
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = LocalFiles() if self.is_local else ObjectStore(self._location)
                except OSError as error:
                    text = self.hidden(str(error))
                    raise InvalidOptionError(f"No store can be opened with these storage options: {text}") from None
            return self._opened

    def _retried(self, operation: Callable[..., T], path: str, *arguments: Any) -> T:
        """Runs an idempotent operation on the full path, again where it failed for a moment, with growing pauses.

        obstore tries requests of object stores again itself, save one whose reply was cut within.
        """
        full = self._full(path)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return operation(full, *arguments)
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.location(path)) from None
            except OSError as error:
                if attempt == ATTEMPTS or error.errno not in _TRANSIENT:
                    raise _failure(error, self.location(path), self.hidden) from _cause(error, self.hidden)
            # At random: tasks that failed in the same moment would else come again in the same moment.
            time.sleep(random.uniform(0.5, 1.0) * self.retry_backoff_seconds * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")


class WriteStream:
    """A file that is being written: `write` takes any buffer, `close` ends the file. As a context manager it closes."""

    def __init__(self, file: WritableFile, location: str, hidden: Callable[[str], str] = str) -> None:
        """`hidden`: a text without credentials, for errors."""
        self._file = file
        self.location = location
        self._hidden = hidden
        self.bytes_written = 0

    @property
    def closed(self) -> bool:
        return bool(self._file.closed)

    def write(self, data: Any) -> int:
        """Appends a buffer of bytes; returns its size."""
        size = memoryview(data).nbytes
        try:
            self._file.write(data)
        except OSError as error:
            raise _failure(error, self.location, self._hidden) from _cause(error, self._hidden)
        self.bytes_written += size
        return size

    def close(self) -> None:
        """Ends the file: once this returns, the whole file is there. A second call does nothing."""
        try:
            self._file.close()
        except OSError as error:
            raise _failure(error, self.location, self._hidden) from _cause(error, self._hidden)

    def __enter__(self) -> WriteStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.close()
            return
        with contextlib.suppress(OSError):  # the first error is the one to show
            # Closed, an upload would become an object with half of the bytes. Half of a local file is left to vacuum.
            getattr(self._file, "abandon", self._file.close)()


def _cause(error: BaseException, hidden: Callable[[str], str]) -> BaseException | None:
    """The error, as the cause to show; None where its text has credentials in it."""
    return error if hidden(str(error)) == str(error) else None


_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
"""What S3 and Google's store, and Azure's, answer where there is no such bucket or container."""


_AGAIN = "then run it again: nothing was committed"
_NO_ROOM = f"Free space there, or raise the quota or limit, {_AGAIN}"
_NO_LINK = "A commit would not be whole there: use a local disk, or the address of the object store (s3:// …)"
_HINTS = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EOPNOTSUPP: _NO_LINK,
    errno.EROFS: f"Mount it for writing, {_AGAIN}",
    **dict.fromkeys(_NO_DESCRIPTORS, _DESCRIPTORS),
}
"""What to do about an error of the operating system, by its number."""


def _failure(error: BaseException, location: str, hidden: Callable[[str], str]) -> StorageError:
    text = hidden(str(error))
    number = getattr(error, "errno", None)
    if isinstance(error, OSError) and error.filename is not None:  # the address says it, too
        text = f"[Errno {number}] {error.strerror}"
    hint = _hint_for(error, text, number)
    return StorageError(f"The file system failed ({text.strip() or type(error).__name__})", path=location, hint=hint)


def _hint_for(error: BaseException, text: str, number: int | None) -> str:
    if isinstance(error, PermissionError):
        return "Check that the location exists, and the permissions or the credentials in storage_options"
    if isinstance(error, FileNotFoundError) or any(name in text for name in _NO_BUCKET):
        return "Correct the name of the bucket or container, or create it first"
    if number in _HINTS:
        return _HINTS[number]
    return f"Check the location, its endpoint and the network, {_AGAIN}"
