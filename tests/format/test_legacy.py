from __future__ import annotations

import base64
import struct
import zlib

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.batches import scan_batches
from spark_segments.format.compression import decompress
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import CODECS, LZ4
from spark_segments.format.legacy import messages, opened
from spark_segments.format.window import Window
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import (
    LEGACY_DIRECTORIES,
    expected_batches,
    expected_records,
    log_files,
)
from verification.world.kafka_bytes.legacy_messages import message, wrapper
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes

TIMESTAMP_TYPES = {"NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def decoded(data: bytes, offset_shift: int = 0, **options) -> list[dict]:
    """The records of messages, which are batches of magic 2 by then."""
    scan = scan_batches(data)
    assert scan.error is None and scan.consumed == len(data)
    window = Window(data, scan.batches, offset_shift=offset_shift)
    parts = [
        part for one in opened(window) for part in decode_batches(one, **{"topic": "t", "partition": 0, **options})
    ]
    return [record for part in parts for record in part.to_pylist()]


def offsets(data: bytes, **options) -> list[int]:
    return [record["offset"] for record in decoded(data, columns=["offset"], **options)]


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_golden_message_sets_decode_as_kafka_reads_them(name):
    records = [record for path in log_files(name) for record in decoded(path.read_bytes())]
    expected = expected_records(name)
    assert len(records) == len(expected)
    assert {record["compression"] for record in expected} >= {"none", "gzip", "snappy", "lz4"}
    for record, kafka in zip(records, expected, strict=True):
        key, value = (None if kafka[name] is None else base64.b64decode(kafka[name]) for name in ("key", "value"))
        assert (record["offset"], record["key"], record["value"]) == (kafka["offset"], key, value)
        assert round(record["timestamp"].timestamp() * 1000) == kafka["timestamp"]
        assert record["timestampType"] == TIMESTAMP_TYPES[kafka["timestampType"]]
        assert (record["topic"], record["partition"], record["headers"]) == ("t", 0, [])


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_first_offsets_and_counts_of_wrappers_are_kafkas(name):
    for path in log_files(name):
        data = path.read_bytes()
        expected = [batch for batch in expected_batches(name) if batch["segment"] == int(path.stem)]
        window = Window(data, scan_batches(data).batches)
        entries = [list(messages(window, row)) for row in range(len(window.batches))]
        assert [entry[0].offset for entry in entries] == [batch["baseOffset"] for batch in expected]
        assert [len(entry) for entry in entries] == [batch["recordsIterated"] for batch in expected]
        assert [entry[-1].offset for entry in entries] == [batch["lastOffset"] for batch in expected]


def test_lz4_of_magic_0_has_the_broken_header_checksum_that_is_put_right():
    refused = 0
    for path in log_files("legacy-v0-0"):
        data = path.read_bytes()
        batches = scan_batches(data).batches
        lz4 = batches.take(batches.codec == LZ4)
        for position, size in zip(lz4.byte_position, lz4.size, strict=True):
            # 12 bytes of overhead, 6 of header, key size and value size.
            frame = data[position + 26 : position + size]
            with pytest.raises(CorruptBatchError):
                decompress(LZ4, frame, path="", byte_position=0)
            refused += 1
        assert all(list(messages(Window(data, lz4), row)) for row in range(len(lz4)))
    assert refused > 3


@pytest.mark.parametrize("name", LEGACY_DIRECTORIES)
def test_ranges_cut_through_wrappers(name):
    path = next(log_files(name))
    data = path.read_bytes()
    last = int(scan_batches(data).batches.last_offset[-1])
    for start, end in ((0, 1), (50, 51), (55, 58), (120, 400), (last - 3, last + 10), (last + 1, last + 5), (60, 60)):
        assert offsets(data, start_offset=start, end_offset=end) == list(range(start, min(end, last + 1)))
        shifted = offsets(data, start_offset=1000 + start, end_offset=1000 + end, offset_shift=1000)
        assert shifted == list(range(1000 + start, 1000 + min(end, last + 1)))


def test_messages_are_not_decoded_as_if_they_were_batches():
    data = next(log_files("legacy-v1-0")).read_bytes()
    with pytest.raises(ValueError, match="magic 0 and 1"):
        list(decode_batches(Window(data, scan_batches(data).batches), topic="t", partition=0))


def test_windows_are_of_about_the_step_and_do_not_show(limits):
    data = next(log_files("legacy-v1-0")).read_bytes()
    whole = decoded(data)
    limits(STEP_BYTES=1000, RUN_BYTES=500)
    windows = list(opened(Window(data, scan_batches(data).batches)))
    assert decoded(data) == whole
    assert len(windows) > 3 and max(len(window.data) for window in windows) < 3000
    assert [window.end_position for window in windows][-1] == len(data)


def test_batches_of_magic_2_between_messages_are_left_as_they_are():
    old, new = message(1, b"a"), batch_bytes([Record(b"b", offset=2)], base_offset=2)
    data = old + new + message(3, b"c", magic=0) + message(4, b"d")
    scan = scan_batches(data)
    windows = list(opened(Window(data, scan.batches)))
    assert [window.data is data for window in windows] == [False, True, False, False]
    assert [window.is_as_written for window in windows] == [False, True, False, False]
    ends = [len(old), len(old + new), len(data) - len(message(4, b"d")), len(data)]
    assert [window.end_position for window in windows] == ends
    assert [(record["offset"], record["value"], record["timestampType"]) for record in decoded(data)] == [
        (1, b"a", 0), (2, b"b", 0), (3, b"c", -1), (4, b"d", 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, "none"), (0, "gzip"), (0, "snappy"), (1, "none"), (1, "gzip"), (1, "snappy"), (1, "lz4")],
)
@examples(20)
@given(
    records=st.lists(
        st.tuples(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=70), st.integers(0, 2**40)),
        min_size=1,
        max_size=20,
    ),
    base_offset=st.integers(1, 2**50),
)
def test_message_sets_of_another_writer_decode(magic, codec, records, base_offset):  # fmt: skip
    builder = LegacyRecordBatchBuilder(magic, CODECS[codec], 1 << 20)
    for offset, (key, value, timestamp) in enumerate(records):
        builder.append(offset, timestamp=timestamp, key=key, value=value)
    data = bytearray(builder.build())
    last = len(records) - 1
    if codec == "none":
        base_offset = 0
    elif magic == 1:  # as a broker does: the wrapper has the offset of its last message
        struct.pack_into(">q", data, 0, base_offset + last)
    else:
        base_offset = 0
        struct.pack_into(">q", data, 0, last)
    found = decoded(bytes(data))
    assert [(record["key"], record["value"]) for record in found] == [(key, value) for key, value, _ in records]
    assert [record["offset"] for record in found] == list(range(base_offset, base_offset + len(records)))
    timestamps = [round(record["timestamp"].timestamp() * 1000) for record in found]
    assert timestamps == [timestamp if magic else -1 for _, _, timestamp in records]


