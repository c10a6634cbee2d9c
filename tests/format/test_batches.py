"""The walk over batches: Kafka's own dump of every golden log, and what each kind of damage is answered with."""

from __future__ import annotations

import struct

import crc32c
import numpy as np
import pytest

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.layout import CODECS, COUNT_UNKNOWN, HEADER_STRUCT, LOG_OVERHEAD
from verification.world.kafka_bytes.golden_files import (
    CLEAN_DIRECTORIES,
    LEGACY_DIRECTORIES,
    expected_batches,
    golden_dir,
    log_files,
)

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def header(
    *, base_offset=0, length=None, epoch=0, magic=2, crc=None, attributes=0, last_offset_delta=0, count=1, records=b""
):
    """A batch whose CRC holds unless one is given; `length` defaults to the right one."""
    body = struct.pack(">hiqqqhii", attributes, last_offset_delta, 5, 6, -1, -1, -1, count) + records
    crc = crc32c.crc32c(body) if crc is None else crc
    length = len(body) + 9 if length is None else length
    return struct.pack(">qiibI", base_offset, length, epoch, magic, crc) + body


def the_error(data: bytes, **options) -> CorruptBatchError:
    scan = scan_batches(data, path="x.log", **options)
    assert scan.error is not None
    assert (scan.needed, scan.error.path) == (0, "x.log")
    assert scan.error.byte_position == options.get("file_position", 0) + scan.consumed
    return scan.error


def test_header_layout_is_what_the_tests_write():
    assert HEADER_STRUCT.size == len(header()) == 61
    assert HEADER_STRUCT.unpack(header(base_offset=7, epoch=3))[:4] == (7, 49, 3, 2)


@pytest.mark.parametrize("name", CLEAN_DIRECTORIES)
def test_every_batch_is_what_kafka_says_it_is(name):
    expected = iter(expected_batches(name))
    for file in log_files(name):
        data = file.read_bytes()
        scan = scan_batches(data, path=file.name)
        assert (scan.consumed, scan.needed, scan.error) == (len(data), 0, None)
        table = scan.batches
        codecs, types = table.codec, table.timestamp_type
        for row in range(len(table)):
            batch = next(expected)
            assert batch["segment"] == int(file.stem)
            assert table.byte_position[row] == batch["position"]
            assert table.size[row] == batch["size"]
            assert table.base_offset[row] == batch["baseOffset"]
            assert table.last_offset[row] == batch["lastOffset"]
            assert table.count[row] == batch["count"]
            assert table.magic[row] == batch["magic"]
            assert codecs[row] == CODECS[batch["compression"]]
            assert types[row] == TIMESTAMP_TYPES[batch["timestampType"]]
            assert table.base_timestamp[row] == batch["baseTimestamp"]
            assert table.max_timestamp[row] == batch["maxTimestamp"]
            assert table.crc[row] == batch["crc"]
            assert table.leader_epoch[row] == batch["leaderEpoch"]
            assert table.producer_id[row] == batch["producerId"]
            assert table.producer_epoch[row] == batch["producerEpoch"]
            assert table.base_sequence[row] == batch["baseSequence"]
            assert table.is_transactional[row] == batch["isTransactional"]
            assert table.is_control[row] == batch["isControl"]
            assert table.has_delete_horizon[row] == (batch["deleteHorizonMs"] is not None)
    assert next(expected, None) is None


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_entries_of_magic_0_and_1_are_rows_too(name):
    expected = iter(expected_batches(name))
    for file in log_files(name):
        table = scan_batches(file.read_bytes()).batches
        for row in range(len(table)):
            batch = next(expected)
            found = (
                table.byte_position[row],
                table.size[row],
                table.magic[row],
                table.crc[row],
                table.last_offset[row],
            )
            assert found == (batch["position"], batch["size"], batch["magic"], batch["crc"], batch["lastOffset"])
            assert table.codec[row] == CODECS[batch["compression"]]
            assert table.timestamp_type[row] == TIMESTAMP_TYPES[batch["timestampType"]]
            assert table.max_timestamp[row] == batch["maxTimestamp"]
            assert table.count[row] == (1 if batch["compression"] == "none" else COUNT_UNKNOWN)
    assert next(expected, None) is None


def test_preallocated_and_live_files_scan_to_the_end_of_their_batches():
    files = list(log_files("live-0"))
    assert sum(len(scan_batches(file.read_bytes()).batches) for file in files) == len(expected_batches("live-0"))


