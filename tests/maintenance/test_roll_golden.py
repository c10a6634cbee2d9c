"""Rolling of batches that Kafka wrote, each appended by itself, against the segments that Kafka made of them."""

from __future__ import annotations

import shutil

import pytest
from aiokafka.record.memory_records import MemoryRecords

from spark_segments import LogDir
from spark_segments.maintenance import roll
from tests.format.test_rolling import CONFIGS, DEFAULTS, ROLLED_BY_THE_RULE
from tests.log.golden_reads import as_records, records_of
from verification.world.kafka_bytes.golden_files import expected_records, golden_dir, log_files
from verification.world.kafka_bytes.segment_bytes import batches_of, parse_offset_index, parse_txn_index
from verification.world.topics import (
    GOLDEN_MS,
    append_batches,
    batch_headers,
    contents,
    file_bytes,
    golden_batches,
    later,
    live,
    topic_with,
)

KEYS = {
    "segment_bytes": "segment.bytes",
    "segment_ms": "segment.ms",
    "index_interval_bytes": "index.interval.bytes",
    "index_bytes": "segment.index.bytes",
}
# Where Kafka's writer appended one batch a call. In the others its index entries go per call of several.
ONE_BATCH_A_CALL = [
    "canary-0",
    "canary300-0",
    "canary300full-0",
    "canary300dense-0",
    "plain-0",
    "outoforder-0",
]


def golden_topic(log: LogDir, name: str, **more: str) -> str:
    """A topic with the golden directory's configuration and batches."""
    config = {KEYS[key]: value for key, value in {**DEFAULTS, **CONFIGS.get(name, {})}.items()}
    topic_with(log, "golden", {**config, "compression.type": "uncompressed", **more})
    append_batches(log, "golden", golden_batches(name))
    return "golden"


def kafka_files(name: str) -> dict[int, tuple[bytes, bytes, bytes]]:
    """{base offset: (.log, .index, .timeindex)}"""
    return {
        int(path.stem): tuple(path.with_suffix(suffix).read_bytes() for suffix in (".log", ".index", ".timeindex"))
        for path in log_files(name)
    }


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", [name for name in ROLLED_BY_THE_RULE if golden_batches(name)])
def test_segments_are_kafkas_and_no_byte_of_a_batch_changes(log, name):
    topic = golden_topic(log, name)
    kafka = kafka_files(name)
    first_base = min(kafka)  # a log whose head was deleted: its batches are appended from offset 0 on
    roll(log, now_ms=GOLDEN_MS)
    states = [segment.state for segment in live(log, topic)]
    sealed = states.count("sealed")
    assert sealed == len(kafka) - 1 and states[sealed:] == ["chunk"] * (len(states) - sealed)
    assert [segment.base_offset + first_base for segment in live(log, topic)[: sealed + 1]] == sorted(kafka)
    # What is left of the active segment is sealed by the clock, and is then Kafka's last segment.
    roll(log, now_ms=later(log))
    assert [segment.state for segment in live(log, topic)] == ["sealed"] * len(kafka)
    for segment in live(log, topic):
        log_bytes, index, time_index = file_bytes(log, segment)
        expected = kafka[segment.base_offset + first_base]
        if first_base == 0 and segment.file_base_offset == segment.base_offset:
            assert log_bytes == expected[0]
        assert [one[1:] for one in batch_rows(log_bytes)] == [one[1:] for one in batch_rows(expected[0])]
        if name in ONE_BATCH_A_CALL:
            assert (index, time_index) == expected[1:]


