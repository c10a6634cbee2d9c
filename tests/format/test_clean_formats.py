"""Cleaning writes the codec and the offsets that are asked for, and reads the old formats."""

from __future__ import annotations

import base64

import pytest

from tests.format.cleaned import clean, left, scanned
from tests.format.plain_decode import plain_batches
from tests.format.test_upconvert import converted
from verification.world.kafka_bytes.golden_files import expected_records, log_files
from verification.world.kafka_bytes.legacy_messages import message, wrapper
from verification.world.kafka_bytes.twin_encode import COMMIT, Record, batch_bytes, marker_batch


@pytest.mark.parametrize(("codec", "number"), [("zstd", 0), ("none", 3), ("gzip", 4)])
def test_rebuilt_batches_take_the_codec_that_is_asked_for(codec, number):
    data = batch_bytes([Record(b"1" * 99, b"a"), Record(b"2" * 99, b"b")], codec=codec)
    whole = batch_bytes([Record(b"3", b"a")], base_offset=2, codec=codec)
    rebuilt, kept = left(clean(data + whole, codec=number))
    assert rebuilt.codec == number
    assert [record.value for record in rebuilt.records] == [b"2" * 99]
    assert kept == next(plain_batches(whole))


def test_control_batches_are_never_compressed():
    (batch,) = left(clean(marker_batch(COMMIT, base_offset=0, producer_id=7), codec=4))
    assert batch.delete_horizon_ms is not None and batch.codec == 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_shift_of_offsets_is_written_out(codec):
    def log(first: int) -> bytes:
        whole = batch_bytes([Record(b"1", b"a")], base_offset=first, codec=codec)
        cut = batch_bytes([Record(b"2", b"b"), Record(b"3", b"c")], base_offset=first + 1, codec=codec)
        return whole + cut + batch_bytes([Record(b"4", b"b")], base_offset=first + 3, codec=codec)

    cleaned = clean(log(0), offset_shift=5000)
    assert cleaned.data.tobytes() == clean(log(5000)).data.tobytes()
    assert cleaned.batches.base_offset.tolist() == [5000, 5001, 5003]
    unchanged = clean(log(0)[: scanned(log(0)).size[0]], offset_shift=5000)
    assert not unchanged.changed
    assert unchanged.batches.base_offset.tolist() == [5000]
    assert left(unchanged)[0].base_offset == 5000


@pytest.mark.parametrize("name", ["legacy-v0-0", "legacy-v1-0"])
def test_entries_of_magic_0_and_1_are_cleaned_into_batches_of_magic_2(name):
    data = b"".join(converted(path.read_bytes()) for path in log_files(name))
    expected = {
        r["key"]: (r["offset"], r["timestamp"], r["value"]) for r in expected_records(name) if r["key"] is not None
    }
    records = [record for batch in left(clean(data)) for record in batch.records]
    found = {
        base64.b64encode(record.key).decode(): (
            record.offset,
            record.timestamp,
            record.value if record.value is None else base64.b64encode(record.value).decode(),
        )
        for record in records
    }
    assert len(records) == len(found)
    assert found == expected


def test_messages_of_magic_0_in_a_wrapper_of_magic_1_are_cleaned_into_their_own_offsets():
    """As cleaners before Kafka 0.10.1 left them."""
    inner = b"".join(message(n, b"%d" % (20 + n), key=b"%d" % (n % 2), magic=0) for n in range(4))
    (batch,) = left(clean(converted(wrapper(23, inner))))
    assert [(record.offset, record.value) for record in batch.records] == [(22, b"22"), (23, b"23")]
