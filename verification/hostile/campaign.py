"""Runs millions of inputs in child processes and sums up. A child that crashes or hangs is a failure of its input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verification.hostile.child import (
    DONE,
    FAILED,
    NOW,
    PEAK_KIB,
    READY,
    REFUSED,
    SLOWEST_INPUT,
    SLOWEST_US,
    Share,
    state_of,
)
from verification.hostile.targets import TARGETS

INPUTS_A_CHILD = 25_000
HANG_SECONDS = 300.0
"""How long a child may be at one input by the wall clock. A busy machine may stop a process for seconds."""

START_SECONDS = 300.0
"""How long a child may take to start."""

ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class TargetFigures:
    """What became of a target's inputs. `slowest_ms`: CPU time of the slowest, whose number is `slowest_input`."""

    inputs: int = 0
    refused: int = 0
    failed: int = 0
    crashed: int = 0
    hung: int = 0
    slowest_ms: float = 0.0
    slowest_input: int = 0
    peak_mib: int = 0
    seconds: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)


def run(
    inputs: int, seed: int, targets: Sequence[str] = (), processes: int = 1, note: Callable[[dict[str, Any]], None] = id
) -> dict[str, Any]:
    """Runs about `inputs` inputs, shared out over the targets by their weights, and returns the figures.

    `note` gets the figures so far, whenever a child has ended.
    """
    chosen = list(targets) or list(TARGETS)
    total = sum(TARGETS[name][0] for name in chosen)
    figures = {name: TargetFigures() for name in chosen}
    shares = []
    for name in chosen:
        count = max(1, round(inputs * TARGETS[name][0] / total))
        shares += [
            Share(name, seed, first, min(INPUTS_A_CHILD, count - first)) for first in range(0, count, INPUTS_A_CHILD)
        ]
    lock, started = threading.Lock(), time.monotonic()

    def run_share(share: Share) -> None:
        _run_share(share, figures[share.target], lock)
        with lock:
            note(_summary(seed, figures, time.monotonic() - started))

    # Shares of all targets from the first on: what fails shows early.
    shares.sort(key=lambda share: share.first)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run_share, shares))
    return _summary(seed, figures, time.monotonic() - started)


def _summary(seed: int, figures: Mapping[str, TargetFigures], seconds: float) -> dict[str, Any]:
    found = {name: {at: getattr(one, at) for at in one.__slots__ if at != "failures"} for name, one in figures.items()}
    return {
        "seed": seed,
        "inputs": sum(one.inputs for one in figures.values()),
        "refused": sum(one.refused for one in figures.values()),
        "failed": sum(one.failed + one.crashed + one.hung for one in figures.values()),
        "seconds": round(seconds, 1),
        "targets": found,
        "failures": [failure for one in figures.values() for failure in one.failures],
    }


def _run_share(share: Share, figures: TargetFigures, lock: threading.Lock) -> None:
    """Runs a share, with a new child behind each input that ended one."""
    started = time.monotonic()
    first, end = share.first, share.first + share.count
    while first < end:
        first = _run_child(Share(share.target, share.seed, first, end - first), figures, lock)
    with lock:
        figures.seconds = round(figures.seconds + time.monotonic() - started, 1)


def _run_child(share: Share, figures: TargetFigures, lock: threading.Lock) -> int:
    """Runs a child and returns the number of the first input that it did not reach."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "state")
        state = state_of(path, new=True)
        arguments = [share.target, str(share.seed), str(share.first), str(share.count), str(path)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "ARROW_DEFAULT_MEMORY_POOL": "system", "TMPDIR": directory}
        with open(Path(directory, "out"), "w+b") as out, open(Path(directory, "err"), "w+b") as err:
            child = subprocess.Popen(
                [sys.executable, "-m", "verification.hostile.child", *arguments],
                stdout=out,
                stderr=err,
                env=environment,
                cwd=ROOT,
            )
            hung = _watch(child, state)
            out.seek(0)
            err.seek(0)
            output, errors = out.read(), err.read().decode("utf-8", "replace")
        ended = child.returncode == 0 and not hung
        number = int(state[NOW])
        with lock:
            _add(figures, state)
            if ended:
                figures.failures += json.loads(output)
                return share.first + share.count
            if not state[READY]:
                raise RuntimeError(f"The target {share.target} does not start: {errors[-2000:]}")
            figures.inputs += 1
            figures.crashed += not hung
            figures.hung += hung
            problem = f"no end after {HANG_SECONDS:.0f} s" if hung else f"exit code {child.returncode}: {errors[-600:]}"
            figures.failures.append({"target": share.target, "seed": share.seed, "input": number, "problem": problem})
            return number + 1


def _add(figures: TargetFigures, state: Any) -> None:
    figures.inputs += int(state[DONE])
    figures.refused += int(state[REFUSED])
    figures.failed += int(state[FAILED])
    if state[SLOWEST_US] > 1000 * figures.slowest_ms:
        figures.slowest_ms, figures.slowest_input = round(int(state[SLOWEST_US]) / 1000, 1), int(state[SLOWEST_INPUT])
    figures.peak_mib = max(figures.peak_mib, int(state[PEAK_KIB]) >> 10)


def _watch(child: subprocess.Popen[bytes], state: Any) -> bool:
    """Waits for the child. Returns whether it hung, and was ended."""
    seen, since = (-1, -1), time.monotonic()
    while child.poll() is None:
        time.sleep(0.05)
        now = (int(state[DONE]), int(state[READY]))
        if now != seen:
            seen, since = now, time.monotonic()
        if time.monotonic() - since > (HANG_SECONDS if now[1] else START_SECONDS):
            child.kill()
            child.wait()
            return True
    return False
