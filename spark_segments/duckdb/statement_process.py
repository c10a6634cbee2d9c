"""A process for statements of strangers, with a bound of time and of memory.

DuckDB looks for an interruption between its vectors of rows. A statement may stay within one for minutes, and take all
memory there: `list_sort(range(200000000))`. A process can be killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

import pyarrow as pa

from spark_segments.errors import QueryError

MOST_BYTES = 2 << 30
"""How much memory a statement may take beyond that of the process, where nothing else is said."""

_START_SECONDS = 60.0
_MODULE = "spark_segments.duckdb.statement_server"
_LENGTH = struct.Struct("<Q")
_PIECE_BYTES = 1 << 20


def send(file: IO[bytes], message: object) -> None:
    """Writes a message to a pipe."""
    data = pickle.dumps(message)
    file.write(_LENGTH.pack(len(data)) + data)
    file.flush()


class StatementProcess:
    """The process, and a database in it. It is started again after a statement has ended it."""

    def __init__(self, arguments: Mapping[str, Any], seconds: float, memory_bytes: int) -> None:
        """`arguments`: of the TopicDatabase in the process."""
        self._arguments = dict(arguments)
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._process = self._started()
        self._is_ready = False

    def close(self) -> None:
        """Ends the process, whatever it does."""
        process = self._process
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def begin(self, query: str) -> tuple[int, pa.Schema]:
        """(the number of a statement, the schema of its rows). What has no rows has run."""
        ends = self._clock()
        number, schema = self._answer_to(("sql", query), ends)
        return number, schema

    def batches(self, number: int) -> Iterator[pa.RecordBatch]:
        """The rows of a statement."""
        ends = self._clock()
        process = self._process
        run = self._answer_to(("run", number), ends)
        batch = self._answer_to(("next", run), ends, process)
        while batch is not None:
            yield batch
            batch = self._answer_to(("next", run), ends, process)

    def _started(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which ends the other
        )
        assert process.stdin is not None
        send(process.stdin, (self._arguments, self._memory_bytes))
        return process

    def _clock(self) -> float:
        """When a statement that begins now has to be done. The start of the process is not the statement's."""
        if self._process.poll() is not None:
            self.close()
            self._process = self._started()
            self._is_ready = False
        if not self._is_ready:
            self._answer(time.monotonic() + _START_SECONDS)
            self._is_ready = True
        return time.monotonic() + self._seconds

    def _answer_to(self, message: object, ends: float, process: subprocess.Popen[bytes] | None = None) -> Any:
        if process is not None and process is not self._process:
            raise QueryError("The process of the statement has ended", hint="Run the statement again")
        assert self._process.stdin is not None
        try:
            send(self._process.stdin, message)
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer(ends)

    def _answer(self, ends: float) -> Any:
        """The next answer. Raises the error that it is, and QueryError at the end of the time, or of the process."""
        try:
            (length,) = _LENGTH.unpack(self._read(_LENGTH.size, ends))
            kind, content = pickle.loads(self._read(length, ends))
        except BaseException:  # Ctrl-C, too: what would come is the answer to another question
            self.close()
            raise
        if kind == "error":
            raise content
        return content

    def _read(self, count: int, ends: float) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        data = bytearray()
        while len(data) < count:
            readable, _, _ = select.select([pipe], [], [], max(0.0, ends - time.monotonic()))
            if not readable:
                raise QueryError("The statement takes too long", expected=f"{self._seconds:g} seconds at most")
            piece = os.read(pipe.fileno(), min(_PIECE_BYTES, count - len(data)))
            if not piece:
                raise self._ended()
            data += piece
        return bytes(data)

    def _ended(self) -> QueryError:
        code = self._process.wait()
        found = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return QueryError(
            "The statement has ended its process: it needs too much memory",
            expected=f"{self._memory_bytes:,} bytes at most",
            found=found,
        )
