"""Two writers, every job, a second compaction and a reader on one log, killed at random moments and started again.

By hand: python -m tests.maintenance restarts --trials 50
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import CommitConflictError
from spark_segments.log.manifest.rows import segments_of
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import compact, retain, roll, vacuum
from tests.maintenance.appending import DAY_MS
from tests.maintenance.crashes import Countdown
from tests.maintenance.soak import by_partition, raise_failures

JOBS = {"roll": roll, "retain": retain, "compact": compact, "compact-too": compact, "vacuum": vacuum}
WRITERS = ("writer-a", "writer-b")
# After so many writes, deletions and commits a process is killed, at the latest: those with less to do die earlier.
LIVES = {"writer-a": 150, "writer-b": 150, "roll": 60, "retain": 8, "compact": 150, "compact-too": 150, "vacuum": 200}
PARTITIONS = 2
KEYS = 23
DELETE_RETENTION_MS = 500
COMMON = {
    "segment.bytes": "3000",
    "compression.type": "uncompressed",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "file.delete.delay.ms": "60000",  # longer than any read
    "retention.ms": "-1",
}
TOPICS = {
    "latest": COMMON | {"cleanup.policy": "compact"},
    "trimmed": COMMON | {"cleanup.policy": "compact,delete", "retention.bytes": "8000"},
}
# A small map: cleaning takes several rounds, and may be killed between two.
DEFAULTS = {"log.cleaner.dedupe.buffer.size": str(24 * 40)}


@dataclass(frozen=True)
class Append:
    """One append of a writer. Its first record has a key of its own, so it says for ever where the append lies."""

    writer: str
    transaction: int
    topic: str
    partition: int
    count: int

    @property
    def own_key(self) -> bytes:
        return f"{self.writer} {self.transaction}".encode()

    def records(self) -> list[tuple[bytes, bytes | None]]:
        """(key, value) of each record; some are tombstones."""
        found: list[tuple[bytes, bytes | None]] = [(self.own_key, b"first")]
        for number in range(1, self.count):
            mixed = (self.transaction * 31 + number) * 7919
            value = f"{self.writer} {self.transaction} {number}".encode().ljust(20 + mixed % 100, b".")
            found.append((b"key-%d" % (mixed % KEYS), None if mixed % 11 == 3 else value))
        return found

    def table(self) -> pa.Table:
        keys, values = zip(*self.records(), strict=True)
        return pa.table(
            {
                "key": pa.array(keys, pa.binary()),
                "value": pa.array(values, pa.binary()),
                "partition": pa.array([self.partition] * self.count, pa.int32()),
            }
        )


class Notes:
    """What one actor did, a line each. A process that was killed may have left half a line."""

    def __init__(self, path: Path) -> None:
        self.lines = read_notes(path)
        self._path = path
        self._line_end = "\n" if path.exists() and not path.read_bytes().endswith(b"\n") else ""

    def write(self, **what: Any) -> None:
        with self._path.open("a") as file:
            file.write(self._line_end + json.dumps(what) + "\n")
        self._line_end = ""
        self.lines.append(what)


def read_notes(path: Path) -> list[dict[str, Any]]:
    """The whole lines of an actor."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]


def act(uri: str, directory: str, name: str, seed: int) -> None:
    """What one process does until it is killed; an error that no actor may meet is noted, and ends it."""
    notes, random_ = Notes(Path(directory) / f"{name}.jsonl"), random.Random(f"{seed} {name}")
    if name in LIVES:
        Countdown(random_.randint(1, LIVES[name]), random_.choice([0, random_.uniform(0, 0.05)]))
    try:
        if name in WRITERS:
            write(uri, notes, name, random_)
        elif name in JOBS:
            run_job(uri, notes, name, random_)
        else:
            read(uri, notes)
    except Exception:
        notes.write(error=traceback.format_exc())
        raise


def write(uri: str, notes: Notes, writer: str, random_: random.Random) -> None:
    """Goes on where the process before it was killed: an append that was not confirmed is repeated as it was."""
    log = LogDir.open(uri)
    begun, pending = appends(notes.lines)
    transaction = len(begun)
    while True:
        if pending is None:
            where = random_.choice([*TOPICS]), random_.randrange(PARTITIONS)
            pending = Append(writer, transaction, *where, random_.randint(1, 60))
            notes.write(append=dataclasses.asdict(pending))
            transaction += 1
        if append(log, notes, pending, dies=random_.random() < 0.05):
            pending = None
        time.sleep(random_.uniform(0, 0.03))


