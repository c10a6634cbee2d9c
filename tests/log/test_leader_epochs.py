"""Leader epochs: batches that have none get the epoch of their offset, whenever they are rolled or exported."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.format.batches import scan_batches
from spark_segments.log.manifest.change import Change
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance import roll

LATER_MS = 2_000_000_000_000


@pytest.fixture
def log(tmp_path) -> LogDir:
    """Three chunks of two records; a new leader took over at offset 4, before anything was rolled."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    for _ in range(3):
        log.append("orders", pa.table({"value": [b"a", b"b"]}))
    row = log.snapshot("orders").partition(0)
    moved = dataclasses.replace(row, leader_epoch=5, leader_epochs=((2, 0), (5, 4)))
    log.manifest("orders").commit(lambda _: Change("test", partitions=[moved]))
    return log


def epochs(data: pa.Buffer | bytes) -> list[tuple[int, int]]:
    batches = scan_batches(data).batches
    return list(zip(batches.base_offset.tolist(), batches.leader_epoch.tolist(), strict=True))


def test_a_roll_stamps_batches_by_their_offsets(log):
    roll(log, now_ms=LATER_MS)
    [segment] = log.snapshot("orders").live_of(0)
    assert epochs(log.storage.read(segment.path)) == [(0, 2), (2, 2), (4, 5)]


def test_an_export_stamps_batches_by_their_offsets(log, tmp_path):
    log.export_kafka(str(tmp_path / "kafka"))
    data = (tmp_path / "kafka/orders-0/00000000000000000000.log").read_bytes()
    assert epochs(data) == [(0, 2), (2, 2), (4, 5)]


def test_the_epoch_of_an_offset_is_that_of_the_last_start_at_or_below_it():
    found = LeaderEpochs(((2, 10), (5, 20), (6, 30))).at(np.array([0, 9, 10, 19, 20, 29, 30, 99]))
    assert found.tolist() == [2, 2, 2, 2, 5, 5, 6, 6]
    assert LeaderEpochs.of(Partition("t", 0, leader_epoch=7, leader_epochs=())).at(np.array([3])).tolist() == [7]


@pytest.mark.slow
def test_chunks_merged_into_a_shared_object_keep_the_epochs_of_their_offsets(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 8)
    rows = pa.table({"value": [b"a"] * 8, "partition": pa.array(range(8), pa.int32())})
    for _ in range(8):
        log.append("orders", rows)
    moved = [
        dataclasses.replace(log.snapshot("orders").partition(number), leader_epoch=5, leader_epochs=((2, 0), (5, 6)))
        for number in range(8)
    ]
    log.manifest("orders").commit(lambda _: Change("test", partitions=moved))
    roll(log)
    for number in range(8):
        [merged] = log.snapshot("orders").live_of(number)
        assert merged.is_shared
        found = epochs(log.storage.read(merged.path, merged.position, merged.log_bytes))
        assert found == [(offset, 2 if offset < 6 else 5) for offset in range(8)]
