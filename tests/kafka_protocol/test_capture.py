"""What a capture has of a running cluster: the broker's bytes at its offsets, and holes where they were gone."""

from __future__ import annotations

import dataclasses
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from spark_segments import LogDir, Position
from spark_segments.errors import InvalidOptionError, SegmentsError
from spark_segments.kafka_protocol import CaptureOptions, capture
from spark_segments.kafka_protocol.capturing.branches import branch
from spark_segments.kafka_protocol.capturing.capture_options import Divergence
from spark_segments.kafka_protocol.capturing.captured_partition import CAPTURE
from spark_segments.kafka_protocol.capturing.source import SourceCluster
from spark_segments.kafka_protocol.client_settings import kafka_python_options, librdkafka_options
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.kafka_protocol.serving.apis import VERSIONS, fetch
from spark_segments.kafka_protocol.serving.credentials import Users
from spark_segments.kafka_protocol.serving.views import Views
from spark_segments.log.manifest.commit.change import Change
from spark_segments.log.manifest.state.captures import Captured
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.reading.verbatim import PartitionLog
from spark_segments.maintenance import roll, verify
from verification.kafka_protocol.fetching import fetched_batches
from verification.kafka_protocol.histories import WITHOUT_IDS, history
from verification.kafka_protocol.played import FAULTS, Fault, PlayedViews, bad_crc, playing
from verification.kafka_protocol.serving import records, self_signed, serving
from verification.world.clock import PATIENCE_SECONDS, store_clock
from verification.world.kafka_bytes.golden_files import CLEAN_DIRECTORIES, golden_dir
from verification.world.opened import opened
from verification.world.stores.memory_store import memory_log
from verification.world.stores.played_files import PlayedFiles
from verification.world.topics import append_numbers


def batches(log: LogDir, topic: str, partition: int) -> bytes:
    """The batches of a partition as a broker would give them."""
    snapshot = log.topic(topic).snapshot
    row = snapshot.partition(partition)
    read = PartitionLog(log.storage, snapshot, partition).read(row.log_start_offset, row.log_end_offset, 1 << 40)
    return b"".join(np.asarray(piece).tobytes() for piece in read.data)


def served(log: LogDir, *faults: Fault | None) -> PlayedViews:
    """The log as a broker that does this to its first answers."""
    rest: Iterator[Fault | None] = chain(faults, repeat(None))
    return PlayedViews(log, lambda: next(rest))


@pytest.fixture
def source() -> LogDir:
    made = memory_log("/source")
    made.create_topic("orders", partitions=2, config={"cleanup.policy": "delete", "retention.ms": "86400000"})
    append_numbers(made, range(40), each=10)
    return made


@pytest.fixture
def log() -> LogDir:
    return memory_log("/captured")


def test_what_kafka_wrote_is_captured_byte_for_byte(tmp_path, log):
    names = [name for name in CLEAN_DIRECTORIES if "/" not in name]
    for name in names:
        shutil.copytree(golden_dir(name), tmp_path / "kafka" / golden_dir(name).name)
    kafka = LogDir.open(str(tmp_path / "kafka"))
    with playing(Views(kafka)) as address:
        capture(log, address)
    assert log.topics() == [name for name in kafka.topics() if not name.startswith("__")]
    for topic in log.topics():
        theirs, ours = kafka.topic(topic).snapshot, log.topic(topic).snapshot
        assert ours.topic_id == theirs.topic_id or theirs.topic_id == "AAAAAAAAAAAAAAAAAAAAAA"
        for number in kafka.topic(topic).offsets():
            assert batches(log, topic, number) == batches(kafka, topic, number)
            here, there = ours.partition(number), theirs.partition(number)
            assert (here.log_end_offset, here.last_stable_offset) == (there.log_end_offset, there.last_stable_offset)
        for level in ("read_committed", "read_uncommitted"):
            assert _values(log, topic, level) == _values(kafka, topic, level)
    assert verify(log, deep=True).findings == []


def _values(log: LogDir, topic: str, isolation_level: str) -> list[tuple[int, int, bytes | None]]:
    read = log.topic(topic).scan(isolation=isolation_level).to_reader()
    return [
        row
        for batch in read
        for row in zip(*(batch.column(name).to_pylist() for name in ("partition", "offset", "value")), strict=True)
    ]