def appends(lines: list[dict[str, Any]]) -> tuple[list[Append], Append | None]:
    """What a writer has begun, in order, and the last one of it unless that was confirmed."""
    begun = [Append(**line["append"]) for line in lines if "append" in line]
    confirmed = {line["confirmed"] for line in lines if "confirmed" in line}
    unconfirmed = [one for one in begun if one.transaction not in confirmed]
    assert unconfirmed in ([], begun[-1:]), "a writer goes on only after its append is confirmed"
    return begun, unconfirmed[0] if unconfirmed else None


def append(log: LogDir, notes: Notes, one: Append, *, dies: bool = False) -> bool:
    """Whether it was confirmed; `first` is its first offset, None where a process before had been told that.

    `dies`: once it is committed, and before anybody has heard of it.
    """
    try:
        found = log.append(one.topic, one.table(), txn=(one.writer, one.transaction))
    except CommitConflictError:
        return False
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    notes.write(confirmed=one.transaction, first=found[one.partition][0] if found else None)
    return True


def run_job(uri: str, notes: Notes, name: str, random_: random.Random) -> None:
    log = LogDir.open(uri, defaults=DEFAULTS)
    while True:
        try:
            report = JOBS[name](log)
            raise_failures(report)
        except CommitConflictError:
            notes.write(conflict=1)
        else:
            lost = sum("lost" in line["action"] for line in report.partitions)
            notes.write(done=1, work=len(report.partitions) - lost, lost=lost)
        time.sleep(random_.uniform(0, 0.02))


def read(uri: str, notes: Notes) -> None:
    """Reads all there is, over and over: offsets rise, ends do not go back, and nothing comes back that was gone."""
    log = LogDir.open(uri)
    before: dict[tuple[str, int], tuple[int, int, dict[int, tuple]]] = {}
    while True:
        for topic in TOPICS:
            bounds = log.offsets(topic)
            there = by_partition(log, topic)
            for partition, (start, end) in bounds.items():
                offsets = [offset for offset, _, _ in there[partition]]
                assert offsets == sorted(set(offsets)), "offsets rise"
                found = {offset: (key, value) for offset, key, value in there[partition]}
                start_before, end_before, found_before = before.get((topic, partition), (0, 0, {}))
                assert start >= start_before and end >= end_before, "bounds do not go back"
                old = {offset: record for offset, record in found.items() if offset < end_before}
                assert old.items() <= found_before.items(), "what is gone stays so"
                before[topic, partition] = start, end, found
        notes.write(done=1)


def run(directory: Path, trials: int, *, seed: int = 1) -> dict[str, Any]:
    """Has so many processes killed. Raises AssertionError where the log is not as it has to be then."""
    uri, notes = str(directory / "log"), directory / "notes"
    notes.mkdir()
    log = LogDir.create(uri)
    for topic, config in TOPICS.items():
        log.create_topic(topic, PARTITIONS, config)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.maintenance.restarts"])
    numbers = itertools.count(seed * 1000)

    def start(name: str) -> Any:
        process = context.Process(target=act, args=(uri, str(notes), name, next(numbers)))
        process.start()
        return process

    running = {name: start(name) for name in (*LIVES, "reader")}
    killed: Counter[str] = Counter()
    try:
        while killed.total() < trials:
            ended = wait([process.sentinel for process in running.values()], timeout=60)
            for name in [name for name, process in running.items() if process.sentinel in ended]:
                running[name].join()
                assert running[name].exitcode == -signal.SIGKILL, errors(notes)
                killed[name] += 1
                running[name] = start(name)
            assert ended, "nobody has anything to do"
    finally:
        for process in running.values():
            process.kill()
            process.join()
    assert not errors(notes), errors(notes)
    return check(log, notes) | {"killed": dict(killed)}


def errors(notes: Path) -> list[str]:
    return [line["error"] for path in notes.glob("*.jsonl") for line in read_notes(path) if "error" in line]


