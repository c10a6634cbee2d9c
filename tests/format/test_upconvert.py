from __future__ import annotations

import base64
import dataclasses

import numpy as np
import pytest
from aiokafka.record.memory_records import MemoryRecords

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.layout import CODEC_NAMES
from spark_segments.format.legacy import opened
from spark_segments.format.window import Window
from tests.format.test_legacy import INNER, message, wrapper
from verification.world.kafka_bytes.golden_files import LEGACY_DIRECTORIES, expected_records, log_files


def aiokafka_records(data) -> list:
    """Every record, as aiokafka decodes it with its CRC check."""
    records, found = MemoryRecords(bytes(data)), []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += list(batch)
    return found


def converted(data: bytes, path: str = "") -> bytes:
    """The bytes of the batches of magic 2 that messages become."""
    windows = list(opened(Window(data, scan_batches(data).batches, path=path)))
    for window in windows:
        scan = scan_batches(window.data)
        assert scan.error is None and scan.consumed == len(window.data)
        assert all(
            np.array_equal(getattr(scan.batches, field.name), getattr(window.batches, field.name))
            for field in dataclasses.fields(scan.batches)
        )
    return b"".join(window.data for window in windows)


def converted_batches(data: bytes, path: str = "") -> BatchTable:
    return scan_batches(converted(data, path)).batches


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_converted_batches_hold_the_same_records_for_another_reader(name):
    records, codecs = [], set()
    for path in log_files(name):
        data = path.read_bytes()
        batches = converted_batches(data)
        assert set(batches.leader_epoch.tolist()) == {-1}
        assert np.all(batches.base_offset[1:] == batches.last_offset[:-1] + 1)
        codecs |= {CODEC_NAMES[int(codec)] for codec in batches.codec}
        records += aiokafka_records(converted(data))
    assert codecs == {"none", "gzip", "snappy", "lz4"}
    for record, kafka in zip(records, expected_records(name), strict=True):
        key, value = (None if kafka[name] is None else base64.b64decode(kafka[name]) for name in ("key", "value"))
        assert (record.offset, record.key, record.value) == (kafka["offset"], key, value)
        assert (record.timestamp, list(record.headers)) == (kafka["timestamp"], [])
        assert record.timestamp_type == (kafka["timestampType"] == "LogAppendTime")


def test_uncompressed_messages_are_gathered_up_to_the_batch_size(limits):
    data = b"".join(message(offset, bytes(100), timestamp=offset) for offset in range(100))
    assert converted_batches(data).count.tolist() == [100]
    limits(RUN_BYTES=1000)
    batches = converted_batches(data)
    assert batches.size.max() <= 1100 and batches.size[:-1].min() > 700
    assert batches.count.sum() == 100
    limits(RUN_BYTES=10)
    assert converted_batches(data).count.tolist() == [1] * 100


def test_timestamps_farther_apart_than_64_bits_part_batches():
    times = [-(1 << 63), (1 << 63) - 1, 5]
    data = b"".join(message(offset, b"v", timestamp=timestamp) for offset, timestamp in enumerate(times))
    assert [record.timestamp for record in aiokafka_records(converted(data))] == times
    assert converted_batches(data).count.tolist() == [1, 2]


def test_one_batch_never_has_two_append_times():
    times = [(5, 8), (5, 8), (6, 8), (6, 0), (7, 0), (7, 8)]
    data = b"".join(
        message(offset, b"v", timestamp=timestamp, attributes=attributes)
        for offset, (timestamp, attributes) in enumerate(times)
    )
    batches = converted_batches(data)
    assert batches.count.tolist() == [2, 1, 2, 1]
    assert batches.timestamp_type.tolist() == [1, 1, 0, 1]
    assert batches.max_timestamp.tolist() == [5, 6, 7, 7]


def test_offsets_with_gaps_are_kept_and_far_ones_part_batches():
    data = message(3, b"a") + message(9, None, key=b"k") + message(9 + 2**31, b"c")
    found = [(record.offset, record.value) for record in aiokafka_records(converted(data))]
    assert found == [(3, b"a"), (9, None), (9 + 2**31, b"c")]
    assert converted_batches(data).last_offset.tolist() == [9, 9 + 2**31]


def test_an_entry_without_messages_or_with_a_bad_crc_is_an_error():
    for data in (wrapper(3, b""), wrapper(3, INNER[:-1] + b"x")):
        with pytest.raises(CorruptBatchError) as caught:
            converted_batches(data, path="t-0/x.log")
        assert (caught.value.path, caught.value.byte_position) == ("t-0/x.log", 0)


def test_nothing_becomes_nothing():
    nothing = Window(b"", scan_batches(b"").batches)
    assert [*opened(nothing)] == [nothing]
