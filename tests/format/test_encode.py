"""Encoding against Kafka's own batches, against the plain twin, and against two other clients' decoders."""

from __future__ import annotations

import base64
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.format.batches import scan_batches
from spark_segments.format.encoding import encode
from spark_segments.format.layout import CODECS, CREATE_TIME, LOG_APPEND_TIME
from tests.examples import examples
from tests.format.encoded import NOW, OTHER_CLIENTS, assorted, columns, decoded, encoded, expected_of
from verification.world.kafka_bytes import twin_encode as twin
from verification.world.kafka_bytes.golden_files import expected_batches, expected_records, golden_dir
from verification.world.kafka_bytes.twin_encode import Record


def golden_batches(name: str):
    """(what Kafka's dump says of a batch, its records, its bytes) for each batch of a golden directory."""
    records = defaultdict(list)
    for record in expected_records(name):
        records[record["segment"], record["batchBaseOffset"]].append(
            Record(
                value=None if record["value"] is None else base64.b64decode(record["value"]),
                key=None if record["key"] is None else base64.b64decode(record["key"]),
                timestamp=record["timestamp"],
                headers=[
                    (header, None if value is None else base64.b64decode(value)) for header, value in record["headers"]
                ],
                offset=record["offset"],
            )
        )
    files: dict[int, bytes] = {}
    for batch in expected_batches(name):
        segment = batch["segment"]
        if segment not in files:
            files[segment] = (golden_dir(name) / f"{segment:020d}.log").read_bytes()
        data = files[segment][batch["position"] : batch["position"] + batch["size"]]
        yield batch, records[segment, batch["baseOffset"]], data


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", ["plain-0", "mixed-0", "canary-0", "outoforder-0", "multiappend-0", "retention"])
def test_kafkas_batches_come_out_byte_for_byte(name):
    compared = 0
    for batch, records, data in golden_batches("broker-data/retention-0" if name == "retention" else name):
        if batch["compression"] == "none" and batch["producerId"] == -1:
            ours = encoded(
                columns(records),
                batch_bytes=1 << 20,
                base_offset=batch["baseOffset"],
                leader_epoch=batch["leaderEpoch"],
            )
            assert ours.buffer.to_pybytes() == data
            compared += 1
    assert compared >= (3 if name == "retention" else 30)


@pytest.mark.parametrize(
    "name",
    [
        "mixed-0",
        "txn-0",
        "latest-price/after-clean-2/latest-price-0",
        "bigcompact-none/clean-1/bigcompact-0",
        "txn-compact/clean-2/txnc-0",
        "txn-compact/clean-3/txnc-0",
        "broker-data/payments-0",
    ],
)
def test_the_twin_writes_kafkas_bytes_too(name):
    compared = 0
    for batch, records, data in golden_batches(name):
        if batch["compression"] != "none":
            continue
        theirs = twin.batch_bytes(
            records,
            base_offset=batch["baseOffset"],
            last_offset=batch["lastOffset"],
            leader_epoch=batch["leaderEpoch"],
            transactional=batch["isTransactional"],
            control=batch["isControl"],
            delete_horizon_ms=batch["deleteHorizonMs"],
            max_timestamp=batch["maxTimestamp"],
            base_timestamp=None if records else batch["baseTimestamp"],
            producer_id=batch["producerId"],
            producer_epoch=batch["producerEpoch"],
            base_sequence=batch["baseSequence"],
        )
        assert theirs == data
        compared += 1
    assert compared >= 9


def test_the_twin_writes_markers_and_empty_batches():
    marker = next((b, d) for b, _, d in golden_batches("broker-data/payments-0") if b["isControl"])
    (_, timestamp, key, value, _) = decoded(marker[1])[0]
    assert (
        twin.marker_batch(
            int.from_bytes(key[2:4], "big"),
            base_offset=marker[0]["baseOffset"],
            producer_id=marker[0]["producerId"],
            producer_epoch=marker[0]["producerEpoch"],
            coordinator_epoch=int.from_bytes(value[2:6], "big"),
            leader_epoch=marker[0]["leaderEpoch"],
            timestamp=timestamp,
        )
        == marker[1]
    )
    empty = scan_batches(twin.empty_batch(5, 9, producer_id=7, producer_epoch=1, base_sequence=3)).batches
    assert (empty.base_offset[0], empty.last_offset[0], empty.count[0]) == (5, 9, 0)


@pytest.mark.cases(5)
@pytest.mark.rule("W2")
@pytest.mark.parametrize("client", OTHER_CLIENTS, ids=["kafka-python", "aiokafka", "aiokafka in Python"])
@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_read_what_is_encoded(codec, client):
    records = assorted(600)
    ours = encoded(columns(records), codec=codec, batch_bytes=16_384)
    assert len(ours.batches) > 10
    assert decoded(ours.buffer.to_pybytes(), client) == expected_of(records)


