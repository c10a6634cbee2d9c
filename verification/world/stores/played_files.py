"""Files where a test plays what becomes of a call: a full disk, a byte that was read wrong, what others do in between.

`Play` (`verification/world/stores/played_log.py`) does the same for Delta's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from verification.world.opened import LocalFiles

Go = Callable[[], Any]
"""Makes the call as it is."""

Happening = Callable[[Any, Go], Any]
"""What becomes of a call at a path, or at several where it deletes or forces: answers or raises in its place."""


class PlayedFiles(LocalFiles):
    """The machine's files, for `opened`. `calls` has all calls, in order: (name, path)."""

    def __init__(self, **happenings: Happening) -> None:
        """`happenings`: what happens at every call of these names of `FileSystem`."""
        super().__init__()
        self.happenings = happenings
        self.calls: list[tuple[str, Any]] = []

    def _play(self, call: str, path: Any, go: Go) -> Any:
        self.calls.append((call, path))
        return self.happenings[call](path, go) if call in self.happenings else go()

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        return self._play("read", path, lambda: super(PlayedFiles, self).read(path, offset, length))

    def read_ranges(self, path: str, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        return self._play("read", path, lambda: super(PlayedFiles, self).read_ranges(path, ranges))

    def list(self, path: str, recursive: bool) -> Any:
        return self._play("list", path, lambda: super(PlayedFiles, self).list(path, recursive))

    def directories(self, path: str) -> Any:
        return self._play("directories", path, lambda: super(PlayedFiles, self).directories(path))

    def stream(self, path: str, *, unique: bool = False) -> Any:
        return self._play("stream", path, lambda: super(PlayedFiles, self).stream(path, unique=unique))

    def replace(self, path: str, data: Any) -> None:
        self._play("replace", path, lambda: super(PlayedFiles, self).replace(path, data))

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        self._play("create", path, lambda: super(PlayedFiles, self).create(path, data, is_forced=is_forced))

    def delete(self, paths: Sequence[str]) -> None:
        self._play("delete", paths, lambda: super(PlayedFiles, self).delete(paths))

    def force(self, paths: Iterable[str], root: str) -> None:
        paths = list(paths)
        self._play("force", paths, lambda: super(PlayedFiles, self).force(paths, root))
