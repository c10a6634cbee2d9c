"""A topic in a running cluster: values of 1 KiB that no codec makes smaller, produced and consumed by librdkafka."""

from __future__ import annotations

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

VALUE_BYTES = 1024
TOPIC = "orders"


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
