"""A directory for compiled kernels where numba's default does not work: the user's, in the temporary directory.

numba's default does not work on hosts where neither the package nor the home can be written. Nor does it for a package
inside a zip, as with `spark-submit --py-files`: numba names the directory after the zip's path, which differs for every
Spark application, so each application would compile all kernels again. Here the name comes from the zip's content.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import caching


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


def name_apart(kernel: Any) -> None:
    """Gives the files that this process writes for `kernel` unique names, where a zip's kernels are shared.

    numba numbers these files. Two processes that store code for two signatures at the same moment would use the same
    number: a file would be overwritten, and the index would name the code of the other signature.
    """
    cache = kernel._cache
    if isinstance(cache._impl.locator, _Locator):
        file = cache._cache_file
        file._data_name_pattern = f"{uuid.uuid4().hex[:12]}-{file._data_name_pattern}"