def test_a_capture_goes_on_where_the_last_one_ended(source, log):
    with playing(Views(source, interval_seconds=0)) as address:
        first = capture(log, address, ["ord*"])
        append_numbers(source, range(40, 100), each=10)
        second = capture(log, address, ["ord*"])
        third = capture(log, address, ["ord*"])
    assert (first.records_out, second.records_out, third.records_out) == (40, 60, 0)
    assert [batches(log, "orders", number) for number in (0, 1)] == [batches(source, "orders", n) for n in (0, 1)]
    assert log.topic("orders").snapshot.config["retention.ms"] == "-1"


def test_the_newest_record_of_a_captured_key_is_that_of_the_latest_time_in_any_partition(log):
    source = memory_log("/source")
    source.create_topic("orders", partitions=2)
    rows = [
        {"key": "a", "value": "1", "partition": 0, "timestamp": 2},
        {"key": "a", "value": "2", "partition": 1, "timestamp": 1},
    ]
    source.topic("orders").append(rows)
    with playing(Views(source)) as address:
        capture(log, address)
    view = log.topic("orders").scan(columns=["value"], view="latest")
    assert view.to_table().column("value").to_pylist() == [b"1"]


@pytest.mark.proof
def test_executors_copy_the_partitions_of_a_topic(source, tmp_path, spark):
    log = LogDir.create(str(tmp_path / "log"))
    with playing(Views(source)) as address:
        found = capture(log, address, spark=spark)
    assert (found.records_out, found.failed) == (40, [])
    assert [batches(log, "orders", number) for number in (0, 1)] == [batches(source, "orders", n) for n in (0, 1)]
    assert verify(log, deep=True).findings == []


def test_groups_come_with_their_topics(source, log):
    source.create_topic("other")
    group = source.group("reports/daily")
    moved = {number: Position(offset, metadata=f"at {offset}") for number, offset in ((0, 7), (1, 20))}
    group.commit(group.positions(), {"orders": moved, "other": {0: Position(0)}})
    source.group("audit").reset({"orders": {0: 3}})
    with playing(Views(source, interval_seconds=0)) as address:
        [first] = capture(log, address, ["orders"], CaptureOptions(groups=["rep*"])).partitions
        group.reset({"orders": {0: 9}})
        capture(log, address, ["orders"], CaptureOptions(groups=["reports/daily"]))
        with pytest.raises(InvalidOptionError, match="no group nobody"):
            capture(log, address, ["orders"], CaptureOptions(groups=["nobody"]))
        ahead = group.positions()
        group.commit(ahead, {"orders": {1: Position(999)}})
        late = capture(log, address, ["orders"], CaptureOptions(groups=["reports/daily"]))
    assert "offset 999 of orders-1" in late.warnings[0]  # and the position from before stays
    assert (first["groups"], log.groups()) == (["reports/daily"], ["reports/daily"])
    positions = log.group("reports/daily").positions()
    assert positions.offsets == {"orders": {0: 9, 1: 20}}
    assert positions["orders", 1].metadata == "at 20"
    assert positions.starts(log.topic("orders").snapshot) == {0: 9, 1: 20}


@pytest.mark.cases(1)
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_answers_of_many_megabytes_are_taken(source, log, tmp_path, is_encrypted):
    source.topic("orders").alter({"compression.type": "uncompressed"})
    source.topic("orders").append([{"value": "x" * 500_000, "partition": 0} for _ in range(30)])
    certificate, tls = self_signed(tmp_path)
    config = {"security.protocol": "SSL", "ssl.ca.location": str(certificate)} if is_encrypted else {}
    with serving(source, tls=tls if is_encrypted else None) as server:
        capture(log, f"127.0.0.1:{server.port}", options=CaptureOptions(client_config=config))
    assert batches(log, "orders", 0) == batches(source, "orders", 0)


def test_a_cluster_that_refuses_a_user_is_asked_once_and_says_why(source, log):
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "anna"}
    with serving(source, users=Users({"anna": "tea"})) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(SegmentsError, match="Unknown user, or wrong password") as refused:
            capture(log, address, options=CaptureOptions(client_config={**login, "sasl.password": "coffee"}))
        assert "coffee" not in str(refused.value)
        capture(log, address, options=CaptureOptions(client_config={**login, "sasl.password": "tea"}))
    assert batches(log, "orders", 0) == batches(source, "orders", 0)


