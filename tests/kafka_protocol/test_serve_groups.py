"""Consumer groups of Kafka's own clients at a log directory that is served: who reads what, and what is committed."""

from __future__ import annotations

import asyncio
import collections
import itertools
import random
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from spark_segments import LogDir
from spark_segments.kafka_protocol.serving.coordinator import Coordinator
from spark_segments.kafka_protocol.serving.group_members import JoinRequest, MemberAt, RefusedError
from spark_segments.kafka_protocol.serving.limits import Limits
from spark_segments.kafka_protocol.serving.server import Server
from spark_segments.kafka_protocol.serving.stored_groups import CommitUnderWayError
from spark_segments.log.groups.group_files import content_of
from spark_segments.quantities import wall_ms
from verification.kafka_protocol import served_kills
from verification.kafka_protocol.requests import answered
from verification.kafka_protocol.serving import consumer, serving
from verification.world.clock import PATIENCE_SECONDS
from verification.world.opened import DeltaLog, created, opened
from verification.world.stores.memory_store import MemoryFiles, replayed
from verification.world.topics import append_numbers

PARTITIONS = 6
OFFSET_COMMIT, FIND_COORDINATOR, DELETE_GROUPS, OFFSET_DELETE = 8, 10, 42, 47
SESSION_MS = 300_000  # no test waits for a session's end, and clients take no longer one


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    made = LogDir.create(str(tmp_path / "log"))
    made.create_topic("orders", partitions=PARTITIONS)
    append_numbers(made, range(600))
    return made


def test_a_member_by_the_new_protocol_is_told_that_the_server_has_another(log):
    with serving(log) as server:
        config = {"bootstrap.servers": f"127.0.0.1:{server.port}", "group.id": "new", "group.protocol": "consumer"}
        reader = Consumer({**config, "log_level": 0})
        reader.subscribe(["orders"])
        message = reader.poll(PATIENCE_SECONDS)
        assert message is not None and (error := message.error()) is not None
        assert "ConsumerGroupHeartbeat fatal error: Broker: API version not supported" in error.str()
        answer = answered(server.port, 68, 1, {"group_id": "new", "subscribed_topic_names": None})
        assert "set group.protocol=classic" in answer.error_message
        reader.close()


def member(server: Server, group: str, **settings: Any) -> Consumer:
    made = consumer(
        server,
        **{
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": False,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 200,
            **settings,
        },
    )
    made.subscribe(["orders"])
    return made


def take(readers: list[Consumer], count: int) -> list[tuple[int, int, str]]:
    """So many records (partition, offset, value) that members get, each committed once it is taken."""
    found: list[tuple[int, int, str]] = []
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        for reader in readers:
            for message in reader.consume(50, timeout=0.1):
                assert message.error() is None, message.error()
                found.append((message.partition(), message.offset(), message.value().decode()))
            if reader.assignment():
                positions = [one for one in reader.position(reader.assignment()) if one.offset >= 0]
                if positions:
                    reader.commit(offsets=positions, asynchronous=False)
    return found


