"""A directory for compiled kernels where numba's default does not work: the user's, in the temporary directory.

numba's default does not work on hosts where neither the package nor the home can be written. Nor does it for a package
inside a zip, as with `spark-submit --py-files`: numba names the directory after the zip's path, which differs for every
Spark application, so each application would compile all kernels again. Here the name comes from the zip's content.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows: each process compiles for itself
    fcntl = None  # type: ignore[assignment]

import numba
from numba.core import caching

LONGEST_WAIT_SECONDS = 60.0
"""How long a process waits for a kernel that another one compiles, before it compiles the kernel itself."""

_PAUSE_SECONDS = 0.005


@functools.cache
def private_directory() -> Path:
    """A directory that only this user can write to: the cache is loaded as code."""
    owner = os.getuid() if hasattr(os, "getuid") else 0
    directory = Path(tempfile.gettempdir()) / f"spark-segments-kernels-{owner}"
    directory.mkdir(mode=0o700, exist_ok=True)
    status = directory.stat()
    # A directory that another user made or may write to is not used.
    if hasattr(os, "getuid") and (status.st_uid != owner or status.st_mode & 0o022):
        directory = Path(tempfile.mkdtemp(prefix="spark-segments-kernels-"))
    return directory


def cache_in_private_directory() -> None:
    """Makes numba store kernels in that directory from now on, in this process and in the processes that it starts."""
    os.environ["NUMBA_CACHE_DIR"] = str(private_directory())
    numba.config.reload_config()


class _Locator:
    """numba's cache locator for the kernels of this package's zip. `from_function` is None for all other functions."""

    archive: Path  # the zip; set where the package is inside a zip
    contents: str  # hash of the zip's modules

    def __init__(self, function: Callable[..., Any]):
        self._line = function.__code__.co_firstlineno
        self._directory = Path(os.environ.get("NUMBA_CACHE_DIR") or private_directory()) / f"zip-{self.contents}"

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator | None:
        return cls(function) if cls.archive in Path(file).parents else None

    def ensure_cache_path(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_cache_path(self) -> str:
        return str(self._directory)

    def get_source_stamp(self) -> str:
        return self.contents

    def get_disambiguator(self) -> str:
        return str(self._line)


def share_between_copies(module_file: str) -> None:
    """Makes all copies of a zip share their compiled kernels, where `module_file` is inside a zip."""
    archive = next((parent for parent in Path(module_file).parents if zipfile.is_zipfile(parent)), None)
    if archive is not None:
        _Locator.archive, _Locator.contents = archive, _contents(archive)
        of_kernels: Any = caching.CompileResultCacheImpl
        of_kernels._locator_classes = [_Locator, *of_kernels._locator_classes]


def _contents(archive: Path) -> str:
    """A hash of a zip's modules, equal for zips with the same modules, whenever they were packed."""
    with zipfile.ZipFile(archive) as opened:
        entries = sorted((one.filename, one.CRC, one.file_size) for one in opened.infolist())
    return hashlib.sha256(repr([one for one in entries if one[0].endswith(".py")]).encode()).hexdigest()[:16]


class KernelCache(caching.FunctionCache):
    """numba's cache of a kernel's code, with a lock between processes: what one compiles, the others wait for and load.

    Tasks of one host begin at the same moment and need the same kernels. The lock also keeps two processes from
    storing code of two signatures under the same name, which numba does not.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._held: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = super().load_overload(sig, target_context)
        if found is not None:
            return found
        self._lock()
        try:
            found = super().load_overload(sig, target_context)
        finally:
            if found is not None:
                self._unlock()
        return found  # None: the caller compiles, with the lock held, and stores what it made

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        finally:
            self._unlock()

    def _lock(self) -> None:
        """Takes the lock. Does without it where the file system has no locks, or after LONGEST_WAIT_SECONDS."""
        self._unlock()  # held yet where a compilation failed
        if fcntl is None:
            return
        try:
            self._impl.locator.ensure_cache_path()
            path = os.path.join(self._cache_path, f"{self._impl.filename_base}.lock")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return
        until = time.monotonic() + LONGEST_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(_PAUSE_SECONDS)
                    continue
            except OSError:
                pass
            else:
                self._held = descriptor
                return
            os.close(descriptor)
            return

    def _unlock(self) -> None:
        if self._held is not None:
            descriptor, self._held = self._held, None
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a process that was forked meanwhile has the file open, too
            os.close(descriptor)


def name_apart(kernel: Any) -> None:
    """Gives the files that this process writes for `kernel` unique names, where a zip's kernels are shared.

    numba numbers these files. Two processes that store code for two signatures at the same moment would use the same
    number: a file would be overwritten, and the index would name the code of the other signature.
    """
    cache = kernel._cache
    if isinstance(cache._impl.locator, _Locator):
        file = cache._cache_file
        file._data_name_pattern = f"{uuid.uuid4().hex[:12]}-{file._data_name_pattern}"
