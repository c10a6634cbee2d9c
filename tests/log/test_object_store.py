"""A log directory on S3, through all that can be done to it: there is no renaming, no directory and no local clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.errors import RegistryError
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from spark_segments.storage import Storage
from tests.log.golden_reads import as_records, records_of
from verification.world.kafka_bytes.golden_files import expected_records, golden_dir
from verification.world.stores.s3_server import BUCKET
from verification.world.topics import DAY_MS, contents, records

COMPACTED = {
    "cleanup.policy": "compact",
    "compression.type": "uncompressed",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "4000",
}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"s3a://{BUCKET}/{tmp_path.name}/log"


def of_partition(log: LogDir, number: int, count: int, first: int) -> pa.Table:
    return records(count, first=first, time_ms=log.storage.now_ms(), partitions=[number])


@pytest.mark.proof
def test_a_registry_in_the_store_is_used_and_refuses_a_new_schema(uri, s3_options, tmp_path):
    table = pa.table({"value": pa.array([{"id": 7}], pa.struct([("id", pa.int64())]))})
    local = LogDir.create(str(tmp_path / "log"))
    local.create_topic("orders")
    local.topic("orders").append(table, formats={"value.format": "avro", "schema.registry": str(tmp_path / "registry")})
    log = LogDir.create(uri, s3_options)
    log.create_topic("orders")
    log.create_topic("new")
    registry = uri.replace("/log", "/registry")
    formats = {"value.format": "avro", "schema.registry": registry}
    with pytest.raises(
        RegistryError, match=r"Cannot register a schema for orders-value .* object store.*copy its files"
    ):
        log.topic("orders").append(table, formats=formats)
    for name in ("1.avsc", "subjects.json"):
        Storage(registry, s3_options).write(name, (tmp_path / "registry" / name).read_bytes())
    log.topic("orders").append(table, formats=formats)
    log.topic("orders").append(
        table, formats=formats | {"value.schema": (tmp_path / "registry" / "1.avsc").read_text()}
    )
    read = pa.Table.from_batches(log.topic("orders").scan(columns=["value"], formats=formats).batches())
    assert read["value"].to_pylist() == [{"id": 7}] * 2
    with pytest.raises(RegistryError, match="Cannot register a schema for new-value"):
        log.topic("new").append(table, formats=formats)
    assert log.topic("new").offsets() == {0: (0, 0)}


@pytest.mark.proof
def test_upkeep_keeps_the_newest_record_of_every_key(uri, s3_options):
    log = LogDir.create(uri, s3_options)
    log.create_topic("orders", 2, COMPACTED)
    for turn in range(6):
        for number in range(2):
            log.topic("orders").append(of_partition(log, number, 30, 30 * turn))
    before = contents(log, "orders")
    now_ms = log.storage.now_ms()
    roll(log, now_ms=now_ms)
    retain(log, now_ms=now_ms)
    active = {number: log.topic("orders").snapshot.live_of(number)[-1].base_offset for number in range(2)}
    compact(log, now_ms=now_ms)
    vacuum(log, now_ms=now_ms + 2 * DAY_MS)
    newest = {
        (record["partition"], record["key"]): record["offset"]
        for record in before
        if record["offset"] < active[record["partition"]]
    }
    kept = [
        record
        for record in before
        if record["offset"] >= active[record["partition"]]
        or newest[record["partition"], record["key"]] == record["offset"]
    ]
    assert contents(log, "orders") == kept
    assert len(kept) < len(before) // 2
    named = {
        path
        for number in range(2)
        for row in log.topic("orders").snapshot.live_of(number)
        for path in (row.path, row.index_path, row.time_index_path)
    }
    assert {file.path for number in range(2) for file in log.storage.list(f"orders-{number}")} == named
    assert verify(log, deep=True).findings == []


@pytest.mark.proof
def test_two_writers_at_once_never_share_an_offset(uri, s3_options):
    LogDir.create(uri, s3_options).create_topic("orders")

    def write(writer: str) -> list[tuple[int, int]]:
        log = LogDir.open(uri, s3_options)
        return [log.topic("orders").append(records(10, first=turn * 10), txn=(writer, turn))[0] for turn in range(8)]

    with ThreadPoolExecutor() as pool:
        ranges = sorted(one for given in pool.map(write, ["a", "b", "c"]) for one in given)
    assert ranges == [(first, first + 9) for first in range(0, 240, 10)]
    log = LogDir.open(uri, s3_options)
    assert log.topic("orders").append(records(10), txn=("a", 7)) == {}
    assert [record["offset"] for record in contents(log, "orders")] == list(range(240))


def test_a_kafka_directory_goes_in_and_comes_out_equal(uri, s3_options, tmp_path):
    log = LogDir.create(uri, s3_options)
    log.import_kafka(str(golden_dir("broker-data")), "payments")
    assert records_of(log.topic("payments").scan().batches()) == as_records(
        [one for one in expected_records("broker-data/payments-0") if not one["isControl"]]
    )
    on_s3 = f"s3://{BUCKET}/{tmp_path.name}/kafka"
    log.export_kafka(on_s3, storage_options=s3_options)
    log.export_kafka(str(tmp_path / "kafka"))
    kafka = LogDir.open(on_s3, s3_options)
    assert contents(kafka, "payments") == contents(log, "payments")
    for path in (golden_dir("broker-data") / "payments-0").glob("*.log"):
        assert kafka.storage.read(f"payments-0/{path.name}").to_pybytes() == path.read_bytes()
        assert (tmp_path / "kafka" / "payments-0" / path.name).read_bytes() == path.read_bytes()