def test_members_share_the_partitions_and_read_each_record_once(log):
    log.group("billing").reset({"orders": dict.fromkeys(range(PARTITIONS), 100)})
    with serving(log, groups="all") as server:
        readers = [member(server, "billing", **{"client.id": f"reader-{number}"}) for number in range(3)]
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while sorted(len(one.assignment()) for one in readers) != [2, 2, 2]:
                assert time.monotonic() < deadline
                assert not any(one.poll(0.1) for one in readers)
            append_numbers(log, range(600, 1200))
            found = take(readers, 600)
            assert sorted(found) == sorted((n % PARTITIONS, n // PARTITIONS, str(n)) for n in range(600, 1200))
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
            [state] = client.describe_consumer_groups(["billing"]).values()
            described = state.result(PATIENCE_SECONDS)
            assert described.state is ConsumerGroupState.STABLE
            assert sorted(one.client_id for one in described.members) == ["reader-0", "reader-1", "reader-2"]
        finally:
            for one in readers:
                one.close()
        positions = log.group("billing").positions()
        assert {place: one.offset for place, one in positions.items()} == {
            ("orders", partition): 200 for partition in range(PARTITIONS)
        }


@pytest.mark.proof
def test_a_member_that_leaves_gives_its_partitions_to_the_others(log):
    with serving(log) as server:
        readers = [member(server, "billing") for _ in range(2)]
        try:
            first = take(readers, 600)
            readers.pop().close()
            append_numbers(log, range(600, 660))
            second = take(readers, 60)
        finally:
            for one in readers:
                one.close()
    seen = collections.Counter(value for _, _, value in first + second)
    assert sorted(seen, key=int) == [str(number) for number in range(660)]
    assert set(seen.values()) == {1}


@pytest.mark.proof
def test_a_group_goes_on_where_it_was_when_another_server_takes_over(log):
    with serving(log) as server:
        reader = member(server, "billing")
        try:
            first = take([reader], 600)
        finally:
            reader.close()
    append_numbers(log, range(600, 700))
    with serving(log) as server:
        reader = member(server, "billing")
        try:
            second = take([reader], 100)
        finally:
            reader.close()
    assert sorted(int(value) for _, _, value in first + second) == list(range(700))


@pytest.mark.proof
def test_a_second_server_has_the_groups_once_the_first_ends(log):
    with serving(log) as second:
        with serving(log) as first:
            reader = member(first, "billing")
            try:
                take([reader], 600)
            finally:
                reader.close()
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{second.port}", "log_level": 0})
            [described] = client.describe_consumer_groups(["billing"], request_timeout=1).values()
            with pytest.raises(KafkaException):
                described.result(PATIENCE_SECONDS)
        append_numbers(log, range(600, 700))
        reader = member(second, "billing")
        try:
            assert sorted(int(value) for _, _, value in take([reader], 100)) == list(range(600, 700))
        finally:
            reader.close()


@pytest.mark.proof
def test_a_static_member_comes_back_without_a_rebalance(log):
    rebalances: list[int] = []
    with serving(log) as server:
        readers = [member(server, "billing", **{"group.instance.id": f"instance-{number}"}) for number in range(2)]
        try:
            take(readers, 600)
            before = {one.partition for one in readers[0].assignment()}
            readers[1].unsubscribe()
            readers[1].subscribe(["orders"], on_assign=lambda *_: rebalances.append(1))
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not rebalances:
                assert time.monotonic() < deadline
                assert not any(one.poll(0.05) for one in readers)
            rebalances.clear()
            readers[0].close()  # a static member does not leave: its partitions stay its own
            readers[0] = member(server, "billing", **{"group.instance.id": "instance-0"})
            while {one.partition for one in readers[0].assignment()} != before:
                assert time.monotonic() < deadline
                assert not any(one.poll(0.05) for one in readers)
            assert not rebalances
            append_numbers(log, range(600, 700))
            assert len(take(readers, 100)) == 100
        finally:
            for one in readers:
                one.close()


class Gone:
    """The request of a client that has ended its connection."""

    owner, is_gone = "127.0.0.1", True

    def wake(self) -> None:
        """Nobody waits for it."""


def test_a_member_that_went_while_it_joined_is_not_waited_for():
    joined = Coordinator(None).join(
        "billing",
        JoinRequest(
            "",
            None,
            "consumer",
            [("range", b"")],
            session_seconds=10,
            rebalance_seconds=1000,
            client_id="reader",
            client_host="127.0.0.1",
            asks_twice=False,
        ),
        Gone(),
    )
    with pytest.raises(RefusedError):
        joined()


def test_a_position_has_the_metadata_and_the_epoch_that_a_client_gave(log):
    with serving(log) as server:
        reader = consumer(server, **{"group.id": "by hand / ünïcode"})
        try:
            place = TopicPartition("orders", 2, 40, metadata="step 7", leader_epoch=0)
            reader.commit(offsets=[place], asynchronous=False)
            [found] = reader.committed([TopicPartition("orders", 2)], timeout=PATIENCE_SECONDS)
            assert (found.offset, found.metadata, found.leader_epoch) == (40, "step 7", 0)
            [none] = reader.committed([TopicPartition("orders", 3)], timeout=PATIENCE_SECONDS)
            assert none.offset < 0
        finally:
            reader.close()
    kept = log.group("by hand / ünïcode").positions()["orders", 2]
    # librdkafka's Python client sends the zero byte that ends a string of C, too, to brokers as well.
    assert (kept.offset, kept.metadata.rstrip("\0")) == (40, "step 7")
    assert kept.topic_id == log.topic("orders").snapshot.topic_id


def test_a_position_in_a_topic_that_was_made_again_is_none(log):
    log.group("billing").reset({"orders": {0: 50}})
    log.delete_topic("orders")
    log.create_topic("orders", partitions=PARTITIONS)
    with serving(log) as server:
        reader = consumer(server, **{"group.id": "billing"})
        try:
            [found] = reader.committed([TopicPartition("orders", 0)], timeout=PATIENCE_SECONDS)
            assert found.offset < 0
        finally:
            reader.close()


def commit(server: Server, group: str, offset: int, *, address: str = "127.0.0.1", **values: Any) -> str:
    """The name of the error by which a client's commit in `orders-0` is answered, one that is no member."""
    asked = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "name": "orders",
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        **values,
    }
    [topic] = answered(server.port, OFFSET_COMMIT, 8, asked, address=address).topics
    return topic.partitions[0].error_code.name


def takes_the_groups(server: Server) -> bool:
    [found] = answered(server.port, FIND_COORDINATOR, 4, {"coordinator_keys": "any"}).coordinators
    return found.error_code.name == "none"


def position(log: LogDir, group: str) -> int | None:
    return log.group(group).positions().offsets.get("orders", {}).get(0)


@pytest.mark.parametrize("policy", ["own", "read-only"])
def test_a_group_that_other_readers_made_is_shown_and_not_moved(log, policy):
    log.group("audit").reset({"orders": {0: 3}})
    with serving(log, groups=policy) as server:
        reader = member(server, "audit")
        try:
            with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
                reader.commit(offsets=[TopicPartition("orders", 0, 9)], asynchronous=False)
            [found] = reader.committed([TopicPartition("orders", 0)], timeout=PATIENCE_SECONDS)
            assert found.offset == 3
            assert reader.poll(20).error().name() == "GROUP_AUTHORIZATION_FAILED"
        finally:
            reader.close()
    assert position(log, "audit") == 3


def test_all_groups_are_moved_where_the_server_says_so(log):
    log.group("audit").reset({"orders": {0: 3}})
    with serving(log, groups="all") as server:
        assert takes_the_groups(server)
        assert commit(server, "audit", 9) == "none"
    with serving(log) as server:  # which does not make it a group of a server's clients
        assert takes_the_groups(server)
        assert commit(server, "audit", 10) == "group_authorization_failed"
    assert position(log, "audit") == 9


def test_a_server_that_only_reads_groups_writes_nothing(log):
    with serving(log, groups="read-only") as server:
        assert takes_the_groups(server)
        assert commit(server, "new", 9) == "group_authorization_failed"
    assert not log.groups()
    assert not log.storage.directories("_serve")


def test_a_group_of_a_servers_clients_stays_theirs_when_it_is_reset(log):
    with serving(log) as server:
        assert takes_the_groups(server)
        assert commit(server, "billing", 9) == "none"
        log.group("billing").reset({"orders": {0: 3}})
        assert commit(server, "billing", 10) == "none"
        log.group("billing").delete()
        log.group("billing").reset({"orders": {0: 4}})
        assert commit(server, "billing", 10) == "group_authorization_failed"


def deleted(server: Server, group: str) -> str:
    """The name of the error by which DeleteGroups is answered."""
    [result] = answered(server.port, DELETE_GROUPS, 2, {"groups_names": group}).results
    return result.error_code.name


def deleted_position(server: Server, group: str, partition: int) -> tuple[str, str | None]:
    """The names of the errors by which OffsetDelete of `orders` is answered: of the group, of the partition."""
    asked = {"group_id": group, "name": "orders", "partition_index": partition}
    answer = answered(server.port, OFFSET_DELETE, 0, asked)
    code = answer.topics[0].partitions[0].error_code.name if answer.topics else None
    return answer.error_code.name, code


def test_clients_delete_the_groups_that_they_made(log):
    with serving(log) as server:
        assert takes_the_groups(server)
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
        for group in ("billing", "audit"):
            assert commit(server, group, 9) == "none"
        admin.delete_consumer_groups(["billing"])["billing"].result(PATIENCE_SECONDS)
        assert (position(log, "billing"), position(log, "audit")) == (None, 9)
        assert deleted(server, "billing") == "group_id_not_found"
        python = kafka.KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
        python.delete_groups(["audit"])
        python.close()
        assert position(log, "audit") is None
        assert commit(server, "billing", 10) == "none"  # it may begin again
        assert position(log, "billing") == 10


def test_clients_delete_positions_of_a_group(log):
    with serving(log) as server:
        assert takes_the_groups(server)
        assert commit(server, "billing", 9) == "none"
        assert commit(server, "billing", 8, partition_index=1) == "none"
        assert deleted_position(server, "billing", 0) == ("none", "none")
        assert log.group("billing").positions().offsets == {"orders": {1: 8}}
        assert deleted_position(server, "billing", 0) == ("none", "none")  # as in Kafka: it has none
        assert deleted_position(server, "nobody", 0) == ("group_id_not_found", None)


def test_a_group_with_members_is_not_deleted(log):
    with serving(log) as server:
        reader = member(server, "billing")
        try:
            take([reader], 600)
            reader.commit(offsets=[TopicPartition("orders", 0, 9)], asynchronous=False)
            before = log.group("billing").positions().offsets
            assert deleted(server, "billing") == "non_empty_group"
            assert deleted_position(server, "billing", 0) == ("none", "group_subscribed_to_topic")
            assert log.group("billing").positions().offsets == before
        finally:
            reader.close()
        assert deleted(server, "billing") == "none"
    assert not log.group("billing").positions()


@pytest.mark.parametrize("policy", ["own", "read-only"])
def test_a_group_that_other_readers_made_is_not_deleted(log, policy):
    log.group("audit").reset({"orders": {0: 3}})
    with serving(log, groups=policy) as server:
        assert takes_the_groups(server)
        assert deleted(server, "audit") == "group_authorization_failed"
        assert deleted_position(server, "audit", 0) == ("group_authorization_failed", None)
    assert position(log, "audit") == 3


def test_a_server_that_has_lost_the_groups_deletes_none(log):
    """Another server has committed under a later lease: its members read by these positions."""
    with serving(log) as server:
        assert takes_the_groups(server)
        assert commit(server, "billing", 9) == "none"
        log.storage.create("_groups/billing/00000000000000000002.json", raised_lease(log, "billing", 500))
        assert deleted(server, "billing") == "not_coordinator"
    assert position(log, "billing") is not None


def test_a_commit_waits_for_the_end_of_a_deletion_of_its_group():
    stopped, delta_log = StoppedFiles({}), partial(DeltaLog, open_table=replayed)
    log = created("/log", MemoryFiles(stopped.files), open_delta_log=delta_log)
    log.create_topic("orders")
    log.topic("orders").append([{"value": str(number)} for number in range(100)])
    slow = opened("/log", stopped, open_delta_log=delta_log)
    with serving(slow, limits=Limits(groups=2)) as server, ThreadPoolExecutor(2) as pool:
        assert takes_the_groups(server)
        assert commit(server, "billing", 9) == "none"
        stopped.is_stopped.clear()
        stopped.goes_on.clear()
        deletes = pool.submit(deleted, server, "billing")
        assert stopped.is_stopped.wait(60)
        nobody = MemberAt(-1, "")
        with pytest.raises(CommitUnderWayError):
            server.stored_groups.commit(log.group("billing"), {}, nobody, "127.0.0.1")
        commits = pool.submit(commit, server, "billing", 10)
        stopped.goes_on.set()
        assert (deletes.result(60), commits.result(60)) == ("none", "none")
        assert commit(server, "audit", 10) == "policy_violation"  # the one group is counted


def test_a_position_beyond_the_log_end_is_refused(log):
    with serving(log, interval_seconds=3600) as server:
        assert takes_the_groups(server)
        assert commit(server, "billing", 100) == "none"
        assert commit(server, "billing", 101) == "offset_out_of_range"
        append_numbers(log, range(600, 606))
        assert commit(server, "billing", 101) == "none"
        assert commit(server, "billing", 1 << 62) == "offset_out_of_range"
    assert position(log, "billing") == 101


def test_an_epoch_that_the_log_never_had_is_not_taken(log):
    with serving(log) as server:
        assert takes_the_groups(server)
        assert commit(server, "billing", 9, committed_leader_epoch=7) == "none"
    assert log.group("billing").positions()["orders", 0].leader_epoch == 0
    assert log.group("billing").positions().starts(log.topic("orders").snapshot) == {0: 9}


class StoppedFiles(MemoryFiles):
    """A process that stops where it makes a file of a group, while `goes_on` is not set."""

    def __init__(self, files: dict[str, tuple[bytes, int]]) -> None:
        super().__init__(files)
        self.goes_on, self.is_stopped = threading.Event(), threading.Event()
        self.goes_on.set()

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        if "/_groups/" in path and not self.goes_on.is_set():
            self.is_stopped.set()
            assert self.goes_on.wait(60)
        super().create(path, data, is_forced=is_forced)


@pytest.mark.rule("G7")
@pytest.mark.parametrize("later", [4000, None])
def test_a_server_that_slept_while_it_committed_moves_no_group_back(later):
    stopped, delta_log = StoppedFiles({}), partial(DeltaLog, open_table=replayed)
    log = created("/log", MemoryFiles(stopped.files), open_delta_log=delta_log)
    log.create_topic("orders")
    log.topic("orders").append([{"value": str(number)} for number in range(5000)])
    with (
        serving(opened("/log", stopped, open_delta_log=delta_log)) as first,
        serving(log) as second,
        ThreadPoolExecutor(1) as pool,
    ):
        assert takes_the_groups(first)
        assert commit(first, "billing", 57) == "none"
        stopped.goes_on.clear()
        late = pool.submit(commit, first, "billing", 58)
        assert stopped.is_stopped.wait(60)
        for path, (data, ms) in stopped.files.items():
            if "/_serve/" in path:
                stopped.files[path] = data, ms - 100_000
        assert takes_the_groups(second)
        if later is not None:
            assert commit(second, "billing", later) == "none"
        stopped.goes_on.set()
        assert late.result(60) == ("none" if later is None else "not_coordinator")
        assert position(log, "billing") == (later or 58)
        assert commit(second, "billing", 4001) == "none"
    assert position(log, "billing") == 4001


def test_groups_go_on_where_the_files_of_the_lease_were_lost(log):
    with serving(log) as server:
        for _ in range(3):
            assert server.coordinator.take()
        assert commit(server, "billing", 9) == "none"
    shutil.rmtree(Path(log.uri, "_serve"))
    log.storage.create("_groups/billing/00000000000000000002.json", raised_lease(log, "billing", 500))
    with serving(log) as server:
        assert takes_the_groups(server)
        assert commit(server, "billing", 10) == "not_coordinator"
        assert takes_the_groups(server)
        assert commit(server, "billing", 10) == "none"
    assert position(log, "billing") == 10


def raised_lease(log: LogDir, group: str, lease: int) -> bytes:
    last = log.group(group).positions().commit
    return content_of(
        group, replace(last, number=last.number + 1, commit_id="other", after=last.commit_id, lease=lease)
    )


def test_strangers_make_so_many_groups_and_others_as_many(log):
    with serving(log, limits=Limits(groups=8)) as server:
        assert takes_the_groups(server)
        made = [commit(server, f"group-{number}", 1) for number in range(6)]
        assert made == ["none"] * 4 + ["policy_violation"] * 2
        assert commit(server, "group-0", 2) == "none"
        assert commit(server, "mine", 1, address="127.0.0.2") == "none"
    assert len(log.groups()) == 5


def test_positions_of_strangers_take_so_many_bytes(log):
    with serving(log, limits=Limits(group_files_bytes=1 << 20)) as server:
        assert takes_the_groups(server)
        made = [commit(server, f"group-{number}", 1, committed_metadata="x" * 4096) for number in range(5)]
        assert made == ["none"] * 2 + ["policy_violation"] * 3
        assert commit(server, "group-0", 2, committed_metadata="y" * 4097) == "offset_metadata_too_large"
        assert commit(server, "group-0", 2, committed_metadata="y" * 4096) == "none"


@pytest.fixture
def a_look_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks for groups that nobody uses, and before the first, lies a minute."""
    minutes = itertools.count(wall_ms() + 60_000, 60_000)
    monkeypatch.setattr("spark_segments.kafka_protocol.serving.stored_groups.wall_ms", lambda: next(minutes))


@pytest.mark.usefixtures("a_look_a_minute")
def test_groups_that_nobody_uses_go_and_others_stay(log):
    log.group("audit").reset({"orders": {0: 3}})
    with serving(log, limits=Limits(offsets_retention_minutes=0.0)) as server:
        reader = member(server, "in use")
        try:
            take([reader], 600)
            assert commit(server, "made once", 9) == "none"
            server.stored_groups.expire()
            assert log.groups() == ["audit", "in use"]
        finally:
            reader.close()
        server.stored_groups.expire()
        assert log.groups() == ["audit"]
        assert commit(server, "made once", 10) == "none"


@pytest.mark.usefixtures("a_look_a_minute")
def test_a_group_that_is_used_again_while_it_goes_stays():
    stopped, delta_log = StoppedFiles({}), partial(DeltaLog, open_table=replayed)
    log = created("/log", MemoryFiles(stopped.files), open_delta_log=delta_log)
    log.create_topic("orders")
    log.topic("orders").append([{"value": str(number)} for number in range(100)])
    slow = opened("/log", stopped, open_delta_log=delta_log)
    with serving(slow, limits=Limits(offsets_retention_minutes=0.0)) as server, ThreadPoolExecutor(1) as pool:
        assert takes_the_groups(server)
        assert commit(server, "billing", 9) == "none"
        stopped.goes_on.clear()
        expires = pool.submit(server.stored_groups.expire)
        assert stopped.is_stopped.wait(60)
        log.group("billing").reset({"orders": {0: 10}})
        stopped.goes_on.set()
        expires.result(60)
    assert position(log, "billing") == 10


def test_groups_are_listed_with_and_without_members(log):
    log.group("idle").reset({"orders": {0: 50}})
    with serving(log) as server:
        reader = member(server, "busy")
        try:
            take([reader], 600)
            client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.port}"})
            listed = client.list_consumer_groups().result(PATIENCE_SECONDS)
            assert {one.group_id: one.state.name for one in listed.valid} == {"busy": "STABLE", "idle": "EMPTY"}
        finally:
            reader.close()


def test_kafka_python_subscribes(log):
    with serving(log) as server:
        reader = kafka.KafkaConsumer(
            "orders",
            bootstrap_servers=f"127.0.0.1:{server.port}",
            group_id="python",
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            consumer_timeout_ms=1000 * PATIENCE_SECONDS,
            enable_auto_commit=False,
        )
        try:
            found: list[int] = []
            for message in reader:
                found.append(int(message.value))
                if len(found) == 600:
                    break
            reader.commit()
        finally:
            reader.close()
    assert sorted(found) == list(range(600))
    assert log.group("python").positions().offsets == {"orders": dict.fromkeys(range(PARTITIONS), 100)}


def test_aiokafka_subscribes(log):
    async def read(port: int) -> list[int]:
        reader = aiokafka.AIOKafkaConsumer(
            "orders",
            bootstrap_servers=f"127.0.0.1:{port}",
            group_id="asyncio",
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            enable_auto_commit=False,
        )
        await reader.start()
        try:
            found: list[int] = []
            while len(found) < 600:
                for batch in (await reader.getmany(timeout_ms=5000)).values():
                    found += [int(one.value) for one in batch]
            await reader.commit()
            return found
        finally:
            await reader.stop()

    with serving(log) as server:
        assert sorted(asyncio.run(asyncio.wait_for(read(server.port), PATIENCE_SECONDS))) == list(range(600))
    assert log.group("asyncio").positions().offsets == {"orders": dict.fromkeys(range(PARTITIONS), 100)}


@pytest.mark.proof
def test_members_and_servers_that_are_killed_pass_over_nothing(tmp_path):
    assert "none passed over" in served_kills.groups(tmp_path, 3, 2, random.Random(1))


@pytest.mark.proof
def test_a_chain_of_servers_and_captures_that_are_killed_ends_with_the_same_batches(tmp_path):
    assert "in all three" in served_kills.chain(tmp_path, 4, random.Random(1))