@pytest.mark.proof
@pytest.mark.filterwarnings("ignore:unclosed <ssl:ResourceWarning")  # kafka-python drops what failed to shake hands
def test_a_certificate_that_nothing_proves_is_named(source, tmp_path):
    _, tls = self_signed(tmp_path)
    with (
        serving(source, tls=tls) as server,
        SourceCluster(f"127.0.0.1:{server.port}", {"security.protocol": "SSL"}, timeout_seconds=5) as cluster,
        pytest.raises(SegmentsError, match="certificate verify failed"),
    ):
        cluster.topics()


def test_what_the_cluster_removed_is_a_hole(source, log):
    with playing(Views(source, interval_seconds=0)) as address:
        capture(log, address)
        append_numbers(source, range(40, 100), each=10)
        source.topic("orders").delete_records({0: 33, 1: 50})
        found = capture(log, address)
        assert _faults(log) == []  # though partition 1 ends with a hole
        append_numbers(source, range(100, 120), each=10)
        capture(log, address)
    # Of the batch of offsets 30 to 34 a consumer there sees 33 and 34; of partition 1 nothing is left.
    assert [(hole["partition"], hole["start_offset"], hole["end_offset"]) for hole in found.details["holes"]] == [
        (0, 20, 33),
        (1, 20, 50),
    ]
    rows = _values(log, "orders", "read_uncommitted")
    assert sorted(offset for number, offset, _ in rows if number == 0) == [*range(20), *range(33, 60)]
    assert sorted(offset for number, offset, _ in rows if number == 1) == [*range(20), *range(50, 60)]
    assert all(int(value or b"") == offset * 2 + number for number, offset, value in rows)
    assert _faults(log) == []


@pytest.mark.cases(9)
@pytest.mark.parametrize("captured_before", [0, 3, 9])
@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
@pytest.mark.parametrize("log_start", [0, 3, 5, 7, 8, 9, 10])
def test_no_record_below_the_log_start_of_the_cluster_comes(log, captured_before, codec, log_start):
    """A log start inside a batch: the broker sends the batch whole, and its consumers see no record below."""
    source = memory_log("/source")
    source.create_topic("plain", config={"compression.type": codec})
    with serving(source, interval_seconds=0) as cluster:
        address = f"127.0.0.1:{cluster.port}"
        for begin, end in ((0, 3), (3, 9), (9, 12)):
            if begin == captured_before:
                capture(log, address)
            source.topic("plain").append([{"value": str(number)} for number in range(begin, end)])
        source.topic("plain").delete_records({0: log_start})
        report = capture(log, address)
        visible = [offset for offset, *_ in records(cluster, "plain", 0)]
    assert visible == [*range(log_start, 12)]
    had = [*range(captured_before)]
    assert [offset for _, offset, _ in _values(log, "plain", "read_uncommitted")] == sorted({*had, *visible})
    holes = [(captured_before, log_start)] if log_start > captured_before else []
    assert [(hole["start_offset"], hole["end_offset"]) for hole in report.details["holes"]] == holes
    assert log.topic("plain").offsets() == {0: (log_start if log_start > 0 == captured_before else 0, 12)}
    assert _faults(log) == []
    with serving(log) as copy:
        assert [offset for offset, *_ in records(copy, "plain", 0)] == sorted({*had, *visible})


def test_a_first_capture_begins_at_the_log_start_of_the_cluster(log):
    source = memory_log("/source")
    source.create_topic("plain")
    source.topic("plain").append([{"value": str(number)} for number in range(9)])
    source.topic("plain").delete_records({0: 7})
    with playing(Views(source)) as address:
        assert capture(log, address).details["holes"] == []
    assert log.topic("plain").offsets() == {0: (7, 9)}
    assert batches(log, "plain", 0) == batches(source, "plain", 0)
    assert [offset for _, offset, _ in _values(log, "plain", "read_uncommitted")] == [7, 8]
    assert _faults(log) == []


def _faults(log: LogDir) -> list[str]:
    """What verify finds."""
    return [one.message for one in verify(log, deep=True).findings]


def test_answers_that_are_cut_damaged_or_refused_are_asked_for_again(source, log):
    with playing(served(source, *FAULTS, *FAULTS)) as address:
        capture(log, address)
    assert [batches(log, "orders", number) for number in (0, 1)] == [batches(source, "orders", n) for n in (0, 1)]


