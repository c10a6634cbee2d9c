"""Compaction of one partition on one thread, against `cp --reflink=never` of the same files; both warm, in turns.

One record in ten has a key of its own that no later one has; no codec. Ratios are medians of the turns' own ratios:
what else the machine does hits both of a turn.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from spark_segments import LogDir
from spark_segments.maintenance import compact, roll
from tests.benchmarks.measure import TURNS, Timings, children_seconds

NOW_MS = 1_700_000_000_000
RECORD_BYTES = (100, 1024)
UNIQUE = 0.1
_BATCH_RECORDS = 100_000
_OVERHEAD = 26  # bytes of a record beside its value: key, lengths, deltas


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=1024, help="size of the partition")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        sizes = {size: measure(Path(directory), arguments.mib << 20, size, arguments.turns) for size in RECORD_BYTES}
    figures = {f"{name}, {size} B": one for size, found in sizes.items() for name, one in found[0].items()}
    ratios = {f"{name}, {size} B": one for size, found in sizes.items() for name, one in found[1].items()}
    return {"mib": arguments.mib, "turns": arguments.turns, "figures": figures, "ratios": ratios}


def measure(
    directory: Path, log_bytes: int, record_bytes: int, turns: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Figures and ratios of one size of records."""
    prepared, work, copy = (directory / name for name in ("prepared", "work", "copy"))
    make_topic(prepared, log_bytes, record_bytes)
    sealed = LogDir.open(str(prepared)).snapshot("prices").live
    read_bytes = sum(sealed.column("log_bytes").to_pylist()[:-1])
    seconds: dict[str, list[float]] = {"cp": [], "compact": []}
    cpu: dict[str, list[float]] = {"cp": [], "compact": []}
    report: dict[str, Any] = {}
    for turn in range(turns + 1):
        shutil.copytree(prepared, work)
        started, cpu_started = time.monotonic(), children_seconds()
        subprocess.run(["cp", "-r", "--reflink=never", str(work / "prices-0"), str(copy)], check=True)
        copied, copy_cpu, before_cpu = time.monotonic(), children_seconds() - cpu_started, time.process_time()
        report = compact(LogDir.open(str(work)), now_ms=NOW_MS).to_dict()
        if turn:  # the first one compiles, and warms what the others find warm
            seconds["cp"].append(copied - started)
            seconds["compact"].append(time.monotonic() - copied)
            cpu["cp"].append(copy_cpu)
            cpu["compact"].append(time.process_time() - before_cpu)
        shutil.rmtree(work)
        shutil.rmtree(copy)
    shutil.rmtree(prepared)
    wall, cpu_time = Timings(seconds), Timings(cpu)
    figures = {
        "bytes in": report["bytes_in"],
        "bytes out": report["bytes_out"],
        "records in": report["records_in"],
        "records out": report["records_out"],
        "compact MB/s": round(wall.rate("compact", read_bytes / 1e6)),
        "cp MB/s": round(wall.rate("cp", read_bytes / 1e6)),
        "compact MB/CPU s": round(cpu_time.rate("compact", read_bytes / 1e6)),
        "cp MB/CPU s": round(cpu_time.rate("cp", read_bytes / 1e6)),
    }
    return figures, {"compact / cp": round(wall.speed_up("compact", "cp"), 3)}


def make_topic(directory: Path, log_bytes: int, record_bytes: int) -> None:
    """A sealed partition of that size, and one record in the active segment."""
    log = LogDir.create(str(directory))
    log.create_topic("prices", config={"cleanup.policy": "compact", "compression.type": "uncompressed"})
    count = log_bytes // record_bytes
    value_bytes = record_bytes - _OVERHEAD
    random = np.random.default_rng(1)
    unique = max(1, int(count * UNIQUE))
    for first in range(0, count, _BATCH_RECORDS):
        size = min(_BATCH_RECORDS, count - first)
        log.append("prices", table(random.integers(0, unique, size), value_bytes))
    roll(log, now_ms=log.storage.now_ms() + 10 * 24 * 3_600_000)
    log.append("prices", table(np.zeros(1, np.int64), value_bytes))


def table(numbers: np.ndarray, value_bytes: int) -> pa.Table:
    """A record a number, with a key of 16 bytes."""
    count = len(numbers)
    digits = np.char.zfill(numbers.astype("S16"), 16)
    key_offsets = pa.py_buffer((np.arange(count + 1) * 16).astype(np.int32))
    value_offsets = pa.py_buffer((np.arange(count + 1) * value_bytes).astype(np.int32))
    values = np.random.default_rng(count).bytes(count * value_bytes)
    times = pa.array(np.full(count, NOW_MS * 1000), pa.int64()).cast(pa.timestamp("us"))
    return pa.table(
        {
            "key": pa.BinaryArray.from_buffers(pa.binary(), count, [None, key_offsets, pa.py_buffer(digits.tobytes())]),
            "value": pa.BinaryArray.from_buffers(pa.binary(), count, [None, value_offsets, pa.py_buffer(values)]),
            "timestamp": times,
        }
    )
