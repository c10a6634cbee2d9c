"""The whole file-system interface of this package. It is small, so that a test can play every disk error.

Paths are the full paths that `Location.join` returns. A missing file raises FileNotFoundError, an existing file
FileExistsError. Every other failure is an OSError, which `Storage` turns into one clear error.

The package assumes that a file is there whole once its `close` has returned, that a listing shows it from then on, and
that `create` is exclusive. It renames, appends to and changes no file, save the few files that `replace` writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import pyarrow as pa

Found = list[tuple[str, int, int, str]]
"""Files of a listing: name relative to the directory, size in bytes, modification time in ms since 1970, and version.

The version of a local file is `<device>-<inode>`, of an object its ETag, or nothing where the store gives none: another
file under the same name has another version. So a file that was replaced differs from a file that has grown.
"""

Names = list[str]


class WritableFile(Protocol):
    """A file that is being written.

    A file that exists only once it is closed may have a method `abandon`, which ends it without creating the file.
    """

    @property
    def closed(self) -> bool: ...

    def write(self, data: Any, /) -> Any:
        """Appends all bytes of a buffer."""

    def close(self) -> None:
        """Ends the file. A second call does nothing."""


class FileSystem(Protocol):
    """A file system or an object store. One object serves all threads of a process."""

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        """Bytes [offset, offset + length), or up to the end without a length; fewer where the file ends earlier."""

    def size(self, path: str) -> int:
        """The current size of a file in bytes, never a cached value."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory of this name."""

    def list(self, path: str, recursive: bool) -> Found:
        """The files of a directory, in any order; none where it is missing."""

    def directories(self, path: str) -> Names:
        """The names of the directories directly in a directory; none where it is missing."""

    def stream(self, path: str, *, unique: bool = False) -> WritableFile:
        """Starts a new file and makes its parents. `unique`: no other file ever has this name: none is looked for."""

    def replace(self, path: str, data: Any) -> None:
        """Writes a file whole, in place of an existing file. A reader, or a crash, finds the old bytes or the new.

        Only for files that other programs know by a fixed name.
        """

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        """Creates a file that exists whole or not at all. `is_forced`: after a power loss as well, though only `force`
        makes its name last.

        Of several that create it, one succeeds. After an error that is no FileExistsError the file may be there.
        """

    def force(self, paths: Iterable[str], root: str) -> None:
        """Returns once files, and their names in all directories from `root` down, have reached the disk.

        Only for files that this host wrote. Object stores have nothing to do. A failure leaves it unknown what reached
        the disk, and a second call would not tell.
        """

    def delete(self, paths: Sequence[str]) -> None:
        """Removes files. A missing file is no error."""

    def now_ms(self, probe: str) -> int:
        """The clock of the modification times, in ms since 1970. The file `probe` may be overwritten to read it."""
