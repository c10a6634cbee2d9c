"""The appends of `waits`: a process that does them with the package on its path, by the public interface alone.

`prepare DIRECTORY` makes the topic; `appends DIRECTORY` reads lines from its input and answers each with CPU
and wall seconds of appends of one record.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from spark_segments import LogDir

RECORDS = 1000
APPENDS_A_TURN = 20


def rows(count: int) -> pa.Table:
    """Records with a key that every tenth has."""
    numbers = range(count)
    return pa.table({"key": [b"%d" % (number % 10) for number in numbers], "value": [b"value"] * count})


def prepare(directory: Path) -> None:
    log = LogDir.create(str(directory))
    log.create_topic("events")
    log.topic("events").append(rows(RECORDS))


def appends(directory: Path) -> None:
    """A line of input: a turn of appends; the answer: the median of their CPU seconds, and of their wall seconds."""
    log, row = LogDir.open(str(directory)), rows(1)
    log.topic("events").append(row)
    print("ready", flush=True)
    for _ in sys.stdin:
        cpu_seconds, wall_seconds = [], []
        for _ in range(APPENDS_A_TURN):
            cpu, wall = time.process_time(), time.perf_counter()
            log.topic("events").append(row)
            cpu_seconds.append(time.process_time() - cpu)
            wall_seconds.append(time.perf_counter() - wall)
        middle = APPENDS_A_TURN // 2
        print(sorted(cpu_seconds)[middle], sorted(wall_seconds)[middle], flush=True)


if __name__ == "__main__":
    {"prepare": prepare, "appends": appends}[sys.argv[1]](Path(sys.argv[2]))
