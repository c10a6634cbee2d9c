"""The end of a command that runs until somebody ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def until_interrupted() -> Iterator[None]:
    """Ends its block, without an error, at Ctrl-C or at SIGTERM, by which schedulers and containers end a process."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