def test_damage_that_stays_is_an_error_and_is_never_written(source, log):
    with playing(PlayedViews(source, lambda: bad_crc)) as address:
        [failed] = capture(log, address, options=CaptureOptions(patience_seconds=1)).failed
    assert "CRC" in failed["error"] and "orders-" in failed["error"]
    for number in (0, 1):
        assert batches(source, "orders", number).startswith(batches(log, "orders", number))


@pytest.mark.cases(1)
@pytest.mark.parametrize("change", ["made again", "records lost"])
def test_a_log_that_parted_stops_stays_or_goes_on_in_another(source, log, change):
    source.group("reports").reset({"orders": {0: 3}})
    with playing(Views(source)) as address:
        capture(log, address, options=CaptureOptions(groups=["reports"]))
    before = [batches(log, "orders", number) for number in (0, 1)]
    parts_at: int | None = None
    if change == "made again":
        source.delete_topic("orders")
        source.create_topic("orders", partitions=2)
    else:
        parts_at = 10
    append_numbers(source, range(40, 100), each=10)
    source.create_topic("other")
    source.group("reports").reset({"orders": {0: 5}})

    def options(on_divergence: Divergence) -> CaptureOptions:
        return CaptureOptions(groups=["reports"], on_divergence=on_divergence)

    with playing(PlayedViews(source, lambda: None, parts_at)) as address:
        found = capture(log, address, options=options(Divergence.FAIL))
        assert [(one["topic"], "--on-divergence" in one["error"]) for one in found.failed] == [("orders", True)]
        kept = capture(log, address, ["orders"], options(Divergence.KEEP))
        assert [(one["kept"], kept.failed) for one in kept.partitions] == [([0, 1], [])]
        assert "stays as it is" in kept.warnings[0]
        assert [batches(log, "orders", number) for number in (0, 1)] == before
        assert log.group("reports").positions().offsets == {"orders": {0: 3}}
        assert log.topics() == ["orders", "other"]
        branched = capture(log, address, ["orders"], options(Divergence.BRANCH))
    [line] = branched.partitions
    assert (line["source"], line["topic"], line["branched"]) == ("orders", "orders.branch-1", True)
    assert "orders.branch-1" in branched.warnings[0]
    append_numbers(source, range(100, 120), each=10)
    with playing(Views(source)) as address:
        later = capture(log, address, ["orders"])
    assert (later.topics, later.records_out, later.warnings) == (["orders.branch-1"], 20, [])
    assert [batches(log, "orders", number) for number in (0, 1)] == before
    assert [batches(log, "orders.branch-1", n) for n in (0, 1)] == [batches(source, "orders", n) for n in (0, 1)]
    assert log.group("reports").positions().offsets["orders.branch-1"] == {0: 5}
    assert verify(log, deep=True).findings == []


@pytest.mark.parametrize("change", ["made again", "records lost"])
def test_a_broker_that_compares_nothing_when_it_reads_is_asked_before_the_commit(source, log, change, monkeypatch):
    versions = range(4, 12 if change == "records lost" else 13)
    monkeypatch.setattr("spark_segments.kafka_protocol.serving.server.VERSIONS", VERSIONS | {fetch.KEY: versions})

    def made_again(done: int, total: int) -> None:
        if change == "made again":  # after the answer
            source.delete_topic("orders")
            source.create_topic("orders", partitions=2)

    with playing(Views(source, interval_seconds=0)) as address:
        first = capture(log, address)
        append_numbers(source, range(40, 60), each=10)
        before = [batches(log, "orders", number) for number in (0, 1)]
        views = PlayedViews(source, lambda: None, 10 if change == "records lost" else None)
        with playing(views) as parted:
            found = capture(log, parted, progress=made_again)
    assert (first.failed, len(found.failed), found.records_out) == ([], 1, 0)
    assert [batches(log, "orders", number) for number in (0, 1)] == before


def test_a_capture_that_was_ended_before_its_branch_was_made_makes_it(source, log):
    with playing(Views(source)) as address:
        capture(log, address)
        assert branch(log, "orders", ["orders"]) == "orders.branch-1"  # and the process ends
        assert log.topics() == ["orders"]
        again = capture(log, address, options=CaptureOptions(recapture=True))
        later = capture(log, address)
    assert again.topics == later.topics == ["orders.branch-1"]
    assert [batches(log, name, 0) for name in log.topics()] == [batches(source, "orders", 0)] * 2


