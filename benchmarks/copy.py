"""Import from a directory of Kafka's and export to one, against `cp -r --reflink=never` of it; all warm, in turns.

The directory is sealed segments, two partitions, no codec. Starting Python is not counted, removing what a turn wrote
neither.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import TURNS, Timings
from spark_segments import LogDir

_PARTITIONS = 2
_VALUE_BYTES = 1024
_APPEND_RECORDS = 100_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=4200, help="size of the values in the directory")
    parser.add_argument("--segment-mib", type=int, default=256, help="segment.bytes")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        kafka, target = Path(directory, "kafka"), Path(directory, "target")
        make_directory(Path(directory, "made"), kafka, arguments.mib << 20, arguments.segment_mib << 20)
        total = sum(file.stat().st_size for file in kafka.rglob("*") if file.is_file())
        imported = Path(directory, "imported")
        LogDir.create(str(imported)).import_kafka(str(kafka))
        cases: dict[str, Callable[[], object]] = {
            "import": lambda: LogDir.create(str(target)).import_kafka(str(kafka)),
            "cp": lambda: subprocess.run(["cp", "-r", "--reflink=never", str(kafka), str(target)], check=True),
            "export": lambda: LogDir.open(str(imported)).export_kafka(str(target)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(-1, arguments.turns):
            for name, case in cases.items():
                started = time.perf_counter()
                case()
                if turn >= 0:  # the one before compiles, and warms what the others find warm
                    seconds[name].append(time.perf_counter() - started)
                shutil.rmtree(target)
    timings = Timings(seconds)
    return {
        "figures": {"GiB": round(total / 2**30, 2)}
        | {f"{name} MB/s": round(timings.rate(name, total / 1e6)) for name in cases},
        "ratios": {f"{name} / cp": round(timings.speed_up(name, "cp"), 3) for name in ("import", "export")},
    }


def make_directory(made: Path, kafka: Path, value_bytes: int, segment_bytes: int) -> None:
    """A directory that a broker would serve, with values of that many bytes in all."""
    log = LogDir.create(str(made))
    config = {"compression.type": "uncompressed", "segment.bytes": str(segment_bytes)}
    log.create_topic("orders", _PARTITIONS, config)
    value = np.random.default_rng(1).bytes(_VALUE_BYTES)
    values = pa.array([value] * _APPEND_RECORDS, pa.binary())
    for number in range(value_bytes // (_VALUE_BYTES * _APPEND_RECORDS)):
        partitions = pa.array(np.full(_APPEND_RECORDS, number % _PARTITIONS, np.int32))
        log.topic("orders").append(pa.table({"value": values, "partition": partitions}))
    log.export_kafka(str(kafka))
    shutil.rmtree(made)
