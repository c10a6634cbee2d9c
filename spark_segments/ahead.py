"""The read-ahead: pieces of a read are fetched and decoded by threads while the caller uses what came before them.

The results come in the order of the pieces, as if they were made one after another. Kernels, decompression and files
release the GIL, so threads use the cores there are. Compaction cleans the windows of a large group in the same way.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

if TYPE_CHECKING:
    from spark_segments.storage import Storage


class Batch(Protocol):
    """A result of a piece: a RecordBatch, or what says as a RecordBatch does how much memory it keeps."""

    def get_total_buffer_size(self) -> int: ...


B = TypeVar("B", bound=Batch)

Piece = Callable[[], Iterator[pa.RecordBatch]]

MOST_AHEAD_BYTES = 128 << 20
"""Bytes of batches that wait for the caller, at most; each thread has one more batch, and what that is decoded from."""

_MOST_PIECES_PER_THREAD = 4  # pieces may hold no record at all, so that bytes alone do not bound how far ahead it reads


STORE_THREADS = 16
"""Threads of a read of an object store: each mostly waits for a request."""


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reading_threads(storage: Storage) -> int:
    """The threads of a read: as many as there are cores, and STORE_THREADS at least on an object store."""
    return available_cores() if storage.is_local else max(available_cores(), STORE_THREADS)


def read_ahead(
    pieces: Iterable[Callable[[], Iterator[B]]], threads: int, *, most_bytes: int = MOST_AHEAD_BYTES
) -> Generator[B, None, None]:
    """The batches of all pieces, in the order of the pieces. `threads` threads read them; 1 is the caller's own.

    `pieces` is asked for one piece after another, by one thread at a time. An error of a piece, and of `pieces` itself,
    is raised in place of the batches that it stands for. Nothing is read before the first batch is asked for. A caller
    that closes the iterator, or loses it, ends the threads.
    """
    if threads <= 1:
        return (batch for piece in pieces for batch in piece())
    return _batches(_Ahead(iter(pieces), threads, most_bytes), threads)


def _batches(ahead: _Ahead[B], threads: int) -> Generator[B, None, None]:
    workers = [threading.Thread(target=ahead.work, name="read-ahead", daemon=True) for _ in range(threads)]
    try:
        _running.add(ahead)
        for worker in workers:
            worker.start()
        while (batch := ahead.take()) is not None:
            yield batch
    finally:
        ahead.close()
        for worker in workers:
            if worker.ident is not None:
                worker.join()


class _Taken(Generic[B]):
    """A piece that a thread has taken: its batches that wait, and how it ended."""

    __slots__ = ("batches", "error", "is_done")

    def __init__(self) -> None:
        self.batches: deque[tuple[B, int]] = deque()
        self.error: BaseException | None = None
        self.is_done = False


class _Ahead(Generic[B]):
    """What the threads and the caller share. All fields are changed under the lock of `_changed` alone.

    `_asking` is held by the thread that asks for the next piece, so that pieces are taken in their order. Asking may
    take long: the caller and the other threads go on meanwhile.

    The first of `_taken` is the piece whose batches the caller gets next. Its thread may always have a batch waiting.
    So the pieces behind it never keep it from going on, however much they hold.
    """

    def __init__(self, pieces: Iterator[Callable[[], Iterator[B]]], threads: int, most_bytes: int) -> None:
        self._pieces = pieces
        self._asking = threading.Lock()
        self._most_bytes, self._most_pieces = most_bytes, threads * _MOST_PIECES_PER_THREAD
        self._changed = threading.Condition()
        self._taken: deque[_Taken[B]] = deque()
        self._waiting_bytes = 0
        self._no_more = self._closed = False

    def work(self) -> None:
        """A thread: takes pieces and reads them until there are no more."""
        while (taken_piece := self._next()) is not None:
            taken, piece = taken_piece
            try:
                for batch in piece():
                    if not self._put(taken, batch):
                        return
            except BaseException as error:  # any error: the caller raises it
                taken.error = error
            with self._changed:
                taken.is_done = True
                self._changed.notify_all()

    def take(self) -> B | None:
        """The next batch, None after the last. Raises what a piece raised."""
        with self._changed:
            while True:
                if self._taken and self._taken[0].batches:
                    batch, size = self._taken[0].batches.popleft()
                    self._waiting_bytes -= size
                    self._changed.notify_all()
                    return batch
                if self._taken and self._taken[0].is_done:
                    error = self._taken.popleft().error
                    self._changed.notify_all()
                    if error is not None:
                        raise error
                elif self._closed or (self._no_more and not self._taken):
                    return None
                else:
                    self._changed.wait()

    def close(self) -> None:
        """Lets the threads end at their next batch, and forgets what waits."""
        with self._changed:
            self._closed = True
            self._taken.clear()
            self._changed.notify_all()

    def _next(self) -> tuple[_Taken[B], Callable[[], Iterator[B]]] | None:
        with self._asking:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._no_more or len(self._taken) < self._most_pieces)
                if self._closed or self._no_more:
                    return None
            taken: _Taken[B] = _Taken()
            try:
                piece = next(self._pieces, None)
            except BaseException as error:
                piece, taken.error, taken.is_done = None, error, True
            with self._changed:
                if piece is not None or taken.error is not None:
                    self._taken.append(taken)
                self._no_more = piece is None
                self._changed.notify_all()
                return None if piece is None or self._closed else (taken, piece)

    def _put(self, taken: _Taken[B], batch: B) -> bool:
        """Hands a batch over once there is room; False where the caller wants no more."""
        size = batch.get_total_buffer_size()

        def has_room() -> bool:
            is_first = bool(self._taken) and self._taken[0] is taken and not taken.batches
            return self._closed or is_first or self._waiting_bytes + size <= self._most_bytes

        with self._changed:
            self._changed.wait_for(has_room)
            if self._closed:
                return False
            taken.batches.append((batch, size))
            self._waiting_bytes += size
            self._changed.notify_all()
            return True


_running: weakref.WeakSet[_Ahead[Any]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Threads cannot run once the interpreter ends. An iterator that is lost only then must not wait for them.
    for ahead in list(_running):
        ahead.close()
