"""python -m verification.kafka_protocol.beside_kafka --classpath JARS: captures and an export beside Apache Kafka's
broker.

One KRaft broker with a busy cleaner. A capture comes later than delete.retention.ms over a transaction that is aborted
afterwards, and whose records and marker the cleaner takes before the next one. A topic is captured while it is cleaned.
Another ends with a hole; a broker comes up over its export, after a clean stop and after a kill. A new cluster takes
an archive of the golden data by the steps of docs/how-to/archive-kafka.md. Answers of `serve`, of each API in each
version that the broker has, too, have null where its answers have it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import itertools
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from spark_segments.kafka_protocol.serving.apis import VERSIONS
from spark_segments.maintenance import verify
from verification.kafka_protocol.answers import nulls, values_of
from verification.kafka_protocol.requests import answered
from verification.kafka_protocol.serving import serving
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.kafka_bytes.segment_bytes import batches_of

_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "500",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "1500",
}
_LATE_SECONDS = 2.2
_PATIENCE_SECONDS = 120
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")

Row = tuple[int, bytes, bytes]


class KafkaBroker:
    """A broker that is its own controller. `home` has its data and its output."""

    def __init__(self, classpath: str, home: Path) -> None:
        self.data, self._classpath, self._home = home / "data", classpath, home
        port, controller = _free_port(), _free_port()
        self.address = f"127.0.0.1:{port}"
        settings = {
            "process.roles": "broker,controller", "node.id": 1, "log.dirs": self.data,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}", "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            **dict.fromkeys(("offsets.topic.replication.factor", "offsets.topic.num.partitions"), 1),
            **{f"transaction.state.log.{name}": 1 for name in ("replication.factor", "min.isr", "num.partitions")},
            "log.cleaner.backoff.ms": 300, "log.initial.task.delay.ms": 100, "log.retention.check.interval.ms": 500,
        }  # fmt: skip
        self._properties = home / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        format_ = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster_id}", "-c", self._properties)
        subprocess.run(["java", "-cp", classpath, *map(str, format_)], check=True, capture_output=True)

    @contextlib.contextmanager
    def running(self, *, is_killed: bool = False) -> Iterator[None]:
        """While it lasts, the broker runs; then it is stopped, or killed."""
        with (self._home / "output").open("ab") as output:
            command = ["java", "-Xmx700m", "-cp", self._classpath, "kafka.Kafka", str(self._properties)]
            process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _until(lambda: bool(AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=10)))
            yield
        finally:
            process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
            process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.kafka_protocol.beside_kafka", description=__doc__)
    parser.add_argument("--classpath", required=True, help="the jars of a release of Apache Kafka, as java takes them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        broker, log = KafkaBroker(arguments.classpath, home), LogDir.create(f"{directory}/log")
        with broker.running():
            _late_over_an_open_transaction(broker, log)
            _cleaned_between_passes(broker, log)
            _end_that_is_a_hole(broker, log)
            _nulls_of_answers(broker, log)
        _export_of_the_hole(broker, log, home / "exported")
        _archive_into_a_new_cluster(arguments.classpath, home / "new")
    return 0


def _late_over_an_open_transaction(broker: KafkaBroker, log: LogDir) -> None:
    put = _topic(broker, "ledger", _COMPACTED)
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "ledger"})
    producer.init_transactions(60)
    put("a", "1")
    capture(log, broker.address, ["ledger"])
    time.sleep(_LATE_SECONDS)
    producer.begin_transaction()
    producer.produce("ledger", "aborted", "b", 0)
    producer.flush(30)
    capture(log, broker.address, ["ledger"])
    opened = log.topic("ledger").offsets()[0][1]
    producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce("ledger", "committed", "c", 0)
    producer.commit_transaction(60)

    def is_cleaned() -> bool:
        put("tick", str(time.time()))  # a new segment, so that the one before can be cleaned
        content = b"".join(path.read_bytes() for path in sorted((broker.data / "ledger-0").glob("*.log")))
        left = batches_of(content)
        return not (left.base_offset[left.producer_id >= 0] <= opened).any()

    _until(is_cleaned)
    capture(log, broker.address, ["ledger"])
    here, there = _here(log, "ledger"), _there(broker, "ledger")
    undecided = log.topic("ledger").describe()["undecided"]
    assert _latest(here) == _latest(there) and set(there) <= set(here), (here, there)
    assert [(one["start_offset"], one["end_offset"]) for one in undecided] == [(opened - 1, opened)]
    print(f"late over an open transaction: {len(there)} records there, {len(here)} here, undecided {undecided}")


def _cleaned_between_passes(broker: KafkaBroker, log: LogDir) -> None:
    put = _topic(broker, "busy", _COMPACTED | {"delete.retention.ms": "86400000"})
    for turn in range(6):
        for number in range(50):
            put(str(number % 7), f"{turn}-{number}")
        time.sleep(1)
        capture(log, broker.address, ["busy"])
    here, there = _here(log, "busy"), _there(broker, "busy")
    assert _latest(here) == _latest(there) and set(there) <= set(here)
    assert verify(log, topics=["busy"], deep=True).findings == []
    print(f"cleaned between passes: {len(there)} records there, {len(here)} here")


def _end_that_is_a_hole(broker: KafkaBroker, log: LogDir) -> None:
    put = _topic(broker, "quiet", {})
    for number in range(200):
        put(str(number), "")
        if number == 99:
            capture(log, broker.address, ["quiet"])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition("quiet", 0, 200)]).values():
        future.result(60)
    capture(log, broker.address, ["quiet"])
    assert log.topic("quiet").offsets() == {0: (0, 200)}


def _nulls_of_answers(broker: KafkaBroker, log: LogDir) -> None:
    _topic(broker, "plain", {})("key", "value")
    capture(log, broker.address, ["plain"])
    port, compared = int(broker.address.rpartition(":")[2]), 0
    with serving(log) as server:
        for key, versions in VERSIONS.items():
            here, there = set[str](), set[str]()
            for version, name, isolation_level in itertools.product(versions, ("plain", "not/a/name"), (0, 1)):
                values = values_of(log, name, isolation_level)
                with contextlib.suppress(AssertionError):  # the broker lacks the version, and ends the connection
                    there |= {*nulls(answered(port, key, version, values))}
                    here |= {*nulls(answered(server.port, key, version, values))}
                    compared += 1
            assert here <= there, (key, here - there)
    print(f"null in answers: {compared} pairs compared")


def _export_of_the_hole(broker: KafkaBroker, log: LogDir, exported: Path) -> None:
    log.export_kafka(str(exported), ["quiet"])
    shutil.rmtree(broker.data / "quiet-0")
    shutil.copytree(exported / "quiet-0", broker.data / "quiet-0")
    for name in _CHECKPOINTS:
        ours, theirs = (_entries(directory / name) for directory in (exported, broker.data))
        lines = [*(line for line in theirs if not line.startswith("quiet ")), *ours]
        (broker.data / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    for is_killed in (True, False):
        with broker.running(is_killed=is_killed):
            assert [offset for offset, *_ in _there(broker, "quiet")] == [*range(100)]
    with broker.running():
        _producer(broker, "quiet")("new", "")
        assert _there(broker, "quiet")[-1][0] == 200
    print("a log end that is a hole: the broker gives out offset 200 next")


def _archive_into_a_new_cluster(classpath: str, home: Path) -> None:
    home.mkdir()
    archive, exported = LogDir.create(f"{home}/archive"), home / "exported"
    archive.import_kafka(str(golden_dir("broker-data")))
    names = [name for name in archive.topics() if not name.startswith("__")]
    kept, broker = {"retention.ms": "-1", "cleanup.policy": "delete"}, KafkaBroker(classpath, home)
    with broker.running():
        admin = AdminClient({"bootstrap.servers": broker.address})
        topics = [NewTopic(name, len(archive.topic(name).offsets()), 1, config=kept) for name in names]
        for future in admin.create_topics(topics).values():
            future.result(60)
        described = admin.describe_topics(TopicCollection(names))
        ids = {name: _url_safe(str(future.result(60).topic_id)) for name, future in described.items()}
    archive.export_kafka(str(exported), names, topic_ids=ids)
    for name in names:
        for directory in broker.data.glob(f"{name}-[0-9]*"):
            shutil.rmtree(directory)
    (broker.data / ".kafka_cleanshutdown").unlink()
    shutil.copytree(exported, broker.data, dirs_exist_ok=True)
    for is_killed in (True, False):
        with broker.running(is_killed=is_killed):
            count = 0
            for name in names:
                for number, (start, end) in archive.topic(name).offsets().items():
                    here, there = _here(archive, name, number), _there(broker, name, number)
                    assert here == there and (not here or here[0][0] >= start), f"{name}-{number}"
                    assert _ends(broker, name, number) == (start, end)
                    count += len(there)
    assert not [*broker.data.glob("*-stray")]
    with broker.running():
        _producer(broker, names[0])("new", "")
        assert _ends(broker, names[0], 0)[1] == archive.topic(names[0]).offsets()[0][1] + 1
    print(f"an archive in a new cluster: {count} records of {len(names)} topics")


def _url_safe(topic_id: str) -> str:
    """A topic id as Kafka's own tools print it; librdkafka has another alphabet."""
    return topic_id.replace("+", "-").replace("/", "_").rstrip("=")


