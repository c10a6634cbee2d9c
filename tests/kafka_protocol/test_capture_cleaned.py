"""Captures of a topic that the cluster's cleaner shortens between two passes, or for good while nobody looks."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from spark_segments import LogDir
from spark_segments.kafka_protocol import CaptureOptions, ReplayOptions, capture, replay
from spark_segments.kafka_protocol.capturing.capture_options import Divergence
from spark_segments.kafka_protocol.serving.views import Views
from spark_segments.log.reading.verbatim import PartitionLog
from spark_segments.log.report import Report
from spark_segments.maintenance import roll, verify
from tests.kafka_protocol.cleaned_cluster import ABORT, COMMIT, TOPIC, KnownCluster, cluster, data, emptied
from verification.kafka_protocol.played import playing
from verification.specification.specification_writer import Batch, marker
from verification.world.clock import store_clock
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.stores.memory_store import memory_log


@pytest.fixture
def log() -> LogDir:
    return memory_log("/captured")


def values(log: LogDir, isolation: str = "read_committed") -> list[str]:
    read = log.topic(TOPIC).scan(isolation=isolation, columns=["value"]).to_table()
    return [value.decode() for value in read.column("value").to_pylist()]


def test_a_compacted_topic_that_was_cleaned_between_two_passes_is_whole(log, tmp_path):
    with cluster(tmp_path / "first", [data(0, "a", "b"), data(2, "c")]) as address:
        capture(log, address)
    log.topic(TOPIC).alter({"cleanup.policy": "compact"})
    with cluster(tmp_path / "second", [data(2, "c"), data(5, "d"), data(9, "e")]) as address:
        capture(log, address)
        assert verify(log, deep=True).findings == []
    with cluster(tmp_path / "third", [data(9, "e"), data(13, "f")]) as address:
        capture(log, address)
    assert values(log) == ["a", "b", "c", "d", "e", "f"]
    assert verify(log, deep=True).findings == []
    roll(log, now_ms=log.storage.now_ms() + 30 * 86_400_000)
    assert values(log) == ["a", "b", "c", "d", "e", "f"]
    assert verify(log, deep=True).findings == []


DAY_MS = 86_400_000


def captured_in_turn(log: LogDir, path: Path, *moments: list[Batch]) -> list[Report]:
    """Captures of the compacted topic as it is at these moments, each more than delete.retention.ms after the last."""
    now_ms = log.storage.now_ms()
    reports = []
    for number, batches in enumerate(moments):
        with (
            cluster(path / str(number), batches) as address,
            store_clock(now_ms - (len(moments) - 1 - number) * (DAY_MS + 1)),
        ):
            reports.append(capture(log, address))
            assert reports[-1].failed == []
        if not number:
            log.topic(TOPIC).alter({"cleanup.policy": "compact"})
    return reports


@pytest.mark.parametrize("late_before", [False, True])
def test_an_abort_that_the_cleaner_took_is_not_taken_for_the_next_commit(log, tmp_path, late_before):
    before = [data(0, "a")]
    opened = [*before, data(1, "of the first", "too", producer=7), data(3, "b")]
    # The first transaction was aborted at 4: its records, and a day later its marker, are gone.
    after = [
        *before,
        data(3, "b"),
        data(5, "of the second", producer=7, sequence=2),
        marker(6, 7, COMMIT),
        data(7, "c"),
    ]
    moments = [before, opened, after] if late_before else [opened, after]
    late = captured_in_turn(log, tmp_path, *moments)[-1]
    assert values(log) == ["a", "b", "of the second", "c"]
    assert values(log, "read_uncommitted") == ["a", "of the first", "too", "b", "of the second", "c"]
    [undecided] = log.topic(TOPIC).describe()["undecided"]
    assert (undecided["producer_id"], undecided["start_offset"], undecided["end_offset"]) == (7, 1, 3)
    assert any("producer 7" in text and "--recapture" in text for text in late.warnings)
    messages = [finding.message for finding in verify(log, deep=True).findings]
    assert messages == ["A captured transaction is undecided", "A compacted partition was captured late"]
    # The cluster's batches are here as they are, and what ends the transaction lies where nothing is there.
    assert batches_here(log)[-4:] == [4, 5, 6, 7]


def test_a_transaction_that_the_cluster_still_has_is_ended_by_its_own_marker(log, tmp_path):
    opened = [data(0, "a"), data(1, "of the first", producer=7), data(2, "b"), data(3, "b", key="b!")]
    after = [
        data(0, "a"),
        data(1, "of the first", producer=7),
        data(3, "b", key="b!"),
        marker(5, 7, COMMIT),
        data(6, "c"),
    ]
    captured_in_turn(log, tmp_path, opened, after)
    assert values(log) == ["a", "of the first", "b", "b", "c"]
    assert log.topic(TOPIC).describe()["undecided"] == []


def test_a_transaction_that_is_still_open_stays_open(log, tmp_path):
    opened = [data(0, "a"), data(1, "of the first", producer=7)]
    captured_in_turn(log, tmp_path, opened, [*opened, data(2, "b")], [*opened, data(2, "b"), marker(3, 7, ABORT)])
    assert values(log) == ["a", "b"]
    assert log.topic(TOPIC).describe()["undecided"] == []


def test_a_producer_that_is_gone_holds_no_reader_for_good(log, tmp_path):
    opened = [data(0, "a"), data(1, "of the first", producer=7)]
    captured_in_turn(log, tmp_path, opened, [data(0, "a"), data(4, "b")])
    assert values(log) == ["a", "b"]
    assert [one["producer_id"] for one in log.topic(TOPIC).describe()["undecided"]] == [7]


def test_a_marker_that_the_cleaner_emptied_ends_its_transaction(log, tmp_path):
    opened = [data(0, "a"), data(1, "of the first", producer=7)]
    captured_in_turn(log, tmp_path, opened, [data(0, "a"), emptied(marker(2, 7, ABORT)), data(3, "b")])
    assert values(log) == ["a", "b"]
    assert [one["marker_offset"] for one in log.topic(TOPIC).describe()["undecided"]] == [2]


def test_transactions_of_several_producers_are_ended_before_each_goes_on(log, tmp_path):
    opened = [data(0, "a"), *(data(n, f"of {n}", producer=n) for n in (1, 2, 3))]
    # Markers were at 4, 5 and 7; the third producer wrote next, then the first.
    after = [
        data(0, "a"), data(6, "again of 3", producer=3, sequence=1), data(8, "again of 1", producer=1, sequence=1),
        marker(9, 3, COMMIT), marker(10, 1, ABORT), data(11, "b"),
    ]  # fmt: skip
    captured_in_turn(log, tmp_path, opened, after)
    assert values(log) == ["a", "again of 3", "b"]
    undecided = log.topic(TOPIC).describe()["undecided"]
    assert {one["producer_id"] for one in undecided} == {1, 2, 3}
    places = {one["producer_id"]: one["marker_offset"] for one in undecided}
    assert places[3] < 6 and places[1] < 8 and {*places.values()} == {4, 5, 7}


def test_a_reader_of_kafka_gets_what_is_committed_of_such_a_topic(log, tmp_path):
    opened = [data(0, "a"), data(1, "of the first", producer=7)]
    after = [data(0, "a"), data(3, "of the second", producer=7, sequence=2), marker(4, 7, COMMIT), data(5, "c")]
    captured_in_turn(log, tmp_path, opened, after)
    with playing(Views(log)) as address:
        settings = {"bootstrap.servers": address, "group.id": "g", "isolation.level": "read_committed"}
        consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found = [consumer.poll(30) for _ in range(3)]
        consumer.close()
    assert [message.value().decode() for message in found] == ["a", "of the second", "c"]


@pytest.mark.parametrize("end", [ABORT, COMMIT])
def test_a_transaction_that_the_log_start_cuts_keeps_its_end(log, tmp_path, end):
    with cluster(tmp_path / "first", [data(0, "a", "b", "c")]) as address:
        capture(log, address)
    cut = [data(3, *"defghi", producer=7), marker(9, 7, end), data(10, "j"), data(11, "k", producer=7, sequence=6)]
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 7\n")
    with cluster(tmp_path / "second", cut) as address:
        [hole] = capture(log, address).details["holes"]
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "log-start-offset-checkpoint").write_text(f"0\n1\n{TOPIC} 0 8\n")
    with cluster(tmp_path / "third", [*cut, marker(12, 7, COMMIT)]) as address:
        assert capture(log, address).details["holes"] == []
    assert (hole["start_offset"], hole["end_offset"]) == (3, 7)
    assert values(log) == [*"abc", *("hi" if end == COMMIT else ""), "j", "k"]
    assert verify(log, deep=True).findings == []
    roll(log, now_ms=log.storage.now_ms() + 30 * DAY_MS)
    assert values(log) == [*"abc", *("hi" if end == COMMIT else ""), "j", "k"]
    assert verify(log, deep=True).findings == []


def batches_here(log: LogDir) -> list[int]:
    """The base offsets of all batches."""
    snapshot = log.topic(TOPIC).snapshot
    read = PartitionLog(log.storage, snapshot, 0).read(0, snapshot.partition(0).log_end_offset, 1 << 30)
    return [int(offset) for offset in batches_of(b"".join(bytes(piece) for piece in read.data)).base_offset]


@pytest.mark.parametrize("cluster_ids", ["are others", "are the same"])
def test_a_new_cluster_under_the_old_address_is_never_gone_on_with(log, tmp_path, cluster_ids):
    """Brokers before 2.8 have no ids of topics."""
    views = Views if cluster_ids == "are others" else KnownCluster
    old = [data(0, "a", "b"), data(2, "c")]
    new = [data(0, "A", "B"), data(2, "C"), data(3, "D")]
    with cluster(tmp_path / "old", old, None, views) as address:
        capture(log, address)
        assert capture(log, address).failed == []
    with cluster(tmp_path / "new", new, None, views) as address:
        [line] = capture(log, address).failed
        assert ("another cluster" if views is Views else "the last batch that is here is another") in line["error"]
        assert values(log) == ["a", "b", "c"]
        again = capture(log, address, options=CaptureOptions(on_divergence=Divergence.BRANCH))
    assert again.failed == [] and log.topics() == [TOPIC, f"{TOPIC}.branch-1"]
    assert values(log) == ["a", "b", "c"]


def test_a_log_that_lacks_the_last_epoch_here_has_parted(log, tmp_path):
    """As of a cluster that was made again, and whose retention took what the last batch here is compared with."""
    last = dataclasses.replace(data(2, "c"), leader_epoch=7)
    with cluster(tmp_path / "old", [data(0, "a", "b"), last]) as address:
        assert capture(log, address).failed == []
    with cluster(tmp_path / "new", [data(3, "d"), data(4, "e")]) as address:
        [line] = capture(log, address, options=CaptureOptions(patience_seconds=20)).failed
    assert "parts from the cluster's log" in line["error"]
    assert values(log) == ["a", "b", "c"]


def test_a_batch_that_the_cluster_removed_by_retention_proves_nothing_else(log, tmp_path):
    with cluster(tmp_path / "old", [data(0, "a", "b"), data(2, "c")]) as address:
        capture(log, address)
    with cluster(tmp_path / "new", [data(3, "d"), data(4, "e")]) as address:
        assert capture(log, address).failed == []
    assert values(log) == ["a", "b", "c", "d", "e"]


@pytest.mark.cases(1)
@pytest.mark.parametrize("is_rolled", [False, True])
def test_an_end_that_is_a_hole_is_exported_imported_and_consumed(log, tmp_path, is_rolled):
    with cluster(tmp_path / "first", [data(0, "a", "b"), data(2, "c")]) as address:
        capture(log, address)
    with cluster(tmp_path / "second", [], end_offset=13_379) as address:
        capture(log, address)
    if is_rolled:
        roll(log, now_ms=log.storage.now_ms() + 30 * DAY_MS)
    assert log.topic(TOPIC).offsets() == {0: (0, 13_379)}

    log.export_kafka(str(tmp_path / "out"))
    (checkpoint,) = (tmp_path / "out" / "recovery-point-offset-checkpoint").read_text().splitlines()[2:]
    assert checkpoint == f"{TOPIC} 0 13379"
    last = max((tmp_path / "out" / f"{TOPIC}-0").glob("*.log"))
    header = struct.unpack(">qiibIhiqqqhii", last.read_bytes())  # of a record batch, without records
    assert (last.name, header[0], header[6], header[-1]) == ("00000000000000000003.log", 3, 13_375, 0)
    exported = LogDir.open(str(tmp_path / "out"))
    again = LogDir.create(str(tmp_path / "again"))
    again.import_kafka(str(tmp_path / "out"))
    for copy in (exported, again):
        assert copy.topic(TOPIC).offsets() == {0: (0, 13_379)}
        assert values(copy) == ["a", "b", "c"]
        assert verify(copy, deep=True).findings == []
    assert again.topic(TOPIC).append([{"key": "d", "value": "d"}]) == {0: (13_379, 13_379)}
    with playing(Views(exported)) as address:
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True})
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while (message := consumer.poll(30)).error() is None:
            pass
        assert message.offset() == 13_379
        consumer.close()


def test_a_hole_of_more_offsets_than_a_batch_holds_is_exported_whole(log, tmp_path):
    end = 3 * 2**31
    with cluster(tmp_path / "first", [data(0, "a")]) as address:
        capture(log, address)
    with cluster(tmp_path / "second", [], end_offset=end) as address:
        capture(log, address)
    log.export_kafka(str(tmp_path / "out"))
    copy = LogDir.open(str(tmp_path / "out"))
    assert copy.topic(TOPIC).offsets() == {0: (0, end)}
    assert verify(copy, deep=True).findings == [] and values(copy) == ["a"]


def test_a_group_at_an_end_that_is_a_hole_has_read_all_after_a_replay(broker, log, tmp_path):
    with cluster(tmp_path / "first", [data(0, "a", "b"), data(2, "c")]) as address:
        capture(log, address)
    with cluster(tmp_path / "second", [], end_offset=13_379) as address:
        capture(log, address)
    log.group("reports").reset({TOPIC: {0: 13_379}})
    target = "ledger-after-a-hole"
    replay(log, broker, [TOPIC], ReplayOptions(name=target, rename={TOPIC: target}, groups=["reports"]))
    there = memory_log("/there")
    capture(there, broker, [target], CaptureOptions(groups=["reports"]))
    position = there.group("reports").positions().offsets[target][0]
    assert position >= 3 and there.topic(target).scan(0, (position, None)).to_table().num_rows == 0
    again = replay(log, broker, [TOPIC], ReplayOptions(name=target, rename={TOPIC: target}))
    assert (again.records_out, again.partitions[0]["to_send"]) == (0, 0)
