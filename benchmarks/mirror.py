"""A mirror of sealed segments against `cp -r --reflink=never` of them, all warm, in turns; and how many commits of a
leader a minute a mirror follows.

Two partitions, no codec. A mirror reads each file, checks each batch and compares what it wrote; cp does none of it.
Starting Python is not counted, removing what a turn wrote neither.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import TURNS, Timings
from spark_segments import LogDir
from spark_segments.maintenance import mirror, roll
from spark_segments.replicas.mirror import lags

_PARTITIONS = 2
_VALUE_BYTES = 1024
_APPEND_RECORDS = 100_000
_LATER_MS = 30 * 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mib", type=int, default=4200, help="size of the values in the leader")
    parser.add_argument("--segment-mib", type=int, default=256, help="segment.bytes")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--commits", type=int, default=200, help="commits that are followed")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of the larger topic that commits go to")
    parser.add_argument(
        "--seconds", type=float, default=60, help="how long a leader is followed at 200 commits a minute"
    )
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        figures, ratios = copies(Path(directory), arguments)
        for rows in (0, arguments.rows):
            name = f"replayed commits/min, {rows:,} rows before"
            figures[name] = round(replayed_a_minute(Path(directory), arguments.commits, rows))
        figures |= followed(Path(directory), arguments.seconds)
    return {"figures": figures, "ratios": ratios}


def copies(directory: Path, arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """MB/s of a mirror and of cp, and their ratio."""
    source, target = directory / "leader", directory / "target"
    leader = make_leader(source, arguments.mib << 20, arguments.segment_mib << 20)
    total = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
    cases: dict[str, Callable[[], object]] = {
        "mirror": lambda: mirror(LogDir.create(str(target)), leader=leader),
        "cp": lambda: subprocess.run(["cp", "-r", "--reflink=never", str(source), str(target)], check=True),
    }
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(-1, arguments.turns):
        for name, case in cases.items():
            started = time.perf_counter()
            case()
            if turn >= 0:  # the one before compiles, and warms what the others find warm
                seconds[name].append(time.perf_counter() - started)
            assert sum(file.stat().st_size for file in target.rglob("*.log")) >= arguments.mib << 20
            shutil.rmtree(target)
    shutil.rmtree(source)
    timings = Timings(seconds)
    figures = {"GiB": round(total / 2**30, 2)} | {
        f"{name} MB/s": round(timings.rate(name, total / 1e6)) for name in cases
    }
    return figures, {"mirror / cp": round(timings.speed_up("mirror", "cp"), 3)}


def make_leader(place: Path, value_bytes: int, segment_bytes: int) -> LogDir:
    """Sealed segments with values of that many bytes in all."""
    log = LogDir.create(str(place))
    log.create_topic("orders", _PARTITIONS, {"compression.type": "uncompressed", "segment.bytes": str(segment_bytes)})
    value = np.random.default_rng(1).bytes(_VALUE_BYTES)
    values = pa.array([value] * _APPEND_RECORDS, pa.binary())
    for number in range(value_bytes // (_VALUE_BYTES * _APPEND_RECORDS) + 1):
        partitions = pa.array(np.full(_APPEND_RECORDS, number % _PARTITIONS, np.int32))
        log.topic("orders").append(pa.table({"value": values, "partition": partitions}))
    roll(log, now_ms=log.storage.now_ms() + _LATER_MS)
    live = {path.removesuffix(".log") for path in log.topic("orders").snapshot.live.column("path").to_pylist()}
    for path in Path(log.uri).glob("orders-*/*"):
        if str(path.relative_to(log.uri)).rpartition(".")[0] not in live:  # a chunk that the roll replaced
            path.unlink()
    return log


def replayed_a_minute(directory: Path, commits: int, rows: int) -> float:
    """How many commits of 100 records a mirror replays a minute, onto a topic with so many rows."""
    leader, follower = LogDir.create(str(directory / "busy")), LogDir.create(str(directory / "follower"))
    leader.create_topic("orders", 1)
    if rows:
        _append_rows(leader, rows)
    mirror(follower, leader=leader)
    table = pa.table({"value": [b"x" * 100] * 100})
    for _ in range(commits):
        leader.topic("orders").append(table)
    started = time.perf_counter()
    report = mirror(follower, leader=leader)
    passed = time.perf_counter() - started
    assert report.details["commits"] >= commits and not report.failed  # and that of merged files of the manifest
    for log in (leader, follower):
        shutil.rmtree(log.uri)
    return 60 * commits / passed


def _append_rows(log: LogDir, rows: int) -> None:
    """As many chunks of a record each, in one commit."""
    from verification.world.topics import append_one_by_one, records

    append_one_by_one(log, "orders", records(rows, time_ms=log.storage.now_ms()))


def followed(directory: Path, seconds: float) -> dict[str, Any]:
    """The largest and the last lag of a follower while its leader gets 200 commits a minute."""
    leader, follower = LogDir.create(str(directory / "live")), LogDir.create(str(directory / "followed"))
    leader.create_topic("orders", 1)
    table = pa.table({"value": [b"x" * 100] * 100})
    ended = threading.Event()

    def follow() -> None:
        while not ended.is_set():
            assert not mirror(follower, leader=leader).failed
            ended.wait(0.2)

    thread = threading.Thread(target=follow)
    thread.start()
    lag_commits, lag_ms = [], []
    started, written = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        while written < (time.perf_counter() - started) / 60 * 200:
            leader.topic("orders").append(table)
            written += 1
        lag = lags(leader, follower).get("orders")
        if lag is not None and not isinstance(lag, Exception):
            lag_commits.append(lag.commits)
            lag_ms.append(lag.lag_ms)
        time.sleep(0.1)
    passed = time.perf_counter() - started
    ended.set()
    thread.join()
    return {
        "followed commits/min": round(60 * written / passed),
        "largest lag, commits": max(lag_commits),
        "median lag, ms": sorted(lag_ms)[len(lag_ms) // 2],
        "largest lag, ms": max(lag_ms),
    }
