"""The world in place of what the package asks of its machine: the time, random numbers, names, threads.

The modules of the package keep their code. Only the names `time`, `random`, `uuid`, `secrets` and the thread pools that
they have imported stand for those of the world, as long as a simulation runs. The machine has two cores, and a name and
a number of the process that are always the same.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import random
import secrets
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

import spark_segments
from spark_segments.ahead import reading_threads
from spark_segments.log.manifest.files import row_files
from spark_segments.storage import Storage, fetch
from verification.simulation.store import File, Store
from verification.simulation.world import World

CPUS = 2

LAYERS = ("format", "storage", "config", "execution", "log", "maintenance", "replicas", "keys")

OF_THE_MACHINE = "spark_segments.format.kernels"
"""Where kernels are compiled and kept between runs: the first run of a seed must not differ from the next."""


class _Time:
    """The module `time` by the world's clock."""

    def __init__(self, world: World) -> None:
        self._world = world

    def time_ns(self) -> int:
        return self._world.clock_us() * 1000

    def time(self) -> float:
        return self._world.clock_us() / 1e6

    def monotonic(self) -> float:
        return self._world.now_us / 1e6

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self._world.wait(int(seconds * 1e6))

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


class _Uuid:
    """The module `uuid` with numbers of the world."""

    def __init__(self, world: World) -> None:
        self._random = random.Random(f"uuid {world.seed}")

    def uuid4(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def __getattr__(self, name: str) -> Any:
        return getattr(uuid, name)


class _Secrets:
    def __init__(self, world: World) -> None:
        self._random = random.Random(f"secrets {world.seed}")

    def randbits(self, count: int) -> int:
        return self._random.getrandbits(count)


class Inline:
    """A thread pool whose tasks run at once, in the calling process, one after the other."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def shutdown(self, wait: bool = True) -> None:
        pass

    def submit(self, function: Callable[..., Any], /, *values: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*values, **options))
        except Exception as error:
            future.set_exception(error)
        return future

    def map(self, function: Callable[..., Any], *values: Iterable[Any], **_: object) -> Iterator[Any]:
        done: list[tuple[Any, Exception | None]] = []
        for each in zip(*values, strict=False):
            try:
                done.append((function(*each), None))
            except Exception as error:
                done.append((None, error))
        return _results(done)


def _results(done: list[tuple[Any, Exception | None]]) -> Iterator[Any]:
    for result, error in done:
        if error is not None:
            raise error
        yield result


def in_order(futures: Iterable[Future[Any]], timeout: float | None = None) -> Iterator[Future[Any]]:
    """`as_completed` of futures that are all done."""
    return iter(list(futures))


def no_thread_ahead(storage: Storage) -> int:
    """`reading_threads`: a read is its caller's own."""
    return 1


def load_package() -> None:
    """Imports every module of the layers that run here, so that each meets the world."""
    for layer in LAYERS:
        package = importlib.import_module(f"spark_segments.{layer}")
        if hasattr(package, "__path__"):
            for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(found.name)


@contextmanager
def simulated(world: World, store: Store) -> Iterator[None]:
    """The package runs in the world."""
    load_package()
    stand_ins: list[tuple[Any, Any]] = [
        (time, _Time(world)),
        (random, random.Random(f"package {world.seed}")),
        (uuid, _Uuid(world)),
        (secrets, _Secrets(world)),
        (ThreadPoolExecutor, Inline),
        (as_completed, in_order),
        (reading_threads, no_thread_ahead),
    ]
    changed: list[tuple[Any, str, Any]] = []
    for module, name, answer in ((os, "cpu_count", CPUS), (os, "getpid", 1), (socket, "gethostname", "simulated")):
        changed.append((module, name, getattr(module, name)))
        setattr(module, name, lambda answer=answer: answer)
    package = spark_segments.__name__
    for module in [
        module
        for name, module in sys.modules.items()
        if name.partition(".")[0] == package and not name.startswith(OF_THE_MACHINE)
    ]:
        for name, value in list(vars(module).items()):
            for real, stand_in in stand_ins:
                if value is real:
                    changed.append((module, name, value))
                    setattr(module, name, stand_in)
    cache = row_files._cache
    row_files._cache = _Caches(world, store)  # type: ignore[assignment]
    fetch._pool.cache_clear()
    try:
        yield
    finally:
        row_files._cache = cache
        fetch._pool.cache_clear()
        for module, name, value in changed:
            setattr(module, name, value)


class _Caches:
    """The rows that the machine of the running process keeps in memory. The judge keeps what it has read of files that
    are still there as they were.
    """

    def __init__(self, world: World, store: Store) -> None:
        self._world, self._store = world, store
        self._judged: dict[Any, tuple[File, Any]] = {}

    def get(self, key: Any) -> Any:
        process = self._world.current
        if process is not None:
            return process.host.cache.get(key)
        file, rows = self._judged.get(key, (None, None))
        return rows if file is not None and self._file(key) is file else None

    def put(self, key: Any, rows: Any) -> None:
        process = self._world.current
        if process is not None:
            process.host.cache.put(key, rows)
        elif (file := self._file(key)) is not None:
            self._judged[key] = file, rows

    def _file(self, key: tuple[str, str, str]) -> File | None:
        uri, directory, path = key
        return self._store.files.get(f"{uri.removeprefix('s3://')}/{directory}/{path}")