def test_a_topic_is_captured_again_beside_its_first_copy(source, log):
    with playing(Views(source)) as address:
        capture(log, address)
        for _ in range(2):
            again = capture(log, address, options=CaptureOptions(recapture=True))
        later = capture(log, address)
    assert again.topics == later.topics == ["orders.branch-2"]
    assert (again.records_out, later.records_out) == (40, 0)
    assert log.topics() == ["orders", "orders.branch-1", "orders.branch-2"]
    assert [batches(log, name, 0) for name in log.topics()] == [batches(source, "orders", 0)] * 3


def test_a_compacted_topic_that_was_away_too_long_says_so(source, log):
    source.create_topic("keyed", partitions=2, config={"cleanup.policy": "compact"})
    source.topic("keyed").append([{"key": "a", "value": "1", "partition": 0}])
    with playing(Views(source, interval_seconds=0)) as address:
        first = capture(log, address, ["keyed"])
        away(log, "keyed", 1, 86_400_000)
        second = capture(log, address, ["keyed"])
        third = capture(log, address, ["keyed"])
    assert [one.partitions[0]["late"] for one in (first, second, third)] == [False, True, True]
    assert "tombstones" in second.warnings[0]
    assert [one["late"] for one in log.topic("keyed").describe()["captured"]] == [False, True]
    assert [one.message for one in verify(log).findings] == ["A compacted partition was captured late"]


@pytest.mark.parametrize("config", [{"cleanup.policy": "delete"}, {"delete.retention.ms": "900000000"}], ids=str)
def test_a_topic_that_the_cluster_compacts_is_late_whatever_its_settings_here_say(source, log, config):
    source.create_topic("keyed", config={"cleanup.policy": "compact"})
    source.topic("keyed").append([{"key": "a", "value": "1"}])
    with playing(Views(source, interval_seconds=0)) as address:
        capture(log, address, ["keyed"])
        log.topic("keyed").alter(config)
        away(log, "keyed", 0, 86_400_000)
        [line] = capture(log, address, ["keyed"]).partitions
    assert line["late"]


def test_a_copy_that_its_own_retention_has_emptied_goes_on_at_the_clusters_offsets(source, log):
    """It keeps the cluster's retention.ms, and its records are older than that; the cluster has them to this day."""
    source.create_topic("visits", config={"retention.ms": "3600000"})
    day_ago_ms = log.storage.now_ms() - 86_400_000
    source.topic("visits").append([{"value": str(number), "timestamp": day_ago_ms} for number in range(5)])
    with playing(Views(source, interval_seconds=0)) as address:
        capture(log, address, ["visits"], CaptureOptions(keep_retention=True))
        assert not any(report.failed for report in log.maintain(["visits"]))
        assert log.topic("visits").offsets() == {0: (5, 5)}
        source.topic("visits").append([{"value": "new"}])
        report = capture(log, address, ["visits"])
    assert not report.failed and not report.details["holes"]
    assert log.topic("visits").offsets() == {0: (5, 6)}
    assert [value for _, _, value in _values(log, "visits", "read_committed")] == [b"new"]
    assert not verify(log, deep=True).findings


def test_a_first_capture_is_not_late_where_tombstones_may_go_at_once(source, log):
    """A cleaner keeps a tombstone in one round and removes it in a later one."""
    source.create_topic("keyed", config={"cleanup.policy": "compact", "delete.retention.ms": "0"})
    source.topic("keyed").append([{"key": "a", "value": "1"}])
    with playing(Views(source)) as address:
        [line] = capture(log, address, ["keyed"]).partitions
    assert not line["late"]


def away(log: LogDir, topic: str, partition: int, time_ms: int) -> None:
    """As if the last capture of a partition had been so long ago."""

    def plan(current: Snapshot) -> Change:
        noted = Captured.of(current.states)[partition]
        before = dataclasses.replace(noted, at_ms=noted.at_ms - time_ms - 1)
        return Change(CAPTURE, topic=Captured.topic_row(current.topic_row, {partition: before}))

    log.topic(topic).manifest.commit(plan)