def test_a_buffer_cut_anywhere_gives_whole_batches_and_what_the_next_needs():
    data = (golden_dir("plain-0") / "00000000000000000000.log").read_bytes()[:3000]
    sizes = scan_batches(data).batches.size
    ends = np.concatenate([[0], np.cumsum(sizes)])
    for cut in range(len(data) + 1):
        scan = scan_batches(data[:cut])
        whole = int(np.searchsorted(ends, cut, side="right")) - 1
        assert (len(scan.batches), scan.consumed, scan.error) == (whole, ends[whole], None)
        left = cut - scan.consumed
        if left == 0:
            assert scan.needed == 0
        elif left < 17:
            assert scan.needed == 61
        elif whole < len(sizes):
            assert scan.needed == sizes[whole]


def test_positions_count_from_the_file_and_a_limit_ends_the_walk():
    data = header() * 5
    scan = scan_batches(data, file_position=1000, limit_bytes=62)
    assert list(scan.batches.byte_position) == [1000, 1061]
    assert (scan.consumed, scan.needed, scan.error) == (122, 0, None)
    assert len(scan_batches(data, limit_bytes=0).batches) == 0
    assert len(scan_batches(b"").batches) == 0


def test_damage_is_one_error_behind_the_good_batches():
    damaged = bytearray(header(base_offset=1))
    damaged[30] ^= 1
    scan = scan_batches(header() + bytes(damaged) + header(), file_position=500, path="x.log")
    assert (len(scan.batches), scan.consumed, scan.needed) == (1, 61, 0)
    assert scan.error is not None
    stored = int.from_bytes(damaged[17:21])
    assert (scan.error.byte_position, scan.error.expected) == (561, f"{stored:#010x}")
    assert scan.error.found == f"{crc32c.crc32c(bytes(damaged[21:])):#010x}"
    assert len(scan_batches(header() + bytes(damaged) + header(), check_crc=False).batches) == 3


@pytest.mark.parametrize("magic", [-128, -1, 3, 127])
def test_unknown_magic(magic):
    assert the_error(header(magic=magic)).found == magic


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_length_below_the_header(length):
    assert the_error(header(base_offset=1, length=length)).found == length


def test_length_beyond_the_buffer_is_needed_not_an_error():
    scan = scan_batches(header(length=2**31 - 1))
    assert (scan.consumed, scan.needed, scan.error) == (0, 2**31 - 1 + LOG_OVERHEAD, None)


@pytest.mark.parametrize("count", [-1, -(2**31), 4, 2**31 - 1])
def test_count_outside_the_offset_range(count):
    assert the_error(header(last_offset_delta=2, count=count)).found == count


def test_offsets_that_do_not_fit():
    assert the_error(header(last_offset_delta=-1, count=0)).found == -1
    assert the_error(header(base_offset=-5)).found == -5
    assert the_error(header(base_offset=2**63 - 1, last_offset_delta=1)).found == 2**63 - 1
    assert scan_batches(header(base_offset=2**63 - 2, last_offset_delta=1)).error is None


def test_zeros_are_named_as_such():
    for size in (17, 61, 4096):
        assert the_error(bytes(size)).found == "zeros"
    assert scan_batches(header() + bytes(4096)).consumed == 61


def test_batch_without_records_keeps_its_offset_range():
    table = scan_batches(header(base_offset=10, last_offset_delta=4, count=0)).batches
    assert (table.base_offset[0], table.last_offset[0], table.count[0]) == (10, 14, 0)


def test_tables_are_taken_and_put_together():
    table = scan_batches(b"".join(header(base_offset=n) for n in range(6))).batches
    assert list(table.take(slice(2, 4)).base_offset) == [2, 3]
    assert list(table.take(table.base_offset % 2 == 1).base_offset) == [1, 3, 5]
    assert list(table.take(np.array([5, 0])).base_offset) == [5, 0]
    both = BatchTable.concatenate([table, table.take(slice(0, 1))])
    assert list(both.base_offset) == [0, 1, 2, 3, 4, 5, 0]
    assert both.magic.dtype == np.int8
    assert len(BatchTable.concatenate([])) == 0


def test_random_bytes_never_do_more_than_fail():
    random = np.random.default_rng(3)
    for _ in range(3000):
        data = bytearray(random.integers(0, 256, random.integers(0, 200), dtype=np.uint8).tobytes())
        if len(data) > 16 and random.integers(2):
            data[8:12] = struct.pack(">i", int(random.integers(-20, 250)))
            data[16] = int(random.integers(0, 3))
        scan = scan_batches(bytes(data))
        assert 0 <= scan.consumed <= len(data)
        assert scan.consumed == int(scan.batches.size.sum())
