"""A cluster that mirrors a served log directory (KIP-1279, played) gets its batches byte for byte, at their offsets."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from kafka.admin import (
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    KafkaAdminClient,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import SecurityDisabledError

from spark_segments import LogDir
from spark_segments.kafka_protocol import capture
from spark_segments.maintenance import compact, mirror, promote, roll
from tests.kafka_protocol.destination import NEWEST, OF_2_1, Destination
from verification.kafka_protocol.fetching import kept_batches
from verification.kafka_protocol.serving import serving
from verification.specification.specification_reader import batches, records
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, golden_dir, log_files
from verification.world.topics import append_numbers

NAMES = [
    *(name for name in CLEAN_DIRECTORIES if "/" not in name or name.startswith("broker-data/")),
    "latest-price/after-clean-3/latest-price-0",
    "bigcompact-zstd/clean-2/bigcompact-0",
    "txn-compact/clean-2/txnc-0",
]
SOURCES = {"2.1": OF_2_1, "today": NEWEST}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("kafka")
    for name in NAMES:
        shutil.copytree(golden_dir(name), directory / golden_dir(name).name)
    return directory


@pytest.fixture(scope="module")
def logs(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, LogDir]:
    """The same topics as Kafka's own directories, imported, and captured."""
    made = {name: LogDir.create(str(tmp_path_factory.mktemp(name) / "log")) for name in ("imported", "captured")}
    made["imported"].import_kafka(str(golden))
    with serving(made["imported"]) as server:
        capture(made["captured"], f"127.0.0.1:{server.port}")
    return {"own": LogDir.open(str(golden)), **made}


def stable(log: bytes) -> bytes:
    """The batches below the first one of a transaction that has no marker."""
    begun: dict[int, int] = {}
    for batch in batches(log):
        if batch.is_control:
            begun.pop(batch.producer_id, None)
        elif batch.is_transactional:
            begun.setdefault(batch.producer_id, batch.position)
    return log[: min(begun.values(), default=len(log))]


@pytest.mark.cases(1)
@pytest.mark.parametrize("is_committed", [True, False], ids=["to-the-last-stable-offset", "to-the-end"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["own", "imported", "captured"])
def test_a_mirror_has_the_bytes_that_kafka_wrote(logs, kind, source, is_committed):
    destination = Destination(SOURCES[source], is_committed)
    with serving(logs[kind]) as server:
        destination.synchronize(server.port)
    for name in NAMES:
        topic, _, partition = golden_dir(name).name.rpartition("-")
        if topic not in logs[kind].topics():  # an internal one, which a capture leaves out
            continue
        written = b"".join(file.read_bytes() for file in log_files(name))
        wanted = stable(written) if is_committed else written
        assert destination.partitions[topic, int(partition)].log == wanted, name
        assert destination.configs[topic] == logs[kind].topic(topic).config.effective()


@pytest.fixture
def log(tmp_path: Path) -> LogDir:
    made = LogDir.create(str(tmp_path / "log"))
    made.create_topic("orders", partitions=2, config={"cleanup.policy": "compact,delete", "segment.bytes": "20000"})
    return made


def append_300(log: LogDir, first: int) -> int:
    """300 records of 20 keys, for both partitions in turn: so the value at an offset is twice the offset, and the
    partition. The number of the next record.
    """
    append_numbers(log, range(first, first + 300), keys=20, size=100, each=50)
    return first + 300


def settle(log: LogDir) -> None:
    roll(log)
    compact(log)


@pytest.mark.cases(1)
@pytest.mark.parametrize("source", SOURCES)
def test_a_mirror_follows_its_source_over_appends_jobs_and_restarts(log, source):
    destination, fresh, end = Destination(SOURCES[source]), Destination(SOURCES[source]), 0
    for job in (lambda _: None, roll, settle, settle):
        end = append_300(log, end)
        with serving(log, interval_seconds=0) as server:  # the source has started again
            destination.synchronize(server.port)
            end = append_300(log, end)
            job(log)
            destination.synchronize(server.port)
            end = append_300(log, end)
            job(log)  # compaction takes what the mirror asks for next
    with serving(log) as server:
        destination.synchronize(server.port)
        fresh.synchronize(server.port)
    for partition in range(2):
        copy = destination.partitions["orders", partition]
        kept = [*copy.batches, *fresh.partitions["orders", partition].batches]
        for record in (record for batch, _ in kept for record in records(batch)):
            assert int(record.value or b"") == 2 * record.offset + partition
        # What a mirror had before a compaction stays. A new mirror has the log of today, gaps included.
        anew, kept = fresh.partitions["orders", partition], kept_batches(log, "orders", partition)
        assert [data[16:] for _, data in anew.batches] == [
            kept[batch.position : batch.position + batch.size][16:] for batch in batches(kept)
        ]
        assert anew.end_offset == copy.end_offset == end // 2


@pytest.mark.parametrize("source", SOURCES)
def test_a_mirror_goes_on_behind_what_retention_took(log, source):
    destination = Destination(SOURCES[source])
    append_300(log, 0)
    log.group("billing").reset({"orders": {0: 40}})
    with serving(log, interval_seconds=0) as server:
        destination.synchronize(server.port)
        append_300(log, 300)
        roll(log)
        log.topic("orders").delete_records({0: 200})
        destination.synchronize(server.port)
    begins = {partition: copy.log_start_offset for (_, partition), copy in destination.partitions.items()}
    assert begins == {0: 200, 1: 0}
    assert {copy.end_offset for copy in destination.partitions.values()} == {300}
    assert destination.positions == {"billing": {("orders", 0): 40}}


@pytest.mark.cases(1)
@pytest.mark.parametrize("source", SOURCES)
def test_a_mirror_cuts_what_a_new_leader_of_its_source_does_not_have(tmp_path, source):
    """The follower is promoted while nobody reaches its leader: what that one appended last is not in the new log."""
    leader, follower = LogDir.create(str(tmp_path / "leader")), LogDir.create(str(tmp_path / "follower"))
    leader.create_topic("orders", partitions=2)
    append_300(leader, 0)
    mirror(follower, leader=leader)
    append_300(leader, 300)
    destination = Destination(SOURCES[source])
    with serving(leader) as server:
        destination.synchronize(server.port)
    (tmp_path / "leader").rename(tmp_path / "gone")
    promote(follower, force=True)
    append_300(follower, 900)
    with serving(follower) as server:
        destination.synchronize(server.port)
    for partition in range(2):
        copy = destination.partitions["orders", partition]
        found = [(record.offset, int(record.value or b"")) for batch, _ in copy.batches for record in records(batch)]
        wanted = [*range(partition, 300, 2), *range(900 + partition, 1200, 2)]
        assert found == [*enumerate(wanted)]


def test_an_admin_client_is_told_that_there_is_no_authorizer(log):
    pattern = ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY)
    with serving(log) as server:
        client = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{server.port}")
        try:
            with pytest.raises(SecurityDisabledError, match="No Authorizer"):
                client.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern))
        finally:
            client.close()
