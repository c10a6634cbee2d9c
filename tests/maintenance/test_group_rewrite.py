"""What takes the place of a group of segments: leader epochs, index limits, and a file that gets too large."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from spark_segments import LogDir
from spark_segments.config import topic_config
from spark_segments.maintenance import compact, roll, verify
from tests.maintenance.rows import row, run
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.manifest_rows import Change
from verification.world.rounds import groups
from verification.world.topics import (
    GOLDEN_MS,
    append_batches,
    contents,
    later,
    live,
    records,
    topic_with,
)

CONFIG = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def seal(log: LogDir) -> None:
    roll(log, now_ms=later(log))


def with_own_keys(name: str) -> pa.Table:
    """Ten records: five of keys that only this table has, and five of keys that all of them have."""
    keys = [f"{name}-{number}".encode() if number < 5 else b"all-%d" % number for number in range(10)]
    return records(10).set_column(0, "key", pa.array(keys, pa.binary()))


def batch_of(log: LogDir, table: pa.Table) -> bytes:
    """The record batch that an append makes of a table."""
    topic = f"source-{len(log.topics())}"
    topic_with(log, topic, {})
    log.topic(topic).append(table)
    (segment,) = live(log, topic)
    return bytes(log.storage.read(segment.path))


def test_batches_without_a_leader_epoch_get_the_partitions_and_others_keep_theirs(log):
    data = [batch_of(log, with_own_keys(name)) for name in "abc"]
    # Chunks that fill a segment are sealed as they are; rolling would else write the epoch.
    topic_with(log, "orders", CONFIG | {"segment.bytes": len(data[0]) + 1})
    append_batches(log, "orders", data[:1], leader_epoch=3)
    append_batches(log, "orders", data[1:])
    seal(log)
    assert epochs(log) == [[3], [-1], [-1]]
    log.topic("orders").append(with_own_keys("d"))
    before = log.topic("orders").snapshot.partition(0)
    moved = dataclasses.replace(before, leader_epoch=7, leader_epochs=((3, 0), (7, 10)))
    log.topic("orders").manifest.commit(lambda _: Change("test", partitions=[moved]))
    compact(log, topics=["orders"], now_ms=GOLDEN_MS)
    assert epochs(log) == [[3], [7], [-1], [-1]], "two are rewritten, one is left as it was, one is active"
    assert verify(log, deep=True).errors == 0


def epochs(log: LogDir) -> list[list[int]]:
    """The leader epochs of the batches of each segment."""
    return [batches_of(log.storage.read(one.path)).leader_epoch.tolist() for one in live(log, "orders")]


@pytest.mark.parametrize(
    ("index_bytes", "time_index_bytes", "sizes"),
    [(16, 12, [3]), (17, 12, [2, 1]), (25, 12, [1, 1, 1]), (8, 16, [3]), (8, 17, [2, 1])],
)
def test_groups_are_within_the_limit_of_each_index(index_bytes, time_index_bytes, sizes):
    rows = run([30, 30, 30], index_bytes=index_bytes, time_index_bytes=time_index_bytes)
    config = topic_config({"segment.index.bytes": "48"})
    assert [len(group) for group in groups(rows, 30, 30, config)] == sizes


@pytest.mark.parametrize(("last_offset", "sizes"), [(2**31 - 1, [2]), (2**31, [1, 1])])
def test_groups_have_offsets_that_fit_an_index_entry(last_offset, sizes):
    rows = [row(0, 2**31 - 5, log_bytes=9), row(2**31 - 5, last_offset + 1, log_bytes=9)]
    found = groups(rows, last_offset + 1, last_offset + 1, topic_config({}))
    assert [len(group) for group in found] == sizes


def test_a_group_that_outgrows_a_file_becomes_several(log, limits):
    topic_with(log, "orders", CONFIG)
    for name in "abcd":
        log.topic("orders").append(with_own_keys(name))
        seal(log)
    log.topic("orders").append(with_own_keys("e"))
    newest = {one["key"]: one for one in contents(log, "orders", offsets=(None, 40))}
    limits(LARGEST_FILE_BYTES=1500)
    compact(log, now_ms=GOLDEN_MS)
    rows = live(log, "orders")
    assert [(one.base_offset, one.next_offset) for one in rows] == [(0, 20), (20, 30), (30, 40), (40, 50)]
    assert all(one.log_bytes <= 1500 for one in rows[:-1])
    assert contents(log, "orders", offsets=(None, 40)) == sorted(newest.values(), key=lambda one: one["offset"])
    assert verify(log, deep=True).errors == 0


def test_a_group_that_grows_because_it_is_compressed_less_becomes_several(log, limits):
    topic_with(log, "orders", CONFIG | {"compression.type": "zstd", "index.interval.bytes": "0"})
    for name in "abcd":
        values = pa.array([name.encode() * 1000] * 10, pa.binary())
        log.topic("orders").append(with_own_keys(name).set_column(1, "value", values))
        seal(log)
    log.topic("orders").append(with_own_keys("e"))
    newest = {one["key"]: one for one in contents(log, "orders", offsets=(None, 40))}
    log.topic("orders").alter({"compression.type": "uncompressed"})
    limits(LARGEST_FILE_BYTES=12_000)
    assert sum(one.log_bytes for one in live(log, "orders")) < 12_000
    compact(log, now_ms=GOLDEN_MS)
    rows = live(log, "orders")
    assert [(one.base_offset, one.next_offset) for one in rows] == [(0, 20), (20, 40), (40, 50)]
    assert all(4000 < one.log_bytes <= 12_000 for one in rows[:-1])
    assert contents(log, "orders", offsets=(None, 40)) == sorted(newest.values(), key=lambda one: one["offset"])
    assert verify(log, deep=True).errors == 0
