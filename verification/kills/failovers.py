"""Failovers while a writer appends, each to a copy in a new directory; promotions and mirrors are killed with SIGKILL
at random.

By hand: python -m verification.kills failovers --trials 50
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
from spark_segments.errors import LogDirError, NotLeaderError, UnknownTopicError
from spark_segments.maintenance import roll
from verification.kills.crashes import Countdown
from verification.world.promoted_copies import (
    TOPIC,
    add,
    assert_equal,
    epochs,
    followed,
    in_step,
    numbers,
    promote_topic,
)

# After so many writes, deletions and commits a step is killed, at the latest: what it does, it begins anew each time.
MOMENTS = 12
# What the writer may send beside a step, however slow that is: a mirror takes each number by itself.
NUMBERS = 20
LATER_MS = 3_600_000


def write(directory: str, acknowledged: str, stop: Any, may_send: Any) -> None:
    """A writer: sends each number, as a transaction, until a place has taken it, and notes that it was told so."""
    number, has_leave = 0, False
    with Path(acknowledged).open("w") as notes:
        while not stop.is_set():
            has_leave = has_leave or may_send.acquire(timeout=0.1)
            if not has_leave:
                continue
            if not any(_is_taken(place, number) for place in sorted(Path(directory).glob("place-*"))[-2:]):
                time.sleep(0.01)  # a promotion is under way
                continue
            notes.write(f"{number}\n")
            notes.flush()
            number, has_leave = number + 1, False


def _is_taken(place: Path, number: int) -> bool:
    try:
        add(LogDir.open(str(place)), [number], txn=("writer", number))
    except (NotLeaderError, LogDirError, UnknownTopicError):  # it leads no more, or not yet
        return False
    return True


def step(name: str, old: str, new: str, fatal: int | None, delay_seconds: float) -> None:
    """A process that kills itself, a moment after so many writes, deletions and commits have begun."""
    Countdown(fatal, delay_seconds)
    if name == "promote":
        promote_topic(LogDir.open(new), TOPIC, old)
    else:
        in_step(LogDir.open(old), LogDir.create(new))


def run(directory: Path, trials: int, *, seed: int = 1) -> dict[str, Any]:
    """Kills so many processes. Raises AssertionError where a number that was acknowledged is not there once."""
    random_ = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["verification.kills.failovers"])
    leader = LogDir.create(str(directory / "place-0000"))
    leader.create_topic(TOPIC, 1, {"retention.ms": "-1", "segment.ms": str(LATER_MS)})
    stop, may_send = context.Event(), context.Semaphore(NUMBERS)
    acknowledged = directory / "acknowledged"
    writer = context.Process(target=write, args=(str(directory), str(acknowledged), stop, may_send))
    writer.start()
    killed: Counter[str] = Counter()
    failovers = 0
    try:
        while killed.total() < trials:
            failovers += 1
            places = leader.uri, str(directory / f"place-{failovers:04}")
            for name in ("mirror", "promote"):
                killed[name] += _until_done(context, random_, name, places, may_send)
            leader = LogDir.open(places[1])
            _roll(leader)
            assert writer.is_alive()
    finally:
        stop.set()
        writer.join()
    told = [int(line) for line in acknowledged.read_text().splitlines()]
    found = numbers(leader)
    assert told == [*range(len(told))]
    assert found[: len(told)] == told and len(found) - len(told) in (0, 1), "each number is there once, in its order"
    assert_equal(leader, followed(leader, "last"))
    leaders = [epoch for epoch, _ in epochs(leader)]
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