def _entries(checkpoint: Path) -> list[str]:
    return checkpoint.read_text().splitlines()[2:]


def _topic(broker: KafkaBroker, topic: str, config: dict[str, str]) -> Callable[[str, str], None]:
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.create_topics([NewTopic(topic, 1, 1, config=config)]).values():
        future.result(60)
    return _producer(broker, topic)


def _producer(broker: KafkaBroker, topic: str) -> Callable[[str, str], None]:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})

    def put(key: str, value: str) -> None:
        producer.produce(topic, value, key, 0)
        assert producer.flush(60) == 0

    return put


def _here(log: LogDir, topic: str, partition: int = 0) -> list[Row]:
    names = ("offset", "key", "value")
    table = log.topic(topic).scan(partition=partition, isolation="read_committed", columns=[*names]).to_table()
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _there(broker: KafkaBroker, topic: str, partition: int = 0) -> list[Row]:
    settings = {"bootstrap.servers": broker.address, "group.id": "reader", "enable.partition.eof": True}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    rows = []
    while (message := consumer.poll(_PATIENCE_SECONDS)).error() is None:
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def _ends(broker: KafkaBroker, topic: str, partition: int) -> tuple[int, int]:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader"})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), _PATIENCE_SECONDS)
    consumer.close()
    return low, high


def _latest(rows: list[Row]) -> dict[bytes, bytes]:
    return {key: value for _, key, value in rows}


def _until(holds: Callable[[], bool]) -> None:
    for _ in range(_PATIENCE_SECONDS):
        with contextlib.suppress(Exception):
            if holds():
                return
        time.sleep(1)
    raise TimeoutError("it does not come about")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