def check(log: LogDir, notes: Path) -> dict[str, Any]:
    """Compares what was appended with what is there: as the killed left it, and after a last run of every job."""
    begun: list[Append] = []
    firsts: dict[bytes, int] = {}
    for writer in WRITERS:
        noted = Notes(notes / f"{writer}.jsonl")
        _, pending = appends(noted.lines)
        if pending is not None:
            assert append(log, noted, pending)
        of_writer, _ = appends(noted.lines)
        begun += of_writer
        for one, line in zip(of_writer, (line for line in noted.lines if "confirmed" in line), strict=True):
            if line["first"] is not None:
                firsts[one.own_key] = line["first"]
    check_records(log, begun, firsts)
    report = verify(log, deep=True)
    assert report.errors == 0, report.findings[:3]
    orphans = left_behind(log)

    for turn in range(2):
        last = [
            Append("last", 2 * PARTITIONS * turn + number, topic, number % PARTITIONS, 1)
            for number, topic in enumerate(topic for topic in TOPICS for _ in range(PARTITIONS))
        ]
        for one in last:
            firsts[one.own_key] = log.append(one.topic, one.table())[one.partition][0]
        begun += last
        now_ms = log.storage.now_ms() + (8 + turn) * DAY_MS
        for job in (roll, retain, compact):
            raise_failures(job(log, now_ms=now_ms))
    check_records(log, begun, firsts, settled=True)
    for path in orphans:
        os.utime(Path(log.uri) / path, (0, 0))
    raise_failures(vacuum(log, now_ms=log.storage.now_ms() + 30 * DAY_MS))
    assert not left_behind(log)
    check_records(log, begun, firsts, settled=True)
    report = verify(log, deep=True)
    assert report.ok, report.findings[:3]
    lines = {path.stem: read_notes(path) for path in notes.glob("*.jsonl")}
    return {
        "appends": len(begun),
        "records": sum(one.count for one in begun),
        "repeated_appends": sum(line.get("first", 0) is None for writer in WRITERS for line in lines[writer]),
        "reads": sum("done" in line for line in lines["reader"]),
        "runs": {name: sum("done" in line for line in lines[name]) for name in JOBS},
        "partitions_done": {name: sum(line.get("work", 0) for line in lines[name]) for name in JOBS},
        "lost_races": sum(line.get("lost", 0) + line.get("conflict", 0) for one in lines.values() for line in one),
        "files_left_behind": len(orphans),
        "versions": {topic: log.snapshot(topic).version for topic in TOPICS},
    }


def left_behind(log: LogDir) -> list[str]:
    """Files of partitions that no row names."""
    named = set()
    for topic in TOPICS:
        for segment in segments_of(log.snapshot(topic).segments):
            named |= {segment.path, segment.index_path, segment.time_index_path}
    directories = [f"{topic}-{number}" for topic in TOPICS for number in range(PARTITIONS)]
    return [file.path for one in directories for file in log.storage.list(one) if file.path not in named]


def check_records(log: LogDir, begun: list[Append], firsts: dict[bytes, int], *, settled: bool = False) -> None:
    """Every append is there once, and of each key the newest. `settled`: nothing else, and no tombstone."""
    for topic in TOPICS:
        there = by_partition(log, topic)
        for partition, (start, end) in log.offsets(topic).items():
            found = {offset: (key, value) for offset, key, value in there[partition]}
            assert len(found) == len(there[partition]), "no offset is there twice"
            own = {key: offset for offset, (key, _) in found.items()}
            appended: dict[int, tuple[bytes, bytes | None]] = {}
            below_start = 0
            for one in (one for one in begun if (one.topic, one.partition) == (topic, partition)):
                first = firsts.get(one.own_key, own.get(one.own_key))
                if first is None:
                    below_start += one.count
                    continue
                assert own.get(one.own_key) == first or first < start, f"{one} is lost"
                placed = dict(enumerate(one.records(), start=first))
                assert not placed.keys() & appended.keys(), f"offsets of {one} were given out twice"
                appended |= placed
            assert len(appended) + below_start == end, "all offsets were given out, and no other"
            assert below_start <= start
            assert found.items() <= appended.items(), "what is there was appended so"
            newest = {appended[offset][0]: offset for offset in sorted(appended)}
            kept = {offset for offset in newest.values() if offset >= start and appended[offset][1] is not None}
            assert kept <= found.keys() and (not settled or found.keys() == kept)
