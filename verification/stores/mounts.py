"""A log directory on a mount (FUSE) that has no links, and no renames or only such that replace nothing.

    apt install fuse3; pip install mfusepy
    python -m verification.stores.mounts

The mount shows a directory of this machine. The first kind must be refused with the way out, before anything is there;
on the second the log is made, appended to by two writers at once, forced to disk, and verified.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

_LIBRARY = {"FUSE_LIBRARY_PATH": "libfuse3.so.3"}  # libfuse2 takes no flags of a rename
_AT_FDCWD, _RENAME_NOREPLACE = -100, 1


def serve(source: str, mount: str, *, renames: bool) -> None:
    """Serves the mount until it is taken away."""
    import mfusepy

    class Directory(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
            status = os.lstat(source + path)
            same = {name: getattr(status, name) for name in ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid")}
            times = {name: getattr(status, f"{name}_ns") for name in ("st_mtime", "st_ctime", "st_atime")}
            return same | times | {"st_ino": status.st_ino}

        def readdir(self, path: str, fh: int) -> list[str]:
            return [".", "..", *os.listdir(source + path)]

        def create(self, path: str, mode: int, fi: Any = None) -> int:
            return os.open(source + path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)

        def open(self, path: str, flags: int) -> int:
            return os.open(source + path, flags & ~os.O_EXCL)

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return os.pread(fh, size, offset)

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return os.pwrite(fh, data, offset)

        def fsync(self, path: str, datasync: int, fh: int) -> int:
            os.fsync(fh)
            return 0

        def release(self, path: str, fh: int) -> int:
            os.close(fh)
            return 0

        def unlink(self, path: str) -> int:
            os.unlink(source + path)
            return 0

        def mkdir(self, path: str, mode: int) -> int:
            os.mkdir(source + path, mode)
            return 0

        def rename(self, old: str, new: str, flags: int = 0) -> int:
            if not renames:
                raise mfusepy.FuseOSError(errno.ENOSYS)
            libc = ctypes.CDLL(None, use_errno=True)
            paths = os.fsencode(source + old), os.fsencode(source + new)
            if libc.renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], flags or _RENAME_NOREPLACE):
                raise mfusepy.FuseOSError(ctypes.get_errno())
            return 0

    mfusepy.FUSE(Directory(), mount, foreground=True)


@contextlib.contextmanager
def mounted(directory: Path, *, renames: bool) -> Iterator[Path]:
    """A mount that shows `directory/source`, in a process of its own."""
    source, mount = directory / "source", directory / "mount"
    source.mkdir()
    mount.mkdir()
    command = [sys.executable, "-m", "verification.stores.mounts", str(source), str(mount), str(renames)]
    with subprocess.Popen(command, env=os.environ | _LIBRARY) as process:
        try:
            while not os.path.ismount(mount):
                assert process.poll() is None, "nothing was mounted"
                time.sleep(0.05)
            yield mount
        finally:
            subprocess.run(["fusermount3", "-u", str(mount)], check=False)


def main() -> None:
    import pyarrow as pa

    from spark_segments import LogDir
    from spark_segments.errors import StorageError
    from spark_segments.maintenance import verify

    values = pa.table({"value": [b"tea"]})
    for renames in (False, True):
        with tempfile.TemporaryDirectory() as directory, mounted(Path(directory), renames=renames) as mount:
            uri = str(mount / "log")
            try:
                log = LogDir.create(uri)
            except StorageError as error:
                assert not renames and "s3://" in str(error), error
                print(f"renames: {renames}: refused: {error}", flush=True)
                continue
            log.create_topic("orders", config={"flush.messages": "1"})

            def write(number: int, uri: str = uri) -> list[dict[int, tuple[int, int]]]:
                return [LogDir.open(uri).topic("orders").append(values, txn=(str(number), turn)) for turn in range(10)]

            with ThreadPoolExecutor(2) as pool:
                ranges = sorted(one[0] for done in pool.map(write, range(2)) for one in done)
            assert ranges == [(offset, offset) for offset in range(20)], ranges
            assert verify(log, deep=True).findings == []
            print(f"renames: {renames}: two writers, 20 appends, every byte verified", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve(sys.argv[1], sys.argv[2], renames=sys.argv[3] == "True")
    else:
        main()
