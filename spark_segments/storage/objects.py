"""Objects of S3, GCS or Azure, through pyarrow.fs."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from spark_segments.storage.filesystem import Found, Names

OPEN_FILES = 32
"""Input files kept open, at most. Opening a file costs a request beside the request of each read."""

CLOCK_MS = 60_000
"""How long a reading of the store's clock is used before the probe is written again, in ms."""


class ObjectStore:
    """Files of an object store through pyarrow.fs, with a bounded number of input files kept open."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._opening: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        # (time.monotonic() of the last reading, store's clock - time.time() in ms)
        self._clock: tuple[float, int] | None = None

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        with self._lock:
            file = self._open.get(path)
            if file is not None:
                self._open.move_to_end(path)
        # An open file keeps the size that it was opened with, so a file that seems to end too early is opened again.
        if file is None or length is None or offset + length > file.size():
            file = self._opened_anew(path, file)
        rest = max(file.size() - offset, 0)
        wanted = rest if length is None else min(length, rest)
        if wanted == 0:
            return pa.py_buffer(b"")
        try:
            return pa.py_buffer(file.read_at(wanted, offset))
        except (OSError, pa.ArrowException):
            self._forget(path)
            raise

    def _opened_anew(self, path: str, before: Any) -> Any:
        """The file opened again. Of several threads that have found the same file `before`, or none, one opens it."""
        with self._lock:
            gate = self._opening.setdefault(path, threading.Lock())
        with gate:
            with self._lock:
                file = self._open.get(path)
            if file is None or file is before:
                try:
                    file = self._filesystem.open_input_file(path)
                finally:
                    with self._lock:
                        self._opening.pop(path, None)
                with self._lock:
                    self._open[path] = file
                    while len(self._open) > OPEN_FILES:
                        self._open.popitem(last=False)  # not closed: another thread may be reading it
            return file

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
        return [(info.path[below:], info.size, info.mtime_ns // 1_000_000, "") for info in files]

    def directories(self, path: str) -> Names:
        if self._filesystem.type_name == "gcs":
            # pyarrow knows only directories with an object of their name there: the others are in the names of files.
            below = len(path.rstrip("/")) + 1
            inside = (info.path[below:].partition("/") for info in self._select(path, True) if info.is_file)
            return list({name for name, separator, _ in inside if separator})
        return [info.base_name for info in self._select(path, False) if not info.is_file]

    def _select(self, path: str, recursive: bool) -> Any:
        from pyarrow.fs import FileSelector

        return self._filesystem.get_file_info(FileSelector(path, allow_not_found=True, recursive=recursive))

    def create(self, path: str, *, unique: bool = False) -> Any:
        # The store would silently replace an object of this name. Opening is a single request, where a look at the
        # file's information is a listing as well, for a directory of that name.
        if not unique:
            with contextlib.suppress(FileNotFoundError):
                self._filesystem.open_input_file(path).close()
                raise FileExistsError(path)
        return self._filesystem.open_output_stream(path, compression=None)

    def replace(self, path: str, data: Any) -> None:
        self._forget(path)
        # The old object stays until the upload of the new object has ended.
        with self._filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(data)

    def publish(self, path: str, data: Any) -> None:
        with self.create(path) as stream:
            stream.write(data)

    def force(self, paths: Iterable[str], root: str) -> None:
        """An upload that has ended is as durable as the store makes it."""

    def delete(self, path: str) -> None:
        self._forget(path)
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(path)

    def now_ms(self, probe: str) -> int:
        """The store's clock (see `Storage.now_ms`), read from the probe at most once in CLOCK_MS."""
        with self._lock:
            clock = self._clock
        if clock is None or (time.monotonic() - clock[0]) * 1000 >= CLOCK_MS:
            taken, before_ms = time.monotonic(), time.time_ns() // 1_000_000
            clock = (taken, self._touch(probe) - before_ms)
            with self._lock:
                self._clock = clock
        return time.time_ns() // 1_000_000 + clock[1]

    def _touch(self, path: str) -> int:
        """Writes a file and returns its modification time in ms."""
        with self._filesystem.open_output_stream(path, compression=None) as stream:
            stream.write(uuid.uuid4().bytes)
        return int(self._info(path).mtime_ns // 1_000_000)
