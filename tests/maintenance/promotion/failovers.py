"""Failovers to and fro while a writer appends; promotions, demotions and mirrors are killed with SIGKILL at random.

By hand: python -m tests.maintenance failovers --trials 50
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import NotLeaderError
from spark_segments.maintenance import roll
from tests.maintenance.crashes import Countdown
from tests.maintenance.promotion.copies import (
    TOPIC,
    add,
    assert_equal,
    demote_topic,
    epochs,
    in_step,
    numbers,
    promote_topic,
)

# After so many writes, deletions and commits a step is killed, at the latest: what it does, it begins anew each time.
MOMENTS = 12
# What the writer may send beside a step, however slow that is: a mirror takes each number by itself.
NUMBERS = 20
LATER_MS = 3_600_000


def write(places: tuple[str, str], acknowledged: str, stop: Any, may_send: Any) -> None:
    """A writer: sends each number, as a transaction, until either place has taken it, and notes that it was told so."""
    logs = [LogDir.open(place) for place in places]
    number, has_leave = 0, False
    with Path(acknowledged).open("w") as notes:
        while not stop.is_set():
            has_leave = has_leave or may_send.acquire(timeout=0.1)
            if not has_leave:
                continue
            if not any(_is_taken(log, number) for log in logs):
                time.sleep(0.01)  # a promotion is under way
                continue
            notes.write(f"{number}\n")
            notes.flush()
            number, has_leave = number + 1, False


def _is_taken(log: LogDir, number: int) -> bool:
    try:
        add(log, [number], txn=("writer", number))
    except NotLeaderError:
        return False
    return True


def step(name: str, old: str, new: str, fatal: int | None, delay_seconds: float) -> None:
    """A process that kills itself, a moment after so many writes, deletions and commits have begun."""
    Countdown(fatal, delay_seconds)
    there, here = LogDir.open(old), LogDir.open(new)
    if name == "promote":
        promote_topic(here, TOPIC, old)
    elif name == "demote":
        demote_topic(there, TOPIC, here)
    else:
        in_step(here, there)


def run(directory: Path, trials: int, *, seed: int = 1) -> dict[str, Any]:
    """Kills so many processes. Raises AssertionError where a number that was acknowledged is not there once."""
    random_ = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.maintenance.promotion.failovers"])
    old, new = (LogDir.create(str(directory / name)) for name in ("one", "other"))
    old.create_topic(TOPIC, 1, {"retention.ms": "-1", "segment.ms": str(LATER_MS)})
    in_step(old, new)
    stop, may_send = context.Event(), context.Semaphore(NUMBERS)
    acknowledged = directory / "acknowledged"
    writer = context.Process(target=write, args=((old.uri, new.uri), str(acknowledged), stop, may_send))
    writer.start()
    killed: Counter[str] = Counter()
    failovers = 0
    try:
        while killed.total() < trials:
            for name in ("promote", "demote", "mirror"):
                killed[name] += _until_done(context, random_, name, (old.uri, new.uri), may_send)
            _roll(new)
            old, new = new, old
            failovers += 1
            assert writer.is_alive()
    finally:
        stop.set()
        writer.join()
    in_step(old, new)  # names as after the last exchange: `old` leads
    told = [int(line) for line in acknowledged.read_text().splitlines()]
    found = numbers(old)
    assert told == [*range(len(told))]
    assert found[: len(told)] == told and len(found) - len(told) in (0, 1), "each number is there once, in its order"
    assert_equal(old, new)
    leaders = [epoch for epoch, _ in epochs(old)]
    assert leaders == sorted({*leaders}) and leaders[-1] == failovers
    return {"seed": seed, "failovers": failovers, "kills": killed.total(), "killed": dict(killed), "numbers": len(told)}


def _until_done(context: Any, random_: random.Random, name: str, places: tuple[str, str], may_send: Any) -> int:
    """Runs a step again and again until it was not killed. Returns how often it was."""
    kills = 0
    while True:
        fatal = random_.randint(1, MOMENTS * 2**kills) if random_.random() < 0.7 else None
        delay_seconds = random_.choice([0, random_.uniform(0, 0.05)])
        process = context.Process(target=step, args=(name, *places, fatal, delay_seconds))
        process.start()
        for _ in range(NUMBERS):
            may_send.release()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL), f"{name} failed"
        if process.exitcode == 0:
            return kills
        kills += 1


def _roll(log: LogDir) -> None:
    report = roll(log, now_ms=log.storage.now_ms() + 2 * LATER_MS)
    assert not report.failed, report.failed
