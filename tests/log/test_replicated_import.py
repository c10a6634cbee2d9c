"""A broker's disk, copied below its high watermarks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.maintenance import verify
from tests.log.golden_reads import as_records, records_of
from verification.world.kafka_bytes import golden_files

ORDERS = 1590  # the high watermark of orders-0
DELETED = 500  # its log start


@pytest.fixture
def disk(tmp_path) -> Path:
    """The log.dirs of a broker."""
    return Path(shutil.copytree(golden_files.GOLDEN / "broker-data", tmp_path / "kafka"))


def set_high_watermarks(disk: Path, **offsets: int) -> None:
    lines = [f"{name.replace('_', ' ')} {offset}\n" for name, offset in offsets.items()]
    (disk / "replication-offset-checkpoint").write_text(f"0\n{len(lines)}\n" + "".join(lines))


def batch_ends(directory: str) -> list[int]:
    return [batch["lastOffset"] + 1 for batch in golden_files.expected_batches(directory)]


def copied(disk: Path, log: LogDir, *topics: str) -> dict[str, int]:
    done = [log.import_kafka(str(disk), topic, replicated=True) for topic in topics or [None]]
    report = verify(log, deep=True)
    assert not report.errors, report.findings
    return {topic: records for one in done for topic, records in one.by_topic("records_in").items()}


def expected(directory: str, start: int, end: int) -> list:
    return as_records(
        golden_files.expected_records(directory),
        where=lambda line: start <= line["offset"] < end and not line["isControl"],
    )


def test_the_disk_of_a_broker_that_is_in_step_is_copied_whole(disk, log, tmp_path):
    whole = LogDir.create(str(tmp_path / "whole"))
    whole.import_kafka(str(disk))
    copied(disk, log)
    assert "__cluster_metadata" not in log.topics()
    for topic in log.topics():
        assert log.topic(topic).offsets() == whole.topic(topic).offsets()
        assert records_of(log.topic(topic).scan(include_control=True).batches()) == records_of(
            whole.topic(topic).scan(include_control=True).batches()
        )


@pytest.mark.parametrize("batch", [0.0, 0.5])
def test_nothing_above_the_high_watermark_is_copied_and_the_rest_comes_later(disk, log, batch):
    ends = [end for end in batch_ends("broker-data/orders-0") if end > DELETED]
    high_watermark = ends[int((len(ends) - 1) * batch)]
    assert high_watermark < ORDERS
    set_high_watermarks(disk, orders_0=high_watermark, orders_1=0)
    copied(disk, log, "orders")
    assert log.topic("orders").offsets() == {0: (DELETED, high_watermark), 1: (0, 0)}
    assert records_of(log.topic("orders").scan(partition=0).batches()) == expected(
        "broker-data/orders-0", DELETED, high_watermark
    )
    assert copied(disk, log, "orders")["orders"] == 0
    set_high_watermarks(disk, orders_0=ORDERS, orders_1=1410)
    copied(disk, log, "orders")
    assert log.topic("orders").offsets() == {0: (DELETED, ORDERS), 1: (0, 1410)}
    assert records_of(log.topic("orders").scan(partition=0).batches()) == expected(
        "broker-data/orders-0", DELETED, ORDERS
    )


def test_a_transaction_whose_end_is_above_the_high_watermark_is_open(disk, log):
    ends = batch_ends("broker-data/payments-0")
    for end in ends:
        set_high_watermarks(disk, payments_0=end)
        copied(disk, log, "payments")
        row = log.topic("payments").snapshot.partition(0)
        assert row.log_end_offset == end
        got = records_of(log.topic("payments").scan(isolation="read_committed").batches())
        final = {record[1]: record for record in expected_committed()}
        assert all(final.get(record[1]) == record for record in got)
    assert records_of(log.topic("payments").scan(isolation="read_committed").batches()) == expected_committed()


def expected_committed() -> list:
    whole = LogDir.open(str(golden_files.GOLDEN / "broker-data"))
    return records_of(whole.topic("payments").scan(isolation="read_committed").batches())


def test_what_the_broker_writes_meanwhile_is_no_damage(disk, log):
    ends = batch_ends("broker-data/orders-1")
    set_high_watermarks(disk, orders_0=ORDERS, orders_1=ends[-2])
    active = max((disk / "orders-1").glob("*.log"))
    active.write_bytes(active.read_bytes()[:-30])  # the last batch is half there
    copied(disk, log, "orders")
    assert log.topic("orders").offsets()[1] == (0, ends[-2])


def test_a_directory_without_high_watermarks_is_refused(disk, log):
    (disk / "replication-offset-checkpoint").unlink()
    with pytest.raises(LogDirError, match="replication-offset-checkpoint"):
        log.import_kafka(str(disk), replicated=True)
    assert log.topics() == []


def test_a_pattern_without_topics_is_an_error(disk, log):
    with pytest.raises(SegmentsError, match="nothing"):
        log.import_kafka(str(disk), "nothing*", replicated=True)


def test_a_copy_of_more_than_all_replicas_have_is_said_to_be_that(disk, log):
    high_watermark = batch_ends("broker-data/orders-0")[-5]  # in an earlier segment
    set_high_watermarks(disk, orders_0=high_watermark, orders_1=1410)
    log.import_kafka(str(disk), "orders")
    before = log.topic("orders").offsets()
    with pytest.raises(LogDirError, match=r"imported beyond its high watermark.*wait, and import again") as raised:
        log.import_kafka(str(disk), "orders", replicated=True)
    assert "lacks" not in str(raised.value) and str(high_watermark) in str(raised.value)
    assert log.topic("orders").offsets() == before
    set_high_watermarks(disk, orders_0=ORDERS, orders_1=1410)  # as the broker notes it a little later
    assert copied(disk, log, "orders")["orders"] == 0


def test_a_copy_of_more_than_the_directory_has_is_said_to_be_that(disk, log):
    log.import_kafka(str(disk), "orders")
    log.topic("orders").append([{"value": "more", "partition": 0}])
    with pytest.raises(LogDirError, match="has records that the Kafka directory lacks"):
        log.import_kafka(str(disk), "orders")
