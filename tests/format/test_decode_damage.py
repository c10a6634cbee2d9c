"""Decoding: damage is always one error, at the batch that has it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.decoding.section_opener import OPENED_BYTES
from spark_segments.format.layout import CODECS
from tests.format.decoded import GOOD, batch_of, decoded
from tests.format.twin import DamageError, decode
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes, varint


def the_error(batch: bytes, **options) -> CorruptBatchError:
    """The error of a bad batch behind a good one."""
    with pytest.raises(CorruptBatchError) as caught:
        decoded(GOOD + batch, file_position=1000, **options)
    assert (caught.value.path, caught.value.byte_position) == ("x.log", 1000 + len(GOOD))
    return caught.value


ZERO, NULL = varint(0), varint(-1)


def record(*, timestamp=ZERO, offset=ZERO, key=NULL, value=NULL, headers=ZERO, length=None) -> bytes:
    body = b"\0" + timestamp + offset + key + value + headers
    return (varint(len(body)) if length is None else length) + body


BAD_SECTIONS = {
    "record longer than the batch": record(length=varint(7)),
    "record shorter than its content": record(value=varint(3) + b"abc", length=varint(8)) + b"\0",
    "record of less than its fields": varint(5) + bytes(5),
    "negative record length": record(length=varint(-1)),
    "record length of five bytes": record(length=b"\xff\xff\xff\xff\x0f"),
    "record length that does not end": b"\xff" * 12,
    "timestamp delta that does not end": record(timestamp=b"\x80" * 11),
    "offset delta below 0": record(offset=varint(-1)),
    "offset delta above the last": record(offset=varint(1)),
    "offset delta of more than an int32": record(offset=b"\xff\xff\xff\xff\xff\x01"),
    "key beyond the record": record(key=varint(9) + b"key"),
    "key length below -1": record(key=varint(-2)),
    "key of 2 GiB": record(key=varint(2**31 - 1)),
    "value beyond the record": record(value=varint(9) + b"value"),
    "value length below -1": record(value=varint(-5)),
    "value of 2 GiB": record(value=varint(2**31 - 1)),
    "value length cut": record(value=b"\xff", headers=b""),
    "negative header count": record(headers=varint(-1)),
    "more headers than bytes": record(headers=varint(2**31 - 1)),
    "more headers than there are": record(headers=varint(2) + varint(0) + varint(0) + b"\0"),
    "header without name": record(headers=varint(1) + varint(-1) + varint(0)),
    "header name beyond the record": record(headers=varint(1) + varint(5) + b"a" + varint(0)),
    "header value beyond the record": record(headers=varint(1) + varint(1) + b"a" + varint(5)),
    "header value length below -1": record(headers=varint(1) + varint(1) + b"a" + varint(-2)),
    "bytes behind the headers": record(headers=varint(0) + b"more"),
    "bytes behind the last record": record() + b"\0",
    "a second record that is not counted": record() + record(),
}


@pytest.mark.parametrize("section", BAD_SECTIONS.values(), ids=BAD_SECTIONS)
def test_damaged_records_are_an_error_at_their_batch(section):
    batch = batch_of(section)
    with pytest.raises(DamageError):
        decode(batch)
    error = the_error(batch)
    assert error.expected is not None
    assert error.found is not None


def test_offset_deltas_must_rise():
    batch = batch_of(record(offset=varint(1)) + record(offset=varint(1)), count=2)
    error = the_error(batch)
    assert error.found == 1
    assert "Record 1 of a batch" in error.message
    the_error(batch, columns=["timestamp"])


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_count_that_the_bytes_cannot_hold_takes_no_memory(codec):
    section = batch_bytes([Record()], codec=[*CODECS][codec])[61:]
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    batch = batch_of(section, count=2**31 - 1, last_offset_delta=2**31 - 1, attributes=codec)
    error = the_error(batch, target_bytes=1 << 16)  # of the RecordBatch that the good batch before it has begun
    assert error.found == 2**31 - 1
    assert pa.default_memory_pool().max_memory() <= max(peak, before + 4 * OPENED_BYTES)


@pytest.mark.parametrize("codec", [1, 2, 3, 4, 5, 6, 7])
def test_records_that_do_not_decompress_are_an_error_at_their_batch(codec):
    assert the_error(batch_of(b"this is not compressed", attributes=codec)).message


def test_offsets_that_do_not_fit_the_log_are_an_error():
    batches = scan_batches(GOOD, file_position=7).batches
    for shift, base in ((-1, 0), (1, 2**63 - 1)):
        table = dataclasses.replace(batches, base_offset=np.array([base]), last_offset=np.array([base]))
        with pytest.raises(CorruptBatchError) as caught:
            decoded(GOOD, batches=table, file_position=7, offset_shift=shift)
        assert caught.value.byte_position == 7


def test_what_is_not_wanted_of_a_damaged_record_is_not_looked_at():
    batch = batch_of(BAD_SECTIONS["value beyond the record"])
    assert decoded(batch, columns=["offset"])["offset"].to_pylist() == [0]
    the_error(batch, columns=["key"])
