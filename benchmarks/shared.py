"""Shared objects against a file a partition: this working tree and another commit, each in a process, in turns.

Eight tasks append 64 MiB each into 1,000 partitions, which are read back; before that into 4, where every partition has
files of its own on both sides. Requests by operation are counted by a store on loopback.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from benchmarks.compare import HERE, environment, exported
from benchmarks.measure import Timings
from benchmarks.spark import settings
from verification.world.stores.s3_server import BUCKET, counting_s3_server

BEFORE = "9bc284e"
"""The last commit without shared objects."""

VALUE_BYTES = 1024
TASKS = 8
MANY, FEW = 1000, 4
STORE_ROWS = 20_000
WARM_UP_TURNS = 3
"""Of a JVM that is new: the third read takes half of what the second does."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rev", default=BEFORE, help="the other commit")
    parser.add_argument("--mib", type=int, default=64, help="of each task")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as temporary:
        directory = Path(temporary)
        trees = {"before": exported(arguments.rev, directory / "tree"), "now": HERE}
        figures: dict[str, Any] = {}
        for name, tree in trees.items():
            figures |= {f"{name}, {what}": count for what, count in _requests(tree).items()}
        source = _source(directory / "source", arguments.mib)
        sides = {}
        try:
            for name, tree in trees.items():
                given = {"directory": str(directory / name), "source": str(source)}
                config = settings(str(directory)) | {"spark.driver.memory": "2g"}
                sides[name] = _Side(tree, {**given, "settings": config})
            few = _timings(sides, FEW, arguments.turns, figures)  # first: both are as warm then
            many = _timings(sides, MANY, arguments.turns, figures)
        finally:
            for side in sides.values():
                side.close()
    return {
        "figures": figures,
        "ratios": {
            f"write into {MANY:,} partitions, times as fast": round(many["write"].speed_up("now", "before"), 2),
            f"read of {MANY:,} partitions, times as fast": round(many["read"].speed_up("now", "before"), 2),
            f"write into {FEW} partitions, times as fast": round(few["write"].speed_up("now", "before"), 2),
            f"read of {FEW} partitions, times as fast": round(few["read"].speed_up("now", "before"), 2),
        },
    }


def _timings(sides: dict[str, _Side], partitions: int, turns: int, figures: dict[str, Any]) -> dict[str, Timings]:
    """{"write" or "read": seconds by side}. Notes medians, and how many files and rows a write leaves."""
    seconds: dict[str, dict[str, list[float]]] = {what: {name: [] for name in sides} for what in ("write", "read")}
    for turn in range(-WARM_UP_TURNS, turns):
        for name, side in sides.items():
            write, read = side.call("write", partitions), side.call("read")
            if turn >= 0:
                seconds["write"][name].append(write)
                seconds["read"][name].append(read)
    found = {what: Timings(one) for what, one in seconds.items()}
    for name, side in sides.items():
        for what, timings in found.items():
            figures[f"{name}, {what} of {partitions:,} partitions, s"] = round(timings.median(name), 2)
        for what, count in side.call("files").items():
            figures[f"{name}, {what} after a write into {partitions:,} partitions"] = count
    return found


def _requests(tree: Path) -> dict[str, int]:
    """Requests to an object store by what is done and by operation."""
    found: dict[str, int] = {}
    with counting_s3_server() as (options, counts):
        side = _Side(tree, {"uri": f"s3://{BUCKET}/log", "options": options})
        try:
            side.call("create", MANY)
            for what, case in (
                (f"append to {MANY:,} partitions", ("append", STORE_ROWS)),
                ("open the topic", ("open",)),
                ("read one partition of it", ("read_partition",)),
            ):
                before = Counter(counts())
                side.call(*case)
                for operation, count in sorted((Counter(counts()) - before).items()):
                    found[f"{what}, {operation}"] = count
        finally:
            side.close()
    return found


class _Side:
    """A process that has the package of a tree."""

    def __init__(self, tree: Path, given: dict[str, Any]) -> None:
        # Run by path: beside the script lie modules with names of the standard library.
        script = str(Path(__file__).with_name("_shared_side.py"))
        command = [sys.executable, "-c", f"import runpy; runpy.run_path({script!r}, run_name='__main__')"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, text=True, env=environment(tree), cwd=tree, **pipes)  # type: ignore[call-overload]
        self._send(given)
        assert self._process.stdout.readline().strip() == "ready"

    def call(self, *case: Any) -> Any:
        self._send(case)
        return json.loads(self._process.stdout.readline())["result"]

    def _send(self, value: Any) -> None:
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def _source(directory: Path, mib: int) -> Path:
    """A Parquet file for each task, of `mib` MiB of records: half of each value is random."""
    directory.mkdir()
    rows = mib * 2**20 // VALUE_BYTES
    for task in range(TASKS):
        random = np.random.default_rng(task)
        values = random.integers(0, 256, (rows, VALUE_BYTES), np.uint8)
        values[:, VALUE_BYTES // 2 :] = 120
        offsets = pa.array(np.arange(rows + 1) * VALUE_BYTES, pa.int32()).buffers()[1]
        value = pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(values.tobytes())])
        table = pa.table({"key": [b"key %d" % row for row in range(rows)], "value": value, "number": np.arange(rows)})
        pa.parquet.write_table(table, directory / f"{task}.parquet", compression="none", use_dictionary=False)
    return directory
