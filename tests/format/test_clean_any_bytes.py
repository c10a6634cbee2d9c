"""Cleaning any bytes at all under a good CRC does no more than fail."""

from __future__ import annotations

import struct

import crc32c
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from tests.format.cleaned import LARGEST_INT64, clean
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes, empty_batch


def lying(data: bytes) -> bytes:
    """The same batch with a CRC that says that it is right."""
    return data[:17] + struct.pack(">I", crc32c.crc32c(data[21:])) + data[21:]


@given(
    damage=st.lists(st.tuples(st.integers(61, 200), st.integers(0, 255)), min_size=1, max_size=4),
    count=st.integers(0, 6),
    control=st.booleans(),
    horizon=st.one_of(st.none(), st.integers(0, LARGEST_INT64)),
)
def test_no_bytes_under_a_good_crc_do_more_than_fail(damage, count, control, horizon):
    records = [Record(b"value", b"key %d" % (number % 3), headers=[("h", b"x")]) for number in range(5)]
    data = bytearray(batch_bytes(records, delete_horizon_ms=horizon, control=control, producer_id=7))
    for position, byte in damage:
        data[min(position, len(data) - 1)] = byte
    data[57:61] = struct.pack(">i", min(count, 5))
    good = batch_bytes([Record(b"v", b"key 0")], base_offset=5)
    try:
        cleaned = clean(lying(bytes(data)) + good)
    except CorruptBatchError as error:
        assert error.byte_position == 0
        return
    assert scan_batches(cleaned.data).error is None
    assert cleaned.data.tobytes().endswith(good)


@given(noise=st.binary(max_size=60), codec=st.integers(0, 7), count=st.integers(0, 5))
def test_no_compressed_bytes_under_a_good_crc_do_more_than_fail(noise, codec, count):
    header = bytearray(empty_batch(0, 100))
    header[8:12] = struct.pack(">i", 49 + len(noise))
    header[22] = codec
    header[57:61] = struct.pack(">i", count)
    try:
        cleaned = clean(lying(bytes(header) + noise))
    except CorruptBatchError as error:
        assert error.byte_position == 0
        return
    assert scan_batches(cleaned.data).error is None
