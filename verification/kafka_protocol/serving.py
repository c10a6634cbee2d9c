"""A server in this process, and what Kafka's own clients read from it."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from spark_segments.kafka_protocol.serving.limits import Limits
from spark_segments.kafka_protocol.serving.server import Server
from spark_segments.kafka_protocol.serving.server_options import ServerOptions
from spark_segments.kafka_protocol.serving.views import Views
from verification.world.clock import PATIENCE_SECONDS
from verification.world.stores.memory_store import memory_log

Record = tuple[int, str | None, str | None, list[tuple[str, str | None]]]
"""Offset, key, value, headers; bytes in base64, as Kafka's own reader has them in tests/golden."""


@contextmanager
def serving(
    log: LogDir,
    interval_seconds: float = 0.02,
    shown: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> Iterator[Server]:
    """The server of a log directory, on a free port of this machine. `shown`: which versions of its topics."""
    views = Views(log, interval_seconds=interval_seconds, **shown or {})
    with Server(views, ServerOptions(port=0, **options), limits) as server:
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        yield server
    thread.join(PATIENCE_SECONDS)


def with_a_hole(location: str) -> LogDir:
    """`gone-0` has records 0 to 99, of these times, and ends at 200: a broker deleted the rest before a capture."""
    source, log = memory_log("/source"), LogDir.create(location)
    source.create_topic("gone", partitions=1)
    with serving(source, interval_seconds=0) as broker:
        source.topic("gone").append([{"value": str(number), "timestamp": number} for number in range(100)])
        capture(log, f"127.0.0.1:{broker.port}")
        source.topic("gone").append([{"value": str(number)} for number in range(100)])
        source.topic("gone").delete_records({0: -1})
        capture(log, f"127.0.0.1:{broker.port}")
    return log


def self_signed(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1, and a server's context with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    there, secret = directory / "certificate.pem", directory / "key.pem"
    there.write_bytes(certificate.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(there, secret)
    return there, context


def consumer(server: Server, **settings: Any) -> Consumer:
    """librdkafka's consumer, which checks the CRC of each batch."""
    return Consumer(
        {
            "bootstrap.servers": f"127.0.0.1:{server.port}",
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "isolation.level": "read_uncommitted",
            "fetch.error.backoff.ms": 10,
            "topic.metadata.refresh.interval.ms": 1000,
            **settings,
        }
    )


def records(server: Server, topic: str, partition: int, begin: int = -2, **settings: Any) -> list[Record]:
    """The records of a partition from an offset (-2: the earliest) to its end, by librdkafka."""
    reader = consumer(server, **settings)
    try:
        reader.assign([TopicPartition(topic, partition, begin)])
        found: list[Record] = []
        while True:
            message = reader.poll(PATIENCE_SECONDS)
            assert message is not None, f"{topic}-{partition} ended nowhere: {len(found)} records"
            if (error := message.error()) is None:
                headers = [(name, text(value)) for name, value in message.headers() or []]
                found.append((message.offset(), text(message.key()), text(message.value()), headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise AssertionError(f"{topic}-{partition}: {error}")
    finally:
        reader.close()


def expected(rows: list[dict[str, Any]], *, committed: bool = False) -> list[Record]:
    """What Kafka's own reader says of a directory, without control records; `committed`: and without aborted ones."""
    aborted, ended = set(), {}
    for row in reversed(rows):  # a transaction's records come before the marker that ends it
        if row.get("isControl"):
            ended[row["producerId"]] = row["controlType"]
            continue
        is_unfinished = row.get("committed") is False  # in an open transaction, or above the last stable offset
        if is_unfinished or (row.get("isTransactional") and ended.get(row["producerId"]) == "ABORT"):
            aborted.add(row["offset"])
    return [
        (row["offset"], row["key"], row["value"], [(name, value) for name, value in row["headers"]])
        for row in rows
        if not row.get("isControl") and not (committed and row["offset"] in aborted)
    ]


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()
