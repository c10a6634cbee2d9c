"""A log directory at the size that it is made for, by the commands that people run: time and peak memory of each.

`topics`: 10,000 topics of 10 partitions. `partitions`: a topic of 10,000 partitions with 1,000,000 chunks. `segments`:
100,000 sealed segments with files of their own. `petabyte`: the rows of one, without files. `bytes`: 20 GiB, written,
rolled and compacted. Most measure a hundredth and a tenth of their size on the way. What a part writes is removed.
"""

from __future__ import annotations

import argparse
import http.client
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks._growing import rows
from benchmarks.plan import make_topic, segment_rows
from spark_segments import LogDir

MIB, GIB = 1 << 20, 1 << 30
ROOT = Path(__file__).resolve().parents[1]
COMMAND = """
import atexit, pathlib, sys
from spark_segments.cli import main
# The peak that a parent's rusage has of its child counts the parent's own memory.
atexit.register(lambda: print(pathlib.Path("/proc/self/status").read_text(), file=sys.stderr))
main()
"""
PAGE_PORT = re.compile(r"http://127\.0\.0\.1:(\d+)/")

Figures = Iterator[tuple[str, float]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--share", type=float, default=1.0, help="of the full size")
    parser.add_argument("--directory", help="where to work: a temporary directory unless given")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, float] = {}
    for part in arguments.parts:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            for name, value in PARTS[part](Path(directory) / "log", arguments.share):
                figures[f"{part}, {name}"] = round(value, 3)
                print(f"{part}, {name}: {value:,.3f}", file=sys.stderr, flush=True)
    return {"figures": figures, "ratios": {}}


