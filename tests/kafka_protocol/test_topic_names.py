"""Names that Kafka's protocol brings: an alias is no topic to a server, and what a broker calls a topic may be none."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from spark_segments import LogDir
from spark_segments.errors import InvalidTopicError, UnknownTopicError
from spark_segments.kafka_protocol import ReplayOptions, capture, replay
from spark_segments.maintenance import vacuum
from verification.kafka_protocol.played import PlayedViews, playing
from verification.kafka_protocol.requests import request
from verification.kafka_protocol.serving import serving
from verification.world.clock import ORPHAN_AGE_MS, PATIENCE_SECONDS, store_clock
from verification.world.topics import values

ALIASES = ["./orders", "orders/", ".", "a/b"]


@pytest.fixture
def orders(log: LogDir) -> LogDir:
    log.create_topic("orders")
    log.topic("orders").append([{"value": "a"}, {"value": "b"}])
    return log


def a_week_later(log: LogDir) -> None:
    now_ms = log.storage.now_ms() + ORPHAN_AGE_MS + 60_000
    with store_clock(now_ms):
        vacuum(log, now_ms=now_ms)


def answer(port: int, api_key: int, version: int, /, **asked: Any) -> Any:
    """What a server answers to a request."""
    address = ("127.0.0.1", port)
    with socket.create_connection(address, timeout=PATIENCE_SECONDS) as connection, connection.makefile("rb") as stream:
        connection.sendall(request(api_key, version, asked))
        (size,) = struct.unpack(">i", stream.read(4))
        frame = stream.read(size)
    schema: Any = load_response_schema(api_key, version)
    reader = entity_reader(schema)
    _, at = entity_reader(schema.__header_schema__)(frame, 0)
    return reader(frame, at)[0]


# By API key and version: where the answer has the error of a topic. Metadata, DescribeConfigs and
# DescribeTopicPartitions of Kafka's broker check names; to the others a name that is no topic's is an unknown one.
APIS: dict[str, tuple[int, int, str, ErrorCode]] = {
    "Fetch": (1, 11, "responses", ErrorCode.unknown_topic_or_partition),
    "ListOffsets": (2, 7, "topics", ErrorCode.unknown_topic_or_partition),
    "Metadata": (3, 9, "topics", ErrorCode.invalid_topic_exception),
    "OffsetCommit": (8, 8, "topics", ErrorCode.unknown_topic_or_partition),
    "OffsetForLeaderEpoch": (23, 4, "topics", ErrorCode.unknown_topic_or_partition),
    "DescribeConfigs": (32, 4, "results", ErrorCode.invalid_topic_exception),
    "DescribeTopicPartitions": (75, 0, "topics", ErrorCode.invalid_topic_exception),
}


@pytest.mark.parametrize("api", APIS)
def test_a_server_has_no_topic_by_another_path(orders, api):
    key, version, where, code = APIS[api]
    with serving(orders) as server:
        answer(server.port, 10, 2, key="audit")  # FindCoordinator: from now on this server has the groups
        for name in ALIASES:
            given = {"name": name, "topic": name, "resource_name": name, "resource_type": 2, "replica_id": -1}
            more = {"session_epoch": -1, "generation_id_or_member_epoch": -1, "group_id": "audit", "cursor": None}
            [found] = getattr(answer(server.port, key, version, **given, **more), where)
            [one] = getattr(found, "partitions", ()) or [found]
            assert one.error_code == code
    assert orders.groups() == []
    a_week_later(orders)
    assert values(orders, "orders") == [b"a", b"b"]


class Renamed(PlayedViews):
    """A broker that calls its topics by names of its own."""

    def __init__(self, log: LogDir, names: dict[str, str]) -> None:
        super().__init__(log, lambda: None)
        self.renamed = names

    def names(self) -> Sequence[str]:
        return sorted(self.renamed)

    def topic(self, name: str) -> Any:
        return super().topic(self.renamed[name]) if name in self.renamed else None


def test_a_capture_takes_no_topic_whose_name_is_none_here(orders, tmp_path):
    source = LogDir.create(str(tmp_path / "source"))
    for topic in ("good", "one", "two", "three", "four"):
        source.create_topic(topic)
        source.topic(topic).append([{"value": topic}])
    names = {"good": "good", "./orders": "one", "a/b": "two", "_manifest": "three", "..": "four"}
    with playing(Renamed(source, names)) as address:
        report = capture(orders, address)
        again = capture(orders, address)
    for found in (report, again):
        assert sorted(line["topic"] for line in found.failed) == ["..", "./orders", "_manifest", "a/b"]
    assert all("topic name" in line["error"].lower() for line in report.failed)
    a_week_later(orders)
    assert {name: values(orders, name) for name in orders.topics()} == {"good": [b"good"], "orders": [b"a", b"b"]}


def test_a_topic_that_a_capture_names_and_the_cluster_lacks_is_an_error(orders, tmp_path):
    log = LogDir.create(str(tmp_path / "captured"))
    with playing(Renamed(orders, {"orders": "orders"})) as address:
        report = capture(log, address, ["orders", "payments"])
        with pytest.raises(InvalidTopicError):
            capture(log, address, ["./orders"])
        with pytest.raises(UnknownTopicError):
            capture(log, address, ["payments"])
    assert [line["topic"] for line in report.failed] == ["payments"]
    assert values(log, "orders") == [b"a", b"b"]


@pytest.mark.parametrize("name", ALIASES)
def test_a_replay_takes_and_gives_names_of_topics_alone(orders, broker, name):
    with pytest.raises(InvalidTopicError):
        replay(orders, broker, [name])
    with pytest.raises(InvalidTopicError):
        replay(orders, broker, ["orders"], ReplayOptions(rename={"orders": name}))
    assert not orders.storage.directories("_replay")