def test_a_late_marker_ends_a_transaction_whose_records_the_cluster_still_has(broker, log):
    admin = AdminClient({"bootstrap.servers": broker})
    admin.create_topics([NewTopic("ledger", 1, 1)])["ledger"].result(PATIENCE_SECONDS)
    producer = Producer({"bootstrap.servers": broker, "transactional.id": "ledger", "log_level": 0})
    producer.init_transactions(PATIENCE_SECONDS)
    for value in ("first", "second"):
        producer.begin_transaction()
        producer.produce("ledger", value, "key", 0)
        producer.flush(PATIENCE_SECONDS)
        if value == "first":
            capture(log, broker, ["ledger"])
            log.topic("ledger").alter({"cleanup.policy": "compact"})  # which this broker does not tell
            away(log, "ledger", 0, 86_400_000)
        producer.commit_transaction(PATIENCE_SECONDS)
    [late] = capture(log, broker, ["ledger"]).partitions
    assert late["late"]
    assert [value for _, _, value in _values(log, "ledger", "read_committed")] == [b"first", b"second"]
    there = fetched_batches(broker, "ledger", 0)  # whose markers have no leader epoch
    assert batches(log, "ledger", 0) == there
    assert roll(log, topics=["ledger"], now_ms=log.storage.now_ms() + 30 * 86_400_000).partitions
    assert batches(log, "ledger", 0) == there
    assert [value for _, _, value in _values(log, "ledger", "read_committed")] == [b"first", b"second"]


def test_files_that_vacuum_may_have_taken_meanwhile_are_not_committed(source, tmp_path):
    """The machine was asleep between writing and committing, and vacuum elsewhere was not."""
    log = LogDir.create(str(tmp_path / "log"))
    clock = [log.storage.now_ms()]

    def asleep(_: object, go: Callable[[], object]) -> object:
        clock[0] += 8 * 24 * 60 * 60 * 1000
        return go()

    with playing(Views(source)) as address:
        with store_clock(lambda: clock[0]):
            [line] = capture(opened(log, PlayedFiles(stream=asleep)), address).failed
        assert "too old to be committed" in line["error"]
        assert log.topic("orders").offsets() == {0: (0, 0), 1: (0, 0)}
        assert capture(log, address).records_out == 40
    assert verify(log, deep=True).findings == []


def test_a_capture_that_was_ended_before_it_had_anything_knows_its_cluster(source, log, monkeypatch):
    """Where the topic begins here was taken from the first cluster; the other one begins before that."""

    class EndedError(BaseException):
        pass

    def ended(done: int, total: int) -> None:
        raise EndedError

    monkeypatch.setattr("spark_segments.kafka_protocol.serving.server.VERSIONS", WITHOUT_IDS)
    source.topic("orders").delete_records({0: 15, 1: 15})
    other = memory_log("/another")
    other.create_topic("orders", partitions=2)
    append_numbers(other, range(100, 160), each=10)
    with playing(Views(source)) as address, pytest.raises(EndedError):
        capture(log, address, progress=ended)
    assert log.topic("orders").offsets() == {0: (15, 15), 1: (15, 15)}
    with playing(Views(other)) as address:
        [failed] = capture(log, address).failed
        branched = capture(log, address, options=CaptureOptions(on_divergence=Divergence.BRANCH))
    assert "was captured from another cluster" in failed["error"]
    assert (branched.topics, branched.records_out) == (["orders.branch-1"], 60)


@pytest.mark.proof
@pytest.mark.parametrize("attack", ["beside", "anew"])
def test_captures_that_are_suspended_and_clusters_that_change_leave_what_the_model_says(attack):
    for seed in range(1, 9):
        happened = history(seed, **{attack: True})
        assert happened["captures"]


def test_describe_has_the_lag(source, log, monkeypatch):
    class EndedError(BaseException):
        pass

    calls = count()

    def end(done: int, total: int) -> None:
        if next(calls) == 2:  # a batch of each partition is committed
            raise EndedError

    monkeypatch.setattr("spark_segments.kafka_protocol.capturing.source._PARTITION_BYTES", 1)  # a batch a fetch
    monkeypatch.setattr("spark_segments.kafka_protocol.capturing.topic_capture.COMMIT_BYTES", 1)
    with playing(Views(source, interval_seconds=0)) as address:
        with pytest.raises(EndedError):
            capture(log, address, progress=end)
        before = log.topic("orders").describe()["captured"]
        capture(log, address)
    assert [(one["high_watermark"], one["lag"]) for one in before] == [(20, 15), (20, 15)]
    assert [one["lag"] for one in log.topic("orders").describe()["captured"]] == [0, 0]


