"""What Kafka's own clients read from a log directory that is served, against what Kafka's own reader says."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType
from kio.schema.errors import ErrorCode

from spark_segments import LogDir
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol.serving.credentials import MECHANISMS, Users
from spark_segments.kafka_protocol.serving.limits import Limits
from spark_segments.kafka_protocol.serving.server import Server
from spark_segments.kafka_protocol.serving.server_options import ServerOptions
from spark_segments.kafka_protocol.serving.views import Views
from verification.kafka_protocol.requests import answered, request
from verification.kafka_protocol.serving import consumer, expected, records, self_signed, serving, text, with_a_hole
from verification.world.clock import PATIENCE_SECONDS
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    LEGACY_DIRECTORIES,
    expected_records,
    golden_dir,
    queries,
)
from verification.world.stores.s3_server import BUCKET

NAMES = [
    *(name for name in CLEAN_DIRECTORIES if "/" not in name),
    *(name for name in CLEAN_DIRECTORIES if name.startswith("broker-data/")),
    *LEGACY_DIRECTORIES,
]


def _place(name: str) -> tuple[str, int]:
    topic, _, partition = name.rpartition("/")[2].rpartition("-")
    return topic, int(partition)


@pytest.fixture(scope="module")
def kafka_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("kafka")
    for name in NAMES:
        shutil.copytree(golden_dir(name), made / golden_dir(name).name)
    return made


@pytest.fixture(scope="module")
def log(kafka_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    made = LogDir.create(str(tmp_path_factory.mktemp("served") / "log"))
    made.import_kafka(str(kafka_dir))
    return made


@pytest.fixture(scope="module")
def server(log: LogDir) -> Iterator[Server]:
    with serving(log) as made:
        yield made


@pytest.fixture(scope="module")
def read_only_server(kafka_dir: Path) -> Iterator[Server]:
    with serving(LogDir.open(str(kafka_dir))) as made:
        yield made


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", NAMES)
def test_librdkafka_reads_what_kafka_wrote(server, name):
    assert records(server, *_place(name)) == expected(expected_records(name))


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["plain-0", "txn-0", "broker-data/payments-0"])
def test_a_directory_of_kafkas_is_served_as_it_is(read_only_server, name):
    committed = expected(expected_records(name), committed=True)
    assert records(read_only_server, *_place(name), **{"isolation.level": "read_committed"}) == committed


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_old_messages_of_known_epochs_are_served_as_they_are(tmp_path, name):
    shutil.copytree(golden_dir(name), tmp_path / name)
    (tmp_path / name / "leader-epoch-checkpoint").write_text("0\n2\n3 0\n5 400\n")
    with serving(LogDir.open(str(tmp_path))) as made:
        assert records(made, *_place(name)) == expected(expected_records(name))


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["txn-0", "broker-data/payments-0", "broker-data/__consumer_offsets-1"])
def test_readers_of_committed_records_see_no_aborted_ones(server, name):
    rows = expected_records(name)
    committed = expected(rows, committed=True)
    assert committed != expected(rows) or not any(row.get("committed") is False for row in rows)
    assert records(server, *_place(name), **{"isolation.level": "read_committed"}) == committed


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["mixed-0", "txn-0", "legacy-v1-0"])
def test_kafka_python_reads_what_kafka_wrote(server, name):
    place = kafka.TopicPartition(*_place(name))
    reader = kafka.KafkaConsumer(bootstrap_servers=f"127.0.0.1:{server.port}", enable_auto_commit=False)
    try:
        reader.assign([place])
        reader.seek_to_beginning(place)
        end = reader.end_offsets([place])[place]
        found: list[Any] = []
        while reader.position(place) < end:
            for batch in reader.poll(timeout_ms=5000).values():
                found += [(one.offset, text(one.key), text(one.value)) for one in batch]
    finally:
        reader.close()
    assert found == [row[:3] for row in expected(expected_records(name))]


def test_aiokafka_reads_what_kafka_wrote(server):
    async def read(topic: str, partition: int) -> list[Any]:
        reader = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=f"127.0.0.1:{server.port}", enable_auto_commit=False, isolation_level="read_committed"
        )
        await reader.start()
        try:
            place = aiokafka.TopicPartition(topic, partition)
            reader.assign([place])
            await reader.seek_to_beginning(place)
            end = (await reader.end_offsets([place]))[place]
            found: list[Any] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while await reader.position(place) < end:
                    for batch in (await reader.getmany(timeout_ms=5000)).values():
                        found += [(one.offset, text(one.key), text(one.value)) for one in batch]
            return found
        finally:
            await reader.stop()

    for name in ("mixed-0", "txn-0"):
        assert asyncio.run(read(*_place(name))) == [row[:3] for row in expected(expected_records(name), committed=True)]


def offsets_by_librdkafka(server: Server, isolation_level: str) -> tuple[list[int], int]:
    """(offsets of the records, the position at the end) of `gone-0`."""
    reader = consumer(server, **{"isolation.level": isolation_level})
    try:
        reader.assign([TopicPartition("gone", 0, 0)])
        found: list[int] = []
        while (message := reader.poll(PATIENCE_SECONDS)) is not None and message.error() is None:
            found.append(message.offset())
        assert message is not None and message.error().name() == "_PARTITION_EOF"
        return found, message.offset()
    finally:
        reader.close()


def offsets_by_kafka_python(server: Server, isolation_level: str) -> tuple[list[int], int]:
    place = kafka.TopicPartition("gone", 0)
    reader = kafka.KafkaConsumer(
        bootstrap_servers=f"127.0.0.1:{server.port}", enable_auto_commit=False, isolation_level=isolation_level
    )
    try:
        reader.assign([place])
        reader.seek(place, 0)
        end, found = reader.end_offsets([place])[place], []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while reader.position(place) < end and time.monotonic() < deadline:
            found += [one.offset for batch in reader.poll(timeout_ms=500).values() for one in batch]
        return found, reader.position(place)
    finally:
        reader.close()


def offsets_by_aiokafka(server: Server, isolation_level: str) -> tuple[list[int], int]:
    async def read() -> tuple[list[int], int]:
        place = aiokafka.TopicPartition("gone", 0)
        address = f"127.0.0.1:{server.port}"
        reader = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=address, enable_auto_commit=False, isolation_level=isolation_level
        )
        await reader.start()
        try:
            reader.assign([place])
            reader.seek(place, 0)
            end, found = (await reader.end_offsets([place]))[place], []
            deadline = time.monotonic() + PATIENCE_SECONDS
            while await reader.position(place) < end and time.monotonic() < deadline:
                found += [one.offset for batch in (await reader.getmany(timeout_ms=500)).values() for one in batch]
            return found, await reader.position(place)
        finally:
            await reader.stop()

    return asyncio.run(read())


@pytest.mark.cases(1)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("read", [offsets_by_librdkafka, offsets_by_kafka_python, offsets_by_aiokafka])
def test_a_reader_comes_to_a_log_end_that_is_a_hole(tmp_path, read, isolation_level):
    log = with_a_hole(str(tmp_path / "log"))
    with serving(log) as server:
        assert read(server, isolation_level) == (list(range(100)), 200)
        log.topic("gone").append([{"value": "after"}])
        assert read(server, isolation_level) == ([*range(100), 200], 201)


@pytest.mark.parametrize("name", ["canary-0", "logappend-0"])
def test_offsets_by_time_are_kafkas(server, name):
    asked = [one for one in queries(name) if one["query"] == "offsetForTimestamp" and one["target"] >= 0][::10]
    assert len(asked) > 10
    topic, partition = _place(name)
    reader = consumer(server)
    try:
        for one in asked:
            place = TopicPartition(topic, partition, one["target"])
            [found] = reader.offsets_for_times([place], timeout=PATIENCE_SECONDS)
            assert (None if found.offset < 0 else found.offset) == one["offset"], one
    finally:
        reader.close()


def test_a_client_sees_the_topics_with_their_ids_and_settings(server, log):
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
    listed = client.list_topics(timeout=PATIENCE_SECONDS)
    assert sorted(listed.topics) == log.topics()
    assert len(listed.topics["orders"].partitions) == len(log.topic("orders").offsets())
    [future] = client.describe_configs([ConfigResource(ResourceType.TOPIC, "orders")]).values()
    shown = {name: entry.value for name, entry in future.result(PATIENCE_SECONDS).items()}
    assert shown == log.topic("orders").config.effective()
    [future] = client.describe_configs([ConfigResource(ResourceType.BROKER, "1")]).values()
    broker = future.result(PATIENCE_SECONDS)
    assert {broker[name].value for name in ("auto.create.topics.enable", "delete.topic.enable")} == {"false"}


def test_settings_name_what_their_values_come_from_and_a_group_has_none(tmp_path):
    log = LogDir.create(str(tmp_path), defaults={"segment.bytes": "2000000"})
    log.create_topic("set", config={"retention.ms": "86400000"})
    topic = {"resource_type": 2, "resource_name": "set", "configuration_keys": ("retention.ms", "segment.bytes")}
    group = {"resource_type": 32, "resource_name": "billing", "configuration_keys": None}
    with serving(log) as server:
        [settings] = answered(server.port, 32, 4, topic | {"include_synonyms": True}).results
        [bare] = answered(server.port, 32, 4, topic | {"include_synonyms": False}).results
        [none] = answered(server.port, 32, 4, group).results
    shown = {
        entry.name: [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]
        for entry in settings.configs
    }
    assert shown == {
        "retention.ms": [("retention.ms", "86400000", 1), ("log.retention.ms", "604800000", 5)],
        "segment.bytes": [("log.segment.bytes", "2000000", 4), ("log.segment.bytes", "1073741824", 5)],
    }
    assert not any(entry.synonyms for entry in bare.configs)
    assert none.error_code == ErrorCode.none and not none.configs


def test_a_partition_has_the_size_of_its_files(tmp_path):
    log = LogDir.create(str(tmp_path))
    for name in ("sized", "empty"):
        log.create_topic(name, partitions=2)
    for number in range(3):
        log.topic("sized").append([{"value": "x" * number, "partition": number % 2}])
    on_disk = sum(file.stat().st_size for file in tmp_path.rglob("*.log"))
    with serving(log) as server:
        client = kafka.KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
        [broker] = client.describe_log_dirs()
        client.close()
        [directory] = broker["log_dirs"]
        sizes = {topic["name"]: [one["partition_size"] for one in topic["partitions"]] for topic in directory["topics"]}
        assert sizes == {"empty": [0, 0], "sized": [on_disk - sizes["sized"][1], sizes["sized"][1]]}
        assert sizes["sized"][0] > sizes["sized"][1] > 0  # two appends and one
        for version in range(1, 5):  # as interfaces ask of some partitions
            [directory] = answered(server.port, 35, version, {"topic": "sized", "partitions": (1, 7)}).results
            [[size]] = [[one.partition_size for one in topic.partitions] for topic in directory.topics]
            assert size == sizes["sized"][1]
        [directory] = answered(server.port, 35, 4, {"topic": "unknown", "partitions": (0,)}).results
        assert not directory.topics


def test_the_largest_timestamp_has_an_offset(server):
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
    place = TopicPartition("outoforder", 0)
    [future] = client.list_offsets({place: OffsetSpec.max_timestamp()}).values()
    rows = expected_records("outoforder-0")
    latest = max(row["timestamp"] for row in rows)
    assert future.result(PATIENCE_SECONDS).offset == next(row["offset"] for row in rows if row["timestamp"] == latest)


def test_a_producer_is_refused_for_good(server):
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0})
    producer.produce("plain", b"value", callback=lambda error, _: failed.append(error))
    producer.flush(PATIENCE_SECONDS)
    assert [error.name() for error in failed] == ["TOPIC_AUTHORIZATION_FAILED"]


def test_a_log_directory_on_an_object_store_is_served(s3_options, tmp_path):
    far = LogDir.create(f"s3a://{BUCKET}/{tmp_path.name}/log", s3_options)
    far.create_topic("far", partitions=2)
    for number in range(3):
        far.topic("far").append([{"value": f"{number}-{row}", "partition": row % 2} for row in range(100)])
    with serving(far) as server:
        assert [row[2] for row in records(server, "far", 1)] == [
            text(f"{number}-{row}".encode()) for number in range(3) for row in range(1, 100, 2)
        ]
        reader = consumer(server, **{"group.id": "billing"})
        try:
            reader.commit(offsets=[TopicPartition("far", 0, 40)], asynchronous=False)
        finally:
            reader.close()
    assert far.group("billing").positions().offsets == {"far": {0: 40}}


def test_the_command_ends_in_order_and_leaves_its_figures(log, tmp_path):
    metrics = tmp_path / "serve.prom"
    command = [sys.executable, "-m", "spark_segments", "serve", str(log.uri), "--port", "0", "--metrics", str(metrics)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline().partition("127.0.0.1:")[2].split()[0])
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(request(18, 0, {}))
            assert connection.recv(1)
            process.terminate()
            rest = process.stdout.read()
        assert process.wait(PATIENCE_SECONDS) == 0
    assert rest.startswith("Ended: ")
    assert "segments_serve_answered_requests{" in metrics.read_text()


def test_an_append_ends_a_fetch_that_waits(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("live", partitions=1)
    log.topic("live").append([{"value": "before"}])
    with serving(log) as server:
        waits = {"fetch.wait.max.ms": 250_000, "socket.timeout.ms": 300_000, "enable.partition.eof": False}
        reader = consumer(server, **waits)
        try:
            reader.assign([TopicPartition("live", 0, 0)])
            assert reader.poll(PATIENCE_SECONDS).value() == b"before"
            log.topic("live").append([{"value": "after"}])
            assert reader.poll(200).value() == b"after"
        finally:
            reader.close()


@pytest.mark.proof
def test_chunks_of_many_appends_are_read_in_order(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("small", partitions=2)
    for number in range(30):
        log.topic("small").append([{"value": f"{number}-{row}", "partition": row % 2} for row in range(20)])
    with serving(log) as server:
        for partition in range(2):
            # A fetch of few bytes ends within each chunk.
            found = records(server, "small", partition, **{"fetch.message.max.bytes": 200})
            wanted = [f"{number}-{row}".encode() for number in range(30) for row in range(partition, 20, 2)]
            assert [row[0] for row in found] == list(range(300))
            assert [row[2] for row in found] == [text(value) for value in wanted]


@pytest.mark.proof
def test_what_retention_took_is_out_of_range(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("old")
    log.topic("old").append([{"value": str(number)} for number in range(100)])
    log.topic("old").delete_records({0: 60})
    with serving(log) as server:
        reader = consumer(server, **{"auto.offset.reset": "error"})
        try:
            reader.assign([TopicPartition("old", 0, 10)])
            assert reader.poll(PATIENCE_SECONDS).error().name() == "_AUTO_OFFSET_RESET"
        finally:
            reader.close()
        assert [row[0] for row in records(server, "old", 0)] == list(range(60, 100))


@pytest.mark.proof
def test_a_topic_is_served_as_it_was(tmp_path):
    log = LogDir.create(str(tmp_path))
    log.create_topic("past")
    log.topic("past").append([{"value": "first"}])
    version, committed_ms = log.topic("past").snapshot.version, log.topic("past").history(1)[0]["committed_ms"]
    log.create_topic("other")
    log.topic("other").append([{"value": "another"}])
    while time.time_ns() // 1_000_000 <= committed_ms:  # what follows is committed in a later millisecond
        pass
    log.topic("past").append([{"value": "second"}])
    for shown, topics in (
        ({"versions": {"past": version}}, {"past"}),
        ({"timestamp_ms": committed_ms}, {"past", "other"}),
    ):
        with serving(log, shown=shown) as server:
            assert len(records(server, "past", 0)) == 1
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
            assert set(client.list_topics(timeout=PATIENCE_SECONDS).topics) == topics


@pytest.mark.parametrize("versions", [{"nothing": 1}, {"past": 99}, {"past": 1, "nothing": 1}])
def test_a_server_does_not_begin_with_a_topic_or_a_version_that_is_not_there(tmp_path, versions):
    log = LogDir.create(str(tmp_path))
    log.create_topic("past")
    log.topic("past").append([{"value": "first"}])
    with pytest.raises(SegmentsError, match=r"There are: past|Version 99 of topic past is not there"):
        Views(log, versions=versions)


@pytest.mark.cases(1)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_proves_who_it_is(log, mechanism):
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "sasl.username": "anna"}
    with serving(log, users=Users({"anna": "tea, with=milk"})) as server:
        found = records(server, "plain", 0, **login, **{"sasl.password": "tea, with=milk"})
        assert len(found) == len(expected_records("plain-0"))
        client = AdminClient(
            {"bootstrap.servers": f"127.0.0.1:{server.port}", **login, "sasl.password": "coffee", "log_level": 0}
        )
        with pytest.raises(KafkaException):
            client.list_topics(timeout=2)
        plain = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0})
        with pytest.raises(KafkaException):
            plain.list_topics(timeout=2)


def test_a_client_reads_over_tls(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("large", config={"compression.type": "uncompressed"})
    log.topic("large").append([{"value": f"{number}" + "x" * 50_000} for number in range(100)])
    certificate, tls = self_signed(tmp_path)
    with serving(log, tls=tls) as server:
        reader = {"security.protocol": "SSL", "ssl.ca.location": str(certificate)}
        for _ in range(2):  # the second time what was read is known, and may not be sent from its file
            assert [row[0] for row in records(server, "large", 0, **reader)] == list(range(100))


@pytest.mark.proof
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_clients_that_send_nothing_or_take_nothing_are_ended(log, tmp_path, is_encrypted):
    certificate, tls = self_signed(tmp_path)
    client = ssl.create_default_context(cafile=str(certificate))
    asked = request(1, 4, {"topic": "plain", "partition_max_bytes": 1 << 20, "max_bytes": 1 << 20, "replica_id": -1})
    with serving(
        log, tls=tls if is_encrypted else None, limits=Limits(idle_seconds=0.2, request_seconds=0.2, slow_bytes=1 << 24)
    ) as server:

        def connected() -> socket.socket:
            made = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)
            return client.wrap_socket(made, server_hostname="127.0.0.1") if is_encrypted else made

        for sent in (b"", asked[:9]):
            # On a busy machine the server ends a connection whose handshake takes longer.
            with contextlib.suppress(ConnectionError, ssl.SSLEOFError), connected() as connection:
                connection.sendall(sent)
                assert connection.recv(1) == b""
        with contextlib.suppress(ConnectionError, ssl.SSLEOFError), connected() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            while True:  # until nobody takes these any more
                connection.sendall(asked * 20)


def test_other_machines_ask_for_tls_and_users(log):
    with pytest.raises(InvalidOptionError, match="--insecure"):
        Server(Views(log), ServerOptions(host="0.0.0.0"))


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">i", -1),
        struct.pack(">i", 1 << 30),
        struct.pack(">ihhi", 8, 1, 99, 7),
        struct.pack(">ihhi", 8, 20, 0, 7),  # DeleteTopics
        struct.pack(">ihhi", 8, 3, 12, 7),
        struct.pack(">ihhih", 10, 3, 1, 7, -1) + b"\xff\xff\xff\x7f",
        request(2, 1, {})[:-22] + b"\xff\xff\xff\xff" + bytes(18),  # ListOffsets whose topics are null
        request(2, 1, {})[:-22] + b"\x7f\xff\xff\xff" + bytes(18),  # and are more than fit into memory
    ],
)
def test_a_request_that_makes_no_sense_ends_its_connection_alone(server, sent):
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(sent)
        with contextlib.suppress(ConnectionResetError):  # bytes that nobody read
            assert connection.recv(100) == b""
    assert records(server, "plain", 0, begin=4990)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(struct.pack(">ihhi", 8, 18, 99, 7))
        size, correlation_id, error = struct.unpack(">iih", connection.recv(10, socket.MSG_WAITALL))
        assert (correlation_id, error) == (7, 35)
        assert size > 6


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_cluster_is_described_in_each_version(server, version):
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(request(60, version, {"endpoint_type": 1}, correlation_id=9))
        size, correlation_id = struct.unpack(">ii", connection.recv(8, socket.MSG_WAITALL))
        assert correlation_id == 9
        assert b"127.0.0.1" in connection.recv(size - 4, socket.MSG_WAITALL)


def test_connections_are_bounded_and_no_address_has_more_than_half(log):
    with serving(log, limits=Limits(connections=4)) as server, contextlib.ExitStack() as stack:

        def answers(address: str) -> bool:
            connection = socket.create_connection(("127.0.0.1", server.port), 10, source_address=(address, 0))
            stack.enter_context(connection)
            connection.sendall(request(18, 0, {}))
            with contextlib.suppress(ConnectionResetError):
                return connection.recv(1) != b""
            return False

        assert [answers("127.0.0.1") for _ in range(3)] == [True, True, False]
        assert [answers("127.0.0.2") for _ in range(2)] == [True, False]
