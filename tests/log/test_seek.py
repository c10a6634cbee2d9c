"""A seek to any offset or time of a partition of 100 GiB takes at most three small reads.

The partition is 100 rows of a manifest. Its files are made up while they are read: every batch of a segment is one and
the same but for its header, and index entries say where they are, as Kafka's would.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Any

import crc32c
import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.storage import Storage
from verification.world.kafka_bytes.twin_encode import Record
from verification.world.kafka_bytes.twin_encode import batch_bytes as encoded
from verification.world.manifest_rows import SEGMENT_SCHEMA, Partition, Segment, TopicRow
from verification.world.opened import opened

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
SEGMENTS = 100
SEGMENT_BYTES = 1 << 30
RECORDS = 16  # of a batch
START_MS = 1_700_000_000_000
LATE_MS = 3_600_000
# What a look-up needs: an index of every batch, or some batches; never the segment.
SMALL_BYTES = 3 << 20


class MadeUpPartition(Storage):
    """The files of orders-0: batches of one size, of which every tenth is an hour late; a record a millisecond."""

    def __init__(self, uri: str, batch_bytes: int) -> None:
        super().__init__(uri)
        value = bytes(batch_bytes // RECORDS)
        overhead = len(encoded([Record(value, timestamp=START_MS + number) for number in range(RECORDS)])) - batch_bytes
        values = [value[overhead:], *[value] * (RECORDS - 1)]
        self.batch = encoded([Record(one, timestamp=START_MS + number) for number, one in enumerate(values)])
        self.batches = SEGMENT_BYTES // len(self.batch)  # of a segment
        self.reads: list[int] = []

    @property
    def end(self) -> int:
        return SEGMENTS * self.batches * RECORDS

    def timestamp(self, offset: int) -> int:
        return START_MS + offset - (LATE_MS if offset // RECORDS % 10 == 7 else 0)

    def read(self, path, offset=0, length=None, *, writable=False):
        name, _, suffix = path.rpartition("/")[2].partition(".made-up.")
        if not suffix:  # of the manifest
            return super().read(path, offset, length)
        data = {"log": self._log, "index": self._index, "timeindex": self._time_index}[suffix](
            int(name) // RECORDS, offset, length
        )
        self.reads.append(len(data))
        return pa.py_buffer(data)

    def _log(self, first_batch: int, offset: int, length: int) -> bytes:
        assert offset + length <= self.batches * len(self.batch)
        low, high = offset // len(self.batch), -(-(offset + length) // len(self.batch))
        whole = b"".join(self._batch((first_batch + number) * RECORDS) for number in range(low, high))
        return whole[offset - low * len(self.batch) :][:length]

    def _batch(self, base_offset: int) -> bytes:
        batch = bytearray(self.batch)
        first_ms = self.timestamp(base_offset)
        struct.pack_into(">q", batch, 0, base_offset)
        struct.pack_into(">qq", batch, 27, first_ms, first_ms + RECORDS - 1)
        struct.pack_into(">I", batch, 17, crc32c.crc32c(memoryview(batch)[21:]))
        return bytes(batch)

    def _entries(self) -> np.ndarray:
        return np.arange(1, self.batches)  # the first batch gets none

    def _index(self, first_batch: int, offset: int, length: int) -> bytes:
        last_offset = self._entries() * RECORDS + RECORDS - 1
        return np.column_stack([last_offset, self._entries() * len(self.batch)]).astype(">i4").tobytes()

    def _time_index(self, first_batch: int, offset: int, length: int) -> bytes:
        on_time = self._entries()[(first_batch + self._entries()) % 10 != 7]
        last_offset = on_time * RECORDS + RECORDS - 1
        entries = np.empty(len(on_time), [("timestamp", ">i8"), ("relative_offset", ">i4")])
        entries["timestamp"] = START_MS + first_batch * RECORDS + last_offset
        entries["relative_offset"] = last_offset
        return entries.tobytes()


@pytest.fixture(params=[16 << 10, 128 << 10, 1 << 20], ids=lambda size: f"batches of {size >> 10} KiB")
def storage(tmp_path, request) -> MadeUpPartition:
    return MadeUpPartition(str(tmp_path / "log"), request.param)


@pytest.fixture
def topic(storage) -> Any:
    """The topic with its rows in memory."""
    LogDir.create(storage.uri)
    topic = opened(storage).topic("orders")
    topic.manifest.create(
        TopicRow(TOPIC_ID, {}), [Partition(TOPIC_ID, 0, log_end_offset=storage.end)], segment_rows(storage)
    )
    _ = topic.snapshot.segments
    return topic


def segment_rows(storage: MadeUpPartition) -> pa.Table:
    """Sealed segments of 1 GiB each."""
    count = storage.batches * RECORDS
    rows = []
    for base in range(0, storage.end, count):
        last = next(offset for offset in range(base + count - 1, 0, -RECORDS) if offset // RECORDS % 10 != 7)
        late = sum(number % 10 == 7 for number in range(base // RECORDS + 1, base // RECORDS + storage.batches))
        rows.append(
            {
                "topic_id": TOPIC_ID,
                "partition": 0,
                "base_offset": base,
                "next_offset": base + count,
                "path": f"orders-0/{base:020d}.made-up.log",
                "file_base_offset": base,
                "log_bytes": storage.batches * len(storage.batch),
                "index_bytes": 8 * (storage.batches - 1),
                "time_index_bytes": 12 * (storage.batches - 1 - late),
                "txn_index_bytes": 0,
                "records": count,
                "batches": storage.batches,
                "first_batch_max_timestamp_ms": storage.timestamp(base) + RECORDS - 1,
                "max_timestamp_ms": storage.timestamp(last),
                "offset_of_max_timestamp": last,
                "tombstones": 0,
                "delete_horizon_ms": None,
                "created_ms": storage.now_ms(),
                "state": Segment.SEALED,
                "removed_ms": None,
                "position": 0,
            }
        )
    return pa.Table.from_pylist(rows, schema=SEGMENT_SCHEMA)


def places(storage: MadeUpPartition) -> list[int]:
    """Offsets all over the partition: some of any, and those beside the borders of segments, batches and late ones."""
    anywhere = np.random.default_rng(3).integers(0, storage.end, 60).tolist()
    segment = storage.batches * RECORDS
    borders = [border for number in (0, 1, 2, 50, 99) for border in (number * segment, (number + 1) * segment - 1)]
    batches = [41 * segment + batch * RECORDS + at for batch in range(12) for at in (0, 1, RECORDS - 1)]
    return sorted({*anywhere, *borders, *batches, storage.end - 1})


@pytest.mark.cases(1)
def test_an_offset_is_read_with_two_small_reads(storage, topic):
    both = ["offset", "timestamp"]
    assert sum(topic.snapshot.live.column("log_bytes").to_pylist()) > 99.9 * 2**30
    for offset in places(storage):
        storage.reads.clear()
        found = [
            row
            for batch in topic.scan(offsets=(offset, offset + 1), columns=both).batches(1)
            for row in zip(batch["offset"].to_pylist(), batch["timestamp"].cast("int64").to_pylist(), strict=True)
        ]
        assert found == [(offset, storage.timestamp(offset) * 1000)]
        assert len(storage.reads) <= 2, (offset, storage.reads)
        assert max(storage.reads) <= SMALL_BYTES


@pytest.mark.cases(1)
def test_a_time_is_found_with_three_small_reads(storage, topic):
    for offset in places(storage):
        target_ms = START_MS + offset
        on_time = offset if storage.timestamp(offset) == target_ms else (offset // RECORDS + 1) * RECORDS
        expected = (on_time, storage.timestamp(on_time)) if on_time < storage.end else None
        storage.reads.clear()
        assert topic.offsets_for_times(target_ms) == {0: expected}
        assert len(storage.reads) <= 3, (offset, storage.reads)
        assert max(storage.reads, default=0) <= SMALL_BYTES


@pytest.mark.cases(1)
def test_times_beyond_both_ends_open_no_segment_but_the_first(storage, topic):
    assert topic.offsets_for_times(START_MS + storage.end) == {0: None}
    assert storage.reads == []
    assert topic.offsets_for_times(0) == {0: (0, START_MS)}
    assert len(storage.reads) <= 3


@pytest.mark.cases(1)
def test_segments_meet(storage, topic):
    """What this test makes up is a log: no gap between one segment and the next."""
    rows = topic.snapshot.live.select(["base_offset", "next_offset"]).to_pylist()
    assert len(rows) == SEGMENTS
    assert all(one["next_offset"] == other["base_offset"] for one, other in pairwise(rows))
