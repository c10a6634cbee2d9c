"""Directories for what a process needs only while it runs. Nothing of them outlives the next process that needs one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "spark-segments-scratch-"
_LOCK = ".lock"


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory below $TMPDIR, deleted at the end of the block.

    A process that is killed leaves its directory. Its lock is free then, and the next one deletes it.
    """
    _delete_left()
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with (directory / ".new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(directory / ".new", directory / _LOCK)  # a lock of this name is held, or its process has ended
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _delete_left() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # An OSError: it is another user's, in use, or deleted meanwhile.
        with contextlib.suppress(OSError), (left / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
