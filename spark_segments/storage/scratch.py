"""Directories for what a process needs only while it runs. Nothing of them outlives the next process that needs one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spark_segments.errors import StorageError

_PREFIX = "spark-segments-scratch-"
_LOCK = ".lock"
_PROBE_BYTES = 1 << 16
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory below $TMPDIR, deleted at the end of the block.

    A process that is killed leaves its directory. Its lock is free then, and the next one deletes it.

    Raises StorageError, which names $TMPDIR, where no directory can be made. It does so, too, in place of an error of
    the block after which the directory takes no file: others write there, and their errors speak of the log, or of
    nothing.
    """
    try:
        _delete_left()
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise _failed(error, os.environ.get("TMPDIR")) from error
    try:
        with (directory / ".new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(directory / ".new", directory / _LOCK)  # a lock of this name is held, or its process has ended
            yield directory
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:
            raise _failed(error, str(directory)) from error
        try:
            (directory / "probe").write_bytes(bytes(_PROBE_BYTES))
        except OSError as full:
            if full.errno in _FULL:
                raise _failed(full, str(directory)) from error
        raise
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _failed(error: OSError, directory: str | None) -> StorageError:
    hint = "Free space there, or name another directory in $TMPDIR, then run it again"
    if error.errno in _NO_DESCRIPTORS:
        hint = "Raise the limit of open files (ulimit -n), then run it again"
    text = f"The directory for temporary files takes none ($TMPDIR): {error.strerror}"
    return StorageError(text, path=directory, hint=hint)


def _delete_left() -> None:
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # An OSError: it is another user's, in use, or deleted meanwhile.
        with contextlib.suppress(OSError), (left / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
