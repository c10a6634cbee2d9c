"""Two of every job, two writers and a reader at once on one log; afterwards, whether anything is lost or doubled.

By hand: python -m tests.maintenance soak --seconds 120
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import CommitConflictError
from spark_segments.log.verification.verify import verify
from spark_segments.maintenance import Report, compact, retain, roll, vacuum

JOBS = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}
PARTITIONS = 2
KEYS = 23
COMMON = {"segment.bytes": "6000", "segment.ms": "2000", "compression.type": "uncompressed", "retention.ms": "-1"}
TOPICS = {
    "kept": COMMON,
    "trimmed": COMMON | {"retention.bytes": "20000"},
    "latest": COMMON
    | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "1000"},
}


@dataclass(frozen=True)
class Soak:
    """What all processes know. `delay_ms`: file.delete.delay.ms, in which a reader has to be done."""

    uri: str
    notes: str
    seconds: float
    delay_ms: int
    seed: int

    def note(self, actor: str) -> _Notes:
        return _Notes(Path(self.notes) / f"{actor}.jsonl", time.monotonic() + self.seconds)


class _Notes:
    """What one process did, a line each, so that nothing is lost with the process."""

    def __init__(self, path: Path, deadline: float) -> None:
        self._file = path.open("a")
        self._deadline = deadline

    def is_time_left(self) -> bool:
        return time.monotonic() < self._deadline

    def write(self, **what: Any) -> None:
        self._file.write(json.dumps(what) + "\n")
        self._file.flush()

    def attempt(self, work: Callable[[], object]) -> None:
        """Does something; what it raises is noted, a lost race by itself."""
        started = time.monotonic()
        try:
            work()
        except CommitConflictError as error:
            self.write(conflict=str(error))
        except Exception:
            self.write(error=traceback.format_exc())
        else:
            self.write(done=round(time.monotonic() - started, 3))


def value_of(writer: str, number: int) -> bytes | None:
    """The value that a writer gives its record of that number; some are tombstones."""
    return None if number % 11 == 3 else f"{writer} {number} ".encode().ljust(20 + number % 100, b".")


def key_of(number: int) -> bytes:
    return b"key-%d" % (number * 7919 % KEYS)


def write(soak: Soak, writer: str) -> None:
    """Appends to one partition after the other, each time with a transaction, and now and then the same twice."""
    log, notes, random_ = LogDir.open(soak.uri), soak.note(writer), random.Random(f"{soak.seed} {writer}")
    number, transaction = 0, 0
    while notes.is_time_left():
        topic, partition, count = random_.choice([*TOPICS]), random_.randrange(PARTITIONS), random_.randint(1, 30)
        numbers = range(number, number + count)
        records = pa.table(
            {
                "key": pa.array([key_of(one) for one in numbers], pa.binary()),
                "value": pa.array([value_of(writer, one) for one in numbers], pa.binary()),
                "partition": pa.array([partition] * count, pa.int32()),
            }
        )
        found: dict[int, tuple[int, int]] = {}

        def append(
            topic: str = topic, records: pa.Table = records, found: dict = found, transaction=transaction
        ) -> None:
            found.update(log.append(topic, records, txn=(writer, transaction)))

        while not found:
            notes.attempt(append)
        [(where, (first, last))] = found.items()
        notes.write(topic=topic, partition=where, first=first, last=last, number=number)
        if random_.random() < 0.1:
            again = log.append(topic, records, txn=(writer, transaction))
            notes.write(**({"error": f"appended twice: {again}"} if again else {"repeated": transaction}))
        number, transaction = number + count, transaction + 1
        time.sleep(random_.uniform(0, 0.05))


def read(soak: Soak) -> None:
    """Reads topics from end to end: offsets rise, without gaps where nothing is compacted, and nothing goes back."""
    log, notes, random_ = LogDir.open(soak.uri), soak.note("reader"), random.Random(f"{soak.seed} reader")
    ends: Counter[tuple[str, int]] = Counter()
    while notes.is_time_left():
        topic = random_.choice([*TOPICS])

        def check(topic: str = topic) -> None:
            bounds = log.offsets(topic)
            found = by_partition(log, topic)
            for partition in range(PARTITIONS):
                offsets = [offset for offset, _, _ in found[partition]]
                assert offsets == sorted(set(offsets)), "offsets rise"
                if topic != "latest":
                    assert not offsets or offsets == list(range(offsets[0], offsets[-1] + 1)), "no gaps"
                assert (offsets[-1] if offsets else -1) >= bounds[partition][1] - 1 or topic == "latest"
                assert bounds[partition][1] >= ends[topic, partition], "the log end does not go back"
                ends[topic, partition] = bounds[partition][1]

        notes.attempt(check)


def by_partition(log: LogDir, topic: str) -> dict[int, list[tuple[int, bytes, bytes | None]]]:
    """{partition: [(offset, key, value)]} in the order read."""
    found: dict[int, list[tuple[int, bytes, bytes | None]]] = defaultdict(list)
    for batch in log.read(topic, columns=["partition", "offset", "key", "value"]):
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found[row[0]].append(row[1:])
    return found


def run_job(soak: Soak, name: str, actor: str) -> None:
    """Runs one job over and over."""
    log, notes, random_ = LogDir.open(soak.uri), soak.note(actor), random.Random(f"{soak.seed} {actor}")
    while notes.is_time_left():
        notes.attempt(lambda: raise_failures(JOBS[name](log)))
        time.sleep(random_.uniform(0, 0.1))


def raise_failures(report: Report) -> None:
    """Raises the first error of a job's report, as a lost race where it was one."""
    for line in report.failed:
        raise (CommitConflictError if "came first" in line["error"] else AssertionError)(line["error"])


