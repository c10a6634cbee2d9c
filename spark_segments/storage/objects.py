"""Objects of S3, GCS or Azure, through obstore.

obstore tries a request again that fails for a moment, also one that creates an object: a reply that was lost, or an
error after the object was there, then ends as "already there". So what was reported lost is read back.
"""

from __future__ import annotations

import contextlib
import errno
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import obstore
import obstore.exceptions
import pyarrow as pa

from spark_segments.quantities import wall_ms
from spark_segments.storage.clients import open_store
from spark_segments.storage.filesystem import Found, Names
from spark_segments.storage.locations import Location
from spark_segments.storage.native import native

RETRIES: dict[str, Any] = {
    "max_retries": 8,
    "retry_timeout": timedelta(minutes=3),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=10), "base": 2},
}

CLOCK_MS = 60_000
"""How long a reading of the store's clock is used before the probe is written again, in ms."""

PART_BYTES = 8 << 20
"""Bytes of a part of an upload. A smaller file is a single request."""

_PARTS_AT_ONCE = 2  # of a stream: memory is bounded by them
_LISTED = 1000
_DEBUG = re.compile(r"\n+Debug source:.*", re.DOTALL)
_ANSWER = re.compile(r"(?:<\?xml.*?\?>\s*)?<Error\b[^>]*>(.*?)</Error>", re.DOTALL)
_SAID = re.compile(r"<(?:Code|Message)>(.*?)</", re.DOTALL)
_REFUSED = re.compile(r"non-2xx status code: 40[13]\b")  # for some requests obstore raises no specific error
_CUT = "response body error"  # the connection ended within a reply, which obstore does not ask for again
_BEYOND_END = "non-2xx status code: 416"
_ERRORS = (
    (FileNotFoundError, FileNotFoundError),
    (obstore.exceptions.AlreadyExistsError, FileExistsError),
    (obstore.exceptions.PreconditionError, FileExistsError),
    (obstore.exceptions.PermissionDeniedError, PermissionError),
    (obstore.exceptions.UnauthenticatedError, PermissionError),
)


