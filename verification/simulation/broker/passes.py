"""Passes of imports over a disk that changes, and the judge of what is here after each."""

from __future__ import annotations

import hashlib
import logging
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_segments import LogDir, execution
from spark_segments.errors import SegmentsError
from spark_segments.kafka import directory
from spark_segments.kafka.directory import committed_directory
from spark_segments.kafka.jobs import import_all
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.state.states import Hole
from spark_segments.maintenance import verify
from spark_segments.storage import Storage
from spark_segments.storage.filesystem import Found
from verification.simulation.broker.disk import PlayedDisk, PlayedPartition
from verification.simulation.environment import Inline, in_order
from verification.world.kafka_side import Record
from verification.world.manifest_rows import Snapshot
from verification.world.opened import LocalFiles

QUIET_PASSES = 20
"""After so many passes nothing changes during one: it takes all, and the next one takes nothing."""

Place = tuple[str, int]


class ViolationError(Exception):
    """Something is here that must not be, or is not here that must be."""


class KilledError(BaseException):
    """The reader's process dies."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a seed came to. `trace`: a hash of all events."""

    seed: int
    passes: int
    seconds: float
    trace: str
    violation: str | None
    counts: Counter[str]


class PlayedFiles(LocalFiles):
    """The reader's file system: before each call the broker may do something, or the reader may die."""

    def __init__(self, disk: PlayedDisk, chance: random.Random, counts: Counter[str]) -> None:
        super().__init__()
        self.disk, self.chance, self.counts = disk, chance, counts
        self.rate = self.deaths = 0.0
        self.trace = hashlib.sha256()

    def between(self) -> None:
        """What happens before a call."""
        while self.chance.random() < self.rate:
            event = self.disk.step()
            self.counts[event] += 1
            self.trace.update(event.encode())
        if self.chance.random() < self.deaths:
            self.counts["reader killed"] += 1
            raise KilledError

    def read(self, path: str, offset: int, length: int | None) -> Any:
        self.between()
        return super().read(path, offset, length)

    def size(self, path: str) -> int:
        self.between()
        return super().size(path)

    def exists(self, path: str) -> bool:
        self.between()
        return super().exists(path)

    def list(self, path: str, recursive: bool) -> Found:
        self.between()
        return super().list(path, recursive)


