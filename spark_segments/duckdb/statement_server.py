"""The other end of statement_process.py: a database whose statements come from a pipe."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

import pyarrow as pa

from spark_segments.duckdb.statement_process import send
from spark_segments.duckdb.topic_database import Result, TopicDatabase
from spark_segments.errors import QueryError, SegmentsError

_LENGTH = struct.Struct("<Q")


class _Database(TopicDatabase):
    """The database in this process."""

    _runs_apart = False


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answers until the other process has gone: a statement that is under way ends then, too."""
    waiting: SimpleQueue[Any] = SimpleQueue()
    arguments, memory_bytes = _read(requests)
    Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    with _Database(**arguments, memory_bytes=memory_bytes) as database:
        _bound_memory(memory_bytes)
        results: list[Result] = []
        runs: list[Iterator[pa.RecordBatch]] = []
        send(answers, ("ready", None))
        while True:
            kind, content = waiting.get()
            try:
                answer: object
                if kind == "sql":
                    results.append(database.sql(content))
                    answer = (len(results) - 1, results[-1].schema)
                elif kind == "run":
                    runs.append(results[content].batches())
                    answer = len(runs) - 1
                else:
                    answer = next(runs[content], None)
            except (SegmentsError, OSError) as error:
                send(answers, ("error", error))
            except MemoryError:
                message = "The statement needs too much memory"
                send(answers, ("error", QueryError(message, expected=f"{memory_bytes:,} bytes at most")))
            else:
                send(answers, ("answer", answer))


def _listen(requests: IO[bytes], waiting: SimpleQueue[Any]) -> None:
    while True:
        try:
            waiting.put(_read(requests))
        except EOFError:
            os._exit(0)


def _read(requests: IO[bytes]) -> Any:
    head = requests.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(requests.read(_LENGTH.unpack(head)[0]))


def _bound_memory(memory_bytes: int) -> None:
    """From now on the process gets so many bytes more, where the system knows such a bound: Linux."""
    status = Path("/proc/self/status")
    if not status.exists():
        return
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmData:")]
    most = int(line.split()[1]) * 1024 + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
