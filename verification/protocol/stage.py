"""A stage for real processes: each runs `LogDir`'s own code in a thread, and goes on only when it is told to.

A thread waits where the model has a step: before its request reaches the store, and before it reads the log again after
a request that failed. The stage says what becomes of the request.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from spark_segments.errors import SegmentsError, StorageError, UnknownOutcomeError
from spark_segments.storage import Storage
from verification.protocol.model import DEAD, REFUSED, UNKNOWN
from verification.world.clock import PATIENCE_SECONDS
from verification.world.opened import DeltaLog
from verification.world.stores.memory_store import replayed
from verification.world.stores.played_log import CommitFailedError, CommitNote, FileChange, TableVersion

SEND, READ, DONE = "send", "read", "done"
Outcome = tuple[str, tuple[int, int] | None]
"""How a commit ended, and the offsets that its caller was told."""


class Killed(BaseException):
    """The process is gone: no code of its own catches this."""


class Actor:
    """A process: its thread, where it waits, and what it is told next."""

    def __init__(self, work: Callable[[Actor], Outcome]) -> None:
        self.outcome: Outcome | None = None
        self.again = False  # a request failed, so the next look at the log is a step of the model
        self.late: dict[int, Callable[[], object]] = {}  # by the number of the try
        self._work = work
        self._at: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> str:
        """Runs up to the first step that waits. Returns where that is."""
        self._thread.start()
        return self._next()

    def tell(self, what: str) -> str:
        """Says what happens at the step that waits, and runs up to the next one."""
        self._told.put(what)
        return self._next()

    def wait(self, where: str) -> str:
        """Called by the thread: waits to be told."""
        self._at.put(where)
        what = self._told.get()
        if what == "dies":
            raise Killed
        return what

    def end(self) -> None:
        """Lets a thread that still waits go."""
        if not self._is_over:
            self.tell("dies")
        self._thread.join()

    def _next(self) -> str:
        where = self._at.get(timeout=PATIENCE_SECONDS)
        self._is_over = where == DONE
        if self._error is not None:
            raise self._error
        return where

    def _run(self) -> None:
        try:
            self.outcome = self._work(self)
        except Killed:
            self.outcome = (DEAD, None)
        except UnknownOutcomeError:
            self.outcome = (UNKNOWN, None)
        except SegmentsError:
            self.outcome = (REFUSED, None)
        except BaseException as error:  # the thread that waits for this one raises it
            self._error = error
        self._at.put(DONE)


class StagedLogs:
    """An `OpenDeltaLog` for one actor, over the store that it is given."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor

    def __call__(self, storage: Storage, topic: str) -> StagedLog:
        return StagedLog(storage, topic, self._actor)


class StagedLog(DeltaLog):
    """Delta's log over a store in memory: its requests wait until the stage says what becomes of them."""

    def __init__(self, storage: Storage, topic: str, actor: Actor) -> None:
        super().__init__(storage, topic, replayed)
        self._actor = actor

    def durable(self, is_forced: bool) -> StagedLog:
        return self

    def open(self, version: int | None = None) -> TableVersion:
        self._look()
        return super().open(version)

    def following(self, base: TableVersion) -> list[TableVersion]:
        self._look()
        return super().following(base)

    def _look(self) -> None:
        if self._actor.again and self._actor.wait(READ) == "cannot read":
            raise StorageError("the network is down")

    def commit_on(
        self,
        base: TableVersion,
        change: FileChange,
        note: CommitNote,
        transactions: Mapping[str, int],
        *,
        data_change: bool = True,
    ) -> TableVersion:
        def go() -> TableVersion:
            return super(StagedLog, self).commit_on(base, change, note, transactions, data_change=data_change)

        what = self._actor.wait(SEND)
        self._actor.again = True
        if what in ("carried out", "taken", "reply lost"):
            made = go()
            if what == "carried out":
                self._actor.again = False
                return made
        assert what != "taken", "the version was not taken"
        if what == "late":
            self._actor.late[note.attempt] = go
        raise CommitFailedError(what)
