"""One wait of `waits`: a process that does it with the package on its path, by the public interface alone.

`python -m tests.benchmarks._waits_side NAME DIRECTORY`. `prepare` makes the topics; `append`, `read` and `compact` do
that once; `appends` reads lines from its input and answers each with CPU and wall seconds of appends of one record.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pyarrow as pa

from spark_segments import LogDir

RECORDS = 1000
APPENDS_A_TURN = 20
LATER_MS = 10 * 24 * 3_600_000


def rows(count: int) -> pa.Table:
    """Records with a key that every tenth has."""
    numbers = range(count)
    return pa.table({"key": [b"%d" % (number % 10) for number in numbers], "value": [b"value"] * count})


def prepare(directory: Path) -> None:
    """A topic for each wait: one to append to and to read, one whose records wait for compaction."""
    log = LogDir.create(str(directory))
    log.create_topic("events")
    log.create_topic("prices", config={"cleanup.policy": "compact"})
    for topic in ("events", "prices"):
        log.topic(topic).append(rows(RECORDS))
    roll(directory)
    log.topic("prices").append(rows(1))


def roll(directory: Path) -> None:
    from spark_segments.maintenance import roll as roll_topics

    log = LogDir.open(str(directory))
    roll_topics(log, topics=["prices"], now_ms=log.storage.now_ms() + LATER_MS)


def append(directory: Path) -> None:
    LogDir.open(str(directory)).topic("events").append(rows(RECORDS))


def read(directory: Path) -> None:
    assert sum(batch.num_rows for batch in LogDir.open(str(directory)).topic("events").scan().batches()) >= RECORDS


def compact(directory: Path) -> None:
    from spark_segments.maintenance import compact as compact_topics

    report = compact_topics(LogDir.open(str(directory)), topics=["prices"])
    assert report.to_dict()["dropped"] == {"superseded": RECORDS - 10}


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
    {"prepare": prepare, "append": append, "read": read, "compact": compact, "appends": appends}[sys.argv[1]](
        Path(sys.argv[2])
    )
