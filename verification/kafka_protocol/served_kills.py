"""python -m verification.kafka_protocol.served_kills --members N --servers N --chain N [--seed S]: killed at any
moment.

Three members of a group read a topic from `segments serve` while it is appended to; members and the server get a
SIGKILL now and then and begin again. Each member notes what it has read before it commits, and that its commit was
answered. Whatever was appended has been read, as it was appended, and at no moment was a position above records that
nobody had read.

With `--chain`, a served log directory is captured into another one, which is served and captured into a third one, and
each of the four processes is killed. In the end the three have the same batches.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from spark_segments import LogDir
from spark_segments.maintenance import roll, verify
from verification.kafka_protocol.fetching import fetched_batches, kept_batches
from verification.kafka_protocol.matrix import RestartedServer
from verification.world.clock import PATIENCE_SECONDS

_TOPIC, _GROUP, _PARTITIONS, _MEMBERS = "orders", "shared", 3, 3


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.served_kills", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--chain", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    for run, counts in ((groups, (arguments.members, arguments.servers)), (chain, (arguments.chain,))):
        if sum(counts):
            with tempfile.TemporaryDirectory() as directory:
                print(run(Path(directory), *counts, chance), flush=True)
    return 0


def groups(directory: Path, members: int, servers: int, chance: random.Random) -> str:
    """Kills so many members and servers. Raises AssertionError where a record was lost or passed over."""
    log, notes = LogDir.create(str(directory / "log")), directory / "notes"
    log.create_topic(_TOPIC, _PARTITIONS)
    notes.mkdir()
    kills = ["member"] * members + ["server"] * servers
    chance.shuffle(kills)
    with RestartedServer(log.uri) as server, _appended(log) as stop:

        def begun(number: int) -> subprocess.Popen[bytes]:
            call = f"read({server.address!r}, {str(notes / f'{number}-{time.monotonic_ns()}')!r})"
            program = f"from verification.kafka_protocol.served_kills import read; {call}"
            return subprocess.Popen([sys.executable, "-c", program])

        readers = [begun(number) for number in range(_MEMBERS)]
        while not any(file.stat().st_size for file in notes.iterdir()):
            time.sleep(0.1)
        for what in kills:
            time.sleep(chance.uniform(0.5, 3))
            if what == "server":
                server.kill()
                continue
            number = chance.randrange(_MEMBERS)
            assert readers[number].poll() is None, "a member ended by itself"
            readers[number].kill()
            readers[number].wait()
            readers[number] = begun(number)
        stop()
        _until(lambda: _positions(log) == _ends(log))
        for reader in readers:
            reader.kill()
            reader.wait()
    assert _positions(log) == _ends(log), f"positions {_positions(log)} of {_ends(log)}"
    commits = _judge(log, notes)
    records = sum(_ends(log).values())
    return f"{members} members and {servers} servers killed: {records} records, {commits} commits, none passed over"


def read(address: str, notes: str) -> None:
    """What a member does until it is killed."""
    settings = {"bootstrap.servers": address, "group.id": _GROUP, "auto.offset.reset": "earliest", "log_level": 0}
    settings |= {"enable.auto.commit": False, "session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
    consumer = Consumer({**settings, "reconnect.backoff.max.ms": 500})
    consumer.subscribe([_TOPIC])
    with open(notes, "ab", buffering=0) as noted:
        while True:
            ends: dict[int, int] = {}
            for message in consumer.consume(100, 0.2):
                if message.error() is None:
                    place = message.partition(), message.offset()
                    noted.write(b"%d read %d %d %s\n" % (time.monotonic_ns(), *place, message.value()))
                    ends[place[0]] = place[1] + 1
            if not ends:
                continue
            try:
                places = [TopicPartition(_TOPIC, number, end) for number, end in ends.items()]
                answers = consumer.commit(offsets=places, asynchronous=False)
            except KafkaException:
                continue
            for answer in answers:
                if answer.error is None:
                    noted.write(b"%d committed %d %d\n" % (time.monotonic_ns(), answer.partition, answer.offset))


def _judge(log: LogDir, notes: Path) -> int:
    """Compares what was read with the log; how many commits were answered."""
    lines = sorted((line.split() for file in notes.iterdir() for line in file.read_text().splitlines()), key=_moment)
    there: dict[tuple[int, int], str] = {}
    for batch in log.topic(_TOPIC).scan(columns=["partition", "offset", "value"]).batches():
        for row in batch.to_pylist():
            there[row["partition"], row["offset"]] = row["value"].decode()
    seen: set[tuple[int, int]] = set()
    ends, commits = dict.fromkeys(range(_PARTITIONS), 0), 0
    for _, what, partition, offset, *value in lines:
        number, at = int(partition), int(offset)
        if what == "read":
            assert there[number, at] == value[0], f"{number}-{at}: {value}"
            seen.add((number, at))
            while (number, ends[number]) in seen:
                ends[number] += 1
            continue
        commits += 1
        assert at <= ends[number], f"{number}: position {at}, read up to {ends[number]}"
    assert seen == there.keys(), f"lost: {sorted(there.keys() - seen)[:5]}"
    return commits


def _moment(line: list[str]) -> int:
    return int(line[0])


def chain(directory: Path, kills: int, chance: random.Random) -> str:
    """Kills servers and captures so often. Raises AssertionError where the last log is not the first one."""
    first, second, third = (LogDir.create(str(directory / name)) for name in ("first", "second", "third"))
    first.create_topic(_TOPIC, _PARTITIONS)
    with RestartedServer(first.uri) as one, RestartedServer(second.uri) as two, _appended(first) as stop:
        commands = [
            ["capture", server.address, log.uri, "--interval", "100ms"] for server, log in ((one, second), (two, third))
        ]
        captures = [_started(command) for command in commands]
        ended_by_itself = 0
        for _ in range(kills):
            time.sleep(chance.uniform(0.5, 3))
            number = chance.randrange(4)
            if number < 2:
                (one, two)[number].kill()
                continue
            capture = captures[number - 2]
            ended_by_itself += capture.poll() is not None
            capture.kill()
            capture.wait()
            captures[number - 2] = _started(commands[number - 2])
        stop()
        for capture in captures:
            capture.send_signal(signal.SIGTERM)
            capture.wait()
        for command, source, log in zip(commands, (first, second), (second, third), strict=True):
            _until(partial(_captured, command, source, log))
        there = [fetched_batches(one.address, _TOPIC, number) for number in range(_PARTITIONS)]
    for log in (second, third):
        here = [kept_batches(log, _TOPIC, number) for number in range(_PARTITIONS)]
        assert here == there, f"{[*map(len, here)]} bytes in {log.uri}, {[*map(len, there)]} in the first log"
    assert not [finding for log in (first, second, third) for finding in verify(log, deep=True).findings]
    records = sum(_ends(first).values())
    return (
        f"chain: {kills} kills of servers and captures, {ended_by_itself} ended before: {records} records in all three"
    )


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "spark_segments", *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _captured(command: list[str], source: LogDir, log: LogDir) -> bool:
    """Captures once more, and says whether that was all: a server shows new appends after its interval."""
    subprocess.run([sys.executable, "-m", "spark_segments", *command[:3], "--once"], check=True)
    return _ends(log) == _ends(source)


def _until(holds: Callable[[], bool]) -> None:
    """Returns once it holds, or patience is over: whoever calls looks then."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.2)


@contextlib.contextmanager
def _appended(log: LogDir) -> Iterator[Callable[[], None]]:
    """Appends and rolls meanwhile. Gives what ends it, and returns once the last append has."""
    ended = threading.Event()

    def append() -> None:
        number = 0
        while not ended.wait(0.1):
            rows = [{"value": f"{number + step}", "partition": step % _PARTITIONS} for step in range(60)]
            log.topic(_TOPIC).append(rows)
            number += len(rows)
            if not number % 3000:
                roll(log)

    writer = threading.Thread(target=append)
    writer.start()

    def stop() -> None:
        ended.set()
        writer.join()

    try:
        yield stop
    finally:
        stop()


def _positions(log: LogDir) -> dict[int, int]:
    positions = log.group(_GROUP).positions().offsets.get(_TOPIC, {})
    return {number: positions.get(number, 0) for number in range(_PARTITIONS)}


def _ends(log: LogDir) -> dict[int, int]:
    return {number: end for number, (_, end) in log.topic(_TOPIC).offsets().items()}


if __name__ == "__main__":
    sys.exit(main())
