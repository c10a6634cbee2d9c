"""Writers, readers and jobs of a long run, each a process that may be killed and begun again at any moment."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    InvalidRecordError,
    MissingFileError,
    TransactionOrderError,
    UnknownTopicError,
)
from spark_segments.maintenance import Report, compact, retain, roll, vacuum
from verification.kills.crashes import Countdown
from verification.long_runs.journal import Journal, Notes
from verification.long_runs.operators import create, import_again, operate
from verification.long_runs.scenario import DEFAULTS, PARTITIONS, TOPICS, WRITERS, WRITTEN, Append, Record, digest

JOBS = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}
# After so many writes, deletions and commits a process is killed, at the latest: those with less to do die earlier.
LIVES = {"writer": 500, "roll": 80, "retain": 10, "compact": 200, "vacuum": 250, "operator": 120, "importer": 200}
ACTORS = (*WRITERS, "reader", "operator", "importer", *(f"{job}-{number}" for job in JOBS for number in (1, 2)))


@dataclass(frozen=True)
class Run:
    """What all processes know. They end by themselves once `end` was called.

    `delay_ms`: file.delete.delay.ms, in which a reader has to be done. `dies`: whether processes kill themselves.
    """

    uri: str
    directory: str
    seed: int
    delay_ms: int
    dies: bool

    def notes(self, actor: str) -> Notes:
        return Notes(Path(self.directory) / f"{actor}.jsonl")

    def is_on(self) -> bool:
        return not self._ended.exists()

    def end(self) -> None:
        self._ended.touch()

    @property
    def _ended(self) -> Path:
        return Path(self.directory) / "ended"


def act(run: Run, actor: str, life: int) -> None:
    """What one process does, for the `life`th time; an error that no actor may meet is noted, and ends it."""
    notes, random_ = run.notes(actor), random.Random(f"{run.seed} {actor} {life}")
    kind = actor.split("-")[0]
    journal = Journal(notes)
    if run.dies and kind in LIVES:
        Countdown(random_.randint(1, LIVES[kind]), random_.choice([0, random_.uniform(0, 0.05)]))
    try:
        if kind == "writer":
            write(run, notes, journal, actor, random_)
        elif kind == "reader":
            read(run, notes, random_)
        elif kind == "creator":
            for topic in WRITTEN:
                create(run, LogDir.open(run.uri), topic, journal)
        elif kind == "operator":
            operate(run, notes, journal, random_)
        elif kind == "importer":
            import_again(run, notes, journal, random_)
        else:
            run_job(run, notes, journal, kind, random_)
    except Exception:
        notes.write(error=traceback.format_exc())
        raise


def write(run: Run, notes: Notes, journal: Journal, writer: str, random_: random.Random) -> None:
    """Goes on where the process before it was killed: an append that was not answered is repeated as it was.

    Now and then an append that was answered is sent again: nothing may come of it while the topic remembers it, and one
    below the last is refused.
    """
    log = LogDir.open(run.uri)
    begun, pending = appends(notes.lines)
    transaction = len(begun)
    while run.is_on():
        if pending is None and begun and random_.random() < 0.15:
            repeated = random_.choice(begun[-8:])
            append(run, log, notes, journal, repeated, again=True)
            continue
        if pending is None:
            pending = Append(
                writer,
                transaction,
                random_.choice([*WRITTEN]),
                random_.randrange(PARTITIONS),
                random_.randint(1, 40),
                time.time_ns() // 1_000_000,
                random_.random() < 0.05,
            )
            notes.write(append=dataclasses.asdict(pending))
            begun.append(pending)
            transaction += 1
        if append(run, log, notes, journal, pending, dies=run.dies and random_.random() < 0.02):
            pending = None
        time.sleep(random_.uniform(0, 0.05))


def appends(lines: list[dict[str, Any]]) -> tuple[list[Append], Append | None]:
    """What a writer has begun, in order, and the last one of it unless that was answered."""
    begun = [Append(**line["append"]) for line in lines if "append" in line]
    answered = {line["answered"] for line in lines if "answered" in line}
    open_ = [one for one in begun if one.transaction not in answered]
    assert open_ in ([], begun[-1:]), "a writer goes on only after its append is answered"
    return begun, open_[0] if open_ else None


def append(
    run: Run,
    log: LogDir,
    notes: Notes,
    journal: Journal,
    one: Append,
    *,
    again: bool = False,
    dies: bool = False,
) -> bool:
    """Whether it was answered. `first` is its first offset, None where it had been committed before.

    `dies`: once it is committed, and before anybody has heard of it.
    """
    journal.intent = {"append": dataclasses.asdict(one)}
    started_ms = time.time_ns() // 1_000_000
    try:
        found = log.topic(one.topic).append(one.table(), txn=(one.writer, one.transaction))
    except (CommitConflictError, UnknownTopicError) as error:
        notes.write(lost=type(error).__name__)
        time.sleep(0.1)
        return False
    except (InvalidRecordError, TransactionOrderError) as error:
        assert again if isinstance(error, TransactionOrderError) else one.has_null_key
        notes.write(answered=one.transaction, topic=one.topic, refused=True)
        return True
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    notes.write(
        answered=one.transaction,
        topic=one.topic,
        first=found[one.partition][0] if found else None,
        again=again,
        between_ms=[started_ms, time.time_ns() // 1_000_000],
    )
    return True


def read(run: Run, notes: Notes, random_: random.Random) -> None:
    """Reads versions of topics, new ones and again those that it had read, while their files must be there."""
    log = LogDir.open(run.uri)
    pinned: list[tuple[str, int, float]] = []
    while run.is_on():
        pinned = [one for one in pinned if time.monotonic() - one[2] < run.delay_ms / 2000]
        if pinned and random_.random() < 0.4:
            topic, version, since = random_.choice(pinned)
        else:
            topic, since = random_.choice(TOPICS), time.monotonic()
            try:
                version = log.topic(topic).snapshot.version
            except UnknownTopicError:
                continue
            pinned.append((topic, version, since))
        try:
            notes.write(topic=topic, version=version, saw=view(log, topic, version))
        except (MissingFileError, InvalidOptionError) as error:
            # The version may have been superseded at the moment when it was read first.
            if (time.monotonic() - since) * 1000 < run.delay_ms:
                raise
            notes.write(late=str(error))


def view(log: LogDir, topic: str, version: int | None = None) -> dict[int, dict[str, Any]]:
    """{partition: its bounds, the offsets of its records, a checksum of these}, as a version of a topic has them."""
    snapshot = log.topic(topic, version).snapshot
    found: dict[int, list[tuple[int, Record]]] = {number: [] for number in range(snapshot.partitions.num_rows)}
    columns = ["partition", "offset", "key", "value", "timestamp"]
    for batch in log.topic(topic, version=snapshot.version).scan(columns=columns).batches():
        times = pa.compute.divide(batch.column("timestamp").cast(pa.int64()), 1000).to_pylist()
        rows = (batch.column(name).to_pylist() for name in columns[:4])
        for number, offset, key, value, time_ms in zip(*rows, times, strict=True):
            found[number].append((offset, Record(key, value, time_ms)))
    rows = snapshot.partitions.select(["partition", "log_start_offset", "log_end_offset"]).to_pylist()
    for row in rows:
        segments = [(one.base_offset, one.next_offset) for one in snapshot.live_of(row["partition"])]
        apart = all(one[1] <= other[0] for one, other in itertools.pairwise(segments))
        assert apart, f"segments of version {snapshot.version} overlap: {segments}"
    return {
        row["partition"]: {
            "bounds": [row["log_start_offset"], row["log_end_offset"]],
            "offsets": [offset for offset, _ in found[row["partition"]]],
            "digest": digest(found[row["partition"]]),
        }
        for row in rows
    }


def run_job(run: Run, notes: Notes, journal: Journal, name: str, random_: random.Random) -> None:
    """Runs one job over and over."""
    log = LogDir.open(run.uri, defaults=DEFAULTS)
    job: Callable[..., Report] = JOBS[name]
    while run.is_on():
        now_ms = log.storage.now_ms()
        journal.intent = {"now_ms": now_ms}
        started = time.monotonic()
        try:
            report = job(log, now_ms=now_ms)
        except CommitConflictError:
            notes.write(lost="CommitConflictError")
            continue
        lost = sum("lost" in line["action"] for line in report.partitions)
        late = (time.monotonic() - started) * 1000 > run.delay_ms
        for line in report.failed:
            if "came first" in line["error"] or late:
                lost += 1
            else:
                raise AssertionError(line["error"])
        notes.write(done=name, work=len(report.partitions) - lost, races_lost=lost)
        time.sleep(random_.uniform(0, 0.1))
