"""The whole of what this package asks of a file system: small, so that a test can play every disk error.

Paths are full: those of `Location.join`. A missing file is FileNotFoundError, an existing one FileExistsError, and
everything else that fails is an OSError or an ArrowException, which `Storage` turns into one clear error.

What is assumed: a file is there whole once its `close` has returned, a listing shows it from then on, and `create` is
exclusive. Nothing is renamed, appended to or changed, save the few files that `replace` writes.
"""

from __future__ import annotations

from typing import Any, Protocol

import pyarrow as pa

Found = list[tuple[str, int, int]]
"""Files of a listing: name relative to the directory, size in bytes, modification time in ms since 1970."""

Names = list[str]


class WritableFile(Protocol):
    """A file that is being written."""

    @property
    def closed(self) -> bool: ...

    def write(self, data: Any, /) -> Any:
        """Appends all bytes of a buffer."""

    def close(self) -> None:
        """Ends the file. A second call does nothing."""


class FileSystem(Protocol):
    """A file system or an object store. One object serves all threads of a process."""

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        """Bytes [offset, offset + length), to the end without a length, short where the file ends earlier."""

    def size(self, path: str) -> int:
        """The size of a file in bytes, looked up afresh."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory of this name."""

    def list(self, path: str, recursive: bool) -> Found:
        """The files of a directory, in any order; none where it is missing."""

    def directories(self, path: str) -> Names:
        """The names of the directories directly in a directory; none where it is missing."""

    def create(self, path: str) -> WritableFile:
        """Starts a new file and makes its parents."""

    def replace(self, path: str, data: Any) -> None:
        """Puts a file with these bytes where another file may be. A reader, or a crash, finds the old bytes or the new.

        Only files that other programs know by a fixed name are written so.
        """

    def delete(self, path: str) -> None:
        """Removes a file. A missing one is fine."""

    def now_ms(self, probe: str) -> int:
        """The clock that modification times are taken from. `probe` is a path that may be written over to read it."""
