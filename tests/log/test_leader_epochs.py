"""Leader epochs: batches that have none get the epoch of their offset, and logs part where a later epoch begins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.difference import epoch_difference
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance import roll
from spark_segments.replicas.promote import followed_by
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.manifest_rows import Change, Partition

LATER_MS = 2_000_000_000_000


@pytest.fixture
def log(tmp_path) -> LogDir:
    """Three chunks of two records; a new leader took over at offset 4, before anything was rolled."""
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders")
    for _ in range(3):
        log.topic("orders").append(pa.table({"value": [b"a", b"b"]}))
    row = log.topic("orders").snapshot.partition(0)
    moved = dataclasses.replace(row, leader_epoch=5, leader_epochs=((2, 0), (5, 4)))
    log.topic("orders").manifest.commit(lambda _: Change("test", partitions=[moved]))
    return log


def epochs(data: pa.Buffer | bytes) -> list[tuple[int, int]]:
    batches = batches_of(data)
    return list(zip(batches.base_offset.tolist(), batches.leader_epoch.tolist(), strict=True))


def test_a_roll_stamps_batches_by_their_offsets(log):
    roll(log, now_ms=LATER_MS)
    [segment] = log.topic("orders").snapshot.live_of(0)
    assert epochs(log.storage.read(segment.path)) == [(0, 2), (2, 2), (4, 5)]


def test_an_export_stamps_batches_by_their_offsets(log, tmp_path):
    log.export_kafka(str(tmp_path / "kafka"))
    data = (tmp_path / "kafka/orders-0/00000000000000000000.log").read_bytes()
    assert epochs(data) == [(0, 2), (2, 2), (4, 5)]


def test_the_epoch_of_an_offset_is_that_of_the_last_start_at_or_below_it():
    found = LeaderEpochs(((2, 10), (5, 20), (6, 30))).at(np.array([0, 9, 10, 19, 20, 29, 30, 99]))
    assert found.tolist() == [2, 2, 2, 2, 5, 5, 6, 6]
    assert LeaderEpochs.of(Partition("t", 0, leader_epoch=7, leader_epochs=())).at(np.array([3])).tolist() == [7]


def test_a_position_has_the_epoch_of_the_record_before_it():
    epochs = LeaderEpochs(((2, 0), (5, 10), (6, 30)))
    assert [epochs.before(offset) for offset in (0, 1, 10, 11, 30, 31, 40)] == [0, 2, 2, 5, 5, 6, 6]
    assert LeaderEpochs(()).before(7) == 0


def test_a_later_epoch_from_a_lower_offset_on_parts_the_logs_there():
    epochs = LeaderEpochs(((2, 0), (5, 10)))
    assert epochs.parting_offset(25, 2) == 10
    assert epochs.parting_offset(10, 2) == 10
    assert epochs.parting_offset(25, 5) == 25


def test_an_epoch_that_a_log_skipped_was_of_a_leader_whose_records_were_cut():
    epochs = LeaderEpochs(((2, 1000), (5, 2000)))
    assert [epochs.allows(epoch) for epoch in (0, 2, 5)] == [True, True, True]  # retention took the records of epoch 0
    assert [epochs.allows(epoch) for epoch in (3, 6)] == [False, False]
    assert LeaderEpochs(()).allows(7)


def test_logs_differ_where_their_epochs_do():
    one, other = LeaderEpochs(((0, 0), (2, 150))), LeaderEpochs(((0, 0), (1, 80)))
    assert epoch_difference(one, other, 0, 130) == epoch_difference(other, one, 0, 130) == 80
    assert epoch_difference(one, other, 0, 80) is None
    assert epoch_difference(one, other, 90, 130) == 90
    assert epoch_difference(one, LeaderEpochs(()), 0, 500) is None
    assert epoch_difference(one, LeaderEpochs(((2, 150),)), 0, 500) is None  # what it does not know is no difference
    assert epoch_difference(one, LeaderEpochs(((3, 150),)), 0, 500) == 150


def test_an_epoch_without_a_record_gives_way_to_the_next():
    epochs = ((0, 0), (1, 80))
    assert followed_by(epochs, 2, 80) == ((0, 0), (2, 80))
    assert followed_by(epochs, 2, 90) == ((0, 0), (1, 80), (2, 90))


def test_chunks_merged_into_a_shared_object_keep_the_epochs_of_their_offsets(tmp_path):
    log = LogDir.create(str(tmp_path / "log"))
    log.create_topic("orders", 8)
    rows = pa.table({"value": [b"a"] * 8, "partition": pa.array(range(8), pa.int32())})
    for _ in range(8):
        log.topic("orders").append(rows)
    moved = [
        dataclasses.replace(
            log.topic("orders").snapshot.partition(number), leader_epoch=5, leader_epochs=((2, 0), (5, 6))
        )
        for number in range(8)
    ]
    log.topic("orders").manifest.commit(lambda _: Change("test", partitions=moved))
    roll(log)
    for number in range(8):
        [merged] = log.topic("orders").snapshot.live_of(number)
        assert merged.is_shared
        found = epochs(log.storage.read(merged.path, merged.byte_position, merged.log_bytes))
        assert found == [(offset, 2 if offset < 6 else 5) for offset in range(8)]
