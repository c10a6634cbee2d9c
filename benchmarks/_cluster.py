"""A topic in a running cluster: values of 1 KiB that no codec makes smaller, produced and consumed by librdkafka."""

from __future__ import annotations

import socket
import struct

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from verification.kafka_protocol.fetching import FETCH, FETCH_VERSION
from verification.kafka_protocol.requests import fetch_of, request

VALUE_BYTES = 1024
TOPIC = "orders"
_OFFSET = 0x1122334455667788  # where the request has its offset


def produce(address: str, count: int, partitions: int = 1) -> None:
    servers = {"bootstrap.servers": address}
    client = AdminClient(servers)
    [made] = client.create_topics([NewTopic(TOPIC, partitions, 1)]).values()
    made.result(20)
    producer = Producer({**servers, "batch.size": 1 << 20, "linger.ms": 50, "queue.buffering.max.messages": 10_000})
    value = np.random.default_rng(1).bytes(VALUE_BYTES)
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(60)


def consume(address: str, count: int, partitions: int = 1) -> None:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "benchmark", "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(partitions)])
    while count:
        count -= len(consumer.consume(min(10_000, count), 10))
    consumer.close()


def raw_fetch(address: str, size: int, end: int, partition: int = 0) -> None:
    """Fetches a partition from 0 to its end, `size` bytes a request; looks at the headers of batches alone."""
    buffer = memoryview(bytearray(size + (1 << 20)))
    asked = request(FETCH, FETCH_VERSION, fetch_of(TOPIC, _OFFSET, size, partition=partition, wait_seconds=1))
    offset = 0
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        while offset < end:
            connection.sendall(asked.replace(struct.pack(">q", _OFFSET), struct.pack(">q", offset)))
            fill(connection, buffer[:4])
            answer = buffer[: struct.unpack_from(">i", buffer)[0]]
            fill(connection, answer)
            (error,) = struct.unpack_from(">h", answer, _RECORDS - 22)
            assert not error, error
            position = _RECORDS + 4
            while position + 61 <= len(answer):
                base, length = struct.unpack_from(">qi", answer, position)
                (delta,) = struct.unpack_from(">i", answer, position + 23)
                position += 12 + length
                if position <= len(answer):
                    offset = base + delta + 1


# correlation id, throttle time, topics, name, partitions, index, error, two offsets and no aborted transactions
_RECORDS = 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4 + 2 + 8 + 8 + 4


def fill(connection: socket.socket, buffer: memoryview) -> None:
    while len(buffer):
        count = connection.recv_into(buffer)
        assert count, "the connection ended"
        buffer = buffer[count:]