@dataclass
class Run:
    """A seed's run. `ends`: where each partition here ended after the pass before."""

    seed: int
    root: Path
    counts: Counter[str] = field(default_factory=Counter)
    ends: dict[Place, int] = field(default_factory=dict)
    starts: dict[Place, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.chance = random.Random(f"broker {self.seed}")
        self.disk = PlayedDisk(self.root / "kafka", self.chance)
        self.files = PlayedFiles(self.disk, self.chance, self.counts)
        self.log = LogDir.create(str(self.root / "log"))
        # Some seeds change a file between nearly any two calls, some a few in a pass.
        self.rate = 0.5 ** self.chance.uniform(0.3, 5)

    def run(self, passes: int) -> None:
        """Raises ViolationError."""
        for number in range(1, passes + 1):
            for _ in range(self.chance.randrange(60)):
                self.disk.step()
            if number % QUIET_PASSES == 0:
                self._quiet()
            else:
                self._pass(self.rate, self.chance.choice([0.0, 0.0, 0.02]))

    def _pass(self, rate: float, deaths: float) -> list[dict[str, Any]]:
        storage = Storage(str(self.disk.root), filesystem=self.files)
        log = self.log
        self.files.rate, self.files.deaths = rate, deaths
        done: list[dict[str, Any]] = []
        try:
            source = committed_directory(storage)
            report = import_all(source, log, source.topics())
            done = report.partitions
            self.counts["records copied"] += report.records_in
            self.counts["left"] += len(report.failed)
            self.counts["holes"] += len(report.details["holes"])
        except KilledError:
            pass
        except SegmentsError as error:
            raise ViolationError(f"a pass fails: {error}") from error
        finally:
            self.files.rate = self.files.deaths = 0.0
        self.counts["passes"] += 1
        snapshots = {topic: self.log.topic(topic).snapshot for topic in self.log.topics()}
        for place, partition in self.disk.partitions.items():
            if place[0] in snapshots:
                self._judge(place, partition, snapshots[place[0]])
        return done

    def _quiet(self) -> None:
        self.disk.settle()
        self._pass(0.0, 0.0)
        for place, partition in self.disk.partitions.items():
            if self.ends.get(place, 0) != partition.high_watermark:
                raise ViolationError(f"{place} ends at {self.ends.get(place)}, not {partition.high_watermark}")
        if any(one["segments"] for one in self._pass(0.0, 0.0)):
            raise ViolationError("a pass with nothing to do copies segments")
        report = verify(self.log, deep=True)
        if report.errors:
            raise ViolationError(
                f"verify finds {next(one for one in report.findings if one.severity == Findings.ERROR)}"
            )

    def _judge(self, place: Place, partition: PlayedPartition, snapshot: Snapshot) -> None:
        number = place[1]
        start, end = snapshot.offset_bounds()[number]
        before, self.ends[place] = self.ends.get(place), end
        if end > partition.high_watermark:
            raise ViolationError(f"{place} ends at {end}, above the high watermark {partition.high_watermark}")
        if start > partition.log_start_offset or start < self.starts.get(place, 0):
            raise ViolationError(f"{place} starts at {start}, Kafka's log at {partition.log_start_offset}")
        self.starts[place] = start
        found = [hole for hole in Hole.of(snapshot.states) if hole.partition == number]
        holes = {offset for hole in found for offset in range(hole.start_offset, hole.end_offset)}
        if before is not None and not set(range(before, start)) <= holes:
            raise ViolationError(f"{place} went from {before} to {start} without a hole")
        if any(offset >= partition.log_start_offset for offset in holes):
            raise ViolationError(f"{place} has holes {found} that are there in Kafka's log")
        wanted = {at: record for at, record in partition.history.items() if start <= at < end}
        records = self._read(place, "read_uncommitted")
        if partition.is_compacted:
            self._judge_keys(place, partition, wanted, records)
        elif records != {at: record for at, record in wanted.items() if at not in holes}:
            raise ViolationError(f"{place} holds {_difference(records, wanted)}")
        if partition.has_transactions:
            committed = self._read(place, "read_committed")
            must, may = partition.readable(end)
            expected = {at: record for at, record in may.items() if at in committed or at in must}
            expected = {at: record for at, record in expected.items() if at >= start and at not in holes}
            if committed != expected:
                raise ViolationError(f"readers of committed records of {place} see {_difference(committed, expected)}")
        self.counts["records compared"] += len(records)

    def _judge_keys(
        self, place: Place, partition: PlayedPartition, wanted: dict[int, Record], records: dict[int, Record]
    ) -> None:
        """What is here is what was written, and of each key the newest value, if no newer one is known to be above."""
        if any(wanted.get(at) != record for at, record in records.items()):
            raise ViolationError(f"{place} holds {_difference(records, wanted)}")
        newest = {key: at for at, (key, _) in sorted(partition.history.items()) if at < partition.high_watermark}
        for key, at in newest.items():
            if at in wanted and at not in records and wanted[at][1] is not None:
                raise ViolationError(f"{place} lacks the newest value of {key!r}, at offset {at}")

    def _read(self, place: Place, isolation_level: str) -> dict[int, Record]:
        topic, number = place
        return {
            row["offset"]: (row["key"], row["value"])
            for batch in self.log.topic(topic).scan(partition=number, isolation=isolation_level).batches()
            for row in batch.select(["offset", "key", "value"]).to_pylist()
        }


def _difference(found: dict[int, Record], expected: dict[int, Record]) -> str:
    at = min(offset for offset in found.keys() | expected.keys() if found.get(offset) != expected.get(offset))
    return f"{found.get(at)} at offset {at}, not {expected.get(at)}"


@contextmanager
def one_thread() -> Iterator[None]:
    """The reader's tasks run one after the other, so that a seed has the same events every time."""
    places = [(directory, "ThreadPoolExecutor", Inline), (execution, "ThreadPoolExecutor", Inline)]
    places.append((execution, "as_completed", in_order))
    before = [ThreadPoolExecutor, ThreadPoolExecutor, as_completed]
    try:
        for module, name, stand_in in places:
            setattr(module, name, stand_in)
        yield
    finally:
        for (module, name, _), real in zip(places, before, strict=True):
            setattr(module, name, real)


def run(seed: int, passes: int) -> Outcome:
    """The run of a seed."""
    logger = logging.getLogger("spark_segments")
    level = logger.level
    logger.setLevel(logging.ERROR)  # recovery says what it leaves out, as it must
    started = time.monotonic()
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="played-broker-", dir=memory if memory.is_dir() else None))
    played = Run(seed, root)
    violation = None
    try:
        with one_thread():
            played.run(passes)
    except ViolationError as error:
        violation = str(error)
    finally:
        shutil.rmtree(root)
        logger.setLevel(level)
    seconds = round(time.monotonic() - started, 1)
    return Outcome(
        seed, played.counts["passes"], seconds, played.files.trace.hexdigest()[:12], violation, played.counts
    )
