"""Writing chunks and copying batches: what the files hold, what their rows say, and what is not copied."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import CorruptBatchError
from spark_segments.log.segment.copying import copy_batches
from spark_segments.log.segment.writer import ChunkWriter
from spark_segments.storage import Storage
from tests.examples import examples
from verification.world.kafka_bytes.segment_bytes import BatchTable, encode_records, rebuild, scan_batches
from verification.world.manifest_rows import Segment
from verification.world.topics import SegmentLimits, SegmentWriter

TIME_MS = 1_700_000_000_000
LIMITS = SegmentLimits(1 << 20, index_interval_bytes=300, segment_index_bytes=4096)


def encoded(values: list[bytes | None], *, batch_bytes: int = 400, first_ms: int = TIME_MS):
    count = len(values)
    columns = pa.record_batch(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array([first_ms + n for n in range(count)], pa.timestamp("ms")).cast(
                pa.timestamp("us", "UTC")
            ),
        }
    )
    return encode_records(columns, None, codec=0, level=None, batch_bytes=batch_bytes, max_message_bytes=1 << 20)


def write(storage: Storage, appends: list[list[bytes | None]], *, segment_bytes: int = 1 << 20) -> list[Segment]:
    writer = ChunkWriter(storage, "orders", "id", 0, limits=dataclasses.replace(LIMITS, segment_bytes=segment_bytes))
    for values in appends:
        writer.append(encoded(values))
    return writer.close()


def batches_of(storage: Storage, row: Segment) -> BatchTable:
    data = storage.read(row.path)
    assert data.size == row.log_bytes
    scan = scan_batches(data)
    assert scan.error is None and scan.consumed == row.log_bytes
    return scan.batches


@pytest.fixture
def storage(tmp_path) -> Storage:
    return Storage(str(tmp_path))


@examples(60)
@given(
    appends=st.lists(
        st.lists(st.none() | st.integers(0, 300).map(lambda size: b"v" * size), min_size=1, max_size=20),
        min_size=1,
        max_size=6,
    ),
    segment_bytes=st.integers(400, 3000),
)
def test_chunks_hold_all_batches_from_offset_0_and_their_rows_say_so(tmp_path_factory, appends, segment_bytes):
    storage = Storage(str(tmp_path_factory.mktemp("chunks")))
    rows = write(storage, appends, segment_bytes=segment_bytes)
    values = [value for append in appends for value in append]
    assert sum(row.records for row in rows) == len(values)
    at = 0
    for row in rows:
        batches = batches_of(storage, row)
        assert row.log_bytes <= segment_bytes or len(batches) == 1
        assert (row.base_offset, row.file_base_offset, row.name_offset, row.state) == (0, 0, 0, "chunk")
        assert batches.base_offset.tolist() == [0, *(batches.last_offset[:-1] + 1).tolist()]
        assert row.next_offset == batches.last_offset[-1] + 1 == row.records
        assert row.batches == len(batches)
        mine = values[at : at + row.records]
        at += row.records
        assert row.tombstones == sum(value is None for value in mine)
        assert row.max_timestamp_ms == batches.max_timestamp.max()
        assert row.first_batch_max_timestamp_ms == batches.max_timestamp[0]
        newest = batches.last_offset[batches.max_timestamp.argmax()]
        assert row.offset_of_max_timestamp == newest
        index, time_index = rebuild(batches, 0, interval_bytes=300, index_bytes=4096)
        assert storage.read(row.index_path).to_pybytes() == index and len(index) == row.index_bytes
        assert storage.read(row.time_index_path).to_pybytes() == time_index
        assert len(time_index) == row.time_index_bytes
    assert len({row.path for row in rows}) == len(rows)


def test_nothing_written_is_no_chunk(storage):
    assert write(storage, []) == []


def test_the_earliest_delete_horizon_is_the_rows(storage):
    writer = SegmentWriter(storage, "orders", 0, 0, limits=LIMITS)
    done = encoded([b"v"] * 3, batch_bytes=1)
    horizons = BatchTable(**{name: getattr(done.batches, name) for name in BatchTable.__dataclass_fields__})
    horizons.attributes[1:] |= 0x40
    horizons.base_timestamp[:] = [1, 3000, 2000]
    writer.append(done.buffer, horizons)
    assert writer.close(topic_id="id", created_ms=0).delete_horizon_ms == 2000


def test_a_chunk_with_fewer_records_than_its_row_says_is_not_copied(storage):
    [row] = write(storage, [[b"v"] * 10])
    wrong = dataclasses.replace(row, records=11)
    with pytest.raises(CorruptBatchError, match="11 records"):
        copy_batches(storage, "orders", [wrong], 0, 10, sealed=True, leader_epochs=None, limits=LIMITS)


def test_a_flipped_byte_is_not_copied(storage, tmp_path):
    [row] = write(storage, [[b"v" * 100] * 10])
    path = tmp_path / row.path
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptBatchError, match="CRC") as caught:
        copy_batches(storage, "orders", [row], 0, 10, sealed=True, leader_epochs=None, limits=LIMITS)
    assert row.path in str(caught.value)
