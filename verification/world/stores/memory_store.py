"""A store in memory, and the reader of tables that a simulation stands on: delta-rs reads no played store.

All else of Delta's log, its commits above all, is the package's own code over the store.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments import LogDir
from spark_segments.errors import StorageError
from spark_segments.log.manifest.files.delta.actions import added_file, decoded
from spark_segments.log.manifest.files.delta.delta_log import log_files
from spark_segments.log.manifest.files.delta.delta_rs import TableVersion
from spark_segments.log.marker import mark
from spark_segments.storage import Storage
from spark_segments.storage.delta import Action
from spark_segments.storage.filesystem import Found, Names
from verification.world.opened import DeltaLog, opened

_LISTINGS = 5


class MemoryFiles:
    """See `FileSystem`. `files`: what is there, by full path: (bytes, modification time in ms)."""

    ahead_ms = 0
    """By how much the store's clock is ahead of the machine's."""

    def __init__(self, files: dict[str, tuple[bytes, int]] | None = None) -> None:
        self.files = {} if files is None else files

    def copy(self) -> MemoryFiles:
        """The same files, which change for themselves from now on."""
        return MemoryFiles(dict(self.files))

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        data = self._file(path)[0]
        return pa.py_buffer(data[offset : None if length is None else offset + length])

    def size(self, path: str) -> int:
        return len(self._file(path)[0])

    def exists(self, path: str) -> bool:
        return path in self.files or any(name.startswith(f"{path}/") for name in self.files)

    def list(self, path: str, recursive: bool) -> Found:
        below = f"{path.rstrip('/')}/"
        found = [
            (name.removeprefix(below), len(data), ms, str(ms))
            for name, (data, ms) in list(self.files.items())
            if name.startswith(below)
        ]
        return [one for one in found if recursive or "/" not in one[0]]

    def directories(self, path: str) -> Names:
        return list({name.partition("/")[0] for name, *_ in self.list(path, True) if "/" in name})

    def stream(self, path: str, *, unique: bool = False) -> _Write:
        if path in self.files:
            raise FileExistsError(path)
        return _Write(self, path)

    def replace(self, path: str, data: Any) -> None:
        self.files[path] = bytes(memoryview(data)), self.now_ms("")

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        made = bytes(memoryview(data)), self.now_ms("")
        if self.files.setdefault(path, made) is not made:
            raise FileExistsError(path)

    def force(self, paths: Iterable[str], root: str) -> None:
        """Memory has no disk."""

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.files.pop(path, None)

    def now_ms(self, probe: str) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def _file(self, path: str) -> tuple[bytes, int]:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]


class _Write:
    def __init__(self, files: MemoryFiles, path: str) -> None:
        self._files, self._path = files, path
        self._parts: list[bytes] = []
        self.closed = False

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(memoryview(data)))
        return len(self._parts[-1])

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._files.replace(self._path, b"".join(self._parts))


def memory_log(path: str, files: MemoryFiles | None = None) -> LogDir:
    """An empty log directory in memory."""
    storage = Storage(path, filesystem=MemoryFiles() if files is None else files)
    mark(storage)
    return opened(storage, open_delta_log=functools.partial(DeltaLog, open_table=replayed))


def replayed(storage: Storage, directory: str, version: int | None) -> TableVersion:
    """An `OpenTable` over the store alone: the actions of the last checkpoint and of the commits after it, in order."""
    for _ in range(_LISTINGS):
        listed = log_files(storage, directory)
        if not listed.commits and not listed.checkpoints:
            raise FileNotFoundError(directory)
        latest = max(listed.commits, default=-1)
        while version is None:  # as the store promises, what is there is seen, whatever a listing shows
            try:
                storage.read(f"{directory}/_delta_log/{latest + 1:020d}.json")
            except FileNotFoundError:
                break
            latest += 1
        wanted = latest if version is None else version
        start = max((number for number in listed.checkpoints if number <= wanted), default=-1)
        try:
            return _replayed(storage, directory, start, wanted)
        except FileNotFoundError:  # vacuum took it since, or it was never there
            if version is not None and version not in listed.commits:
                raise
    raise StorageError("The manifest cannot be opened: its log keeps changing", path=storage.location(directory))


def _replayed(storage: Storage, directory: str, start: int, wanted: int) -> TableVersion:
    actions: list[Action] = []
    if start >= 0:
        name = f"{directory}/_delta_log/{start:020d}.checkpoint.parquet"
        actions += _checkpoint(storage.read(name).to_pybytes())
    for number in range(start + 1, wanted + 1):
        name = f"{directory}/_delta_log/{number:020d}.json"
        actions += _commit(storage.read(name).to_pybytes(), name)
    if start == wanted:
        storage.size(f"{directory}/_delta_log/{wanted:020d}.json")
    files: dict[str, Action] = {}
    found: dict[str, Action] = {}
    for action in actions:
        for kind, of in action.items():
            if kind == "add":
                files[of["path"]] = of
            elif kind == "remove":
                files.pop(of["path"], None)
            elif kind != "txn":
                found[kind] = of
    if "protocol" not in found:
        raise StorageError("The manifest cannot be opened: its log has no beginning", path=storage.location(directory))
    added = [added_file(add) for _, add in sorted(files.items())]
    return TableVersion(wanted, added, found["protocol"], found["metaData"])


@functools.lru_cache(maxsize=4096)
def _commit(content: bytes, name: str) -> list[Action]:
    return decoded(content, name)


@functools.lru_cache(maxsize=256)
def _checkpoint(content: bytes) -> list[Action]:
    rows = pq.read_table(pa.BufferReader(content)).to_pylist()
    actions = [{kind: of for kind, of in row.items() if of is not None} for row in rows]
    for action in actions:
        for of in action.values():
            for name in ("partitionValues", "configuration"):
                if isinstance(of.get(name), list):
                    of[name] = dict(of[name])
            if isinstance(of.get("format"), dict):
                of["format"] = json.loads(json.dumps({"provider": "parquet", "options": {}}))
    return [action for action in actions if action]
