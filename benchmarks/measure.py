"""What all benchmarks share: running things in turns, medians, the machine they ran on, and how results are printed.

A benchmark's result is `{"figures": {name: number}, "ratios": {name: number}}`. Figures are what one thing did (names
end in their unit), ratios compare two things of the same run.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TURNS = 5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one call of each case, one number a turn."""

    seconds: dict[str, list[float]]

    def median(self, name: str) -> float:
        """Median seconds of a call."""
        return statistics.median(self.seconds[name])

    def rate(self, name: str, amount: float) -> float:
        """`amount` a second, in the median."""
        return amount / self.median(name)

    def speed_up(self, name: str, other: str) -> float:
        """How many times as fast `name` is as `other`: the median of the turns' own ratios.

        What else the machine does hits both of a turn.
        """
        turns = zip(self.seconds[name], self.seconds[other], strict=True)
        return statistics.median(theirs / ours for ours, theirs in turns)


def in_turns(
    cases: Mapping[str, Callable[[], object]], *, turns: int = TURNS, warm_turns: int = 1, least_seconds: float = 0.0
) -> Timings:
    """Runs all cases one after the other, `turns` times over, after `warm_turns` that do not count.

    A case is called again within its turn until `least_seconds` have passed; what counts is the mean of the calls.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(-warm_turns, turns):
        for name, run in cases.items():
            one = _seconds_of_a_call(run, least_seconds)
            if turn >= 0:
                seconds[name].append(one)
    return Timings(seconds)


def _seconds_of_a_call(run: Callable[[], object], least_seconds: float) -> float:
    calls = 0
    started = time.perf_counter()
    while True:
        run()
        calls += 1
        passed = time.perf_counter() - started
        if passed >= least_seconds:
            return passed / calls


def children_seconds() -> float:
    """CPU time of all processes that this one has waited for: what a busy machine does not lengthen much."""
    times = os.times()
    return times.children_user + times.children_system


def cpu_seconds() -> float:
    """CPU time of this process and, to the tick of the system, of all below it: Spark starts a JVM, and that a Python
    process for each thing it asks.
    """
    return time.process_time() + children_seconds() + sum(map(_seconds_of, _below(os.getpid())))


def _below(process: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found: list[int] = []
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended since
            found += map(int, children.read_text().split())
    return found + [below for child in found for below in _below(child)]


def _seconds_of(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended since
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS  # with the processes that it waited for


def machine() -> dict[str, Any]:
    """What the figures were measured on, and how busy it was by then."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu": _first_value("/proc/cpuinfo", "model name") or platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def _first_value(path: str, name: str) -> str | None:
    """The value of the first `name: value` line of a file of /proc."""
    if not os.path.exists(path):
        return None
    lines = Path(path).read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def show(result: Mapping[str, Any], output: str) -> None:
    """Prints a result, as `json` (one line) or as `text`."""
    if output == "json":
        print(json.dumps(result))
    else:
        _show_text(result, 0)


def _show_text(value: Mapping[str, Any], indent: int) -> None:
    width = max((len(name) for name in value), default=0)
    for name, one in value.items():
        if isinstance(one, Mapping):
            print(f"{'  ' * indent}{name}:")
            _show_text(one, indent + 1)
        else:
            print(
                f"{'  ' * indent}{name:{width}}  {one:g}"
                if isinstance(one, float)
                else f"{'  ' * indent}{name:{width}}  {one}"
            )
