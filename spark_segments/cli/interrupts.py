"""The end of a command that runs until somebody ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 2.0
"""After so long a signal is raised again: where it came while native code called Python, the first may be lost."""


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends its block, without an error, at Ctrl-C or at SIGTERM, by which schedulers and containers end a process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
