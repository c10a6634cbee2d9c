"""`Scan.to_reader`: a lazy Arrow stream of the records that `Scan.batches` gives, and values as views."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import CorruptBatchError, InvalidOptionError
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import GOLDEN
from verification.world.kafka_bytes.segment_bytes import RECORD_SCHEMA

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VIEWS = pa.schema([one.with_type(pa.binary_view()) if one.name == "value" else one for one in RECORD_SCHEMA])
values = st.one_of(st.none(), st.binary(max_size=30), st.integers(0, 3000).map(lambda size: bytes([size % 256]) * size))


def as_binary(table: pa.Table) -> pa.Table:
    return table.cast(RECORD_SCHEMA)


@pytest.mark.proof
@examples(60)
@given(st.lists(st.tuples(st.sampled_from(CODECS), st.lists(values, min_size=1, max_size=60)), max_size=4), st.data())
def test_views_of_values_are_the_values(appends, data):
    with tempfile.TemporaryDirectory() as directory:
        log = LogDir.create(directory + "/log")
        log.create_topic("t")
        for codec, rows in appends:
            size = data.draw(st.sampled_from([200, 2000, 100_000]))
            log.topic("t").append(
                pa.table({"value": pa.array(rows, pa.binary())}), options=ProducerOptions(codec, size)
            )
        expected = pa.Table.from_batches(list(log.topic("t").scan().batches()), RECORD_SCHEMA)
        found = log.topic("t").scan(value_type="binary_view").to_reader().read_all()
        found.validate(full=True)
        assert found.schema == VIEWS
        assert as_binary(found) == expected
        start = data.draw(st.integers(0, len(expected)))
        part = (
            log.topic("t")
            .scan(offsets=(start, None), columns=["value", "offset"], value_type="binary_view")
            .to_reader(threads=1)
        )
        assert part.read_all().column("offset").to_pylist() == list(range(start, len(expected)))


@pytest.mark.parametrize("codec", CODECS)
def test_values_above_12_bytes_are_not_copied(tmp_path, codec):
    """The buffers of a batch are what was read or decompressed: its values with their neighbours, in their order."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    rows = [b"value %06d" % number * 3 for number in range(5000)]
    log.topic("t").append(pa.table({"value": rows}), options=ProducerOptions(codec, 16384))
    for batch in log.topic("t").scan(columns=["value"], value_type="binary_view").to_reader():
        array = batch.column("value")
        _, views, *buffers = array.buffers()
        view = np.frombuffer(views, np.int32).reshape(-1, 4)[array.offset : array.offset + len(array)]
        lengths, numbers, offsets = view[:, 0], view[:, 2], view[:, 3]
        assert (lengths == len(rows[0])).all()
        first = int(numbers[0])
        same = numbers == first
        assert (np.diff(offsets[same]) > len(rows[0])).all()  # the other fields of a record lie between two values
        assert sum(buffer.size for buffer in buffers[1:]) > 0 or codec == "none"


def test_the_stream_reads_no_more_than_is_asked_for(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t", 2)
    log.topic("t").append(pa.table({"value": [b"a", b"b"], "partition": pa.array([0, 1], pa.int32())}))
    (chunk,) = (tmp_path / "log" / "t-1").glob("*.log")
    chunk.write_bytes(bytes(chunk.stat().st_size))
    stream = log.topic("t").scan().to_reader(threads=1)
    assert stream.read_next_batch().column("value").to_pylist() == [b"a"]
    with pytest.raises(CorruptBatchError):
        stream.read_next_batch()


def test_a_flipped_byte_of_a_value_is_found_though_nothing_is_copied(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    log.topic("t").append(pa.table({"value": [b"x" * 100]}), options=ProducerOptions("none"))
    (chunk,) = (tmp_path / "log" / "t-0").glob("*.log")
    content = bytearray(chunk.read_bytes())
    content[-20] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(CorruptBatchError, match="CRC"):
        log.topic("t").scan(value_type="binary_view").to_reader().read_all()


def test_typed_columns_are_in_the_schema(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    rows = pa.table({"key": pa.array([1, 2]), "value": pa.array([{"a": 1}, None], pa.struct([("a", pa.int32())]))})
    formats = {"key.format": "long", "value.format": "avro", "schema.registry": str(tmp_path / "registry")}
    log.topic("t").append(rows, formats=formats)
    stream = log.topic("t").scan(columns=["key", "value"], formats=formats).to_reader()
    assert stream.schema.types == [pa.int64(), pa.struct([("a", pa.int32())])]
    assert stream.read_all().to_pylist() == rows.to_pylist()
    empty = log.topic("t").scan(offsets=(2, None), columns=["key", "value"], formats=formats).to_reader()
    assert empty.read_all().schema == stream.schema
    with pytest.raises(InvalidOptionError, match="value_type"):
        log.topic("t").scan(formats=formats, value_type="binary_view").to_reader()


def test_the_latest_view_streams_with_views_of_values(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("t")
    log.topic("t").append(pa.table({"key": [b"a", b"b", b"a"], "value": [b"1" * 20, b"2" * 20, b"3" * 20]}))
    found = (
        log.topic("t").scan(columns=["key", "value"], view="latest", value_type="binary_view").to_reader().read_all()
    )
    assert found.to_pylist() == [{"key": b"b", "value": b"2" * 20}, {"key": b"a", "value": b"3" * 20}]


@pytest.mark.cases(1)
@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
def test_golden_directories_stream_as_they_are_read(isolation_level):
    log = LogDir.open(str(GOLDEN))
    topics = log.topics()
    assert {"legacy-v0", "legacy-v1", "txn", "mixed"} <= set(topics)
    for topic in topics:
        expected = pa.Table.from_batches(
            list(log.topic(topic).scan(isolation=isolation_level).batches()), RECORD_SCHEMA
        )
        for value_type in ("binary", "binary_view"):
            stream = log.topic(topic).scan(isolation=isolation_level, value_type=value_type).to_reader(threads=2)
            assert as_binary(stream.read_all()) == expected, topic


def test_an_unknown_value_type_is_refused(log):
    log.create_topic("t")
    with pytest.raises(InvalidOptionError, match="binary_view"):
        log.topic("t").scan(value_type="string").to_reader()


@pytest.mark.parametrize("columns", [[], ["value", "offset", "value"]])
def test_columns_are_at_least_one_and_each_once(log, columns):
    log.create_topic("t")
    with pytest.raises(InvalidOptionError, match="each once"):
        log.topic("t").scan(columns=columns)
