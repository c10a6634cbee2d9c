"""Answers of all APIs in all versions, field by field: what Kafka's broker never leaves out is there."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Mapping

import pytest
from confluent_kafka import KafkaException, Producer
from kio.schema.errors import ErrorCode

from spark_segments import LogDir
from spark_segments.kafka_protocol.serving.apis import VERSIONS
from spark_segments.kafka_protocol.serving.limits import Limits
from spark_segments.kafka_protocol.serving.server import Server
from verification.kafka_protocol.answers import nulls, values_of
from verification.kafka_protocol.requests import answered, fetch_of
from verification.kafka_protocol.serving import serving
from verification.world.stores.memory_store import memory_log

FETCH, METADATA = 1, 3


@pytest.fixture(scope="module")
def log() -> LogDir:
    made = memory_log("/log")
    made.create_topic("plain", partitions=2)
    made.topic("plain").append([{"value": str(number), "partition": number % 2} for number in range(10)])
    made.group("plain").reset({"plain": {0: 3}})
    return made


@pytest.fixture(scope="module")
def server(log: LogDir) -> Iterator[Server]:
    with serving(log, limits=Limits(refused_producer_seconds=0.0)) as made:
        yield made


# By API: what Kafka's broker sends as null, too (verification.kafka_protocol.beside_kafka asks one).
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
def test_nothing_is_null_that_kafkas_broker_sends(server, log, key, version, name, isolation_level):
    found = {*nulls(answered(server.port, key, version, values_of(log, name, isolation_level)))}
    if key == FETCH:  # FetchDataInfo.abortedTransactions is empty
        assert bool(found) == (name == "plain" and isolation_level == 0)
    assert found <= NULL.get(key, set())


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_is_asked_for_by_its_id_where_the_name_is_empty(server, log, version):
    topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(f"{log.topic('plain').snapshot.topic_id}=="))
    [topic] = answered(server.port, METADATA, version, {"name": "", "topic_id": topic_id}).topics
    assert (topic.name, len(topic.partitions), topic.error_code) == ("plain", 2, 0)


@pytest.mark.parametrize(
    "last_fetched_epoch, code",
    [(0, ErrorCode.none), (7, ErrorCode.offset_out_of_range)],
)
def test_a_fetch_after_an_epoch_that_the_log_does_not_know_is_out_of_range(server, last_fetched_epoch, code):
    """As of a broker, whose Partition.readRecords cannot say where such an epoch ends."""
    values = {**fetch_of("plain", 1, 1 << 20), "session_epoch": -1, "last_fetched_epoch": last_fetched_epoch}
    [[found]] = [topic.partitions for topic in answered(server.port, FETCH, 12, values).responses]
    assert (found.error_code, bool(found.records)) == (code, code is ErrorCode.none)
    assert found.diverging_epoch.end_offset == -1


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "settings, code",
    [
        ({"enable.idempotence": True}, "CLUSTER_AUTHORIZATION_FAILED"),
        ({"transactional.id": "tx"}, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
    ],
)
def test_a_producer_that_asks_for_an_id_is_refused_for_good(server, settings, code):
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{server.port}", "log_level": 0, **settings})
    if "transactional.id" in settings:
        with pytest.raises(KafkaException) as error:
            producer.init_transactions(20)
    else:
        producer.produce("plain", b"value")
        with pytest.raises(KafkaException) as error:
            producer.flush(20)
    assert error.value.args[0].name() == code
