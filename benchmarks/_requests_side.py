"""The cases of `requests`: a process that does them with the package on its path, by the public interface alone.

`python -m benchmarks._requests_side URI OPTIONS`, OPTIONS as JSON: makes the topics, then reads the name of a
case from each line of its input, does it, and answers with its wall seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_segments import LogDir

MANY_PARTITIONS = 10_000
TOPICS = 20
"""That `topic list` finds."""


def cases(uri: str, options: dict[str, str]) -> dict[str, Callable[[], Any]]:
    """What is timed, by name."""
    log: Any = LogDir.create(uri, options)
    log.create_topic("many", MANY_PARTITIONS)
    for number in range(TOPICS - 1):
        log.create_topic(f"t{number}", 2)
    one = pa.table({"value": [b"%0100d" % 1], "partition": pa.array([0], pa.int32())})
    numbers = pa.array(range(MANY_PARTITIONS), pa.int32())
    many = pa.table({"value": [b"%0100d" % row for row in range(MANY_PARTITIONS)], "partition": numbers})
    _append(log, "t1", one)
    return {
        "append a record to an open topic": lambda: _append(log, "t0", one),
        "open, append a record": lambda: _append(LogDir.open(uri, options), "t0", one),
        "append into 10,000 partitions": lambda: _append(log, "many", many),
        "open, read a partition": lambda: _read(LogDir.open(uri, options), "t1"),
        "open, list topics": lambda: len(LogDir.open(uri, options).topics()),
    }


# A commit before topics were objects has their methods at the log, with the topic's name.


def _append(log: Any, topic: str, rows: pa.Table) -> None:
    log.topic(topic).append(rows) if hasattr(log, "topic") else log.append(topic, rows)


def _read(log: Any, topic: str) -> int:
    batches = log.topic(topic).scan(partition=0).batches() if hasattr(log, "topic") else log.read(topic, 0)
    return sum(batch.num_rows for batch in batches)


def serve(uri: str, options: dict[str, str]) -> None:
    known = cases(uri, options)
    print("\n".join(known), end="\n\n", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        known[line.strip()]()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))