@pytest.mark.parametrize("batch_bytes", [1, 200, 4096, 131_072])
def test_batches_are_cut_and_written_as_the_twin_does(batch_bytes):
    records = assorted(800)
    ours = encoded(columns(records), batch_bytes=batch_bytes, base_offset=5_000_000_000, leader_epoch=3)
    theirs = list(twin.encode(records, cut_bytes=batch_bytes, base_offset=5_000_000_000, leader_epoch=3))
    assert ours.buffer.to_pybytes() == b"".join(theirs)
    assert ours.batches.size.tolist() == [len(batch) for batch in theirs]
    assert ours.tombstones == sum(record.value is None for record in records)


small = st.one_of(st.none(), st.binary(max_size=5), st.binary(min_size=60, max_size=130))
records_strategy = st.lists(
    st.builds(
        Record,
        value=small,
        key=small,
        timestamp=st.one_of(st.integers(-1, 200), st.integers(NOW, NOW + 10_000), st.just(2**62)),
        headers=st.lists(st.tuples(st.text(max_size=5), small), max_size=3),
    ),
    max_size=30,
)


@settings(deadline=None)
@given(records_strategy, st.integers(62, 1000), st.integers(0, 2**40), st.booleans())
def test_any_records_are_encoded_as_the_twin_does(records, batch_bytes, base_offset, log_append_time):
    ours = encoded(
        columns(records),
        batch_bytes=batch_bytes,
        base_offset=base_offset,
        timestamp_type=LOG_APPEND_TIME if log_append_time else CREATE_TIME,
    )
    theirs = twin.encode(records, cut_bytes=batch_bytes, base_offset=base_offset, log_append_time=log_append_time)
    assert ours.buffer.to_pybytes() == b"".join(theirs)


@examples(60)
@given(records_strategy, st.sampled_from(["gzip", "snappy", "lz4", "zstd"]), st.integers(62, 1000))
def test_any_records_come_back_from_every_codec(records, codec, batch_bytes):
    ours = encoded(columns(records), codec=codec, batch_bytes=batch_bytes)
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


@pytest.mark.parametrize("codec", CODECS)
def test_the_table_is_what_a_scan_finds(codec):
    ours = encoded(columns(assorted(500)), codec=codec, batch_bytes=5000, base_offset=77, leader_epoch=4)
    found = scan_batches(ours.buffer)
    assert (found.error, found.consumed, found.needed) == (None, len(ours.buffer), 0)
    for name in found.batches.__slots__:
        mine, theirs = getattr(ours.batches, name), getattr(found.batches, name)
        assert mine.dtype == theirs.dtype, name
        assert mine.tolist() == theirs.tolist(), name


def test_log_append_time_stamps_the_latest_timestamp_on_all_records():
    records = [Record(timestamp=NOW + delta) for delta in (5, 9, 0)]
    ours = encoded(columns(records), timestamp_type=LOG_APPEND_TIME)
    assert ours.batches.timestamp_type.tolist() == [LOG_APPEND_TIME]
    assert ours.batches.base_timestamp[0] == ours.batches.max_timestamp[0] == NOW + 9
    for client in OTHER_CLIENTS:
        assert [row[1] for row in decoded(ours.buffer.to_pybytes(), client)] == [NOW + 9] * 3


def test_more_batches_than_one_kernel_call_writes():
    records = [Record(value=b"%d" % number) for number in range(encode._TABLE_ROWS + 10)]
    for codec in ("none", "lz4"):
        ours = encoded(columns(records), codec=codec, batch_bytes=1)
        assert ours.batches.base_offset.tolist() == list(range(len(records)))
        assert [row[3] for row in decoded(ours.buffer.to_pybytes())] == [record.value for record in records]


@pytest.mark.parametrize("batch_bytes", [encode.STAGING_BYTES // 3, encode.STAGING_BYTES * 2])
def test_more_bytes_than_are_staged_at_once(batch_bytes):
    generator = np.random.default_rng(1)
    records = [Record(value=generator.bytes(100_000)) for _ in range(45)]
    ours = encoded(columns(records), codec="lz4", batch_bytes=batch_bytes)
    plain = encoded(columns(records), batch_bytes=batch_bytes)
    assert ours.batches.count.tolist() == plain.batches.count.tolist()
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


def test_levels_reach_the_codec():
    value = b" ".join(b"%d" % (number * 7919 % 1000) for number in range(20_000))
    sizes = [len(encoded(columns([Record(value=value)]), codec="zstd", level=level).buffer) for level in (-50, 1, 19)]
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
