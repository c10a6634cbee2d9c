"""Encoding cuts batches by their size and names a record that is too large."""

from __future__ import annotations

import numpy as np
import pytest

from spark_segments.errors import RecordTooLargeError
from spark_segments.format.encoding import encode
from spark_segments.format.layout import CODECS
from tests.format.encoded import columns, decoded, encoded, expected_of
from verification.world.kafka_bytes import twin_encode as twin
from verification.world.kafka_bytes.twin_encode import Record


def test_a_batch_may_be_exactly_as_large_as_asked_for():
    records = [Record(value=b"x" * 100)] * 4
    two = len(twin.batch_bytes(records[:2]))
    assert encoded(columns(records), batch_bytes=two).batches.count.tolist() == [2, 2]
    assert encoded(columns(records), batch_bytes=two - 1).batches.count.tolist() == [1, 1, 1, 1]
    assert encoded(columns(records), limit=two).batches.count.tolist() == [2, 2]


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_larger_than_a_batch_stands_alone(codec):
    records = [Record(value=b"x"), Record(value=bytes(3_000_000)), Record(value=b"y"), Record(value=b"z")]
    ours = encoded(columns(records), codec=codec, batch_bytes=1000)
    assert ours.batches.count.tolist() == [1, 1, 2]
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


def test_a_record_that_is_too_large_is_named():
    records = [Record(value=b"x"), Record(value=b"x" * 1000), Record(value=b"x" * 2000)]
    size = len(twin.batch_bytes([records[2]]))
    rows = np.array([0, 2])
    assert encoded(columns(records), rows, limit=size).batches.size.max() == size
    with pytest.raises(RecordTooLargeError, match=rf"row 2 .*at most {size - 1} bytes, found {size} bytes\. Raise"):
        encoded(columns(records), rows, limit=size - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_a_topic_may_allow_no_bytes_at_all(codec):
    with pytest.raises(RecordTooLargeError, match=r"row 0 .*at most 0 bytes"):
        encoded(columns([Record(value=b"x")]), codec=codec, limit=0)
    assert len(encoded(columns([]), codec=codec, limit=0).buffer) == 0


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_with_a_codec_a_record_is_too_large_only_if_it_stays_so(codec):
    generator = np.random.default_rng(0)
    records = [Record(value=b"small"), Record(value=bytes(100_000)), Record(value=generator.bytes(50_000))]
    shrinks = encoded(columns(records), np.array([0, 1]), codec=codec, limit=10_000)
    assert shrinks.batches.size.max() < 10_000
    with pytest.raises(RecordTooLargeError, match=r"row 2 .*at most 10000 bytes, found 5\d{4} bytes"):
        encoded(columns(records), codec=codec, limit=10_000)


def test_a_batch_that_a_codec_makes_too_large_is_stored_without():
    records = [Record(value=np.random.default_rng(0).bytes(1000))]
    size = len(twin.batch_bytes(records))
    ours = encoded(columns(records), codec="zstd", limit=size)
    assert ours.batches.codec.tolist() == [0]
    assert ours.buffer.to_pybytes() == twin.batch_bytes(records)
    assert encoded(columns(records), codec="zstd").batches.codec.tolist() == [CODECS["zstd"]]


@pytest.mark.parametrize("codec", [name for name in CODECS if name != "none"])
def test_what_a_codec_makes_larger_has_room(codec):
    noise = np.random.default_rng(1).bytes(3 << 20)
    records = [Record(value=noise[:-1]), Record(value=noise)]
    ours = encoded(columns(records), codec=codec)
    assert ours.buffer.size > 2 * len(noise)
    assert decoded(ours.buffer.to_pybytes()) == expected_of(records)


def test_a_batch_that_a_reader_would_not_decompress_is_stored_without(monkeypatch):
    monkeypatch.setattr(encode, "decompressed_limit", lambda compressed_bytes: 100 * compressed_bytes)
    ours = encoded(columns([Record(value=bytes(100_000))]), codec="zstd")
    assert ours.batches.codec.tolist() == [0]
    with pytest.raises(RecordTooLargeError):
        encoded(columns([Record(value=bytes(100_000))]), codec="zstd", limit=50_000)