def test_a_cluster_that_does_not_answer_is_one_error(log):
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(SegmentsError, match="does not answer"):
        capture(log, f"127.0.0.1:{silent.getsockname()[1]}", options=CaptureOptions(patience_seconds=0.3))


def test_a_broker_that_nobody_reaches_is_given_up_soon(log):
    options = CaptureOptions(reach_seconds=0.3, patience_seconds=3600)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for servers in (f"127.0.0.1:{silent.getsockname()[1]}", "nobody.invalid:9092"):
            with pytest.raises(SegmentsError, match=f"{servers} does not answer"):
                capture(log, servers, options=options)


def test_a_rate_bounds_what_comes_in_any_time_since_it_was_made():
    now, chance = [100.0], random.Random(5)

    def sleep(seconds: float) -> None:
        assert seconds > 0
        now[0] += seconds

    rate, taken = RateLimit(1000, lambda: now[0], sleep), 0
    for _ in range(200):
        rate.wait()
        assert rate.is_free and taken <= 1000 * (now[0] - 100.0) + 1e-6
        size = chance.choice((0, 10, 500, 30_000))
        taken += size
        rate.spend(size)
        now[0] += chance.choice((0.0, 0.001, 2.0))  # what was not asked for is not saved up
    assert rate.within(0.5, 1 << 20) == 64 << 10 and RateLimit(1 << 20).within(0.5, 1 << 30) == 1 << 19


def test_a_capture_takes_the_time_that_its_rate_asks_for(source, log):
    with playing(Views(source)) as address:
        log_bytes = capture(memory_log("/before"), address).bytes_out
        begun = time.monotonic()
        report = capture(log, address, options=CaptureOptions(max_rate=log_bytes * 4))
        assert time.monotonic() - begun >= 0.25
    assert (report.bytes_out, report.failed) == (log_bytes, [])
    assert [batches(log, "orders", number) for number in (0, 1)] == [batches(source, "orders", n) for n in (0, 1)]


def test_a_file_of_another_client_is_taken_and_what_changes_nothing_is_told(caplog):
    cloud = {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'PlainLoginModule required username="anna" password="tea";',
        "client.dns.lookup": "use_all_dns_ips",
        "session.timeout.ms": "45000",
        "acks": "all",
    }
    for options in (kafka_python_options(cloud), librdkafka_options(cloud)):
        assert {"anna", "tea"} <= {*options.values()}
    assert [record.message for record in caplog.records] == [
        "client settings without an effect here: acks, client.dns.lookup, session.timeout.ms"
    ]
    store = {"ssl.keystore.type": "PEM", "ssl.keystore.location": "a.pem", "ssl.truststore.type": "PEM"}
    assert kafka_python_options(store) == {"ssl_certfile": "a.pem", "ssl_keyfile": "a.pem"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "a"}, "expected ssl.keystore.type=PEM"),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "found ssl.cipher.suites"),
        ({"sasl.passwort": "tea"}, "found sasl.passwort"),
        ({"securty.protocol": "SSL"}, "found securty.protocol"),
        ({"sasl.mechanism": "GSSAPI"}, "found GSSAPI"),
        ({"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": "IAMLoginModule required;"}, "For MSK, use SCRAM"),
    ],
)
def test_a_setting_that_would_change_who_may_listen_is_an_error(settings, said):
    with pytest.raises(InvalidOptionError, match=said):
        kafka_python_options(settings)


def test_settings_of_clients_have_their_kafka_names_and_show_no_secret():
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="anna" password="te\\"a";'
    options = kafka_python_options(
        {"security.protocol": "sasl_ssl", "sasl.mechanism": "PLAIN", "sasl.jaas.config": jaas}
    )
    assert options == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "anna",
        "sasl_plain_password": 'te"a',
    }
    ask: Callable[[], object]
    for ask in (
        lambda: kafka_python_options({"sasl.jaas.config": "password=hidden"}),
        lambda: kafka_python_options({"sasl.passwort": "hidden"}),
        lambda: kafka_python_options({"request.timeout.ms": "hidden"}),
    ):
        with pytest.raises(InvalidOptionError) as raised:
            ask()
        assert "hidden" not in str(raised.value)
