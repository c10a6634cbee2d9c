"""Memory of a compaction over that of an idle worker: very many keys, a large partition, values that compress well.

The data are made by one process and compacted by another, which has compacted a small topic before: modules, kernels
and pools are there by then, as in a worker that has nothing to do.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.compact import NOW_MS, UNIQUE, table
from spark_segments import LogDir
from spark_segments.config import server_config
from spark_segments.maintenance import compact, roll
from verification.world.topics import DAY_MS

MIB = 1 << 20
WORK_MIB = 100  # of each thread, beside the maps, as `compact` says
_APPENDED_BYTES = 100 * MIB

CASES = ("keys", "partition", "compressible")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--keys", type=int, default=20_000_000, help="unique keys of the first case")
    parser.add_argument("--mib", type=int, default=4096, help="size of the other cases' values")
    parser.add_argument("--threads", type=int, default=1, help="log.cleaner.threads")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for case in arguments.cases:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            in_a_process(make, directory, case, arguments.keys, arguments.mib)
            found = in_a_process(measure, directory, arguments.threads)
        figures |= {f"{case}, {name}": value for name, value in found.items()}
        ratios[f"{case}, over idle / bound"] = round(found["over idle MiB"] / found["bound MiB"], 3)
    return {"figures": figures, "ratios": ratios}


def in_a_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call in a process that has done nothing before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def make(directory: str, case: str, keys: int, mib: int) -> None:
    """A small topic of this case, and the one to be measured."""
    codec = "zstd" if case == "compressible" else "uncompressed"
    config = {"cleanup.policy": "compact", "compression.type": codec, "segment.bytes": str(2**31 - 1)}
    for name in ("small", "large"):
        log = LogDir.create(f"{directory}/{name}")
        log.create_topic("prices", config=config)
        size = (keys, mib * MIB) if name == "large" else (10_000, MIB)
        for one in tables(case, *size):
            log.topic("prices").append(one)
        roll(log, now_ms=log.storage.now_ms() + 10 * DAY_MS)
        log.topic("prices").append(table(np.zeros(1, np.int64), 16))


def tables(case: str, keys: int, values_bytes: int) -> Iterator[pa.Table]:
    """What is appended: every key once; or values of so many bytes, of which one in ten stays; or of which most stay,
    though each batch loses some.
    """
    value_bytes = 16 if case == "keys" else 1024
    count = keys if case == "keys" else values_bytes // value_bytes
    step = _APPENDED_BYTES // (value_bytes + 32)
    random = np.random.default_rng(1)
    for first in range(0, count, step):
        size = min(step, count - first)
        numbers = np.arange(first, first + size)
        if case == "partition":
            numbers = random.integers(0, max(1, int(count * UNIQUE)), size)
        elif case == "compressible":
            numbers[::50] = 0
        made = table(numbers, value_bytes)
        if case == "compressible":
            made = made.set_column(1, "value", pa.array([b"price 1" * (value_bytes // 7)] * size, pa.binary()))
        yield made


def measure(directory: str, threads: int) -> dict[str, float]:
    """Compacts the small topic, and then the other one."""
    defaults = {"log.cleaner.threads": str(threads)}
    compact(LogDir.open(f"{directory}/small", defaults=defaults), now_ms=NOW_MS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    idle = memory("VmRSS")
    log = LogDir.open(f"{directory}/large", defaults=defaults)
    report = compact(log, now_ms=NOW_MS).to_dict()
    (line,) = report["partitions"]
    assert line["action"] == "compact"
    peak = memory("VmHWM")
    map_bytes = server_config({}, log.defaults).log_cleaner_dedupe_buffer_size
    return {
        "records": line["records_in"],
        "bytes": line["bytes_in"],
        "rounds": line["rounds"],
        "seconds": report["seconds"],
        "idle MiB": round(idle / MIB, 1),
        "peak MiB": round(peak / MIB, 1),
        "over idle MiB": round((peak - idle) / MIB, 1),
        "bound MiB": 1.25 * map_bytes / MIB + WORK_MIB * threads,
    }


def memory(name: str) -> int:
    """A figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