def batch_rows(data: bytes) -> list[tuple]:
    batches = batches_of(data)
    columns = (
        batches.base_offset,
        batches.size,
        batches.crc,
        batches.max_timestamp,
        batches.count,
        batches.producer_id,
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_the_canarys_known_segments_and_index_entries(log):
    topic = golden_topic(log, "canary-0")
    roll(log, now_ms=GOLDEN_MS)
    segments = live(log, topic)
    assert [segment.base_offset for segment in segments] == [*range(0, 1000, 109)]
    offsets, positions = parse_offset_index(file_bytes(log, segments[0])[1])
    assert offsets.tolist() == [28, 56, 84]
    assert positions.tolist() == [4162, 8334, 12506]


@pytest.mark.proof
@pytest.mark.parametrize("name", ["plain-0", "mixed-0", "zstd-0", "txn-0"])
def test_rolled_records_are_what_they_were(log, name):
    topic = golden_topic(log, name)
    before, headers = contents(log, topic), batch_headers(log, live(log, topic))
    roll(log, now_ms=later(log))
    segments = live(log, topic)
    assert all(segment.file_base_offset == segment.base_offset for segment in segments)
    assert contents(log, topic) == before
    assert batch_headers(log, segments) == headers
    expected = as_records(expected_records(name), where=lambda line: not line["isControl"])
    assert records_of(log.topic(topic).scan().batches()) == expected


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["mixed-0", "snappy-0", "lz4-0", "gzip-0"])
def test_another_decoder_reads_rolled_files_alike(log, name):
    topic = golden_topic(log, name)
    roll(log, now_ms=later(log))
    found = [record for segment in live(log, topic) for record in aiokafka_records(file_bytes(log, segment)[0])]
    kafka = [record for path in log_files(name) for record in aiokafka_records(path.read_bytes())]
    assert found == kafka and len(found) == len(expected_records(name))


def aiokafka_records(data: bytes) -> list[tuple]:
    batches = MemoryRecords(data)
    found = []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        found += [(r.offset, r.timestamp, r.timestamp_type, r.key, r.value, r.headers) for r in batch]
    return found


def test_batches_without_a_leader_epoch_get_the_partitions(log):
    topic_with(log, "orders", {"segment.bytes": 16384})
    append_batches(log, "orders", golden_batches("canary-0")[:300], leader_epoch=-1)
    append_batches(log, "orders", golden_batches("plain-0")[:100])  # with epochs of their own
    own = [batches_of(data).leader_epoch[0] for data in golden_batches("plain-0")[:100]]
    roll(log, now_ms=GOLDEN_MS)
    found = [
        epoch
        for segment in live(log, "orders")
        for epoch in batches_of(file_bytes(log, segment)[0]).leader_epoch.tolist()
    ]
    epoch = log.topic("orders").snapshot.partition(0).leader_epoch
    assert found == [epoch] * 300 + own


def test_an_imported_active_segment_keeps_its_transactions_when_it_is_cut(log, tmp_path):
    """txn-0's last segment before its short active one, imported as the active one, and rolled into smaller ones."""
    kafka = tmp_path / "kafka" / "txn-0"
    shutil.copytree(golden_dir("txn-0"), kafka)
    for path in kafka.glob("00000000000000003156.*"):
        path.unlink()
    log.import_kafka(str(kafka.parent))
    committed = records_of(log.topic("txn").scan(isolation="read_committed").batches())
    everything = contents(log, "txn", include_control=True)
    (imported,) = [segment for segment in live(log, "txn") if segment.state == "chunk"]
    entries = parse_txn_index(log.storage.read(imported.txn_index_path))
    assert imported.base_offset == 2527 and len(entries) > 1

    log.topic("txn").alter({"segment.bytes": "8192"})
    roll(log, now_ms=GOLDEN_MS)
    rolled = [segment for segment in live(log, "txn") if segment.base_offset >= 2527]
    assert [segment.state for segment in rolled] == [*["sealed"] * 4, "chunk"]
    found = [
        (parse_txn_index(log.storage.read(segment.txn_index_path)), segment)
        for segment in rolled
        if segment.txn_index_bytes
    ]
    assert len(found) > 1
    assert [int(one) for index, _ in found for one in index.last_offset] == entries.last_offset.tolist()
    for index, segment in found:
        assert (index.last_offset >= segment.base_offset).all() and (index.last_offset < segment.next_offset).all()
    assert records_of(log.topic("txn").scan(isolation="read_committed").batches()) == committed
    assert contents(log, "txn", include_control=True) == everything
    epochs = [epoch for segment in rolled for epoch in batches_of(file_bytes(log, segment)[0]).leader_epoch.tolist()]
    assert set(epochs) == set(batches_of(log.storage.read(imported.path)).leader_epoch.tolist())
