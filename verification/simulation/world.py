"""A virtual clock, and processes that take turns on it: only one runs at any time, and a seed decides which is next.

A process is a greenlet. It runs until it calls the store, the manifest or the clock; there it waits until its turn
comes again. What happens between two such calls takes no time and cannot be seen by others, so every order of the
calls is every history that there can be.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

import greenlet

from spark_segments.log.manifest.files.row_files import CACHE_BYTES, _RowCache

START_US = 1_750_000_000_000_000
SECOND_US = 1_000_000
HOUR_US = 3600 * SECOND_US


class Violation(Exception):
    """The log, an answer or an error is not as promised."""


class Killed(BaseException):
    """The process was killed here. No code of the product catches it, and what unwinds has no effect any more."""


@dataclass(slots=True)
class Host:
    """A machine: its clock, wrong by `offset_us`, and the rows that its processes keep in memory."""

    name: str
    offset_us: int = 0
    cache: _RowCache = field(default_factory=lambda: _RowCache(CACHE_BYTES))


@dataclass(slots=True, eq=False)
class Process:
    """A process. `disk`: what outlives it, and is there when it is started again. `intent`: what it is about to do.

    `faults` counts what the store did to it since it last rested, `flips` its reads with a wrong bit, `stale` its
    listings that were old; an error needs such a cause, or another process.
    """

    name: str
    host: Host
    work: Callable[[Process], None]
    disk: dict[str, Any] = field(default_factory=dict)
    intent: dict[str, Any] = field(default_factory=dict)
    life: int = 0
    is_dead: bool = False
    faults: int = 0
    flips: int = 0
    stale: int = 0
    stalled_us: int = 0
    run: greenlet.greenlet | None = None

    def rest(self) -> None:
        """Forgets what happened to it: nothing of that is the cause of what comes."""
        self.faults = self.flips = self.stale = self.stalled_us = 0

    @property
    def is_disturbed(self) -> bool:
        """Whether anything happened to it since it last rested."""
        return bool(self.faults or self.flips or self.stale or self.stalled_us)


class World:
    """The clock, the processes, the random numbers, and the trace of all that happens."""

    def __init__(self, seed: int, trace: IO[str] | None = None) -> None:
        self.seed = seed
        self.random = random.Random(f"world {seed}")
        self.now_us = START_US
        self.current: Process | None = None
        self.steps = 0
        self.kills = 0
        self.kill_chance = 0.0
        self.stall_chance = 0.0
        self.failure: BaseException | None = None
        self._number = itertools.count()
        self._queue: list[tuple[int, int, Process | None, Callable[[], None] | None]] = []
        self._hub = greenlet.getcurrent()
        self._digest = hashlib.blake2b(digest_size=16)
        self._trace = trace
        self.is_ending = False

    # Processes

    def start(self, process: Process, after_us: int = 0) -> None:
        """Starts a process, or starts it again after it died."""
        process.life += 1
        process.is_dead = False
        process.intent = {}
        process.run = greenlet.greenlet(self._main, parent=self._hub)
        heapq.heappush(self._queue, (self.now_us + after_us, next(self._number), process, None))

    def later(self, after_us: int, effect: Callable[[], None]) -> None:
        """Has the store do something by itself, after some time."""
        heapq.heappush(self._queue, (self.now_us + after_us, next(self._number), None, effect))

    def _main(self, process: Process) -> None:
        try:
            process.work(process)
        except Killed:
            if not self.is_ending:
                self.note("died", process.name)
                restarted = Process(process.name, process.host, process.work, process.disk, life=process.life)
                self.start(restarted, self.random.randint(1, 20) * SECOND_US)
        except BaseException as error:
            self.failure = self.failure or error

    def run(self, is_over: Callable[[], bool]) -> None:
        """Runs until `is_over`, or raises what a process met that it may not meet. Then no process lives any more."""
        self._hub = greenlet.getcurrent()
        while self._queue and self.failure is None and not is_over():
            self._turn()
        self.is_ending = True
        for _, _, process, _ in self._queue:
            if process is not None:
                process.is_dead = True
        while self._queue:  # what the store still carries out, and the last breath of the processes
            self._turn()
        if self.failure is not None:
            raise self.failure

    def _turn(self) -> None:
        at_us, _, process, effect = heapq.heappop(self._queue)
        self.now_us = max(self.now_us, at_us)
        self.steps += 1
        if effect is not None:
            effect()
        elif process is not None and process.run is not None and not (process.is_dead and not process.run):
            self.current = process
            process.run.switch(process) if not process.run else process.run.switch()
            self.current = None

    def wait(self, us: int) -> None:
        """Lets others run for so long. The process may be killed or may stall meanwhile; outside of processes no time
        passes.
        """
        process = self.current
        if process is None:
            return
        if process.is_dead:
            raise Killed
        if self.random.random() < self.kill_chance:
            self.kills += 1
            process.is_dead = True
            raise Killed
        if self.random.random() < self.stall_chance:
            stall_us = int(10 ** self.random.uniform(6, 9.8))  # a second to 105 minutes
            process.stalled_us += stall_us
            us += stall_us
        heapq.heappush(self._queue, (self.now_us + us, next(self._number), process, None))
        self._hub.switch()
        if process.is_dead:
            raise Killed

    @contextmanager
    def outside(self) -> Iterator[None]:
        """The judge looks at the store: no time passes, and nothing fails."""
        process, self.current = self.current, None
        try:
            yield
        finally:
            self.current = process

    # Clocks

    def clock_us(self) -> int:
        """The time by the clock of the machine whose process runs."""
        return self.now_us + (self.current.host.offset_us if self.current is not None else 0)

    @property
    def now_ms(self) -> int:
        """The store's clock, which is right."""
        return self.now_us // 1000

    # The trace

    def note(self, *what: object) -> None:
        """Adds an event to the trace: two runs of a seed have the same trace."""
        line = f"{self.now_us - START_US} {self.current.name if self.current else '-'} {what}\n"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace.write(line)

    def trace_hash(self) -> str:
        """A hash of all events so far."""
        return self._digest.hexdigest()
