"""python -m verification.kafka_protocol.matrix: clients read what Kafka wrote, and share a topic that is appended to.

librdkafka, aiokafka, kafka-python and kcat (Debian's package) read every directory of tests/golden that has records, by
assignment in both isolation levels and by subscription, and look a time up in each: keys, values, headers and offsets
must be those that Kafka's own reader says. Then three members of a group of each client come and go while a process
appends, and the server is ended and started again in between: each record counts when its position has been committed,
and must count once. kcat commits by itself and ends with its only broker, so it has a rebalance without a restart, and
reads on by assignment after one. `java_client` is for Kafka's Java consumer.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import collections
import contextlib
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors

from spark_segments import LogDir
from verification.kafka_protocol.serving import Record, expected, text
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    LEGACY_DIRECTORIES,
    expected_records,
    golden_dir,
)

_NAMES = [
    name
    for name in [*CLEAN_DIRECTORIES, *LEGACY_DIRECTORIES]
    if "/" not in name or (name.startswith("broker-data/") and "/__" not in name)
]
_PARTITIONS, _COMMITS, _ROWS = 6, 100, 30
_SECONDS = 120
Place = tuple[str, int]
Taken = collections.Counter[bytes]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.matrix", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--clients", nargs="*", default=[*_CLIENTS], choices=[*_CLIENTS])
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # what clients say of a server that is being restarted
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in _NAMES:
            shutil.copytree(golden_dir(name), Path(directory, "kafka", golden_dir(name).name))
        log = LogDir.create(f"{directory}/log")
        log.import_kafka(f"{directory}/kafka")
        for client in arguments.clients:
            read, share = _CLIENTS[client]
            started, before = time.monotonic(), len(wrong)
            with RestartedServer(log.uri) as server:
                wrong += [f"{client}: {one}" for one in _compared(log, read, server.address)]
            seconds, faults = time.monotonic() - started, len(wrong) - before
            print(f"{client}: {len(_NAMES)} partitions of Kafka's in {seconds:.0f} s, {faults} faults", flush=True)
            with contextlib.closing(_Shared(f"{directory}/{client}")) as shared:
                share(shared)
                found = shared.wrong()
            print(f"{client}: {shared.said}, {len(found)} faults", flush=True)
            wrong += [f"{client}: {one}" for one in found]
    print("\n".join(wrong[:20]) or "as Kafka's own reader says, and each record once")
    return 1 if wrong else 0


class RestartedServer:
    """`segments serve` on a port that stays, in a process that can be ended and started again."""

    def __init__(self, uri: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self._command = [sys.executable, "-m", "spark_segments", "serve", uri, "--interval", "200ms"]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> RestartedServer:
        command = [*self._command, "--port", self.address.partition(":")[2]]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0

    def restart(self) -> None:
        self.__exit__()
        self.__enter__()

    def kill(self) -> None:
        """Kills the process, and starts another one."""
        assert self._process is not None
        self._process.kill()
        self._process.communicate()
        self.__enter__()


# What Kafka wrote


class _Reader:
    """A client that reads partitions to their ends."""

    def shown(self, record: Record) -> Record:
        """A record as the client shows it."""
        return record

    def partition(self, address: str, place: Place, *, committed: bool) -> list[Record]:
        raise NotImplementedError

    def subscribed(self, address: str, topics: Sequence[str], ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        raise NotImplementedError

    def offset_at(self, address: str, place: Place, timestamp_ms: int) -> int | None:
        raise NotImplementedError


def _compared(log: LogDir, reader: _Reader, address: str) -> Iterator[str]:
    rows = {_place(name): expected_records(name) for name in _NAMES}
    ends = {place: log.topic(place[0]).offsets()[place[1]][1] for place in rows}
    for place, one in rows.items():
        for committed in (False, True):
            wanted = [reader.shown(row) for row in expected(one, committed=committed)]
            got = reader.partition(address, place, committed=committed)
            if got != wanted:
                first = next((at for at, pair in enumerate(zip(got, wanted, strict=False)) if pair[0] != pair[1]), -1)
                yield f"{place}, committed {committed}: {len(got)} records of {len(wanted)}, unlike from {first} on"
        time_ms = one[len(one) // 2]["timestamp"]
        wanted_offset = next(row["offset"] for row in one if row["timestamp"] >= time_ms)
        if time_ms >= 0 and (found := reader.offset_at(address, place, time_ms)) != wanted_offset:
            yield f"{place}: {found} is the offset of {time_ms}, expected {wanted_offset}"
    there = reader.subscribed(address, sorted({topic for topic, _ in rows}), ends)
    for place, one in rows.items():
        if there.get(place, []) != [reader.shown(row) for row in expected(one)]:
            yield f"{place}, subscribed: {len(there.get(place, []))} records of {len(expected(one))}"


def _place(name: str) -> Place:
    topic, _, partition = name.rpartition("/")[2].rpartition("-")
    return topic, int(partition)


def _isolation(committed: bool) -> str:
    return "read_committed" if committed else "read_uncommitted"


def _record(offset: int, key: bytes | None, value: bytes | None, headers: Any) -> Record:
    return offset, text(key), text(value), [(name, text(one)) for name, one in headers or []]


class _Librdkafka(_Reader):
    def _consumer(self, address: str, group: str = "none", **settings: Any) -> confluent_kafka.Consumer:
        own = {"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False, "log_level": 0}
        return confluent_kafka.Consumer(
            {**own, "auto.offset.reset": "earliest", "enable.partition.eof": True, **settings}
        )

    def partition(self, address: str, place: Place, *, committed: bool) -> list[Record]:
        consumer = self._consumer(address, **{"isolation.level": _isolation(committed), "check.crcs": True})
        consumer.assign([confluent_kafka.TopicPartition(*place, confluent_kafka.OFFSET_BEGINNING)])
        return self._until(consumer, {place}).get(place, [])

    def subscribed(self, address: str, topics: Sequence[str], ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        consumer = self._consumer(address, "golden-librdkafka", **{"isolation.level": "read_uncommitted"})
        consumer.subscribe(list(topics))
        return self._until(consumer, set(ends))

    def _until(self, consumer: confluent_kafka.Consumer, left: set[Place]) -> dict[Place, list[Record]]:
        found: dict[Place, list[Record]] = {}
        deadline = time.monotonic() + _SECONDS
        with contextlib.closing(consumer):
            while left and time.monotonic() < deadline:
                for one in consumer.consume(1000, 1.0):
                    place = (one.topic(), one.partition())
                    if one.error() is None:
                        record = _record(one.offset(), one.key(), one.value(), one.headers())
                        found.setdefault(place, []).append(record)
                    elif one.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                        left = left - {place}
        return found

    def offset_at(self, address: str, place: Place, timestamp_ms: int) -> int | None:
        with contextlib.closing(self._consumer(address)) as consumer:
            [found] = consumer.offsets_for_times([confluent_kafka.TopicPartition(*place, timestamp_ms)], timeout=10)
        return None if found.offset < 0 else int(found.offset)


class _KafkaPython(_Reader):
    def partition(self, address: str, place: Place, *, committed: bool) -> list[Record]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, isolation_level=_isolation(committed)
        )
        one = kafka.TopicPartition(*place)
        consumer.assign([one])
        consumer.seek_to_beginning(one)
        return self._until(consumer, {place: consumer.end_offsets([one])[one]}).get(place, [])

    def subscribed(self, address: str, topics: Sequence[str], ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        consumer = kafka.KafkaConsumer(
            *topics,
            bootstrap_servers=address,
            group_id="golden-kafka-python",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        return self._until(consumer, ends)

    def _until(self, consumer: Any, ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        found: dict[Place, list[Record]] = {}
        left, deadline = dict(ends), time.monotonic() + _SECONDS
        with contextlib.closing(consumer):
            while left and time.monotonic() < deadline:
                for place, some in consumer.poll(timeout_ms=500, max_records=5000).items():
                    records = [_record(one.offset, one.key, one.value, one.headers) for one in some]
                    found.setdefault((place.topic, place.partition), []).extend(records)
                assigned = {(one.topic, one.partition): one for one in consumer.assignment()}
                left = {
                    place: end
                    for place, end in left.items()
                    if place not in assigned or consumer.position(assigned[place]) < end
                }
        return found

    def offset_at(self, address: str, place: Place, timestamp_ms: int) -> int | None:
        one = kafka.TopicPartition(*place)
        with contextlib.closing(kafka.KafkaConsumer(bootstrap_servers=address)) as consumer:
            found = consumer.offsets_for_times({one: timestamp_ms})[one]
        return None if found is None else int(found.offset)


class _Aiokafka(_Reader):
    def partition(self, address: str, place: Place, *, committed: bool) -> list[Record]:
        async def read() -> dict[Place, list[Record]]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=address, enable_auto_commit=False, isolation_level=_isolation(committed)
            )
            await consumer.start()
            one = aiokafka.TopicPartition(*place)
            consumer.assign([one])
            await consumer.seek_to_beginning(one)
            return await self._until(consumer, {place: (await consumer.end_offsets([one]))[one]})

        return asyncio.run(read()).get(place, [])

    def subscribed(self, address: str, topics: Sequence[str], ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        async def read() -> dict[Place, list[Record]]:
            consumer = aiokafka.AIOKafkaConsumer(
                *topics,
                bootstrap_servers=address,
                group_id="golden-aiokafka",
                enable_auto_commit=False,
                auto_offset_reset="earliest",
            )
            await consumer.start()
            return await self._until(consumer, ends)

        return asyncio.run(read())

    async def _until(self, consumer: Any, ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        found: dict[Place, list[Record]] = {}
        left, deadline = dict(ends), time.monotonic() + _SECONDS
        try:
            while left and time.monotonic() < deadline:
                for place, some in (await consumer.getmany(timeout_ms=500)).items():
                    records = [_record(one.offset, one.key, one.value, one.headers) for one in some]
                    found.setdefault((place.topic, place.partition), []).extend(records)
                assigned = {(one.topic, one.partition): one for one in consumer.assignment()}
                for place in [place for place in left if place in assigned]:
                    if await consumer.position(assigned[place]) >= left[place]:
                        del left[place]
        finally:
            await consumer.stop()
        return found

    def offset_at(self, address: str, place: Place, timestamp_ms: int) -> int | None:
        async def ask() -> Any:
            consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=address)
            await consumer.start()
            try:
                one = aiokafka.TopicPartition(*place)
                return (await consumer.offsets_for_times({one: timestamp_ms}))[one]
            finally:
                await consumer.stop()

        found = asyncio.run(ask())
        return None if found is None else int(found.offset)


class _Kcat(_Reader):
    # Lengths (-1 for null) before bytes that may be anything; headers as name=value,…
    _FORMAT = "%t %p %o %K %S\n%k%s\n%h\n----- \n"
    _END = b"\n----- \n"

    def shown(self, record: Record) -> Record:
        *rest, headers = record  # values of headers up to a byte of zero, as a string of C
        values = [b"NULL" if one is None else base64.b64decode(one).partition(b"\0")[0] for _, one in headers]
        pairs = [name.encode() + b"=" + value for (name, _), value in zip(headers, values, strict=True)]
        return *rest, [("", text(b",".join(pairs)))] if pairs else []

    def _run(self, address: str, *arguments: str) -> bytes:
        command = ["kcat", "-b", address, "-q", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_SECONDS).stdout

    def partition(self, address: str, place: Place, *, committed: bool) -> list[Record]:
        isolation = f"isolation.level={_isolation(committed)}"
        at = ("-t", place[0], "-p", str(place[1]), "-o", "beginning", "-e", "-f", self._FORMAT)
        return self._parsed(self._run(address, "-C", "-X", isolation, *at)).get(place, [])

    def subscribed(self, address: str, topics: Sequence[str], ends: Mapping[Place, int]) -> dict[Place, list[Record]]:
        settings = ("-X", "auto.offset.reset=earliest", "-X", "isolation.level=read_uncommitted", "-f", self._FORMAT)
        return self._parsed(self._run(address, "-e", *settings, "-G", "golden-kcat", *topics))

    def _parsed(self, data: bytes) -> dict[Place, list[Record]]:
        found: dict[Place, list[Record]] = {}
        position = 0
        while position < len(data):
            line = data.index(b"\n", position)
            topic, *numbers = data[position:line].decode().split()
            partition, offset, key_size, value_size = map(int, numbers)
            position, pieces = line + 1, []
            for size in (key_size, value_size):
                pieces.append(None if size < 0 else data[position : position + size])
                position += max(size, 0)
            end = data.index(self._END, position)
            headers = [(name, value) for name, value in [("", data[position + 1 : end])] if value]
            found.setdefault((topic, partition), []).append(_record(offset, *pieces, headers))
            position = end + len(self._END)
        return found

    def offset_at(self, address: str, place: Place, timestamp_ms: int) -> int | None:
        said = self._run(address, "-Q", "-t", f"{place[0]}:{place[1]}:{timestamp_ms}").decode()
        return int(said.rpartition("offset")[2].split()[0])


# A topic that is appended to, and shared


class _Shared:
    """A topic that a thread appends to, its server, and how often each value was taken."""

    topic = "orders"

    def __init__(self, uri: str) -> None:
        self.log = LogDir.create(uri)
        self.log.create_topic(self.topic, _PARTITIONS)
        self.server = RestartedServer(uri)
        self.server.__enter__()
        self.taken: Taken = collections.Counter()
        self.before: Taken | None = None  # what was taken by another way
        self.positions: dict[int, int] = {}
        self.ended = threading.Event()
        self.said = ""
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def _write(self) -> None:
        log = LogDir.open(self.log.uri)
        for number in range(_COMMITS):
            rows = [{"value": f"{number}-{row}", "partition": row % _PARTITIONS} for row in range(_ROWS)]
            log.topic(self.topic).append(rows)
            self.ended.wait(0.15)

    def take(self, values: Sequence[bytes]) -> None:
        with self._lock:
            self.taken.update(values)

    def reach(self, share: float) -> None:
        """Waits until so much of all that is written was taken."""
        deadline = time.monotonic() + _SECONDS
        while len(self.taken) < share * _COMMITS * _ROWS and time.monotonic() < deadline:
            time.sleep(0.05)

    def members_come_and_go(self, member: Callable[[_Shared, threading.Event], None], *, restarts: bool = True) -> None:
        """Three members: each comes, the server ends and begins, the first goes, and comes again."""
        stops: list[threading.Event] = []
        threads: list[threading.Thread] = []

        def come() -> None:
            stops.append(threading.Event())
            threads.append(threading.Thread(target=member, args=(self, stops[-1]), daemon=True))
            threads[-1].start()

        for share in (0.1, 0.25, 0.4):
            come()
            self.reach(share)
        if restarts:
            self.server.restart()
        self.reach(0.6)
        stops[0].set()
        threads[0].join(_SECONDS)
        self.reach(0.8)
        come()
        self.reach(1.0)
        for one in stops:
            one.set()
        for thread in threads:
            thread.join(_SECONDS)
        text = "a restart of the server" if restarts else "no restart of the server"
        self.said = f"4 members came and 1 went under load, {text}, {len(self.taken)} records"

    def wrong(self) -> list[str]:
        wanted = {f"{number}-{row}".encode() for number in range(_COMMITS) for row in range(_ROWS)}
        found = []
        for taken in (self.taken, self.before) if self.before is not None else (self.taken,):
            twice = [value for value, count in taken.items() if count > 1]
            found += [f"{len(wanted - taken.keys())} records not taken"] if wanted - taken.keys() else []
            found += [f"{len(twice)} records taken twice, {twice[:3]}"] if twice else []
        return found

    def close(self) -> None:
        self.ended.set()
        self._writer.join()
        self.server.__exit__()


_Pending = dict[int, list[tuple[int, bytes]]]
"""Records that a member has and has not committed: (offset, value) by partition."""


def _librdkafka_member(shared: _Shared, stop: threading.Event) -> None:
    pending: _Pending = {}
    settings = {"group.id": "shared", "session.timeout.ms": 6000, "heartbeat.interval.ms": 300}
    consumer = _Librdkafka()._consumer(
        shared.server.address, **{**settings, "enable.partition.eof": False, "reconnect.backoff.max.ms": 500}
    )
    gone = lambda *_: pending.clear()  # noqa: E731
    consumer.subscribe([shared.topic], on_assign=gone, on_revoke=gone, on_lost=gone)
    with contextlib.closing(consumer):
        while not stop.is_set() or pending:
            for one in consumer.consume(200, 0.2) if not pending else [consumer.poll(0.1)]:
                if one is not None and one.error() is None:
                    pending.setdefault(one.partition(), []).append((one.offset(), one.value()))
            if pending:
                made = [
                    confluent_kafka.TopicPartition(shared.topic, number, rows[-1][0] + 1)
                    for number, rows in pending.items()
                ]
                with contextlib.suppress(confluent_kafka.KafkaException):
                    consumer.commit(offsets=made, asynchronous=False)
                    shared.take([value for rows in pending.values() for _, value in rows])
                    pending.clear()


def _kafka_python_member(shared: _Shared, stop: threading.Event) -> None:
    pending: _Pending = {}

    class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pending.clear()

        def on_partitions_assigned(self, assigned: Any) -> None:
            pending.clear()

    consumer = kafka.KafkaConsumer(
        bootstrap_servers=shared.server.address,
        group_id="shared",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )
    consumer.subscribe([shared.topic], listener=Listener())
    with contextlib.closing(consumer):
        while not stop.is_set() or pending:
            for place, rows in consumer.poll(timeout_ms=200, max_records=200).items():
                pending.setdefault(place.partition, []).extend((one.offset, one.value) for one in rows)
            if pending:
                made = {
                    kafka.TopicPartition(shared.topic, number): kafka.OffsetAndMetadata(rows[-1][0] + 1, "", -1)
                    for number, rows in pending.items()
                }
                with contextlib.suppress(kafka.errors.KafkaError):
                    consumer.commit(made)
                    shared.take([value for rows in pending.values() for _, value in rows])
                    pending.clear()


def _aiokafka_member(shared: _Shared, stop: threading.Event) -> None:
    pending: _Pending = {}

    class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pending.clear()

        async def on_partitions_assigned(self, assigned: Any) -> None:
            pending.clear()

    async def run() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=shared.server.address,
            group_id="shared",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=300,
        )
        await consumer.start()
        consumer.subscribe([shared.topic], listener=Listener())
        try:
            while not stop.is_set() or pending:
                for place, rows in (await consumer.getmany(timeout_ms=200, max_records=200)).items():
                    pending.setdefault(place.partition, []).extend((one.offset, one.value) for one in rows)
                if pending:
                    made = {
                        aiokafka.TopicPartition(shared.topic, number): rows[-1][0] + 1
                        for number, rows in pending.items()
                    }
                    values = [value for rows in pending.values() for _, value in rows]
                    with contextlib.suppress(aiokafka.errors.KafkaError):
                        await consumer.commit(made)
                        shared.take(values)
                        pending.clear()
        finally:
            await consumer.stop()

    asyncio.run(run())


def _kcat_member(shared: _Shared, stop: threading.Event) -> None:
    settings = ["auto.offset.reset=earliest", "session.timeout.ms=6000", "heartbeat.interval.ms=300"]
    options = [word for one in settings for word in ("-X", one)]
    command = ["kcat", "-b", shared.server.address, "-q", "-u", *options, "-f", "%s\n", "-G", "shared", shared.topic]
    _kcat_until(command, shared, stop)


def _kcat_until(command: Sequence[str], shared: _Shared, stop: threading.Event) -> None:
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        ender = threading.Thread(target=lambda: (stop.wait(), process.terminate()), daemon=True)
        ender.start()
        for line in process.stdout:
            shared.take([line.split()[-1]])
            if len(place := line.split()[:-1]) == 2:
                shared.positions[int(place[0])] = int(place[1]) + 1


def _share_by_kcat(shared: _Shared) -> None:
    shared.members_come_and_go(_kcat_member, restarts=False)
    shared.before, shared.taken = shared.taken, collections.Counter()
    stop = threading.Event()
    command = ["kcat", "-b", shared.server.address, "-q", "-u", "-C", "-t", shared.topic, "-f", "%p %o %s\n"]
    reading = threading.Thread(target=_kcat_until, args=([*command, "-o", "beginning"], shared, stop), daemon=True)
    reading.start()
    shared.reach(0.3)
    shared.server.restart()
    stop.set()  # it ends by itself when its only broker does
    reading.join(_SECONDS)
    for number in range(_PARTITIONS):
        begin = str(shared.positions.get(number, 0))
        _kcat_until([*command, "-p", str(number), "-o", begin, "-e"], shared, threading.Event())
    shared.said += f", and {len(shared.taken)} by assignment, before and after a restart"


def _share_by(member: Callable[[_Shared, threading.Event], None]) -> Callable[[_Shared], None]:
    return lambda shared: shared.members_come_and_go(member)


_CLIENTS: Mapping[str, tuple[_Reader, Callable[[_Shared], None]]] = {
    "librdkafka": (_Librdkafka(), _share_by(_librdkafka_member)),
    "kafka-python": (_KafkaPython(), _share_by(_kafka_python_member)),
    "aiokafka": (_Aiokafka(), _share_by(_aiokafka_member)),
    "kcat": (_Kcat(), _share_by_kcat),
}

if __name__ == "__main__":
    sys.exit(main())