def steps(size: int) -> list[int]:
    """A hundredth, a tenth, all."""
    return [max(1, size // 100), max(2, size // 10), size]


# Parts


def topics(directory: Path, share: float) -> Figures:
    """Topics of ten partitions, with a record in each."""
    log, there = LogDir.create(str(directory)), 0
    ten = rows(10, np.arange(10), 74)
    for count in steps(int(10_000 * share)):
        started = time.process_time()
        for number in range(there, count):
            log.create_topic(f"topic{number:06}", 10)
            log.topic(f"topic{number:06}").append(ten)
        yield f"{count:,} topics, create and append, CPU ms each", milliseconds(started) / (count - there)
        there = count
        log = LogDir.open(str(directory))
        for name, command in {
            "topic list": ["topic", "list", log.uri],
            "doctor": ["doctor", log.uri],
            "unknown topic": ["offsets", log.uri, "none"],
            "roll --dry-run": ["roll", log.uri, "--dry-run"],
            "vacuum --dry-run": ["vacuum", log.uri, "--dry-run"],
            "consume of one": ["consume", log.uri, f"topic{count // 2:06}", "--max-messages", "1"],
        }.items():
            yield from command_figures(f"{count:,} topics, {name}", command)
        yield from page_figures(f"{count:,} topics, page", log.uri, ["/", f"/?topic=topic{count // 2:06}"])


def partitions(directory: Path, share: float) -> Figures:
    """A topic of very many partitions, to which a hundred appends write to every partition each."""
    count = int(10_000 * share)
    log = LogDir.create(str(directory))
    started = time.process_time()
    log.create_topic("wide", count, {"segment.ms": "1000000000"})
    yield f"{count:,} partitions, create, CPU ms", milliseconds(started)
    all_partitions, done = rows(count, np.arange(count), 74), 0
    for appends in (1, 10, 100):
        started = time.process_time()
        for _ in range(done, appends):
            log.topic("wide").append(all_partitions)
        name = f"{count * appends:,} chunks"
        yield f"{name}, append to all partitions, CPU ms", milliseconds(started) / (appends - done)
        done = appends
        yield from topic_figures(name, log.uri, "wide")
    yield from command_figures("roll, merging", ["roll", log.uri])
    yield from command_figures("vacuum", ["vacuum", log.uri, "--yes", "--now-ms", later(log)])
    yield from topic_figures("rolled", log.uri, "wide")


def segments(directory: Path, share: float) -> Figures:
    """Sealed segments of 4 KiB in ten partitions, each with files of its own."""
    log = LogDir.create(str(directory))
    config = {"segment.bytes": "4096", "compression.type": "uncompressed", "cleanup.policy": "compact,delete"}
    log.create_topic("wide", 10, config)
    there = 0
    for count in steps(int(100_000 * share)):
        started = time.process_time()
        for first in range(there, count, 10_000):
            records = min(10_000, count - first) * 4
            log.topic("wide").append(rows(records, np.arange(records) % 10))
        yield f"{count:,} segments, append, CPU ms each", milliseconds(started) / (count - there)
        there = count
        yield from command_figures(f"{count:,} segments, roll", ["roll", log.uri, "--now-ms", later(log)])
        yield from topic_figures(f"{count:,} segments", log.uri, "wide")
        yield from command_figures(f"{count:,} segments, verify", ["verify", log.uri])
    yield from command_figures("verify --deep", ["verify", log.uri, "--deep"])
    yield from command_figures("compact", ["compact", log.uri])
    yield from command_figures("vacuum", ["vacuum", log.uri, "--yes", "--now-ms", later(log)])


def size(directory: Path, share: float) -> Figures:
    """Records of 1 KiB, a tenth as many keys, in four partitions; rolled as it grows, so that a copy is small."""
    log = LogDir.create(str(directory))
    config = {"cleanup.policy": "compact", "compression.type": "uncompressed", "segment.bytes": str(256 * MIB)}
    log.create_topic("large", 4, config | {"file.delete.delay.ms": "0"})
    total, there, keys = int(20 * GIB * share), 0, max(1, int(20 * GIB * share) // 1024 // 10)
    random = np.random.default_rng(1)
    for target in steps(total):
        started, before = time.process_time(), there
        while there < target:
            table = rows(200_000)
            digits = np.char.zfill(random.integers(0, keys, table.num_rows).astype("S16"), 16).tobytes()
            ends = pa.py_buffer((np.arange(table.num_rows + 1) * 16).astype(np.int32))
            key = pa.BinaryArray.from_buffers(pa.binary(), table.num_rows, [None, ends, pa.py_buffer(digits)])
            log.topic("large").append(table.set_column(0, "key", key))
            there += 200_000 * 1024
            if there // (2 * GIB) > (there - 200_000 * 1024) // (2 * GIB):
                yield from command_figures(f"{there / GIB:.1f} GiB, roll", ["roll", log.uri])
                yield from command_figures(
                    f"{there / GIB:.1f} GiB, vacuum", ["vacuum", log.uri, "--yes", "--now-ms", later(log)]
                )
        made_s = milliseconds(started) / 1000
        yield f"{there / GIB:.1f} GiB, append, MB per CPU s (with making the records)", (there - before) / 1e6 / made_s
    log.topic("large").append(rows(4, np.arange(4)))
    for command in (["roll", "--now-ms", later(log)], ["compact"], ["vacuum", "--yes", "--now-ms", later(log)]):
        yield from command_figures(command[0], [command[0], log.uri, *command[1:]])
        yield f"after {command[0]}, GiB on disk", disk_bytes(directory) / GIB
    yield from command_figures("verify --deep", ["verify", log.uri, "--deep"])


def petabyte(directory: Path, share: float) -> Figures:
    """A simulation: rows of a pebibyte in segments of 1 GiB, in 10,000 partitions. No file is there."""
    log = LogDir.create(str(directory))
    number = max(1, int(10_000 * share))
    there = segment_rows(number, 105, removed=0.0, chunks=0.01)
    position = there.schema.get_field_index("log_bytes")
    there = there.set_column(position, there.schema.field(position), pa.array(np.full(there.num_rows, GIB)))
    make_topic(log, there, number, {"segment.ms": "1000000000000", "retention.ms": "-1"})
    yield from topic_figures("rows", log.uri, "orders", has_files=False)
    log = LogDir.open(log.uri)
    started = time.process_time()
    log.topic("orders").append(rows(1, np.zeros(1), 74))
    yield "append of a record, cold, CPU ms", milliseconds(started)
    started = time.process_time()
    log.topic("orders").append(rows(1, np.zeros(1), 74))
    yield "append of a record, CPU ms", milliseconds(started)


PARTS: dict[str, Callable[[Path, float], Figures]] = {
    "topics": topics,
    "partitions": partitions,
    "segments": segments,
    "petabyte": petabyte,
    "bytes": size,
}


def topic_figures(name: str, uri: str, topic: str, *, has_files: bool = True) -> Figures:
    """Planning, describing, showing and, where it `has_files`, reading a little of a topic."""
    commands = {
        "roll --dry-run": ["roll", uri, "--dry-run"],
        "retain --dry-run": ["retain", uri, "--dry-run"],
        "compact --dry-run": ["compact", uri, "--dry-run"],
        "vacuum --dry-run": ["vacuum", uri, "--dry-run"],
        "offsets": ["offsets", uri, topic],
        "describe": ["describe", uri, topic, "--output", "json"],
    }
    if has_files:
        commands["consume of one partition"] = ["consume", uri, topic, "--partition", "1", "--max-messages", "10"]
    for what, command in commands.items():
        yield from command_figures(f"{name}, {what}", command)
    yield from page_figures(f"{name}, page", uri, ["/", *[f"/records?topic={topic}&partition=1"] * has_files])


# Measuring


def command_figures(name: str, arguments: list[str]) -> Figures:
    """Wall and CPU seconds and peak memory of a `segments` command in a new process."""
    started = time.monotonic()
    command = [sys.executable, "-c", COMMAND, *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode and "Unknown topic" not in said:
        raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}: {said}")
    yield f"{name}, s", time.monotonic() - started
    yield f"{name}, CPU s", used.ru_utime + used.ru_stime
    yield f"{name}, peak MiB", int(said.rpartition("VmHWM:")[2].split()[0]) / 1024


def page_figures(name: str, uri: str, paths: list[str]) -> Figures:
    """Seconds and bytes of pages of `segments page`, and the server's peak memory."""
    command = [sys.executable, "-m", "spark_segments", "page", uri, "--port", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        started = time.monotonic()
        found = PAGE_PORT.search(process.stdout.readline())
        assert found is not None
        yield f"{name}, start, s", time.monotonic() - started
        for path in paths:
            started = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=600)
            connection.request("GET", path)
            answer = connection.getresponse()
            size_bytes = len(answer.read())
            assert answer.status == 200, (path, answer.status)
            connection.close()
            yield f"{name} {path}, s", time.monotonic() - started
            yield f"{name} {path}, MiB", size_bytes / MIB
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        peak_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        yield f"{name}, peak MiB", peak_kib / 1024
    finally:
        process.terminate()
        process.wait()


def milliseconds(started: float) -> float:
    """CPU time of this process since a moment."""
    return 1000 * (time.process_time() - started)


def later(log: LogDir) -> str:
    """Ten days from now, for --now-ms."""
    return str(log.storage.now_ms() + 10 * 86_400_000)


def disk_bytes(directory: Path) -> int:
    """What the files of a directory have on the disk."""
    found = subprocess.run(["du", "-s", "--block-size=1", str(directory)], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])
