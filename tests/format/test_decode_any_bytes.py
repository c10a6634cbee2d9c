"""Decoding any bytes at all: the plain twin says what they are, and nothing is read or written out of bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.format.buffers import COPY_SLACK
from spark_segments.format.decoding import decode_kernels
from spark_segments.format.decoding.fields import SMALLEST_RECORD
from spark_segments.format.decoding.outcomes import Binary, Filled, HeaderPlaces, Outcome
from spark_segments.format.layout import CODECS
from tests.format.decoded import GOOD, NAMES, START, batch_of, decoded, milliseconds, rows_of, sealed
from tests.format.twin import DamageError, decode
from verification.world.kafka_bytes.guarded import Guarded
from verification.world.kafka_bytes.twin_encode import Record, batch_bytes

FUZZ = settings(deadline=None)


def nearest(timestamp_ms: int) -> int:
    """The nearest timestamp that microseconds in an int64 can say."""
    limit_ms = (2**63 - 1) // 1000
    return max(-limit_ms, min(timestamp_ms, limit_ms))


def same_as_twin(data) -> bool:
    """Whether both read `data`, the same records; False where both refuse it."""
    answers = []
    for heads_only, columns in ((False, NAMES), (True, ["offset", "timestamp", "timestampType"])):
        try:
            expected = decode(bytes(data), heads_only=heads_only)
        except DamageError:
            with pytest.raises(CorruptBatchError):
                decoded(data, columns=columns)
            answers.append(False)
            continue
        answers.append(True)
        rows = [
            (row.offset, nearest(row.timestamp), row.timestamp_type, row.key, row.value, row.headers)
            for row in expected
        ]
        table = decoded(data, columns=columns)
        if heads_only:
            columns_read = (table["offset"].to_pylist(), milliseconds(table), table["timestampType"].to_pylist())
            assert list(zip(*columns_read, strict=True)) == [row[:3] for row in rows]
        else:
            assert rows_of(table) == rows
    return answers[0]


INPUT = Guarded(1 << 16)

texts = st.text(max_size=5)
small = st.binary(max_size=6) | st.binary(min_size=60, max_size=140)
a_record = st.builds(
    Record,
    value=st.none() | small,
    key=st.none() | small,
    timestamp=st.integers(START - 70, START + 70) | st.integers(-(2**52), 2**52),
    headers=st.lists(st.tuples(texts, st.none() | small), max_size=3),
)
some_records = st.lists(a_record, min_size=1, max_size=6)


@FUZZ
@given(st.lists(some_records, min_size=1, max_size=4), st.sampled_from([*CODECS]), st.booleans())
def test_what_the_twin_writes_decodes_as_the_twin_decodes(batches, codec, appended):
    data, base_offset = b"", 0
    for batch in batches:
        data += batch_bytes(batch, base_offset=base_offset, codec=codec, log_append_time=appended)
        base_offset += len(batch)
    assert same_as_twin(INPUT.hold(data))


@FUZZ
@given(some_records, st.data())
def test_flipped_bits_under_a_right_crc(batch, data):
    damaged = bytearray(batch_bytes(batch))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(21, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    same_as_twin(INPUT.hold(GOOD + sealed(bytes(damaged))))


@FUZZ
@given(some_records, st.data())
def test_flipped_bits_and_cuts_without_a_right_crc(batch, data):
    damaged = bytearray(batch_bytes(batch) + GOOD)
    flipped = data.draw(st.integers(0, len(damaged) - 1).filter(lambda at: at != 16))
    damaged[flipped] ^= 1 << data.draw(st.integers(0, 7))
    same_as_twin(INPUT.hold(bytes(damaged[: data.draw(st.integers(0, len(damaged)))])))


@FUZZ
@given(some_records, st.data())
def test_bytes_put_in_and_taken_out_under_a_right_crc(batch, data):
    damaged = bytearray(batch_bytes(batch))
    at = data.draw(st.integers(61, len(damaged)))
    damaged[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    same_as_twin(INPUT.hold(sealed(bytes(damaged))))


@FUZZ
@given(st.binary(max_size=120), st.integers(0, 6), st.integers(0, 10))
def test_random_records_under_a_right_crc(section, count, last_offset_delta):
    same_as_twin(INPUT.hold(batch_of(section, count=count, last_offset_delta=last_offset_delta)))


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes(data):
    same_as_twin(INPUT.hold(data[:16] + b"\2" + data[17:] if len(data) > 16 else data))


@FUZZ
@given(some_records, st.sampled_from(["gzip", "snappy", "lz4", "zstd"]), st.data())
def test_flipped_bits_of_compressed_records_give_records_or_one_error(batch, codec, data):
    """Not the twin's answer: decoders of one codec differ in what damage they see."""
    damaged = bytearray(batch_bytes(batch, codec=codec))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(61, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert decoded(sealed(bytes(damaged)))["offset"].to_pylist() == list(range(len(batch)))
    except CorruptBatchError as error:
        assert error.byte_position == 0


OUTPUTS = {
    name: Guarded(1 << 14) for name in ("offsets", "timestamps", "key", "keys", "key_nulls", "value", "values", "nulls")
}


@pytest.mark.parametrize("as_views", [False, True])
@FUZZ
@given(batch=some_records, data=st.data())
def test_kernels_write_only_into_the_room_they_were_given(as_views, batch, data):
    """Every column ends at a guarded page, with just the room that its upper bound says."""
    section = bytearray(batch_bytes(batch)[61:])
    for _ in range(data.draw(st.integers(0, 2))):
        section[data.draw(st.integers(0, len(section) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    count = min(len(batch), len(section) // SMALLEST_RECORD)
    place = INPUT.hold(bytes(section)).__array_interface__["data"][0]
    sections = np.array([[place, place + len(section), count, 0, len(batch) - 1, START, 1, 0, place]], np.int64)

    def room(name: str, size: int) -> int:
        return OUTPUTS[name].end - size

    def binary(offsets: str, nulls: str, content: str) -> Binary:
        size = len(section) + COPY_SLACK
        return Binary(True, count, room(offsets, 4 * count + 4), room(nulls, (count + 7) // 8), room(content, size))

    value = binary("values", "nulls", "value")
    if as_views:
        value = Binary(True, count, 0, room("nulls", (count + 7) // 8), 0, room("value", 16 * count))
    outcome = Outcome(
        *decode_kernels.decode_records(
            sections,
            0,
            2**62,
            tuple(Filled(0, 0, 0, 0, 0, 0, 0)),
            room("offsets", 8 * count),
            room("timestamps", 8 * count),
            binary("keys", "key_nulls", "key"),
            value,
            HeaderPlaces(False, 0, 0, 0),
        )
    )
    assert outcome.problem or outcome.rows == count
