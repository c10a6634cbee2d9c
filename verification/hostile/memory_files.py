"""A file system of bytes in memory: a hostile log directory costs no disk."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from spark_segments.storage import Storage

ROOT = "/hostile"


class MemoryFiles:
    """See `FileSystem`. `files`: bytes by path below ROOT."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files

    def _name(self, path: str) -> str:
        assert path == ROOT or path.startswith(f"{ROOT}/"), f"{path} is outside of the log directory"
        return path[len(ROOT) + 1 :]

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        name = self._name(path)
        if name not in self.files:
            raise FileNotFoundError(path)
        end = None if length is None else offset + length
        return pa.py_buffer(self.files[name][offset:end])

    def size(self, path: str) -> int:
        name = self._name(path)
        if name not in self.files:
            raise FileNotFoundError(path)
        return len(self.files[name])

    def exists(self, path: str) -> bool:
        name = self._name(path)
        return name in self.files or any(other.startswith(f"{name}/") for other in self.files)

    def list(self, path: str, recursive: bool) -> list[tuple[str, int, int, str]]:
        prefix = f"{self._name(path)}/" if self._name(path) else ""
        below = ((name[len(prefix) :], data) for name, data in self.files.items() if name.startswith(prefix))
        return [(name, len(data), 1_700_000_000_000, "") for name, data in below if recursive or "/" not in name]

    def directories(self, path: str) -> list[str]:
        prefix = f"{self._name(path)}/" if self._name(path) else ""
        below = (name[len(prefix) :] for name in self.files if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in below if "/" in name})

    def stream(self, path: str, *, unique: bool = False) -> Any:
        name, files = self._name(path), self.files
        if name in files:
            raise FileExistsError(path)

        class File(io.BytesIO):
            def close(self) -> None:
                if not self.closed:
                    files[name] = self.getvalue()
                super().close()

        return File()

    def replace(self, path: str, data: Any) -> None:
        self.files[self._name(path)] = bytes(data)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.files.pop(self._name(path), None)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        if self._name(path) in self.files:
            raise FileExistsError(path)
        self.replace(path, data)

    def now_ms(self, probe: str) -> int:
        return 1_700_000_100_000


def storage_of(files: dict[str, bytes]) -> Storage:
    return Storage(ROOT, filesystem=MemoryFiles(files))
