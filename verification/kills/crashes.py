"""Jobs, and what operators do, killed with SIGKILL at random moments: the log is the old or the new one, and the next
run finishes the work.

By hand: python -m verification.kills crashes --trials 50
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import TopicExistsError, UnknownTopicError
from spark_segments.maintenance import compact, restore, retain, roll, vacuum, verify
from spark_segments.storage import Storage, WriteStream
from verification.world.kafka_side import KafkaSide
from verification.world.opened import DeltaLog
from verification.world.small_limits import small_limits
from verification.world.topics import contents, records

JOBS = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}
IMPORT = "import"  # the only action of several commits
PARTITIONS = 2
APPENDS = 12 * PARTITIONS  # the version after them
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


def import_again(log: LogDir) -> None:
    with small_limits(IMPORT_WAVE_BYTES=500):  # several commits
        log.import_kafka(str(Path(log.uri).parent / "kafka"))


def delete(log: LogDir) -> None:
    with contextlib.suppress(UnknownTopicError):  # done before
        log.delete_topic("orders")


def create_again(log: LogDir) -> None:
    with contextlib.suppress(TopicExistsError):  # done before
        log.create_topic("orders", PARTITIONS, CONFIG)


ACTIONS: dict[str, Callable[[LogDir], object]] = {
    IMPORT: import_again,
    "restore": lambda log: restore(log, topics=["orders"], version=APPENDS, forget_transactions=True),
    "delete-records": lambda log: log.topic("orders").delete_records({0: 33, 1: -1}),
    "alter": lambda log: log.topic("orders").alter({"cleanup.policy": "compact", "retention.ms": None}, PARTITIONS + 1),
    "delete": delete,
    "create-again": create_again,
}


def prepare(directory: Path, name: str) -> LogDir:
    """A log with work for one job or action."""
    log = LogDir.create(str(directory))
    if name == IMPORT:
        prepare_import(log)
        return log
    log.create_topic("orders", PARTITIONS, CONFIG | POLICIES.get(name, {}))
    append_turns(log)
    if name != "roll":
        roll(log)
    if name in ("restore", "create-again"):
        log.topic("orders").alter({"retention.bytes": "8000"})
        retain(log)
        append_turns(log)
    if name == "create-again":
        log.delete_topic("orders")
    return log


def prepare_import(log: LogDir) -> None:
    """A partition that was imported and compacted; its Kafka side has grown and has been cleaned since."""
    kafka = KafkaSide(Path(log.uri).parent / "kafka")
    for is_imported in (False, True):
        for number in range(24):
            kafka.append([(b"key-%d" % (one * number % 7), one % 4 > 0) for one in range(5)])
            if number % 6 == 5:
                kafka.roll()
        if not is_imported:
            log.import_kafka(kafka.write(), config=CONFIG | {"cleanup.policy": "compact"})
            roll(log)
            assert not compact(log).failed
    kafka.clean(merge=False)
    kafka.write()


def append_turns(log: LogDir) -> None:
    for turn in range(12):
        for partition in range(PARTITIONS):
            table = records(10, first=turn * 10, time_ms=log.storage.now_ms(), partitions=[partition])
            log.topic("orders").append(table)


def clock(log: LogDir, job: str) -> int:
    """The time by which a job works: vacuum comes when what rolling replaced may go."""
    return log.storage.now_ms() + (DELAY_MS + 60_000 if job == "vacuum" else 0)


def do(uri: str, name: str) -> None:
    """Runs a job, or does an action, as it was done before."""
    log = LogDir.open(uri)
    if name in ACTIONS:
        ACTIONS[name](log)
    else:
        assert not JOBS[name](log, now_ms=clock(log, name)).failed


class Countdown:
    """Kills this process a moment after so many writes, deletions and commits have begun; counts them at least."""

    def __init__(self, fatal: int | None, delay_seconds: float) -> None:
        self.begun = 0
        self._fatal = fatal
        self._delay_seconds = delay_seconds
        for owner, name in (
            (Storage, "stream"),
            (Storage, "delete"),
            (WriteStream, "close"),
            (DeltaLog, "commit_on"),
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
    with small_limits(ROLL_WAVE_PARTITIONS=1, SEGMENTS_A_WAVE=20, SEGMENTS_A_TASK=3):
        countdown = Countdown(fatal, delay_seconds)
        do(uri, job)
    Path(count).write_text(str(countdown.begun))


def run(directory: Path, trials: int, *, jobs: tuple[str, ...] = (*JOBS, *ACTIONS), seed: int = 1) -> dict[str, Any]:
    """Kills each job and action so many times. Raises AssertionError where the log is not as it has to be then."""
    random_ = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["verification.kills.crashes"])
    count = directory / "count"
    figures: dict[str, Any] = {}
    for job in jobs:
        before = state_of(prepare(directory / job, job))
        whole = shutil.copytree(directory / job, directory / f"{job}-whole")
        assert run_process(context, run_counted, (str(whole), job, None, 0, str(count))) == 0
        moments = int(count.read_text())
        after = state_of(LogDir.open(str(whole)))
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


def state_of(log: LogDir) -> tuple[dict[tuple[str, int, int], dict], dict[str, tuple]]:
    """Every record by (topic, partition, offset); and what else tells a log after an action from one before it."""
    records = {(topic, one["partition"], one["offset"]): one for topic in log.topics() for one in contents(log, topic)}
    return records, {topic: (log.topic(topic).offsets(), log.topic(topic).snapshot.config) for topic in log.topics()}


def check(log: LogDir, job: str, before: tuple, after: tuple) -> str:
    """What the killed job left, and what the next run makes of it. Returns how far the killed one had got."""
    report = verify(log, deep=True)
    assert report.errors == 0, report.findings
    left = state_of(log)
    if job in ACTIONS and job != IMPORT:
        assert left in (before, after), "it was done, or it was not"
    for at in before[0].keys() | after[0].keys() | left[0].keys():
        one, other = before[0].get(at), after[0].get(at)
        assert left[0].get(at) in (one, other), "every record is as it was, or as it is to be"
    stage = "nothing left to do" if is_done(log, job, after) else "work left"
    do(log.uri, job)
    assert state_of(log) == after
    report = verify(log, deep=True)
    assert report.ok or job != "vacuum", report.findings
    assert report.errors == 0, report.findings
    assert is_done(log, job, after), "the next run finishes the work"
    if job == "vacuum":
        named = {
            path
            for segment in (row for number in range(PARTITIONS) for row in log.topic("orders").snapshot.live_of(number))
            for path in (segment.path, segment.index_path, segment.time_index_path)
        }
        files = {file.path for number in range(PARTITIONS) for file in log.storage.list(f"orders-{number}")}
        assert files == named
    return stage


def is_done(log: LogDir, job: str, after: tuple) -> bool:
    if job in ACTIONS:
        return state_of(log) == after
    report = JOBS[job](log, now_ms=clock(log, job), dry_run=True)
    return not [line for line in report.partitions if line["action"] == job]
