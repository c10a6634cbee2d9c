"""Processes that append and roll on a disk whose power is cut: what they acknowledged must be there afterwards."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from spark_segments import LogDir
from spark_segments.errors import SegmentsError
from spark_segments.maintenance import roll, vacuum, verify
from verification.durability.disk import Disk
from verification.world.clock import PATIENCE_SECONDS

TOPIC = "orders"
BEGUN = "begun\n"
PARTITIONS = 2
FORCED = {"flush.messages": "1"}
_CONFIG = {"segment.bytes": "4000", "file.delete.delay.ms": "0", "retention.ms": "-1"}
_MONTH_MS = 30 * 24 * 3_600_000

Record = tuple[int, int, str]
"""(partition, offset, value)."""


@dataclass
class Worker:
    """A process on the disk. `lines`: what it has acknowledged, a line each."""

    process: subprocess.Popen
    lines: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line)

    def stop(self) -> None:
        """Stops it where it is. Returns once it has stopped."""
        os.kill(self.process.pid, signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"the process ended: {status}"

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@dataclass
class Judged:
    """How many power losses there were, how many acknowledged records were looked for, and what was wrong."""

    losses: int = 0
    acknowledged: int = 0
    wrong: Counter[str] = field(default_factory=Counter)


def run(directory: Path, losses: int, *, config: dict[str, str], seed: int = 1, appenders: int = 2) -> Judged:
    """Cuts the power `losses` times. Each time, the disk with nothing and the disk with some luck are looked at."""
    draw = random.Random(seed)
    disk = Disk.make(directory)
    uri = str(disk.root / "log")
    start = [sys.executable, "-m", "verification.durability.run"]
    environment = disk.environment()
    subprocess.run([*start, "create", uri, json.dumps(_CONFIG | config)], env=environment, check=True)
    roles = [*(["append", str(number)] for number in range(appenders)), ["jobs", "0"]]
    workers = [
        Worker(subprocess.Popen([*start, role, uri, number], env=environment, stdout=subprocess.PIPE, text=True))
        for role, number in roles
    ]
    judged, acknowledged = Judged(), set()
    try:
        for worker in workers:
            while (line := worker.lines.get(timeout=PATIENCE_SECONDS)) != BEGUN:
                acknowledged |= _records(line)
        while judged.losses < losses:
            time.sleep(draw.uniform(0, 0.25))
            for worker in workers:
                worker.stop()
            time.sleep(0.02)  # the thread that reads the pipes takes what was written before
            for worker in workers:
                while not worker.lines.empty():
                    acknowledged |= _records(worker.lines.get())
            for luck in (None, draw):
                image = directory / "image"
                disk.after_power_loss(image, luck)
                _judge(judged, image / "log", acknowledged)
                shutil.rmtree(image)
            for worker in workers:
                worker.go_on()
    finally:
        for worker in workers:
            worker.kill()
    return judged


def _records(line: str) -> set[Record]:
    return {tuple(record) for record in json.loads(line)}


def _judge(judged: Judged, image: Path, acknowledged: set[Record]) -> None:
    judged.losses += 1
    judged.acknowledged = len(acknowledged)
    try:
        log = LogDir.open(str(image))
        there = {
            (record["partition"], record["offset"], record["value"].decode())
            for batch in log.topic(TOPIC).scan().batches()
            for record in batch.to_pylist()
        }
        report = verify(log, deep=True)
        appended = log.topic(TOPIC).append([{"value": "after", "partition": 0}])[0][0]
    except (SegmentsError, FileNotFoundError) as error:
        judged.wrong[f"it cannot be used: {type(error).__name__}"] += 1
        return
    if acknowledged - there:
        judged.wrong["acknowledged records are lost"] += 1
    if report.errors:
        judged.wrong["verify finds errors"] += 1
    if any(partition == 0 and offset >= appended for partition, offset, _ in acknowledged):
        judged.wrong["an acknowledged offset is given out again"] += 1


def append(uri: str, number: int) -> None:
    """Appends for ever, and says what was acknowledged."""
    log = LogDir.open(uri)
    draw, turn = random.Random(number), 0
    while True:
        partition = draw.randrange(PARTITIONS)
        values = [f"{number}-{turn}-{one}" for one in range(draw.randint(1, 20))]
        rows = [{"value": value, "partition": partition} for value in values]
        first, _ = log.topic(TOPIC).append(rows, txn=(f"appender-{number}", turn))[partition]
        print(json.dumps([(partition, first + at, value) for at, value in enumerate(values)]), flush=True)
        turn += 1
        if turn == 1:  # the kernels are there
            print(BEGUN, end="", flush=True)


def jobs(uri: str) -> None:
    """Rolls and vacuums for ever: what was appended lies in other files soon, and the first ones are deleted."""
    log = LogDir.open(uri)
    while True:
        roll(log, now_ms=log.storage.now_ms() + _MONTH_MS)
        vacuum(log, now_ms=log.storage.now_ms() + 1000)


def main() -> None:
    role, uri, argument = sys.argv[1:]
    if role == "create":
        log = LogDir.create(uri)
        log.create_topic(TOPIC, PARTITIONS, json.loads(argument))
        log.storage.force(file.path for file in log.storage.list(recursive=True))  # so that what comes later is lost
        return
    if role == "append":
        append(uri, int(argument))
    else:
        print(BEGUN, end="", flush=True)
        jobs(uri)


if __name__ == "__main__":
    main()
