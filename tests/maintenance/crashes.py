"""Jobs killed with SIGKILL at random moments: the log is the old or the new one, and the next run finishes the work.

By hand: python -m tests.maintenance crashes --trials 50
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.log.manifest.delta_rs import DeltaRsLog
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import compact, retain, roll, vacuum
from spark_segments.storage import Storage, WriteStream
from tests.maintenance.appending import contents, records

JOBS = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}
PARTITIONS = 2
DELAY_MS = 60_000
CONFIG = {
    "segment.bytes": "4000",
    "compression.type": "uncompressed",
    "retention.ms": "-1",
    "file.delete.delay.ms": str(DELAY_MS),
    "min.cleanable.dirty.ratio": "0.01",
}
POLICIES = {
    "roll": {},
    "retain": {"retention.bytes": "8000"},
    "compact": {"cleanup.policy": "compact"},
    "vacuum": {},
}


def prepare(directory: Path, job: str) -> LogDir:
    """A log with work for one job."""
    log = LogDir.create(str(directory))
    log.create_topic("orders", PARTITIONS, CONFIG | POLICIES[job])
    for turn in range(12):
        for partition in range(PARTITIONS):
            table = records(10, first=turn * 10, time_ms=log.storage.now_ms())
            log.append("orders", table.append_column("partition", pa.array([partition] * 10, pa.int32())))
    if job != "roll":
        roll(log)
    return log


def clock(log: LogDir, job: str) -> int:
    """The time by which a job works: vacuum comes when what rolling replaced may go."""
    return log.storage.now_ms() + (DELAY_MS + 60_000 if job == "vacuum" else 0)


def run_job(uri: str, job: str) -> None:
    log = LogDir.open(uri)
    assert not JOBS[job](log, now_ms=clock(log, job)).failed


class Countdown:
    """Kills this process a moment after so many writes, deletions and commits have begun; counts them at least."""

    def __init__(self, fatal: int | None, delay_seconds: float) -> None:
        self.begun = 0
        self._fatal = fatal
        self._delay_seconds = delay_seconds
        for owner, name in (
            (Storage, "create"),
            (Storage, "delete"),
            (WriteStream, "close"),
            (DeltaRsLog, "commit_on"),
        ):
            self._count(owner, name)

    def _count(self, owner: type, name: str) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            self.begun += 1
            if self.begun == self._fatal:
                # From a thread: delta-rs lets go of the interpreter's lock, so it may die in the middle of a commit.
                threading.Thread(target=self._die, daemon=True).start()
            return original(*arguments, **options)

        setattr(owner, name, counted)

    def _die(self) -> None:
        time.sleep(self._delay_seconds)
        os.kill(os.getpid(), signal.SIGKILL)


def run_counted(uri: str, job: str, fatal: int | None, delay_seconds: float, count: str) -> None:
    """What a process does that is to be killed, or to write down how often it might be."""
    # Small waves, so that there is much to be interrupted.
    modules = (
        sys.modules["spark_segments.maintenance.rolling.roll"],
        sys.modules["spark_segments.maintenance.removal.vacuum"],
    )
    modules[0].WAVE_PARTITIONS, modules[1].SEGMENTS_A_WAVE, modules[1].SEGMENTS_A_TASK = 1, 20, 3
    countdown = Countdown(fatal, delay_seconds)
    run_job(uri, job)
    Path(count).write_text(str(countdown.begun))


def run(directory: Path, trials: int, *, jobs: tuple[str, ...] = tuple(JOBS), seed: int = 1) -> dict[str, Any]:
    """Kills each job so many times. Raises AssertionError where the log is not as it has to be afterwards."""
    random_ = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.maintenance.crashes"])
    count = directory / "count"
    figures: dict[str, Any] = {}
    for job in jobs:
        before = by_offset(prepare(directory / job, job))
        whole = shutil.copytree(directory / job, directory / f"{job}-whole")
        assert run_process(context, run_counted, (str(whole), job, None, 0, str(count))) == 0
        moments = int(count.read_text())
        after = by_offset(LogDir.open(str(whole)))
        found: Counter[str] = Counter()
        while found.total() - found["done before"] < trials:
            one = shutil.copytree(directory / job, directory / f"{job}-{found.total()}")
            fatal, delay_seconds = random_.randint(1, moments), random_.choice([0, random_.uniform(0, 0.02)])
            code = run_process(context, run_counted, (str(one), job, fatal, delay_seconds, str(count)))
            assert code in (0, -signal.SIGKILL)
            found[check(LogDir.open(str(one)), job, before, after) if code else "done before"] += 1
            shutil.rmtree(one)
        figures[job] = {"moments": moments, "killed": trials, **found}
    return figures


def run_process(context: Any, target: Any, arguments: tuple) -> int:
    """The exit code of a process that does this."""
    process = context.Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def by_offset(log: LogDir) -> dict[tuple[int, int], dict]:
    return {(one["partition"], one["offset"]): one for one in contents(log, "orders")}


def check(log: LogDir, job: str, before: dict, after: dict) -> str:
    """What the killed job left, and what the next run makes of it. Returns how far the killed one had got."""
    report = verify(log, deep=True)
    assert report.errors == 0, report.findings
    left = by_offset(log)
    assert all(before[at] == record for at, record in left.items())
    assert left.keys() >= after.keys()
    stage = "nothing left to do" if is_done(log, job) else "work left"
    run_job(log.uri, job)
    assert by_offset(log) == after
    report = verify(log, deep=True)
    assert report.ok or job != "vacuum", report.findings
    assert report.errors == 0, report.findings
    assert is_done(log, job), "the next run finishes the work"
    if job == "vacuum":
        named = {
            path
            for segment in (row for number in range(PARTITIONS) for row in log.snapshot("orders").live_of(number))
            for path in (segment.path, segment.index_path, segment.time_index_path)
        }
        files = {file.path for number in range(PARTITIONS) for file in log.storage.list(f"orders-{number}")}
        assert files == named
    return stage


def is_done(log: LogDir, job: str) -> bool:
    report = JOBS[job](log, now_ms=clock(log, job), dry_run=True)
    return not [line for line in report.partitions if line["action"] == job]