def test_a_wrapper_with_log_append_time_stamps_its_messages():
    inner = message(0, b"a", timestamp=5) + message(1, b"b", timestamp=6) + message(2, b"c", magic=0)
    records = decoded(wrapper(12, inner, timestamp=1_000_000, attributes=8))
    assert [record["timestampType"] for record in records] == [1, 1, -1]
    assert [record["timestamp"].timestamp() for record in records] == [1000, 1000, -0.001]


def test_gaps_inside_a_wrapper_stay():
    assert offsets(wrapper(12, message(0, b"a") + message(4, b"b"))) == [8, 12]
    assert offsets(wrapper(12, message(8, b"a", magic=0) + message(12, b"b", magic=0), magic=0)) == [8, 12]


def test_a_wrapper_of_magic_1_around_messages_of_magic_0_counts_from_its_last():
    """As cleaners before Kafka 0.10.1 left them: their offsets count from the first, and are no others in the log."""
    data = b"".join(
        wrapper(base + 2, b"".join(message(n, b"%d" % (base + n), magic=0) for n in range(3))) for base in (50, 53)
    )
    records = decoded(data)
    assert [(record["offset"], record["value"]) for record in records] == [(n, b"%d" % n) for n in range(50, 56)]
    assert [record["offset"] for record in decoded(data, start_offset=52)] == [52, 53, 54, 55]