class ObjectStore:
    """The bucket or container of a location. Paths begin with its name, as `Location.join` makes them."""

    def __init__(self, location: Location) -> None:
        with _errors():
            self.store = open_store(location, RETRIES)
        # (time.monotonic() of the last reading, store's clock - time.time() in ms)
        self._clock: tuple[float, int] | None = None
        self._lock = threading.Lock()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        if length == 0:
            # No store takes a range of no bytes.
            self.size(path)  # raises for a file that is missing
            return pa.py_buffer(b"")
        byte_range = {"offset": offset} if length is None else (offset, offset + length)
        try:
            with _errors():
                options: Any = {"range": byte_range} if length is not None or offset else None
                return pa.py_buffer(self.store.get(_key(path), options=options).bytes())
        except OSError as error:
            # A range that begins at the end of the file or behind it is an error to stores.
            if _BEYOND_END not in str(error) or self.size(path) > offset:
                raise
            return pa.py_buffer(b"")

    def size(self, path: str) -> int:
        return int(self._head(path)["size"])

    def _head(self, path: str) -> Any:
        with _errors():
            return self.store.head(_key(path))

    def exists(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self._head(path)
            return True
        with _errors():
            return any(self.store.list(_key(path), chunk_size=1))

    def list(self, path: str, recursive: bool) -> Found:
        prefix = _key(path)
        with _errors():
            if recursive:
                several = self.store.list(prefix or None, chunk_size=_LISTED)
                infos = [info for infos in several for info in infos]
            else:
                infos = list(self.store.list_with_delimiter(prefix or None)["objects"])
        below = len(prefix) + 1 if prefix else 0
        return [
            (info["path"][below:], info["size"], _modified_ms(info), info["e_tag"] or "")
            for info in infos
            if info["size"] or not self._is_directory(info["path"], prefix)
        ]

    def _is_directory(self, path: str, prefix: str) -> bool:
        """If an empty object stands for a directory (`path/`), as pyarrow.fs left them. Listings hide the slash."""
        if path == prefix:
            return True
        if "." in path.rpartition("/")[2]:  # as the files of a log that may be empty
            return False
        try:
            with _errors():
                self.store.head(path)
        except FileNotFoundError:
            return True
        return False

    def directories(self, path: str) -> Names:
        with _errors():
            prefixes = self.store.list_with_delimiter(_key(path) or None)["common_prefixes"]
        return [name.rpartition("/")[2] for name in prefixes]

    def stream(self, path: str, *, unique: bool = False) -> _Upload:
        # The store would silently replace an object of this name.
        if not unique:
            with contextlib.suppress(FileNotFoundError):
                self._head(path)
                raise FileExistsError(path)
        return _Upload(self, path)

    def replace(self, path: str, data: Any) -> None:
        content = _bytes(data)
        try:
            with _errors():
                self.store.put(_key(path), content, chunk_size=PART_BYTES)
        except PermissionError:
            raise
        except OSError as error:
            # The last request of an upload may have been carried out, its reply lost, and a second try refused.
            with contextlib.suppress(FileNotFoundError):
                if content.nbytes > PART_BYTES and memoryview(self.read(path, 0, None)).cast("B") == content:
                    return
            if isinstance(error, FileNotFoundError):  # of the upload, or the bucket: no file is missing
                raise OSError(str(error)) from error
            raise

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        content = _bytes(data)
        try:
            with _errors():
                self.store.put(_key(path), content, mode="create")
        except PermissionError:
            raise
        except OSError as error:
            # A reply does not tell who made the object, and without a good reply it may have been made.
            with contextlib.suppress(FileNotFoundError):
                if memoryview(self.read(path, 0, None)).cast("B") == content:
                    return
                raise FileExistsError(path) from error
            raise

    def force(self, paths: Iterable[str], root: str) -> None:
        """An upload that has ended is as durable as the store makes it."""

    def delete(self, paths: Sequence[str]) -> None:
        keys = [_key(path) for path in paths]
        try:
            with _errors():
                self.store.delete(keys)
        except FileNotFoundError:  # of Azure and Google, which may have left the others
            # One by one, so that none is left because another was gone.
            for key in keys:
                with contextlib.suppress(FileNotFoundError), _errors():
                    self.store.delete(key)

    def now_ms(self, probe: str) -> int:
        """The store's clock (see `Storage.now_ms`), read from the probe at most once in CLOCK_MS."""
        with self._lock:
            clock = self._clock
        if clock is None or (time.monotonic() - clock[0]) * 1000 >= CLOCK_MS:
            # Our clock is read before the request and the store's within it, so the difference is too large by the time
            # of the request at most. The age of a reading is monotonic: a clock that is set back must not keep it.
            taken = time.monotonic()
            before_ms = wall_ms()
            self.replace(probe, uuid.uuid4().bytes)
            clock = (taken, _modified_ms(self._head(probe)) - before_ms)
            with self._lock:
                self._clock = clock
        return wall_ms() + clock[1]


class _Upload:
    """An object that is being written, in parts where it is large. It is there once it is closed."""

    def __init__(self, objects: ObjectStore, path: str) -> None:
        self._objects = objects
        self._path = path
        self._bytes = 0
        with _errors():
            self._file = obstore.open_writer(
                objects.store, _key(path), buffer_size=PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )
        self.closed = False

    def write(self, data: Any) -> None:
        content = _bytes(data)
        with _errors():
            self._file.write(content)
        self._bytes += content.nbytes

    def abandon(self) -> None:
        """Makes no object, for another writer may have made it whole. Parts that were sent stay until the bucket's
        lifecycle rule aborts the upload.
        """
        self.closed = True
        del self._file

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        try:
            with _errors():
                self._file.close()
        except OSError as error:
            # The last request may have been carried out, its reply lost, and a second try refused.
            with contextlib.suppress(OSError):
                if self._objects.size(self._path) == self._bytes:
                    return
            raise error


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turns obstore's errors into a file system's."""
    try:
        with native("obstore"):
            yield
    except (obstore.exceptions.BaseError, ValueError, FileNotFoundError) as error:
        text = _ANSWER.sub(lambda answer: ": ".join(_SAID.findall(answer[1])), _DEBUG.sub("", str(error)))
        for kind, ours in _ERRORS:
            if isinstance(error, kind):
                raise ours(text) from None
        if _CUT in text:
            raise OSError(errno.ECONNRESET, text) from None
        raise (PermissionError if _REFUSED.search(text) else OSError)(text) from None


def _key(path: str) -> str:
    """The key of an object: its path without the bucket."""
    return path.partition("/")[2]


def _bytes(data: Any) -> memoryview:
    return memoryview(data).cast("B")


def _modified_ms(info: Any) -> int:
    return int(info["last_modified"].timestamp() * 1000)
