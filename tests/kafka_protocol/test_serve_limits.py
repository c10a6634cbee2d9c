"""What one client, or all of an address, can have of a server: others are served, and nothing grows."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from kafka.net.sasl.scram import ScramClient

from spark_segments import LogDir
from spark_segments.kafka_protocol.serving.apis import VERSIONS
from spark_segments.kafka_protocol.serving.apis.refused import INIT_PRODUCER_ID
from spark_segments.kafka_protocol.serving.credentials import MECHANISMS, Users
from spark_segments.kafka_protocol.serving.limits import Budget, Limits
from spark_segments.kafka_protocol.serving.server import Server
from verification.kafka_protocol.requests import answer_of, answered, fetch_of, received, request
from verification.kafka_protocol.serving import self_signed, serving
from verification.world.opened import opened
from verification.world.stores.memory_store import memory_log
from verification.world.stores.played_files import Go, PlayedFiles

FETCH, METADATA, JOIN_GROUP, SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 1, 3, 11, 17, 18, 36
MIB = 1 << 20
RECORDS, BYTES = 200, 100_000
OTHERS = "127.0.0.2"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    made = LogDir.create(str(tmp_path_factory.mktemp("served") / "log"))
    made.create_topic("plain", config={"compression.type": "uncompressed"})
    made.topic("plain").append([{"value": "x" * BYTES} for _ in range(RECORDS)])
    return made


def connected(server: Server, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), 20, source_address=(address, 0))
    return made if tls is None else tls.wrap_socket(made, server_hostname="127.0.0.1")


def is_ended(connection: socket.socket) -> bool:
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def records_of(found: Any) -> int:
    [[partition]] = [topic.partitions for topic in found.responses]
    assert not partition.error_code, partition.error_code
    return len(partition.records or b"")


def test_fetches_that_wait_keep_nobody_from_reading(log):
    with serving(log, limits=Limits(workers=2)) as server, contextlib.ExitStack() as stack:
        for _ in range(100):
            idle = stack.enter_context(connected(server))
            idle.sendall(request(FETCH, 4, fetch_of("plain", RECORDS, MIB, wait_seconds=3600)))
        for _ in range(10):
            assert records_of(answered(server.port, FETCH, 4, fetch_of("plain", 0, MIB))) > MIB / 2


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_clients_that_do_not_take_their_answers_keep_nobody_from_reading(log, tmp_path, is_encrypted):
    certificate, tls = self_signed(tmp_path)
    client = ssl.create_default_context(cafile=str(certificate)) if is_encrypted else None
    limits = Limits(workers=2, memory_bytes=16 * MIB, response_bytes=8 * MIB)
    with serving(log, tls=tls if is_encrypted else None, limits=limits) as server, contextlib.ExitStack() as stack:
        for number in range(20):
            slow = stack.enter_context(connected(server, f"127.0.0.{10 + number % 4}", client))
            slow.sendall(request(FETCH, 4, fetch_of("plain", 0, 8 * MIB)) * 2)
        for _ in range(3):
            reader = stack.enter_context(connected(server, tls=client))
            reader.sendall(request(FETCH, 4, fetch_of("plain", 0, 2 * MIB)))
            assert records_of(answer_of(reader, FETCH, 4)) > BYTES
        assert server.state["held_bytes"] <= 16 * MIB


def test_a_client_that_takes_nothing_for_long_is_ended(log):
    with serving(log, limits=Limits(request_seconds=0.1, slow_bytes=1 << 40)) as server, connected(server) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(ConnectionError):
            while True:  # until nobody takes these any more
                slow.sendall(request(FETCH, 4, fetch_of("plain", 0, 8 * MIB)))


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_silent_connections_are_ended(log, tmp_path, is_encrypted):
    _, tls = self_signed(tmp_path)
    limits = Limits(login_seconds=0.1)
    with serving(log, tls=tls if is_encrypted else None, limits=limits) as server, connected(server) as silent:
        assert is_ended(silent)


def test_who_does_not_log_in_is_ended_however_much_it_says(log):
    users, limits = Users({"anna": "tea"}), Limits(login_seconds=0.5)
    with (
        serving(log, users=users, limits=limits) as server,
        connected(server) as talker,
        pytest.raises((AssertionError, ConnectionError)),
    ):
        while True:
            talker.sendall(request(API_VERSIONS, 0, {}))
            answer_of(talker, API_VERSIONS, 0)


def test_the_time_for_a_login_is_over_for_who_talks_too(log):
    limits = Limits(login_seconds=0)
    with serving(log, users=Users({"anna": "tea"}), limits=limits) as server, connected(server) as talker:
        talker.sendall(request(API_VERSIONS, 0, {}))
        assert is_ended(talker)


def test_a_request_before_the_login_is_small(log):
    with serving(log, users=Users({"anna": "tea"})) as server, connected(server) as stranger:
        stranger.sendall(struct.pack(">i", 65_537))
        assert is_ended(stranger)


def test_memory_follows_the_bytes_that_came(log):
    with serving(log) as server, contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(connected(server)).sendall(struct.pack(">i", 4 * MIB) + b"12345")
        answered(server.port, API_VERSIONS, 0, {})
        assert server.state["held_bytes"] == 0


def test_requests_under_way_have_a_bound_together(log):
    with serving(log, limits=Limits(memory_bytes=8 * MIB)) as server, contextlib.ExitStack() as stack:
        for _ in range(8):
            large = stack.enter_context(connected(server))
            with contextlib.suppress(ConnectionError):
                large.sendall(struct.pack(">i", 2 * MIB) + bytes(2 * MIB - 1))
        assert server.state["held_bytes"] <= 4 * MIB
        assert answered(server.port, METADATA, 0, {"topics": "plain", "name": "plain"}).topics[0].name == "plain"


def test_an_answer_for_which_the_process_gets_no_memory_ends_its_connection_alone(log, caplog):
    left = [True]

    def read(path: str, go: Go) -> Any:
        if "/plain-0/" in path and left:
            left.pop()
            raise MemoryError
        return go()

    with serving(opened(log, PlayedFiles(read=read))) as server, connected(server) as first:
        first.sendall(request(FETCH, 4, fetch_of("plain", 0, MIB)))
        assert is_ended(first)
        assert records_of(answered(server.port, FETCH, 4, fetch_of("plain", 0, MIB))) > BYTES
    assert not left and "gets no memory" in caplog.text


NAMES = ("topic", "name", "resource_name", "topics", "groups", "group_id", "key", "coordinator_keys")


@pytest.mark.parametrize("key, version", [(key, versions.stop - 1) for key, versions in VERSIONS.items()])
def test_what_a_request_repeats_is_answered_once(log, key, version):
    values = {
        **fetch_of("plain", 0, MIB),
        **dict.fromkeys(NAMES, "plain"),
        "acks": 1,
        "session_epoch": -1,
        "endpoint_type": 1,
    }
    values |= {"cursor": None, "session_timeout": timedelta(seconds=10), "protocol_type": "consumer"}
    values |= {"response_partition_limit": 100, "resource_type": 2, "last_fetched_epoch": -1}
    with serving(log) as server:
        few = answered(server.port, key, version, values)
        many = answered(server.port, key, version, values, times=20)
    assert _size(many) == _size(few)


def _size(message: Any) -> int:
    """How many messages there are in a message, lists of single values aside."""
    if isinstance(message, tuple):
        return sum(_size(one) for one in message)
    if not hasattr(message, "__dataclass_fields__"):
        return 0
    return 1 + sum(_size(getattr(message, name)) for name in message.__dataclass_fields__)


def test_a_request_of_more_entries_than_are_taken_ends_its_connection(log):
    with serving(log, limits=Limits(request_entries=100)) as server, connected(server) as stranger:
        stranger.sendall(request(METADATA, 1, {"topics": "plain", "name": "plain"}, times=101))
        assert is_ended(stranger)


def test_names_of_no_topics_are_not_remembered(log):
    with serving(log) as server:
        for number in range(10):
            [topic] = answered(server.port, METADATA, 1, {"topics": f"no-{number}", "name": f"no-{number}"}).topics
            assert topic.error_code.name == "unknown_topic_or_partition"
        assert not server.views.known()
        answered(server.port, METADATA, 1, {"topics": "plain", "name": "plain"})
        assert server.views.known() == ["plain"]


def join(server: Server, group: str, size: int, address: str = "127.0.0.1") -> str:
    values = {"group_id": group, "protocol_type": "consumer", "name": "range", "metadata": bytes(size)}
    values |= {"session_timeout": timedelta(seconds=1800), "rebalance_timeout": timedelta(seconds=1)}
    return answered(server.port, JOIN_GROUP, 2, values, address=address).error_code.name


@pytest.mark.proof
def test_members_of_one_address_have_a_share_of_the_memory_for_members():
    log = memory_log("/log")
    with serving(log, limits=Limits(kept_bytes=4 * MIB)) as server:
        assert server.coordinator.take()
        ended = [join(server, f"group-{number}", MIB - 5000) for number in range(4)]
        assert ended == ["none", "none", "group_max_size_reached", "group_max_size_reached"]
        assert join(server, "another", MIB - 5000, OTHERS) == "none"
        assert server.state["kept_bytes"] < 4 * MIB


def test_what_groups_had_is_given_back_with_them():
    log = memory_log("/log")
    with serving(log) as server:
        assert server.coordinator.take()
        values = {"group_id": "billing", "protocol_type": "consumer", "name": "range", "metadata": bytes(MIB)}
        values |= {"session_timeout": timedelta(seconds=10), "rebalance_timeout": timedelta(seconds=1)}
        joined = answered(server.port, JOIN_GROUP, 2, values)
        assert server.state["kept_bytes"] > MIB
        left = answered(server.port, 13, 1, {"group_id": "billing", "member_id": joined.member_id})
        assert left.error_code.name == "none"
        assert server.state["kept_bytes"] == 0


def first_step(server: Server, user: str) -> bytes:
    with connected(server) as connection:
        connection.sendall(request(SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-256"}))
        answer_of(connection, SASL_HANDSHAKE, 1)
        connection.sendall(request(SASL_AUTHENTICATE, 1, {"auth_bytes": f"n,,n={user},r=nonce".encode()}))
        found = answer_of(connection, SASL_AUTHENTICATE, 1).auth_bytes
        return bytes(found).split(b",")[1]


def test_nobody_learns_from_salts_who_is_a_user(log):
    with serving(log, users=Users({"anna": "tea"})) as server:
        salts = {user: {first_step(server, user) for _ in range(2)} for user in ("anna", "berta", "carla")}
    assert [len(each) for each in salts.values()] == [1, 1, 1]
    assert len(set.union(*salts.values())) == 3


def test_failed_logins_are_counted_logged_and_slow(log, caplog):
    with (
        serving(log, users=Users({"anna": "tea"}), limits=Limits(failed_login_seconds=0.2)) as server,
        connected(server) as connection,
        caplog.at_level(logging.WARNING),
    ):
        connection.sendall(request(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}))
        answer_of(connection, SASL_HANDSHAKE, 1)
        connection.sendall(request(SASL_AUTHENTICATE, 1, {"auth_bytes": b"\0anna\0coffee"}))
        connection.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(20)
        assert answer_of(connection, SASL_AUTHENTICATE, 1).error_code.name == "sasl_authentication_failed"
        assert is_ended(connection)
        assert server.state["failed_logins"] == 1
    assert "a login of 127.0.0.1 failed: Unknown user, or wrong password" in caplog.text
    assert "coffee" not in caplog.text


def test_a_producer_waits_for_its_refusal(log):
    """Kafka's Java producer asks again at once, and for ever: tens of thousands of requests in some seconds."""
    with (
        serving(log, limits=Limits(refused_producer_seconds=0.2)) as server,
        connected(server) as connection,
    ):
        for _ in range(2):
            connection.sendall(request(INIT_PRODUCER_ID, 4, {"transactional_id": None}))
            connection.settimeout(0.1)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(20)
            assert answer_of(connection, INIT_PRODUCER_ID, 4).error_code.name == "cluster_authorization_failed"