def test_a_wrapper_left_at_offset_0_counts_from_0():
    assert offsets(wrapper(0, message(0, b"a") + message(1, b"b")), start_offset=1) == [1]


def test_a_message_cut_at_the_end_of_a_wrapper_is_left_out():
    assert offsets(wrapper(1, message(0, b"a") + message(1, b"b") + message(2, b"c")[:-1])) == [0, 1]


INNER = message(0, b"a")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(3, b"abc")[:-1] + b"x", "CRC-32"),
        (wrapper(3, INNER)[:-1] + b"x", "CRC-32"),
        (wrapper(3, INNER[:-1] + b"x"), "CRC-32"),
        (wrapper(3, b""), "empty"),
        (wrapper(3, INNER[:20]), "empty"),
        (message(3, None, attributes=1), "empty"),
        (message(3, b"x", attributes=4), "zstd"),
        (message(3, b"x", attributes=6), "codec"),
        (message(3, b"not gzip", attributes=1), "decompress"),
        (wrapper(3, wrapper(0, INNER)), "inside a compressed"),
        (wrapper(3, message(0, b"a", magic=2)), "magic"),
        (wrapper(3, message(-1, b"a")), "rise"),
        (wrapper(3, message(1, b"a") + message(1, b"b")), "rise"),
        (wrapper(3, message(2, b"a") + message(9, b"b")), "less than"),
        (wrapper(3, INNER[:8] + struct.pack(">i", 5) + INNER[12:]), "size"),
        (wrapper(3, INNER[:8] + struct.pack(">i", 16) + INNER[12:]), "size"),
        (wrapper(3, INNER[:26] + struct.pack(">i", 2**31 - 1) + INNER[30:]), "key"),
        (wrapper(3, INNER[:30] + struct.pack(">i", 2**31 - 1) + INNER[34:]), "value"),
    ],
)
def test_damage_is_one_error_with_its_place(data, reason):
    good = message(1, b"good")
    with pytest.raises(CorruptBatchError, match=reason) as caught:
        batches = scan_batches(good + data, file_position=100).batches
        window = Window(good + data, batches, byte_position=100, path="t-0/x.log")
        list(opened(window))
    assert (caught.value.path, caught.value.byte_position) == ("t-0/x.log", 100 + len(good))


def test_a_bad_message_among_many_is_named():
    data = b"".join(message(offset, b"v") for offset in range(5))
    size = len(data) // 5
    damaged = bytearray(data)
    damaged[size * 3 - 1] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        decoded(bytes(damaged))
    assert caught.value.byte_position == 2 * size
    falling = message(5, b"v") + message(4, b"v")
    with pytest.raises(CorruptBatchError, match="rise") as caught:
        decoded(falling)
    assert caught.value.byte_position == size


def test_a_wrapper_of_very_many_messages_is_read_in_steps(limits):
    count = 3000
    data = wrapper(count - 1, b"".join(message(offset, None, magic=0) for offset in range(count)), magic=0)
    limits(STEP_BYTES=4000)
    windows = list(opened(Window(data, scan_batches(data).batches)))
    counts = [count for window in windows for count in window.batches.count.tolist()]
    assert len(counts) > 3 and sum(counts) == count


@settings(deadline=None)
@given(st.data())
def test_any_bytes_give_records_or_one_error(data):
    inner = b"".join(message(offset, b"value", key=b"k") for offset in range(3))
    whole = bytearray(inner)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        whole = bytearray(wrapper(10, bytes(whole), magic=data.draw(st.integers(0, 1))))
    else:  # let the CRC hold, so that the layout itself is what is refused
        struct.pack_into(">I", whole, 12, zlib.crc32(whole[16 : 12 + struct.unpack_from(">i", whole, 8)[0]]))
    scan = scan_batches(bytes(whole))
    batches = scan.batches.take(scan.batches.magic < 2)
    try:
        for window in opened(Window(bytes(whole), batches)):
            for part in decode_batches(window, topic="t", partition=0):
                part.validate(full=True)
    except CorruptBatchError as error:
        assert error.byte_position is not None
