"""The processes of a long run: made, waited for, and ended by whoever has started them."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from types import TracebackType
from typing import Any

from spark_segments import LogDir
from verification.long_runs.actors import Run, act
from verification.long_runs.journal import read_notes


def make_log(run: Run) -> LogDir:
    """A log directory with the topics that writers write to, made by a process that notes it as all others do."""
    Path(run.directory).mkdir()
    log = LogDir.create(run.uri)
    with Processes(run) as processes:
        processes.start("creator")
        processes.join()
    return log


class Processes:
    """The processes of a run by actor. Leaving the block kills those that still run, and raises what they noted."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._lives: Counter[str] = Counter()
        self._running: dict[str, Any] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["verification.long_runs.actors"])

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._running.values():
            process.kill()
            process.join()
        assert not self.errors(), self.errors()[0]

    def start(self, actor: str) -> None:
        """Begins an actor's next life."""
        process = self._context.Process(target=act, args=(self._run, actor, self._lives[actor]))
        self._lives[actor] += 1
        process.start()
        self._running[actor] = process

    def wait_for_killed(self) -> list[str]:
        """The actors that have been killed since."""
        sentinels, ended, noted = [process.sentinel for process in self._running.values()], [], -1
        while not ended:
            ended = wait(sentinels, timeout=60)
            before, noted = noted, sum(path.stat().st_size for path in Path(self._run.directory).iterdir())
            assert ended or noted > before, "nobody has anything to do"
        killed = [actor for actor, process in self._running.items() if process.sentinel in ended]
        for actor in killed:
            self._running[actor].join()
            assert self._running[actor].exitcode == -signal.SIGKILL, self.errors()
        return killed

    def check(self) -> None:
        """Raises AssertionError where one has failed."""
        ended = [actor for actor, process in self._running.items() if process.exitcode is not None]
        assert not ended, (ended, self.errors())

    def join(self) -> None:
        """Waits until all have ended by themselves. Raises AssertionError as soon as one fails."""
        while self._running:
            ended = wait([process.sentinel for process in self._running.values()])
            for actor in [actor for actor, process in self._running.items() if process.sentinel in ended]:
                self._running[actor].join()
                assert self._running[actor].exitcode == 0, (actor, self.errors())
                del self._running[actor]

    def errors(self) -> list[str]:
        """What the actors noted that none may meet."""
        notes = sorted(Path(self._run.directory).glob("*.jsonl"))
        return [f"{path.stem}: {line['error']}" for path in notes for line in read_notes(path) if "error" in line]
