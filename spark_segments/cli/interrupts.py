"""The end of a command by Ctrl-C: of one that runs until somebody ends it, and of one that is not done."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from spark_segments.quantities import wall_ms

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir

AGAIN_SECONDS = 2.0
"""After so long a signal is raised again: where it came while native code called Python, the first may be lost."""

AT_ONCE_SECONDS = 0.001

INTERRUPTED = 130  # as of a program that the signal SIGINT ended
COMMITS_SHOWN = 20


@contextmanager
def commits_told(log: LogDir) -> Iterator[None]:
    """At Ctrl-C within its block, says what was committed since the block began, and ends the command."""
    started_ms = wall_ms()
    try:
        yield
    except KeyboardInterrupt as interrupt:
        told = []
        for name in log.topics():
            for commit in reversed(log.topic(name).history(COMMITS_SHOWN)):
                if (commit["committed_ms"] or 0) >= started_ms:
                    records = f"{commit['records_in'] or 0:,} records in, {commit['records_out'] or 0:,} out"
                    told.append(f"{name}: version {commit['version']}, {commit['job']}, {records}")
        print("Interrupted. What is committed stays, and a new run goes on after it:", file=sys.stderr)
        print("\n".join(told) or "nothing was committed", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from interrupt


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends its block, without an error, at Ctrl-C or at SIGTERM, by which schedulers and containers end a process.

    An interrupt that Python cannot hand on, since it came within a finalizer or a weak reference's callback, is raised
    again at once, without Python's words on it.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        raise KeyboardInterrupt

    def unraisable(dropped: sys.UnraisableHookArgs) -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, AT_ONCE_SECONDS)
        else:
            shown_before(dropped)

    shown_before = sys.unraisablehook
    sys.unraisablehook = unraisable
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = shown_before
