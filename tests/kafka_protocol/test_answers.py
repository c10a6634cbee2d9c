"""Answers of all APIs in all versions, field by field: what Kafka's broker never leaves out is there."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from spark_segments import LogDir
from spark_segments.kafka_protocol.serving.apis import VERSIONS
from spark_segments.kafka_protocol.serving.server import Server
from tests.kafka_protocol.requests import answered
from tests.kafka_protocol.serving import serving
from tests.log.memory_store import memory_log

SECOND = datetime.timedelta(seconds=1)
FETCH, METADATA = 1, 3
NAMES = ("topic", "name", "resource_name", "topics", "groups", "group_id", "key", "coordinator_keys")
FACTS: Mapping[str, Any] = {
    "resource_type": 2,
    "configuration_keys": None,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 20,
    "response_partition_limit": 1,
    "endpoint_type": 1,
    "cursor": None,
    "acks": 1,
    "session_timeout": 10 * SECOND,
    "rebalance_timeout": SECOND,
    "protocol_type": "consumer",
    "session_epoch": -1,
    "replica_id": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "timestamp": -1,
}


@pytest.fixture(scope="module")
def log() -> LogDir:
    made = memory_log("/log")
    made.create_topic("plain", partitions=2)
    made.topic("plain").append([{"value": str(number), "partition": number % 2} for number in range(10)])
    made.group("plain").reset({"plain": {0: 3}})
    return made


@pytest.fixture(scope="module")
def server(log: LogDir) -> Iterator[Server]:
    with serving(log) as made:
        yield made


def nulls(message: Any, path: str = "") -> Iterator[str]:
    """The fields of an answer that are null. kio has none, too, for an id of zeros and for a time of -1."""
    for field in dataclasses.fields(message):
        value, name = getattr(message, field.name), f"{path}{field.name}"
        if value is None:
            yield name
        for nested in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(nested):
                yield from nulls(nested, f"{name}.")


def values_of(log: LogDir, name: str, isolation_level: int) -> Mapping[str, Any]:
    """What a request asks for about a topic, or about one that is not there."""
    topic_id = uuid.UUID(int=5)
    if name in log.topics():
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(f"{log.topic(name).snapshot.topic_id}=="))
    return {**FACTS, **dict.fromkeys(NAMES, name), "topic_id": topic_id, "isolation_level": isolation_level}


# By API: what Kafka's broker sends as null, too (tests.kafka_protocol.beside_kafka asks one).
NULL: Mapping[int, set[str]] = {
    0: {"responses.partition_responses.log_append_time"},
    FETCH: {"responses.partitions.aborted_transactions"},
    METADATA: {"brokers.rack", "topics.name"},
    11: {"protocol_name", "protocol_type"},  # of an error: JoinGroupRequest.getErrorResponse
    14: {"protocol_name", "protocol_type"},
    15: {"groups.error_message"},
    32: {"results.configs.documentation"},
    60: {"brokers.rack", "error_message"},
    68: {"member_id", "assignment"},  # of an error: ConsumerGroupHeartbeatRequest.getErrorResponse
    75: {"next_cursor", "topics.topic_id"},
}


@pytest.mark.cases(40)
@pytest.mark.parametrize("isolation_level", [0, 1])
@pytest.mark.parametrize("name", ["plain", "unknown"])
@pytest.mark.parametrize("key, version", [(key, version) for key, versions in VERSIONS.items() for version in versions])
def test_nothing_is_null_that_kafkas_broker_sends(
    server: Server, log: LogDir, key: int, version: int, name: str, isolation_level: int
) -> None:
    found = {*nulls(answered(server.port, key, version, values_of(log, name, isolation_level)))}
    if key == FETCH:  # FetchDataInfo.abortedTransactions is empty
        assert bool(found) == (name == "plain" and isolation_level == 0)
    assert found <= NULL.get(key, set())


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_is_asked_for_by_its_id_where_the_name_is_empty(server: Server, log: LogDir, version: int) -> None:
    topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(f"{log.topic('plain').snapshot.topic_id}=="))
    [topic] = answered(server.port, METADATA, version, {"name": "", "topic_id": topic_id}).topics
    assert (topic.name, len(topic.partitions), topic.error_code) == ("plain", 2, 0)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "settings, code",
    [
        ({"enable.idempotence": True}, "CLUSTER_AUTHORIZATION_FAILED"),
        ({"transactional.id": "tx"}, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_a_producer_that_asks_for_an_id_is_refused_for_good(
    server: Server, settings: Mapping[str, Any], code: str
) -> None:
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0, **settings})
    if "transactional.id" in settings:
        with pytest.raises(KafkaException) as error:
            producer.init_transactions(20)
    else:
        producer.produce("plain", b"value")
        with pytest.raises(KafkaException) as error:
            producer.flush(20)
    assert error.value.args[0].name() == code
