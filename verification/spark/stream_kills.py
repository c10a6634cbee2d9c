"""python -m verification.spark.stream_kills [--kills 60] [--seed S] [--modes plain,foreach,connect,cluster,second]: a
query copies a topic to a topic and is killed at random moments, while a writer appends and all jobs run; in the end
both topics hold the same records.

In each mode a part of the kills goes to drivers (Python and JVM), the rest to Python workers or executors. In the mode
second a driver is stopped instead, another takes over, and then the first goes on.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.maintenance import compact, retain, roll, vacuum
from verification.spark.process_tree import descendants, send
from verification.spark.topic_to_topic import MODES, MOST_OFFSETS
from verification.world.checkout import ROOT

PARTITIONS = 3
# A batch that is sent again reads from where it began: retention must not have been there.
TRAILING_OFFSETS = 3 * MOST_OFFSETS
SETTINGS = {
    "segment.bytes": "40000",
    "cleanup.policy": "compact,delete",  # keys are unique: compaction runs and may lose nothing
    "min.cleanable.dirty.ratio": "0.01",
    "file.delete.delay.ms": "120000",
}
# The writer waits for the query there, which would else never reach the end.
MOST_AHEAD = 10 * MOST_OFFSETS
# A look takes a fifth of a second, and on a machine that is busy as much longer as all else does.
MOST_LOOKS = 1500


class Background:
    """A writer that appends numbered records, and the jobs, each in a thread until the block ends."""

    def __init__(self, uri: str, seed: int) -> None:
        self._uri, self._random = uri, random.Random(seed)
        self._ended = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._write, self._maintain)]
        self.written = [0] * PARTITIONS
        self.jobs = 0

    def __enter__(self) -> Background:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        """Raises what ended a thread."""
        if self._failures:
            raise self._failures[0]

    def _run(self, work: object) -> None:
        log = LogDir.open(self._uri)
        try:
            while not self._ended.wait(self._random.uniform(0.05, 0.4)):
                work(log)  # type: ignore[operator]
        except BaseException as error:  # the main thread's to raise
            self._failures.append(error)

    def _write(self, log: LogDir) -> None:
        if sum(self.written) - sum(end for _, end in log.topic("sink").offsets().values()) > MOST_AHEAD:
            return
        counts = [self._random.randrange(40) for _ in range(PARTITIONS)]
        rows = [
            (partition, self.written[partition] + number)
            for partition, count in enumerate(counts)
            for number in range(count)
        ]
        columns = {
            "key": [f"{partition}-{number}" for partition, number in rows],
            "value": [str(number) for _, number in rows],
            "partition": pa.array([partition for partition, _ in rows], pa.int32()),
        }
        log.topic("source").append(pa.table(columns))
        for partition, count in enumerate(counts):
            self.written[partition] += count

    def _maintain(self, log: LogDir) -> None:
        job = self._random.choice([roll, roll, compact, retain, vacuum, _trail])
        job(log)
        self.jobs += 1


def _trail(log: LogDir) -> None:
    """Deletes records that the sink has had for a while, as a retention does that trails the query."""
    starts = {number: start for number, (start, _) in log.topic("source").offsets().items()}
    before = {number: end - TRAILING_OFFSETS for number, (_, end) in log.topic("sink").offsets().items()}
    log.topic("source").delete_records({number: offset for number, offset in before.items() if offset > starts[number]})


class Driver:
    """A process that runs the query, with all that Spark starts below it."""

    def __init__(self, directory: Path, mode: str, environment: Mapping[str, str]) -> None:
        self._mode = mode
        module = "verification.spark.topic_to_topic"
        command = [sys.executable, "-m", module, str(directory / "log"), str(directory / "checkpoint"), mode]
        with (directory / "drivers.txt").open("ab") as said:
            self._process = subprocess.Popen(
                command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=said, start_new_session=True
            )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the driver, its JVM, and what they started."""
        send([*descendants(self._process.pid), self._process.pid], number)

    def kill(self) -> None:
        """Kills the Python driver and the JVM, or both with everything below them."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def kill_a_part(self, choose: random.Random) -> str | None:
        """Kills a Python worker, or an executor; None where there is none at the moment."""
        below = descendants(self._process.pid)
        executors = [pid for pid, command in below.items() if "CoarseGrainedExecutorBackend" in command]
        workers = [pid for pid, command in below.items() if "pyspark" in command and "java" not in command]
        kind, pids = ("executor", executors) if executors and choose.random() < 0.5 else ("worker", workers)
        if not pids:
            return None
        send([choose.choice(pids)], signal.SIGKILL)
        return kind


def killed_and_ended(directory: Path, mode: str, kills: int, seed: int, environment: Mapping[str, str]) -> Counter[str]:
    """What was killed, by kind, until so many processes were. Raises AssertionError where the topics differ at the end,
    or the query came to a standstill.
    """
    choose = random.Random(seed)
    log = LogDir.create(str(directory / "log"))
    for topic in ("source", "sink"):
        log.create_topic(topic, partitions=PARTITIONS, config=SETTINGS)
    killed: Counter[str] = Counter()
    with Background(log.uri, seed) as background:
        driver = Driver(directory, mode, environment)
        try:
            while sum(killed.values()) < kills:
                if not driver.runs:
                    driver = Driver(directory, mode, environment)
                if choose.random() < 0.15:  # also while it starts
                    time.sleep(choose.uniform(0, 8))
                else:
                    _wait_for_progress(log, driver, background, directory)
                    time.sleep(choose.uniform(0, 2))
                if mode == "second":
                    driver = _second_driver(log, driver, background, directory, environment, choose)
                    killed["driver that was stopped and went on"] += 1
                elif choose.random() < 0.4 or (kind := driver.kill_a_part(choose)) is None:
                    driver.kill()
                    killed["driver"] += 1
                else:
                    killed[kind] += 1
        finally:
            if driver.runs:
                driver.kill()
    module = "verification.spark.topic_to_topic"
    command = [sys.executable, "-m", module, log.uri, str(directory / "checkpoint"), mode, "--end"]
    subprocess.run(command, env=dict(environment), check=True, capture_output=True)
    assert_same(log, background.written)  # as the writer left it: it appended until it had ended
    return killed


def assert_same(log: LogDir, written: list[int]) -> None:
    """The sink holds every record that was written once, in order within its partition, as the source still has it."""
    assert {number: end for number, (_, end) in log.topic("source").offsets().items()} == dict(enumerate(written))
    columns = ["offset", "key", "value", "timestamp"]
    for partition, count in enumerate(written):
        found = [
            row
            for batch in log.topic("sink").scan(partition=partition, columns=columns).batches()
            for row in batch.to_pylist()
        ]
        assert [int(row["value"]) for row in found] == list(range(count)), f"sink-{partition}"
        rest = [
            row
            for batch in log.topic("source").scan(partition=partition, columns=columns).batches()
            for row in batch.to_pylist()
        ]
        assert rest == found[count - len(rest) :], f"source-{partition}"


def _second_driver(
    log: LogDir,
    first: Driver,
    background: Background,
    directory: Path,
    environment: Mapping[str, str],
    choose: random.Random,
) -> Driver:
    """Stops a driver wherever it is, lets another take over, and then lets the first go on beside it for a while."""
    first.signal(signal.SIGSTOP)
    second = Driver(directory, "second", environment)
    try:
        _wait_for_progress(log, second, background, directory)
        first.signal(signal.SIGCONT)
        time.sleep(choose.uniform(1, 4))
    finally:
        first.signal(signal.SIGCONT)
        first.kill()
    return second


def _wait_for_progress(log: LogDir, driver: Driver, background: Background, directory: Path) -> None:
    before = log.topic("sink").offsets()
    for _ in range(MOST_LOOKS):
        if log.topic("sink").offsets() != before:
            return
        background.check()
        said = (directory / "drivers.txt").read_text(errors="replace")
        assert driver.runs, f"the driver ended: {said[-3000:]}"
        time.sleep(0.2)
    raise AssertionError(f"the query stands still: {said[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills a query that copies a topic to a topic.")
    parser.add_argument("--kills", type=int, default=60, help="in all modes together")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--modes", default=",".join(MODES))
    arguments = parser.parse_args()
    modes = arguments.modes.split(",")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = os.environ | {"PYTHONPATH": path}
    for number, mode in enumerate(modes):
        kills = arguments.kills * (number + 1) // len(modes) - arguments.kills * number // len(modes)
        with tempfile.TemporaryDirectory() as directory:
            begun = time.monotonic()
            killed = killed_and_ended(Path(directory), mode, kills, arguments.seed, environment)
            log = LogDir.open(f"{directory}/log")
            records = sum(end for _, end in log.topic("sink").offsets().values())
            said = ", ".join(f"{count} {kind}" for kind, count in sorted(killed.items()))
            print(
                f"{mode}: killed {said} in {time.monotonic() - begun:.0f} s (seed {arguments.seed}): {records} "
                f"records, each in the sink once and in order, in {log.topic('sink').snapshot.version} versions; "
                f"queries ended by {_errors(Path(directory) / 'drivers.txt')}",
                flush=True,
            )


def _errors(said: Path) -> str:
    """The innermost errors of queries that ended, with how often."""
    ends = [line for line in said.read_text(errors="replace").splitlines() if line.startswith("ended: ")]
    names = Counter(
        (re.findall(r"\b\w+(?:Error|Exception)\b", line) or ["no error that has a name"])[-1] for line in ends
    )
    return ", ".join(f"{name} {count}" for name, count in names.most_common()) or "none"


if __name__ == "__main__":
    main()
