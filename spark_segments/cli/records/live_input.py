"""A stream that may never end: a pipe, or somebody at a terminal. What came is appended every few seconds."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa

MOST_BYTES = 256 << 20
"""Of a commit of a stream."""

NOTHING = pa.RecordBatch.from_arrays([], names=[])
"""The batch that stands for a while in which nothing came."""


class LiveInput:
    """Reads a descriptor as bytes come, and says when what came is to be committed: `linger_seconds` after the first of
    it, at MOST_BYTES of it, at a signal, or at the end.
    """

    def __init__(self, descriptor: int, linger_seconds: float) -> None:
        self._descriptor = descriptor
        self._linger = linger_seconds
        self._woken, self._waker = os.pipe()
        self._first_at: float | None = None  # of the bytes that are not committed
        self._bytes = 0
        self.is_interrupted = self._has_ended = False

    @staticmethod
    def opened(path: str | None) -> int | None:
        """The descriptor of a pipe, which need not have a writer yet, or of standard input, unless that is a file,
        which has an end.
        """
        try:
            if path is not None:
                return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            descriptor = sys.stdin.fileno()
            return None if stat.S_ISREG(os.fstat(descriptor).st_mode) else descriptor
        except (AttributeError, OSError, ValueError):  # it is closed, or an object of Python
            return None

    def readinto(self, content: Any) -> int | None:
        """Bytes that came, as many as there is room for; 0 at the end; None where none came in the time there was."""
        at = 0
        while at < len(content) and not (self.is_interrupted or self._has_ended):
            left = self._linger if self._first_at is None else self._first_at + self._linger - time.monotonic()
            # Not below 0, which select refuses: a commit can take longer than the linger time.
            ready, _, _ = select.select([self._descriptor, self._woken], [], [], max(0.0, left))
            if self._descriptor not in ready:
                break
            size = os.readv(self._descriptor, [content[at:]])
            if not size:  # a terminal says it once
                self._has_ended = True
                break
            if self._first_at is None:
                self._first_at = time.monotonic()
            at += size
            self._bytes += size
        return at or (0 if self.is_interrupted or self._has_ended else None)

    @property
    def is_typed(self) -> bool:
        """Whether somebody at a terminal writes it."""
        return os.isatty(self._descriptor)

    @property
    def is_due(self) -> bool:
        """Whether what came is to be committed now."""
        is_late = self._first_at is not None and time.monotonic() >= self._first_at + self._linger
        return is_late or self._bytes >= MOST_BYTES or self.is_interrupted

    def parts(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
        """The rows of each commit. A part is to be taken whole before the next is asked for."""
        for batch in batches:
            if batch.num_rows:
                yield self._part(batch, batches)
                self._begin_again()
            elif self.is_due:  # a line that has not ended
                self._begin_again()

    def _begin_again(self) -> None:
        """After a commit: the next one is due `linger_seconds` after the first byte that comes now."""
        self._first_at = None
        self._bytes = 0

    def _part(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield first
        while not self.is_due:
            batch = next(batches, None)
            if batch is None:
                return
            if batch.num_rows:
                yield batch

    @contextlib.contextmanager
    def until_interrupted(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the input within the block: what came is committed. The second of them ends all."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            self.is_interrupted = True
            os.write(self._waker, b"x")
            # The handlers of before: a second signal ends a program whose commit does not come to an end.
            for signal_number, handler in before.items():
                signal.signal(signal_number, handler)

        before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._woken)
            os.close(self._waker)
