"""The jobs of a server, and the threads that do them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

_logger = logging.getLogger(__name__)


class Work:
    """Jobs, and the threads that do them: by owner in turn, and none has more than half of the threads."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._running: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._has_ended = False
        self._condition = threading.Condition()

    def put(self, owner: str, job: Callable[[], None]) -> None:
        with self._condition:
            self._jobs.setdefault(owner, deque()).append(job)
            if not self._idle and len(self._threads) < self._most:
                thread = threading.Thread(target=self._run, daemon=True)
                try:
                    thread.start()
                    self._threads.append(thread)
                except RuntimeError:  # no memory for another thread: the existing threads do the work
                    if not self._threads:
                        raise
            self._condition.notify()

    @property
    def is_little(self) -> bool:
        """Whether a thread has nothing to do, and no job waits for one."""
        return self._idle > 0 and not self._jobs

    def end(self, seconds: float) -> None:
        """Waits until all jobs are done, but no longer than that; the threads end."""
        with self._condition:
            self._condition.wait_for(lambda: not self._jobs and not self._running, seconds)
            self._has_ended = True
            self._condition.notify_all()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _next(self) -> str | None:
        most = max(1, self._most // 2)
        return next((owner for owner in self._jobs if self._running[owner] < most), None)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._idle += 1
                owner = self._next()
                while owner is None and not self._has_ended:
                    self._condition.wait()
                    owner = self._next()
                self._idle -= 1
                if owner is None:
                    return
                job = self._begin(owner)
            try:
                job()
            except Exception:
                _logger.exception("a job of the server failed")
            with self._condition:
                self._end_one(owner)

    def _begin(self, owner: str) -> Callable[[], None]:
        """Takes a job of an owner, who comes last from now on."""
        job = self._jobs[owner].popleft()
        self._jobs.move_to_end(owner)
        if not self._jobs[owner]:
            del self._jobs[owner]
        self._running[owner] += 1
        return job

    def _end_one(self, owner: str) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        self._condition.notify()  # the owner may have one more job now
        if not self._jobs and not self._running:
            self._condition.notify_all()
