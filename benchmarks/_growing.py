"""The logs of `growth`, which grow in one dimension, and what each operation takes of them: time and memory.

`python -m benchmarks._growing DIMENSION DIRECTORY [--quick]` prints a line of JSON for each size and operation.
All of a dimension is measured in one process, from the smallest size on, and nothing is cached between operations.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import gc
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.manifest.files import row_files
from spark_segments.maintenance import compact, retain, roll, vacuum, verify

MIB = 1 << 20
RECORD_BYTES = 1024
UNIQUE = 0.1
SMALL_SEGMENT_BYTES = 4096
BATCH = 50_000
DAY_MS = 86_400_000

TURNS = 5
MOST_SECONDS = 2.0
"""An operation is measured in so many turns, or until they have taken so long."""

Make = Callable[[LogDir, int, int], None]
"""Makes the topic `t`, or lets it grow, from one size to the next: (log, size before, size)."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """What grows: over two orders of magnitude, in steps of √10. `append`: the rows of the append that is measured."""

    unit: str
    sizes: tuple[int, ...]
    make: Make
    append: Callable[[int], pa.Table]
    partitions: Callable[[int], int] = lambda _: 1


def rows(count: int, partition: np.ndarray | None = None, value_bytes: int = RECORD_BYTES - 26) -> pa.Table:
    """Records of about 1 KiB; a tenth as many keys as records."""
    random = np.random.default_rng(count)
    digits = np.char.zfill(random.integers(0, max(1, int(count * UNIQUE)), count).astype("S16"), 16).tobytes()
    key = [None, pa.py_buffer((np.arange(count + 1) * 16).astype(np.int32)), pa.py_buffer(digits)]
    ends = pa.py_buffer((np.arange(count + 1) * value_bytes).astype(np.int32))
    value = [None, ends, pa.py_buffer(random.bytes(count * value_bytes))]
    made = {
        name: pa.BinaryArray.from_buffers(pa.binary(), count, one) for name, one in {"key": key, "value": value}.items()
    }
    return pa.table(made if partition is None else made | {"partition": partition.astype(np.int32)})


def _create(log: LogDir, partitions: int = 1, **config: str) -> None:
    settings = {"cleanup.policy": "compact,delete", "retention.ms": "-1", "compression.type": "uncompressed"}
    log.create_topic("t", partitions, settings | {name.replace("_", "."): value for name, value in config.items()})


def _more_bytes(log: LogDir, before: int, mib: int) -> None:
    if not before:
        _create(log)
    count = (mib - before) * MIB // RECORD_BYTES
    for first in range(0, count, BATCH):
        log.topic("t").append(rows(min(BATCH, count - first)))


def _more_segments(log: LogDir, before: int, segments: int) -> None:
    if not before:
        _create(log, segment_bytes=str(SMALL_SEGMENT_BYTES))
    count = (segments - before) * (SMALL_SEGMENT_BYTES // RECORD_BYTES)
    for first in range(0, count, BATCH):
        log.topic("t").append(rows(min(BATCH, count - first)))


def _more_partitions(log: LogDir, before: int, partitions: int) -> None:
    if before:
        log.topic("t").alter(partitions=partitions)
    else:
        _create(log, partitions)
    log.topic("t").append(rows((partitions - before) * 10, np.repeat(np.arange(before, partitions), 10)))


def _more_versions(log: LogDir, before: int, versions: int) -> None:
    if not before:
        _create(log)
        log.topic("t").append(rows(2 * MIB // RECORD_BYTES))
    nothing = rows(1).slice(0, 0)
    for number in range(before, versions):
        log.topic("t").append(nothing, txn=("app", number))


DIMENSIONS = {
    "bytes": Dimension("MiB", (2, 6, 20, 63, 200), _more_bytes, lambda mib: rows(mib * MIB // RECORD_BYTES)),
    "segments": Dimension("segments", (80, 253, 800, 2530, 8000), _more_segments, lambda _: rows(1)),
    "partitions": Dimension(
        "partitions", (10, 32, 100, 316, 1000), _more_partitions, lambda count: rows(count, np.arange(count))
    ),
    "versions": Dimension("versions", (30, 95, 300, 950, 3000), _more_versions, lambda _: rows(1)),
}

WIDE = {"segments": (10, 100, 1000, 10_000, 100_000), "partitions": (10, 56, 316, 1778, 10_000)}
"""Sizes up to the largest that a topic is made for. They take an hour and more, most of it the jobs of the last."""


@dataclass(frozen=True, slots=True)
class Operation:
    """`log`: which of the logs of a size it works on. `changes`: it gets links to that log's files, made anew."""

    name: str
    log: str
    run: Callable[[LogDir], Any]
    changes: bool = False


