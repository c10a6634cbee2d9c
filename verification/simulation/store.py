"""A store in memory with the faults of a seed: a `FileSystem` that all processes share, and that the judge sees
through.

As in an object store a file is there when its write has ended, a directory is there while a file is below it, and a
request may fail before or after it is carried out. A write that failed, or whose process died, may also leave a part of
the file: what a local disk does.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_segments.storage.filesystem import Found, Names
from verification.simulation.faults import Faults
from verification.simulation.world import SECOND_US, Killed, Process, World

BATCH_OVERHEAD = 12
CRC_COVERS_FROM = 21
"""The bytes of a record batch from here on are covered by its CRC-32C."""


CREATE_WEIGHT = 10
"""How much likelier than another request a conditional put is late, or its reply lost: a commit is one such put."""

LATE_SECONDS = 1800.0
"""How late a conditional put may be carried out: the log keeps its versions for an hour at least."""


@dataclass(frozen=True, slots=True)
class File:
    """A file: its bytes, when it was written by the store's clock, and whether it was written whole."""

    data: bytes
    mtime_ms: int
    is_whole: bool = True


class Store:
    """See `FileSystem`. `files`: what is there, by full path."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world = world
        self.faults = faults
        self.root: dict[str, Any] = {}
        self.files: dict[str, File] = {}
        self.requests = 0
        self.injected = 0
        self.watchers: list[Callable[[str, bytes, Process | None, dict[str, Any]], None]] = []
        """Called with each file created whole: its path and bytes, who sent it, and what he had set out to do."""
        self.uncached = "simulation/kafka/"
        """Where a broker keeps its own files: no cache stands before its disk."""
        self._out_until_us = 0
        self._passed: dict[str, tuple[int, File]] = {}
        self._made: list[tuple[int, str]] = []

    # Requests

    def ask(self, kind: str, path: str, effect: Callable[[], Any]) -> Any:
        """A request that changes the store: it is carried out, or not, or later, and the answer comes or not."""
        world, faults = self.world, self.faults
        self.requests += 1
        if world.current is None:
            return effect()
        if world.current.is_dead:
            raise Killed
        fate = world.random.random()
        try:
            world.wait(self.latency_us())
        except Killed:
            if world.random.random() < 0.5:  # it was on its way
                self._carry_out_later(kind, path, effect)
            raise
        self._refuse(kind, path)
        if fate < faults.late:
            self._carry_out_later(kind, path, effect)
            raise self.failure("late", kind, path, "timed out")
        result = effect()
        world.note(kind, path, result if isinstance(result, int) else "")
        if fate < faults.late + faults.lost_reply:
            raise self.failure("lost reply", kind, path, "connection reset by peer")
        return result

    def look(self, kind: str, path: str, effect: Callable[[], Any]) -> Any:
        """A request that changes nothing."""
        self.requests += 1
        if self.world.current is None:
            return effect()
        self.world.wait(self.latency_us())
        self._refuse(kind, path)
        return effect()

    def latency_us(self) -> int:
        """How long the next request takes: milliseconds, now and then seconds."""
        draw = self.world.random.random()
        return int(draw * 20_000) if draw > 0.01 else int(draw * 500 * SECOND_US)

    def failure(self, what: str, kind: str, path: str, text: str) -> OSError:
        """The error of a fault, which the trace and the process get to know."""
        self.injected += 1
        assert self.world.current is not None
        self.world.current.faults += 1
        self.world.note(what, kind, path)
        return OSError(f"{text} ({kind})")

    def _refuse(self, kind: str, path: str) -> None:
        world, faults = self.world, self.faults
        if faults.outage and world.random.random() < faults.outage:
            self._out_until_us = world.now_us + int(world.random.uniform(0, 60) * SECOND_US)
        if world.now_us < self._out_until_us:
            raise self.failure("outage", kind, path, "503 Slow Down")
        if world.random.random() < faults.refused:
            raise self.failure("refused", kind, path, "503 Slow Down")

    def _carry_out_later(self, kind: str, path: str, effect: Callable[[], Any], most_seconds: float = 0.0) -> None:
        world = self.world
        issuer = world.current

        def late() -> None:
            world.note("carried out late", kind, path, issuer.name if issuer else "")
            try:
                effect()
            except OSError:  # there is nobody to tell
                return

        most_seconds = most_seconds or self.faults.late_seconds or 60
        world.later(int(world.random.uniform(0, most_seconds) * SECOND_US), late)

    # The interface of file systems

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        return self.look("read", path, lambda: self._read(path, offset, length))

    def _read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        data = self._shown(path).data
        end = len(data) if length is None else min(len(data), offset + length)
        part = data[offset:end]
        process = self.world.current
        if process is not None:
            if path.endswith(".log") and self.world.random.random() < self.faults.flipped:
                flipped = self._flipped(path, data, offset, part)
                if flipped is not None:
                    process.flips += 1
                    self.injected += 1
                    self.world.note("flipped", path)
                    part = flipped
            self.world.note("read", path, offset, "" if "checkpoint" in path else len(part))
        return pa.py_buffer(part)

    def size(self, path: str) -> int:
        return int(self.look("size", path, lambda: len(self._shown(path).data)))

    def exists(self, path: str) -> bool:
        return bool(self.look("exists", path, lambda: self._is_shown(path) or bool(self._directory(path))))

    def list(self, path: str, recursive: bool) -> Found:
        return list(self.look("list", path, lambda: self._list(path, recursive)))

    def _list(self, path: str, recursive: bool) -> Found:
        found: dict[str, File] = {}
        _collect(self._directory(path) or {}, "", recursive, found)
        for name, file in self._stale(path).items():
            if recursive or "/" not in name:
                if file is None:
                    found.pop(name, None)
                else:
                    found.setdefault(name, file)
        self.world.note("list", path, len(found))
        return [(name, len(file.data), file.mtime_ms, "") for name, file in found.items()]

    def directories(self, path: str) -> Names:
        def names() -> Names:
            return [name for name, inside in (self._directory(path) or {}).items() if isinstance(inside, dict)]

        return list(self.look("directories", path, names))

    def stream(self, path: str, *, unique: bool = False) -> Write:
        process = self.world.current
        if process is not None and process.is_dead:
            raise Killed
        if not unique and self._is_shown(path):
            raise FileExistsError(path)
        return Write(self, path)

    def replace(self, path: str, data: Any) -> None:
        content = bytes(memoryview(data))
        self.ask("replace", path, lambda: self.put(path, content))

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        """A conditional put: carried out or not, or later, and the answer comes, or is lost, or is that of the client's
        own retry, which finds the file taken.
        """
        content = bytes(memoryview(data))
        process = self.world.current
        intent = process.intent if process is not None else {}

        def effect() -> None:
            if path in self.files:
                raise FileExistsError(path)
            self.put(path, content)
            for watcher in self.watchers:
                watcher(path, content, process, intent)

        self._ask_to_make(path, effect)

    def _ask_to_make(self, path: str, effect: Callable[[], None]) -> None:
        world, faults = self.world, self.faults
        self.requests += 1
        if world.current is None:
            return effect()
        if world.current.is_dead:
            raise Killed
        fate = world.random.random()
        try:
            world.wait(self.latency_us())
        except Killed:
            if not world.is_ending and world.random.random() < 0.5:
                self._carry_out_later("create", path, effect, LATE_SECONDS)
            raise
        self._refuse("create", path)
        late, lost = (min(CREATE_WEIGHT * chance, 0.2) for chance in (faults.late, faults.lost_reply))
        if fate < late:
            self._carry_out_later("create", path, effect, LATE_SECONDS)
            raise self.failure("late", "create", path, "timed out")
        effect()
        world.note("created", path)
        if fate < late + lost:
            error = self.failure("lost reply", "create", path, "connection reset by peer")
            raise FileExistsError(path) if world.random.random() < 0.3 else error

    def force(self, paths: Iterable[str], root: str) -> None:
        """The store loses no power."""

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self.ask("delete", path, lambda path=path: self.take(path))  # type: ignore[misc]

    def now_ms(self, probe: str) -> int:
        return int(self.look("clock", probe, lambda: self.world.now_ms))

    # What is there

    def put(self, path: str, data: bytes, *, is_whole: bool = True) -> None:
        """Makes a file, or replaces it."""
        before = self.files.get(path)
        self.files[path] = file = File(data, self.world.now_ms, is_whole)
        directory = self.root
        *parents, name = path.split("/")
        for part in parents:
            directory = directory.setdefault(part, {})
        directory[name] = file
        if before is None:
            self._made.append((self.world.now_us, path))
        else:
            self._passed[path] = self.world.now_us, before
        # delta-rs gives the actions of a checkpoint in any order.
        seen = () if "checkpoint" in path else (len(data), zlib.crc32(data))
        self.world.note("put", path, *seen)

    def take(self, path: str) -> None:
        """Removes a file, and the directories that it leaves empty."""
        file = self.files.pop(path, None)
        if file is None:
            return
        *parents, name = path.split("/")
        directories = [self.root]
        for part in parents:
            directories.append(directories[-1][part])
        del directories[-1][name]
        for directory, part in zip(reversed(directories[:-1]), reversed(parents), strict=True):
            if directory[part]:
                break
            del directory[part]
        self._passed[path] = self.world.now_us, file

    def _shown(self, path: str) -> File:
        """What a look at a file gives: a cache may still have what was deleted, or replaced."""
        world, faults = self.world, self.faults
        at_us, before = self._passed.get(path, (0, None))
        is_cached = before is not None and not path.startswith(self.uncached)
        is_cached = is_cached and at_us >= world.now_us - int(faults.stale_seconds * SECOND_US)
        if before is not None and is_cached and world.current is not None and world.random.random() < faults.cached:
            world.current.stale += 1
            world.note("cached", path)
            return before
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def _is_shown(self, path: str) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return bool(self._shown(path))
        return False

    def _directory(self, path: str) -> dict[str, Any] | None:
        inside: Any = self.root
        for part in path.split("/"):
            inside = inside.get(part) if isinstance(inside, dict) else None
            if inside is None:
                return None
        return inside if isinstance(inside, dict) else None

    def _stale(self, path: str) -> dict[str, File | None]:
        """What a stale listing shows otherwise: {name: a file that is gone, or None for one that it misses}."""
        world, faults = self.world, self.faults
        if world.current is None or not faults.stale or world.random.random() >= faults.stale:
            return {}
        since_us = world.now_us - int(world.random.uniform(0, faults.stale_seconds) * SECOND_US)
        oldest_us = world.now_us - int(faults.stale_seconds * SECOND_US)
        self._passed = {path: one for path, one in self._passed.items() if one[0] >= oldest_us}
        self._made = [one for one in self._made if one[0] >= oldest_us]
        prefix = f"{path}/"
        found: dict[str, File | None] = {}
        for name, (at_us, file) in self._passed.items():
            if at_us >= since_us and name.startswith(prefix) and name not in self.files:
                found[name.removeprefix(prefix)] = file
        for at_us, name in self._made:
            if at_us >= since_us and name.startswith(prefix):
                found[name.removeprefix(prefix)] = None
        if found:
            world.current.stale += 1
        return found

    def _flipped(self, path: str, data: bytes, offset: int, part: bytes) -> bytes | None:
        """The bytes with a wrong bit inside a record batch, None where no checksum covers any of them."""
        if "-shared/" in path:
            return None
        spots = []
        position = 0
        while position + BATCH_OVERHEAD <= len(data):
            end = position + BATCH_OVERHEAD + int.from_bytes(data[position + 8 : position + 12])
            first, last = max(position + CRC_COVERS_FROM, offset), min(end, offset + len(part))
            if first < last:
                spots.append((first, last))
            position = end
        if not spots:
            return None
        first, last = self.world.random.choice(spots)
        wrong = bytearray(part)
        wrong[self.world.random.randrange(first, last) - offset] ^= 1 << self.world.random.randrange(8)
        return bytes(wrong)


class Write:
    """A file that is being written: its bytes reach the store when it is closed."""

    def __init__(self, store: Store, path: str) -> None:
        self._store, self._path = store, path
        self._parts: list[bytes] = []
        self.closed = False

    def write(self, data: Any, /) -> int:
        self._parts.append(bytes(memoryview(data)))
        return len(self._parts[-1])

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        store, content = self._store, b"".join(self._parts)
        if store.world.current is not None and store.world.current.is_dead:
            raise Killed
        try:
            store.ask("write", self._path, lambda: self._put(content))
        except (OSError, Killed):
            if store.world.random.random() < store.faults.torn and self._path not in store.files:
                cut = store.world.random.randrange(len(content) + 1)
                store.put(self._path, content[:cut], is_whole=False)
            raise

    def _put(self, content: bytes) -> None:
        there = self._store.files.get(self._path)
        if there is None or not there.is_whole:  # a late write takes the place of what it had left
            self._store.put(self._path, content)


def _collect(directory: dict[str, Any], prefix: str, recursive: bool, found: dict[str, File]) -> None:
    for name, inside in directory.items():
        if isinstance(inside, File):
            found[prefix + name] = inside
        elif recursive:
            _collect(inside, f"{prefix}{name}/", True, found)
