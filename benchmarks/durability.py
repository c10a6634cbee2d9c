"""Appends that have reached the disk when they return (flush.messages=1) against appends as they are by default.

Each case appends to a topic of its own on the local disk, without Spark. Beside them, an fsync of a new file of 4 KiB
and of its directory: what a forced append does some ten of.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.measure import in_turns
from spark_segments import LogDir

_RECORDS = (1, 1_000, 100_000)
_TOPICS = {"default": {}, "forced": {"flush.messages": "1"}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument(
        "--directory", help="where to work, on the disk in question: a temporary directory unless given"
    )


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        log = LogDir.create(str(Path(directory, "log")))
        cases = {"fsync": lambda: _forced_file(directory)}
        for records in _RECORDS:
            table = pa.table({"value": [os.urandom(100) for _ in range(records)]})
            for name, config in _TOPICS.items():
                topic = f"{name}-{records}"
                log.create_topic(topic, 1, config)
                cases[topic] = lambda topic=topic, table=table: log.topic(topic).append(table)
        timings = in_turns(cases, turns=arguments.turns)
    return {
        "figures": {f"{name} ms": round(1000 * timings.median(name), 2) for name in cases},
        "ratios": {
            f"forced / default, {records:,} records": round(
                1 / timings.speed_up(f"forced-{records}", f"default-{records}"), 2
            )
            for records in _RECORDS
        },
    }


def _forced_file(directory: str) -> None:
    path = os.path.join(directory, os.urandom(8).hex())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(descriptor, bytes(4096))
    os.fsync(descriptor)
    os.close(descriptor)
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
