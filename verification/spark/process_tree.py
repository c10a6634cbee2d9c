"""The processes below a process, from /proc: so that a test ends a part of Spark by its id."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """{process id: command line} of all processes below `pid` that run now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found: dict[int, str] = {}
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below} - found.keys()
        found |= {child: _command(child) for child in below}
    return found


def send(pids: list[int], number: signal.Signals) -> None:
    """Sends a signal to each process that still runs."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _command(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
