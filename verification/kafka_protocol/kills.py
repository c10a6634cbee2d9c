"""python -m verification.kafka_protocol.kills --capture N --moved N --replay N --golden N --idempotent N [--seed S]:
killed at any moment.

A producer writes to a broker without pause, also in transactions, while `segments capture` is killed again and again,
and appends and rolls of another topic go on beside it; then `segments replay` of what was captured is killed. Whatever
another client fetches from the broker is in the capture, by the SHA-256 of each batch; and each committed record is in
the replayed topic once, in its partition and order, by librdkafka's consumer and the markers in the broker's log.

With `--moved`, captures are killed whose cluster is three brokers that go down and whose partitions move from one to
another. With `--golden`, topics that Kafka wrote are replayed into a cluster and captured from there, both killed: what
is captured is what Kafka's own reader says of its files, but for the offsets. With `--idempotent`, replays without
transactions are killed, into a cluster that has seen all they sent before the next one begins.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from spark_segments.kafka_protocol import CaptureOptions, capture
from spark_segments.kafka_protocol.capturing.source import SourceCluster
from spark_segments.maintenance import roll, verify
from verification.kafka_protocol.broker import running_broker
from verification.kafka_protocol.fetching import fetched_batches, kept_batches
from verification.kafka_protocol.moving_cluster import BROKER_SETTINGS, MovingCluster, moving_cluster
from verification.kafka_protocol.serving import expected, text
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, expected_records, golden_dir

_TOPIC, PARTITIONS = "orders", 3
_PROGRAM, _PROGRAM_WITHOUT_SETTINGS = "spark_segments", "verification.kafka_protocol.without_settings"
_RECORD = ("timestamp", "key", "value", "headers")
_RECORD_BYTES = 18  # of keys and values, as they are produced


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m verification.kafka_protocol.kills", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--capture", type=int, default=20)
    parser.add_argument("--moved", type=int, default=10)
    parser.add_argument("--replay", type=int, default=10)
    parser.add_argument("--golden", type=int, default=14)
    parser.add_argument("--idempotent", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    for run in (_golden, _moved, _idempotent):
        if count := getattr(arguments, run.__name__.removeprefix("_")):
            run(count, chance)
    if not arguments.capture and not arguments.replay:
        return 0
    with tempfile.TemporaryDirectory() as directory, running_broker(Path(directory, "broker")) as address:
        log = LogDir.create(f"{directory}/log")
        log.create_topic("beside")
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(_TOPIC, PARTITIONS, 1)])[_TOPIC].result(20)
        ended = threading.Event()
        producing = threading.Thread(target=_produce, args=(address, ended, arguments.seed))
        producing.start()
        command = ["capture", address, log.uri, "--topic", _TOPIC, "--interval", "10ms"]
        killed = _killed(command, arguments.capture, chance, lambda: _append(log))
        ended.set()
        producing.join()
        _run(["capture", address, log.uri, "--topic", _TOPIC, "--once"])
        batches = _compared(log, address)
        print(f"capture: {killed} of {arguments.capture} runs killed at work, {batches} batches equal", flush=True)

        command = ["replay", log.uri, address, "--topic", _TOPIC, "--rename", f"{_TOPIC}=copy"]
        size = sum(row["records"] for row in log.topic(_TOPIC).describe()["partitions"]) * _RECORD_BYTES
        rate = f"{max(1, int(size / max(1, arguments.replay)))}B"  # a second of work a run
        killed = _killed([*command, "--max-rate", rate], arguments.replay, chance, lambda: None)
        _run(command)
        records = sent_once(log, address, _TOPIC)
        print(f"replay: {killed} of {arguments.replay} runs killed at work, {records} records once", flush=True)
    return 0


def _golden(count: int, chance: random.Random) -> None:
    """Kafka's own topics, there and back again: replays that are killed, each of a topic, then captures of all.

    Of several topics this broker would lose the first position of one: where a transaction does not end, it forgets the
    positions that the transaction before it has committed, unless that was the first of its producer.
    """
    names = [name for name in CLEAN_DIRECTORIES if "/" not in name]
    with tempfile.TemporaryDirectory() as directory, running_broker(Path(directory, "broker")) as address:
        log, back = LogDir.create(f"{directory}/log"), LogDir.create(f"{directory}/back")
        for name in names:
            log.import_kafka(str(golden_dir(name)))
        topics = [argument for name in log.topics() for argument in ("--topic", name)]
        killed = 0
        for number in range(
            count
        ):  # a topic a run: this broker forgets what is committed before a transaction that ends
            name = log.topics()[number % len(names)]  # by a kill, where that is not the first of its process
            size = log.topic(name).scan(columns=["key", "value"]).to_table().nbytes
            rate = f"{max(1, size * len(names) // count)}B"  # a second of work a run
            replayed = ["replay", log.uri, address, "--topic", name, "--max-rate", rate]
            killed += _killed(replayed, 1, chance, lambda: None)
        _run(["replay", log.uri, address, *topics])
        captured = ["capture", address, back.uri, *topics]
        killed += _killed([*captured, "--interval", "10ms"], count, chance, lambda: None)
        _run([*captured, "--once"])
        assert not verify(back, deep=True).findings
        records = 0
        for name in names:
            topic, _, number = name.rpartition("-")
            scan = back.topic(topic).scan(columns=_RECORD, partition=int(number), isolation="read_committed")
            rows = expected_records(name)
            times = {row["offset"]: row["timestamp"] for row in rows}
            wanted = [(times[offset], *record) for offset, *record in expected(rows, committed=True)]
            found = [_as_expected(row) for row in scan.to_table().to_pylist()]
            parted = next((pair for pair in zip(found, wanted, strict=False) if pair[0] != pair[1]), "none")
            assert found == wanted, f"{name}: {len(found)} came back of {len(wanted)}, the first other: {parted}"
            records += len(wanted)
        print(
            f"golden: {killed} of {2 * count} runs killed at work, {records} records of {len(names)} partitions equal"
        )


def _as_expected(row: Mapping[str, Any]) -> tuple[Any, ...]:
    headers = [(header["key"], text(header["value"])) for header in row["headers"] or []]
    return round(row["timestamp"].timestamp() * 1000), text(row["key"]), text(row["value"]), headers


def _moved(count: int, chance: random.Random) -> None:
    """Captures of a cluster whose brokers go down and whose leaders move."""
    with tempfile.TemporaryDirectory() as directory, moving_cluster() as cluster:
        log = LogDir.create(f"{directory}/log")
        log.create_topic("beside")
        cluster.make(_TOPIC, PARTITIONS)
        with patch.object(SourceCluster, "settings", return_value=None):  # these brokers have no DescribeConfigs
            capture(log, cluster.addresses[0], [_TOPIC], options=CaptureOptions(client_config=BROKER_SETTINGS))
        config = Path(directory, "client.properties")
        config.write_text("".join(f"{name}={value}\n" for name, value in BROKER_SETTINGS.items()))
        servers = ",".join(cluster.addresses)
        ended = threading.Event()
        moves: list[int] = []
        beside = [
            threading.Thread(target=_produce_plain, args=(servers, ended, chance.getrandbits(32))),
            threading.Thread(target=_move, args=(cluster, ended, chance.getrandbits(32), moves)),
        ]
        for each in beside:
            each.start()
        command = ["capture", servers, log.uri, "--topic", _TOPIC, "--client-config", str(config)]
        killed = _killed([*command, "--interval", "10ms"], count, chance, lambda: _append(log))
        ended.set()
        for each in beside:
            each.join()
        _run([*command, "--once"])
        batches = _compared(log, cluster.addresses[0])
        print(
            f"moved: {killed} of {count} runs killed at work, {len(moves)} moves, {batches} batches equal", flush=True
        )


def _idempotent(count: int, chance: random.Random) -> None:
    """Replays without transactions: librdkafka's brokers keep the metadata of positions, and say where a log ends.

    They take a batch that a producer repeats for another one; none of their connections is cut here.
    """
    with tempfile.TemporaryDirectory() as directory, moving_cluster(1) as cluster:
        log = LogDir.create(f"{directory}/log")
        log.create_topic(_TOPIC, PARTITIONS)
        rows = [{"value": f"value {number:020}", "partition": chance.randrange(PARTITIONS)} for number in range(50_000)]
        log.topic(_TOPIC).append(rows)
        cluster.make("copy", PARTITIONS)
        command = ["replay", log.uri, cluster.addresses[0], "--topic", _TOPIC, "--rename", f"{_TOPIC}=copy"]
        command += ["--idempotent"]
        rate = f"{len(rows) * len('value ') * 5 // count}B"  # a second of work a run
        killed = 0
        for _ in range(count):
            killed += _killed([*command, "--max-rate", rate], 1, chance, lambda: None, _PROGRAM_WITHOUT_SETTINGS)
            time.sleep(0.5)  # what was on its way arrives
        _run(command, _PROGRAM_WITHOUT_SETTINGS)
        records = sent_once(log, cluster.addresses[0], _TOPIC)
        print(f"idempotent: {killed} of {count} runs killed at work, {records} records once", flush=True)


def _move(cluster: MovingCluster, ended: threading.Event, seed: int, moves: list[int]) -> None:
    """Each half second another broker leads a partition; now and then one is down meanwhile. All is well at the end."""
    chance = random.Random(seed)
    while not ended.is_set():
        broker, is_down = chance.choice(cluster.brokers), chance.random() < 0.3
        if is_down:
            cluster.down(broker)
        cluster.lead(_TOPIC, chance.randrange(PARTITIONS), chance.choice(cluster.brokers))
        ended.wait(0.5)
        if is_down:
            cluster.up(broker)
        moves.append(broker)
    for number in range(PARTITIONS):
        cluster.lead(_TOPIC, number, cluster.brokers[0])


def _produce_plain(servers: str, ended: threading.Event, seed: int) -> None:
    chance, number = random.Random(seed), 0
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "log_level": 0})
    while not ended.is_set():
        for _ in range(chance.randint(1, 20)):
            number += 1
            producer.produce(_TOPIC, f"value {number}", f"key {number % 50}", number % PARTITIONS)
        producer.poll(0)
        time.sleep(0.02)
    assert not producer.flush(60), "records that no broker took"


def _killed(
    command: list[str], count: int, chance: random.Random, beside: Callable[[], object], program: str = _PROGRAM
) -> int:
    """Starts a command so often, kills it within three seconds, and says how often it was still at work."""
    killed = 0
    for _ in range(count):
        process = subprocess.Popen([sys.executable, "-m", program, *command], stdout=subprocess.DEVNULL)
        beside()
        time.sleep(chance.uniform(0.3, 3))
        killed += process.poll() is None
        process.kill()
        process.wait()
    return killed


def _run(command: list[str], program: str = _PROGRAM) -> None:
    subprocess.run([sys.executable, "-m", program, *command], stdout=subprocess.DEVNULL, check=True)


def _append(log: LogDir) -> None:
    """Another topic grows meanwhile, and all are rolled."""
    log.topic("beside").append([{"value": "x" * 100} for _ in range(100)])
    roll(log)


def _produce(address: str, ended: threading.Event, seed: int) -> None:
    chance, number = random.Random(seed), 0
    plain = Producer({"bootstrap.servers": address, "linger.ms": 5})
    moved = Producer({"bootstrap.servers": address, "transactional.id": "producer"})
    moved.init_transactions(30)
    while not ended.is_set():
        is_transaction = chance.random() < 0.3
        producer = moved if is_transaction else plain
        if is_transaction:
            moved.begin_transaction()
        for _ in range(chance.randint(1, 20)):
            number += 1
            producer.produce(_TOPIC, f"value {number}", f"key {number % 50}", number % PARTITIONS)
        if is_transaction:
            moved.commit_transaction(30)
        plain.poll(0)
        time.sleep(0.02)
    plain.flush(30)


def _compared(log: LogDir, address: str) -> int:
    """Compares each batch here with what the broker gives another client; how many there are."""
    assert not verify(log, deep=True).findings
    count = 0
    for number in range(PARTITIONS):
        here = _hashes(kept_batches(log, _TOPIC, number))
        there = _hashes(fetched_batches(address, _TOPIC, number))
        parted = next((pair for pair in zip(here, there, strict=False) if pair[0] != pair[1]), "none")
        assert here == there, f"{_TOPIC}-{number}: {len(here)} here, {len(there)} there, the first other: {parted}"
        count += len(here)
    return count


def _hashes(data: bytes) -> list[tuple[int, str]]:
    table = scan_batches(data, path="fetched").batches
    places = zip(table.base_offset.tolist(), table.byte_position.tolist(), table.size.tolist(), strict=True)
    return [(base, hashlib.sha256(data[start : start + size]).hexdigest()) for base, start, size in places]


def _aborted(address: str, topic: str, partition: int) -> set[int]:
    """Offsets of aborted transactions, by the markers in the log: this broker's answers have no list of them."""
    data = fetched_batches(address, topic, partition)
    table = scan_batches(data, path="fetched").batches
    open_offsets: dict[int, list[int]] = {}
    aborted: set[int] = set()
    ends = table.byte_position + table.size
    columns = (table.producer_id, table.is_transactional, table.is_control, table.base_offset, table.last_offset, ends)
    for producer, is_transactional, is_control, base, last, end in zip(*(one.tolist() for one in columns), strict=True):
        if is_control:
            offsets = open_offsets.pop(producer, [])
            (kind,) = struct.unpack_from(">h", data, end - 10)  # before a value of 6 bytes and no headers
            aborted |= {*offsets} if kind == 0 else set()
        elif is_transactional:
            open_offsets.setdefault(producer, []).extend(range(base, last + 1))
    assert not any(open_offsets.values()), "a transaction has not ended"
    return aborted


def sent_once(log: LogDir, address: str, topic: str) -> int:
    """Compares the committed records of a topic here with those of the topic copy there; how many there are."""
    read = log.topic(topic).scan(columns=["partition", "value"], isolation="read_committed").to_table().to_pylist()
    here = {n: [row["value"] for row in read if row["partition"] == n] for n in range(PARTITIONS)}
    settings = {"bootstrap.servers": address, "group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_uncommitted"})
    aborted = {number: _aborted(address, "copy", number) for number in range(PARTITIONS)}
    there: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
    consumer.assign([TopicPartition("copy", number, 0) for number in there])
    left = set(there)
    while left:
        message = consumer.poll(30)
        assert message is not None, "the topic ends nowhere"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            left.discard(message.partition())
        else:
            number = message.partition()
            if message.offset() not in aborted[number]:
                there[number].append(message.value())
    consumer.close()
    for number, values in here.items():
        extra = len(there[number]) - len(values)
        assert there[number] == values, f"copy-{number}: {extra} records too many"
    return sum(map(len, here.values()))


if __name__ == "__main__":
    sys.exit(main())