def operations(dimension: Dimension, size: int) -> Iterator[Operation]:
    """What is measured: a process that has the kernels, but nothing of this log, does each of these."""
    many = dimension.append(size)
    if many.num_rows > 1:
        yield Operation("append", "empty", lambda log: log.topic("t").append(many), True)
    one = rows(1, np.zeros(1))
    yield Operation("commit", "sealed", lambda log: log.topic("t").append(one), True)
    yield Operation("read", "sealed", _read)
    yield Operation("seek", "sealed", _seek)
    yield Operation("plan", "sealed", _plan)
    yield Operation("roll", "chunks", _roll, True)
    yield Operation("compact", "sealed", lambda log: _done(compact(log)), True)
    yield Operation("vacuum", "removed", lambda log: _done(vacuum(log, now_ms=_later(log, 5))), True)
    yield Operation("verify", "sealed", lambda log: _clean(verify(log, deep=True)))


def _later(log: LogDir, days: int) -> int:
    return log.storage.now_ms() + days * DAY_MS


def _done(report: Any) -> None:
    assert report.partitions and not report.failed, report.to_dict()


def _clean(report: Any) -> None:
    assert report.ok, report.to_dict()


def _read(log: LogDir) -> None:
    assert sum(batch.num_rows for batch in log.topic("t").scan().batches())


def _seek(log: LogDir) -> None:
    """Ten records in the middle of a partition, by offset, and the offset of a time."""
    snapshot = log.topic("t").snapshot
    end = snapshot.partition(0).log_end_offset
    assert sum(
        batch.num_rows for batch in log.topic("t").scan(partition=0, offsets=(end // 2, end // 2 + 10)).batches()
    )


def _plan(log: LogDir) -> None:
    for job in (roll, retain, compact, vacuum):
        job(log, dry_run=True)


def _roll(log: LogDir) -> None:
    _done(roll(log, now_ms=_later(log, 10)))


def prepare(dimension: Dimension, directory: Path, size: int, partitions: int) -> None:
    """From the log `chunks`: `sealed`, rolled and with an active segment; `removed`, of which retention took all."""
    for name in ("empty", "sealed", "removed"):
        shutil.rmtree(directory / name, ignore_errors=True)
    _create(LogDir.create(str(directory / "empty")), partitions)
    sealed = _links(directory / "chunks", directory / "sealed")
    _roll(sealed)
    sealed.topic("t").append(rows(partitions, np.arange(partitions)))
    removed = _links(directory / "sealed", directory / "removed")
    removed.topic("t").delete_records(dict.fromkeys(range(partitions), -1))
    _done(retain(removed))


def _links(source: Path, target: Path) -> LogDir:
    shutil.copytree(source, target, copy_function=os.link)
    return LogDir.open(str(target))


def measured(operation: Operation, directory: Path) -> dict[str, float]:
    """CPU and wall seconds of the fastest turn, and the most memory over that before, in MiB."""
    cpu, wall, memory = [], [], []
    while len(cpu) < TURNS and sum(cpu) < MOST_SECONDS:
        path = directory / operation.log
        if operation.changes:
            path = directory / "work"
            _links(directory / operation.log, path)
        log = LogDir.open(str(path), defaults={"log.cleaner.threads": "1"})
        idle = _forget()
        started, cpu_started = time.perf_counter(), time.process_time()
        operation.run(log)
        cpu.append(time.process_time() - cpu_started)
        wall.append(time.perf_counter() - started)
        memory.append(_memory("VmHWM") - idle)
        if operation.changes:
            shutil.rmtree(path)
    return {"cpu_s": min(cpu), "wall_s": min(wall), "memory_mib": max(min(memory), 0) / MIB}


def _forget() -> int:
    """Gives memory back, forgets rows that were read, lets the peak count from here on. Returns the memory in use."""
    row_files._cache = row_files._RowCache(row_files.CACHE_BYTES)
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dimension", choices=DIMENSIONS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--only", default="", help="operations whose names contain this text")
    parser.add_argument("--sizes", type=int, default=5, help="how many sizes, from the smallest on")
    parser.add_argument("--wide", action="store_true", help="the sizes of WIDE")
    arguments = parser.parse_args()
    dimension = DIMENSIONS[arguments.dimension]
    if arguments.wide:
        dimension = dataclasses.replace(dimension, sizes=WIDE[arguments.dimension])
    before = 0
    for size in (0, *dimension.sizes[: arguments.sizes]):  # the first turn, of the smallest size, warms
        directory = arguments.directory / ("warm" if not size else "")
        log = LogDir.create(str(directory / "chunks"))
        dimension.make(log, before, size or dimension.sizes[0])
        before = size
        partitions = log.topic("t").snapshot.partitions.num_rows
        prepare(dimension, directory, size, partitions)
        for operation in operations(dimension, size or dimension.sizes[0]):
            if arguments.only in operation.name:
                found = measured(operation, directory)
                if size:
                    print(json.dumps({"size": size, "operation": operation.name, **found}), flush=True)


if __name__ == "__main__":
    main()
