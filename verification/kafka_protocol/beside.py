"""python -m verification.kafka_protocol.beside --seconds N: readers of a served log directory that is written and
cleaned.

Processes append, 60 commits a second between them, to topics that retention shortens and to one that is compacted;
another rolls, retains, compacts and vacuums without pause. Ten of librdkafka's consumers read all of it from `segments
serve`. Each record says its topic, partition and offset. A reader must get them in order; pass over offsets only that
retention took, or compaction; and hold the newest value of each key of the compacted topic when it has come to the end.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from spark_segments import LogDir
from spark_segments.maintenance import compact, retain, roll, vacuum

_PARTITIONS = 2
_KEYS = 50
_COMPACTED = "compacted"
_ROWS = 20  # of an append
_CATCH_UP_SECONDS = 120


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.beside", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--readers", type=int, default=10)
    parser.add_argument("--writers", type=int, default=4, help="processes, each with a topic of its own")
    parser.add_argument("--commits", type=float, default=60.0, help="a second, of all writers")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(f"{directory}/log")
        topics = [_COMPACTED, *(f"events-{number}" for number in range(1, arguments.writers))]
        for topic in topics:
            policy = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
            if topic != _COMPACTED:
                policy = {"cleanup.policy": "delete", "retention.bytes": "200000"}
            log.create_topic(topic, _PARTITIONS, {"segment.bytes": "65536", "segment.ms": "5000", **policy})
        errors = Path(directory, "errors")
        with errors.open("wb") as file:
            command = [
                sys.executable,
                "-X",
                "faulthandler",
                "-m",
                "spark_segments",
                "serve",
                log.uri,
                "--port",
                "0",
                "--interval",
                "200ms",
            ]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        assert server.stdout is not None
        address = server.stdout.readline().partition(" at ")[2].split()[0]
        ended, commits = context.Event(), context.Value("q", 0)
        pause = arguments.writers / arguments.commits
        processes = [context.Process(target=_write, args=(log.uri, topic, pause, ended, commits)) for topic in topics]
        processes.append(context.Process(target=_clean, args=(log.uri, ended)))
        for one in processes:
            one.start()
        while commits.value < len(topics):  # processes take their time to start
            time.sleep(0.1)
        started, before, finished = time.monotonic(), commits.value, threading.Event()
        with ThreadPoolExecutor(arguments.readers) as pool:
            read = [pool.submit(_read, address, topics, _ends(log, topics, finished)) for _ in range(arguments.readers)]
            while (left := arguments.seconds - (time.monotonic() - started)) > 0:
                time.sleep(min(left, 30))
                seconds = time.monotonic() - started
                resident = _resident_bytes(server.pid) >> 20
                print(
                    f"{seconds:.0f} s: {(commits.value - before) / seconds:.0f} commits a second, {resident} MiB",
                    flush=True,
                )
            made, seconds = commits.value - before, time.monotonic() - started
            ended.set()
            for one in processes:
                one.join()
            finished.set()
            readers = [one.result() for one in read]
        server.terminate()
        is_ended = server.wait(30) == 0
        faults = [text for one in readers for text in one.faults] + _wrong(log, topics, readers)
        failed = [one.name for one in processes if one.exitcode]
        faults += [f"{name} failed" for name in failed]
        faults += [] if is_ended else [f"the server ended with {server.returncode}"]
        faults += [line for line in errors.read_text(errors="replace").splitlines() if line][:5]
        for text in faults[:20]:
            print(text)
        records = [one.records for one in readers]
        print(
            f"{made} commits, {made / seconds:.0f} a second, {seconds:.0f} s; {len(readers)} readers, "
            f"{min(records)} to {max(records)} records each, {sum(len(one.passed) for one in readers)} times past what "
            f"retention took; {len(faults)} faults"
        )
        return 1 if faults or not all(records) else 0


def _write(uri: str, topic: str, pause: float, ended: Event, commits: Any) -> None:
    log = LogDir.open(uri)
    offsets = [0] * _PARTITIONS
    due = time.monotonic()
    while not ended.is_set():
        rows = []
        for number in range(_ROWS):
            partition = number % _PARTITIONS
            offset = offsets[partition]
            value = f"{topic}:{partition}:{offset}:" + "x" * 50
            rows.append({"key": str(offset % _KEYS), "value": value, "partition": partition})
            offsets[partition] += 1
        log.topic(topic).append(rows)
        with commits.get_lock():
            commits.value += 1
        due = max(due + pause, time.monotonic() - 1)
        ended.wait(max(0.0, due - time.monotonic()))


def _clean(uri: str, ended: Event) -> None:
    log = LogDir.open(uri)
    while not ended.is_set():
        for job in (roll, retain, compact, vacuum):
            job(log)


def _ends(log: LogDir, topics: list[str], ended: threading.Event) -> Callable[[], dict[tuple[str, int], int] | None]:
    """The log ends once nobody writes any more; None before."""

    def ends() -> dict[tuple[str, int], int] | None:
        if not ended.is_set():
            return None
        return {(name, number): end for name in topics for number, (_, end) in log.topic(name).offsets().items()}

    return ends


@dataclass
class _Reader:
    """What a reader has seen: `passed`: (topic, partition, the offset that it went on from) after missing records."""

    records: int = 0
    places: dict[tuple[str, int], int] = field(default_factory=dict)
    newest: dict[tuple[int, str], int] = field(default_factory=dict)
    passed: list[tuple[str, int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def _read(address: str, topics: list[str], ends: Callable[[], dict[tuple[str, int], int] | None]) -> _Reader:
    found = _Reader()
    settings = {"bootstrap.servers": address, "group.id": "none", "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "check.crcs": True, "fetch.wait.max.ms": 200})
    consumer.assign([TopicPartition(name, number, 0) for name in topics for number in range(_PARTITIONS)])
    deadline = None
    while True:
        for message in consumer.consume(500, 1.0):
            _take(found, message)
        wanted = ends()
        if wanted is None:
            continue
        deadline = deadline or time.monotonic() + _CATCH_UP_SECONDS
        behind = {place: end for place, end in wanted.items() if found.places.get(place, 0) < end}
        if not behind or len(found.faults) > 10 or time.monotonic() > deadline:
            found.faults += [f"a reader did not come to {place}: {end}" for place, end in behind.items()]
            consumer.close()
            return found


def _take(found: _Reader, message: Any) -> None:
    if (error := message.error()) is not None:
        if error.code() != KafkaError._TRANSPORT:
            found.faults.append(str(error))
        return
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    expected = found.places.get((topic, partition), 0)
    if not message.value().startswith(f"{topic}:{partition}:{offset}:".encode()):
        found.faults.append(f"{topic}-{partition} {offset}: {message.value()[:60]!r}")
    if offset < expected:
        found.faults.append(f"{topic}-{partition} {offset} after {expected - 1}")
    if offset > expected and topic != _COMPACTED:
        found.passed.append((topic, partition, offset))
    if topic == _COMPACTED:
        found.newest[partition, message.key().decode()] = offset
    found.places[topic, partition] = offset + 1
    found.records += 1


def _wrong(log: LogDir, topics: list[str], readers: list[_Reader]) -> list[str]:
    """What readers passed over though it is there, and newest values that they do not have."""
    bounds = {name: log.topic(name).offsets() for name in topics}
    wrong = [
        f"{topic}-{partition}: went on from {offset}, the log starts at {bounds[topic][partition][0]}"
        for reader in readers
        for topic, partition, offset in reader.passed
        if offset > bounds[topic][partition][0]
    ]
    newest = {
        (partition, str(offset % _KEYS)): offset
        for partition, (_, end) in bounds[_COMPACTED].items()
        for offset in range(max(0, end - _KEYS), end)
    }
    return wrong + ["a reader lacks newest values" for reader in readers if reader.newest != newest]


def _resident_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) << 10


if __name__ == "__main__":
    sys.exit(main())