def run(directory: Path, seconds: float, *, delay_ms: int = 10_000, seed: int = 1) -> dict[str, Any]:
    """Runs everything for so many seconds and then looks what is there. Raises AssertionError where that is wrong."""
    soak = Soak(str(directory / "log"), str(directory / "notes"), seconds, delay_ms, seed)
    Path(soak.notes).mkdir()
    log = LogDir.create(soak.uri)
    for topic, config in TOPICS.items():
        log.create_topic(topic, PARTITIONS, {**config, "file.delete.delay.ms": str(delay_ms)})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.maintenance.soak"])
    actors = [
        *(context.Process(target=write, args=(soak, writer)) for writer in ("writer-a", "writer-b")),
        context.Process(target=read, args=(soak,)),
        *(context.Process(target=run_job, args=(soak, name, f"{name}-{n}")) for name in JOBS for n in (1, 2)),
    ]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    assert [actor.exitcode for actor in actors] == [0] * len(actors)
    return check(log, soak)


def check(log: LogDir, soak: Soak) -> dict[str, Any]:
    """Compares what was appended with what is there, and has the log verified."""
    notes = {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()]
        for path in Path(soak.notes).glob("*.jsonl")
    }
    errors = [f"{actor}: {line['error']}" for actor, lines in notes.items() for line in lines if "error" in line]
    assert not errors, errors[:3]
    appended = {topic: appended_to(notes, topic) for topic in TOPICS}
    before = {topic: check_topic(log, topic, appended[topic]) for topic in TOPICS}
    for job in (roll, retain, compact, vacuum):
        raise_failures(job(log))
    raise_failures(vacuum(log, now_ms=log.storage.now_ms() + soak.delay_ms + 1))
    for topic in TOPICS:
        check_topic(log, topic, appended[topic])
    report = verify(log, deep=True)
    assert report.ok, report.findings[:3]
    return {
        "seconds": soak.seconds,
        "records_appended": sum(len(offsets) for of_topic in appended.values() for offsets in of_topic.values()),
        "records_there": sum(before.values()),
        "appends_repeated": sum("repeated" in line for lines in notes.values() for line in lines),
        "reads": sum("done" in line for line in notes["reader"]),
        "runs": {name: sum("done" in line for n in (1, 2) for line in notes[f"{name}-{n}"]) for name in JOBS},
        "conflicts": sum("conflict" in line for lines in notes.values() for line in lines),
        "versions": {topic: log.snapshot(topic).version for topic in TOPICS},
    }


def appended_to(notes: dict[str, list[dict]], topic: str) -> dict[int, dict[int, tuple[bytes, bytes | None]]]:
    """{partition: {offset: (key, value)}} as the writers were told; an offset that two were told is an error."""
    found: dict[int, dict[int, tuple[bytes, bytes | None]]] = {number: {} for number in range(PARTITIONS)}
    for writer in ("writer-a", "writer-b"):
        for line in notes[writer]:
            if line.get("topic") == topic:
                for number, offset in enumerate(range(line["first"], line["last"] + 1), start=line["number"]):
                    assert offset not in found[line["partition"]], f"{topic} {offset} was given out twice"
                    found[line["partition"]][offset] = (key_of(number), value_of(writer, number))
    return found


def check_topic(log: LogDir, topic: str, appended: dict[int, dict[int, tuple[bytes, bytes | None]]]) -> int:
    """Every record there was appended so, and every one that no policy took is there. Returns how many are there."""
    there = by_partition(log, topic)
    for partition, (start, end) in log.offsets(topic).items():
        expected, found = appended[partition], {offset: (key, value) for offset, key, value in there[partition]}
        assert len(found) == len(there[partition]), "no offset is there twice"
        assert sorted(expected) == list(range(end)), "all offsets were given out, and no other"
        assert all(expected[offset] == record for offset, record in found.items())
        kept = {offset for offset in expected if offset >= start}
        if topic == "latest":
            newest = {expected[offset][0]: offset for offset in sorted(kept)}
            assert {offset for offset in newest.values() if expected[offset][1] is not None} <= found.keys()
        else:
            assert found.keys() == kept
    return sum(map(len, there.values()))
