"""New offsets written over old ones, against batches that were encoded with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_segments.format.batches import rebase, scan_batches
from verification.world.kafka_bytes import twin_encode as twin
from verification.world.kafka_bytes.golden_files import log_files
from verification.world.kafka_bytes.twin_encode import Record

RECORDS = [Record(value=b"%d" % number) for number in range(50)]


def log(base_offset: int, leader_epoch: int = 0) -> bytearray:
    return bytearray().join(
        twin.encode(RECORDS, cut_bytes=120, base_offset=base_offset, leader_epoch=leader_epoch, codec="zstd")
    )


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 7), (0, 2**40), (2**40, 5)])
def test_a_shifted_log_is_the_log_encoded_at_the_other_offset(before, after):
    data = log(before, 2)
    rebase(data, scan_batches(data).batches, after - before)
    assert data == log(after, 2)
    assert scan_batches(data).error is None


def test_the_leader_epoch_goes_along_if_one_is_given():
    data = log(0, 2)
    rebase(data, scan_batches(data).batches, 100, 9)
    assert data == log(100, 9)


def test_only_the_given_batches_change():
    data = log(0)
    batches = scan_batches(data).batches
    rebase(data, batches.take(slice(1, 3)), 1000)
    moved = scan_batches(data).batches
    expected = batches.base_offset.copy()
    expected[1:3] += 1000
    assert moved.base_offset.tolist() == expected.tolist()


def test_what_would_write_elsewhere_is_refused():
    data = log(0)
    batches = scan_batches(data).batches
    for wrong in (data[:-1][: int(batches.byte_position[-1]) + 60], data[:0]):
        with pytest.raises(ValueError, match="outside the buffer"):
            rebase(wrong, batches, 1)
    with pytest.raises(ValueError, match="outside the buffer"):
        rebase(data, replace(batches, byte_position=batches.byte_position - 1), 1)
    with pytest.raises(ValueError, match="hand over a copy"):
        rebase(bytes(data), batches, 1)
    assert data == log(0)
    rebase(data, batches.take(slice(0, 0)), 1)
    assert data == log(0)


def test_old_formats_keep_their_offsets():
    data = bytearray(next(log_files("legacy-v1-0")).read_bytes())
    batches = scan_batches(data).batches
    with pytest.raises(ValueError, match="magic 2"):
        rebase(data, batches, 1)