class _TwiceItsNonce(ScramClient):  # type: ignore[misc]
    """As librdkafka before 2.6.1, such as kcat of Debian 12 has: it says its own nonce twice in its last step."""

    def process_server_first_message(self, server_first_message: bytes) -> None:
        own = self.nonce
        super().process_server_first_message(server_first_message)
        self.auth_message = self.auth_message.replace(b"c=biws,r=", b"c=biws,r=" + own)
        self.nonce = own + self.nonce
        proof = zip(self.client_key, self.hmac(self.stored_key, self.auth_message), strict=True)
        self.client_proof = bytes(left ^ right for left, right in proof)
        self.server_signature = self.hmac(self.server_key, self.auth_message)


@pytest.mark.parametrize("password", ["tea", "coffee"])
@pytest.mark.parametrize("scram_client", [ScramClient, _TwiceItsNonce])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_of_old_log_in_by_bytes_without_a_header(log, mechanism, scram_client, password):
    limits = Limits(failed_login_seconds=0)
    with serving(log, users=Users({"anna": "tea"}), limits=limits) as server, connected(server) as connection:
        connection.sendall(request(SASL_HANDSHAKE, 0, {"mechanism": mechanism}))
        assert not answer_of(connection, SASL_HANDSHAKE, 0).error_code

        def step(token: bytes) -> bytes:
            connection.sendall(struct.pack(">i", len(token)) + token)
            (size,) = struct.unpack(">i", received(connection, 4))
            return received(connection, size)

        def log_in() -> None:
            if mechanism == "PLAIN":
                assert step(b"\0anna\0" + password.encode()) == b""
                return
            client = scram_client("anna", password, mechanism)
            client.process_server_first_message(step(client.first_message()))
            client.process_server_final_message(step(client.final_message()))

        if password == "coffee":
            with pytest.raises(AssertionError, match="the connection ended"):
                log_in()
            assert server.state["failed_logins"] == 1
            return
        log_in()
        connection.sendall(request(METADATA, 1, {"topics": None}))
        assert [topic.name for topic in answer_of(connection, METADATA, 1).topics] == ["plain"]


def test_who_takes_all_it_can_leaves_as_much():
    budget = Budget(100)
    assert budget.take("a", 50)
    assert not budget.take("a", 1)
    assert budget.take("b", 25)
    assert budget.take("c", 12)
    assert budget.free("d") == 6
    budget.give("a", 50)
    assert budget.free("d") == 31


@pytest.fixture(autouse=True)
def _no_faults(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
