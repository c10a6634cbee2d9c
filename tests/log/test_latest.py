"""The view latest against a dict of the newest record of each key, and against what cleaning leaves."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_segments import LogDir, ProducerOptions
from spark_segments.errors import InvalidOptionError
from spark_segments.format.cleaner.latest_keys import KeyShare, LatestKeys
from spark_segments.log.reading.latest import read_latest
from spark_segments.maintenance import compact, roll
from tests.maintenance.test_compact_golden import STEPS
from tests.maintenance.test_compact_golden import TOPICS as GOLDEN_TOPICS
from verification.world.kafka_bytes.golden_files import GOLDEN

FOREVER_MS = str(10**12)
COLUMNS = ["partition", "offset", "key", "value"]
# Each partition is a history by itself.
HISTORIES = 50

Record = tuple[int, int, bytes | None, bytes | None]


def rows(batches) -> list[Record]:
    table = pa.Table.from_batches(batches, None) if (batches := list(batches)) else None
    return [] if table is None else list(zip(*(table.column(name).to_pylist() for name in COLUMNS), strict=True))


def newest(records: list[Record]) -> list[Record]:
    """Slow twin: the newest record of each key of each partition, by partition and offset."""
    found = {(record[0], record[2]): record for record in records if record[2] is not None}
    return sorted(found.values(), key=lambda record: record[:2])


class Histories:
    """Random appends to the partitions of a topic, with rolls and compactions in between; what was appended by now."""

    def __init__(self, log: LogDir, topic: str, seed: int, partitions: int = HISTORIES) -> None:
        self.log, self.topic, self.partitions = log, topic, partitions
        self.random = random.Random(seed)
        self.ends = [0] * partitions
        self.appended: list[Record] = []
        config = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": str(self.random.choice([0.01, 0.3, 0.6])),
            "delete.retention.ms": FOREVER_MS,
            "segment.bytes": str(self.random.choice([1 << 20, 4000])),
            "compression.type": self.random.choice(["uncompressed", "lz4"]),
        }
        log.create_topic(topic, partitions=partitions, config=config)

    def append(self) -> None:
        choose, added = self.random, []
        for partition in range(self.partitions):
            keys = choose.choice([1, 3, 20])
            for _ in range(choose.choice([0, 1, 2, 10])):
                key = b"k%d" % choose.randrange(keys)
                value = choose.choice([None, b"", b"v%d" % choose.randrange(100)])
                added.append((partition, self.ends[partition], key, value))
                self.ends[partition] += 1
        self.appended += added
        if added:
            partition, _, key, value = zip(*added, strict=True)
            table = pa.table(
                {"partition": pa.array(partition, pa.int32()), "key": key, "value": pa.array(value, pa.binary())}
            )
            self.log.topic(self.topic).append(
                table, options=ProducerOptions(batch_bytes=choose.choice([1, 200, 10_000]))
            )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.append()
            if self.random.random() < 0.5:
                roll(self.log, topics=[self.topic], now_ms=self._later())
            if self.random.random() < 0.5:
                compact(self.log, topics=[self.topic])

    def clean_all(self) -> None:
        self.log.topic(self.topic).alter(config={"min.cleanable.dirty.ratio": "0", "segment.ms": "1"})
        roll(self.log, topics=[self.topic], now_ms=self._later())
        compact(self.log, topics=[self.topic])

    def _later(self) -> int:
        return self.log.storage.now_ms() + 30 * 24 * 3_600_000


@pytest.mark.proof
def test_the_view_equals_cleaning_on_random_histories(log):
    histories = Histories(log, "orders", seed=0)
    histories.run(steps=6)
    view = rows(log.topic("orders").scan(columns=COLUMNS, view="latest").batches())
    assert view == newest(histories.appended)
    alive = rows(log.topic("orders").scan(columns=COLUMNS, view="latest", include_tombstones=False).batches())
    assert alive == [record for record in view if record[3] is not None]
    histories.clean_all()
    assert [row["first_dirty_offset"] for row in log.topic("orders").describe()["partitions"]] == histories.ends
    assert rows(log.topic("orders").scan(columns=COLUMNS).batches()) == view


@pytest.mark.proof
def test_a_range_has_the_newest_of_its_own_records(log):
    histories = Histories(log, "orders", 42, partitions=5)
    histories.run(steps=20)
    everything = rows(log.topic("orders").scan(columns=COLUMNS).batches())
    for start in range(0, 60, 7):
        for end in range(start, 90, 13):
            inside = [record for record in everything if start <= record[1] < end]
            view = log.topic("orders").scan(offsets=(start, end), columns=COLUMNS, view="latest").batches()
            assert rows(view) == newest(inside)


def test_keys_that_fit_no_map_are_reduced_share_by_share(log):
    histories = Histories(log, "orders", 7, partitions=3)
    histories.run(steps=10)
    parts = log.topic("orders").scan(columns=COLUMNS, view="latest").parts()
    smallest = [record for part in parts for record in rows(read_latest(log.storage, part, map_bytes=24 * 6))]
    assert smallest == newest(histories.appended)


def test_records_without_a_key_are_not_in_the_view(log):
    log.create_topic("events")
    log.topic("events").append(pa.table({"key": [b"a", None, b"a", None], "value": [b"1", b"2", b"3", b"4"]}))
    assert rows(log.topic("events").scan(columns=COLUMNS, view="latest").batches()) == [(0, 2, b"a", b"3")]


def test_the_view_has_only_the_columns_that_are_wanted(log):
    log.create_topic("events")
    log.topic("events").append(pa.table({"key": [b"a", b"a", b"b"], "value": [b"1", b"2", None]}))
    (batch,) = log.topic("events").scan(columns=["timestampType"], view="latest", include_tombstones=False).batches()
    assert batch.schema.names == ["timestampType"] and batch.num_rows == 1


@pytest.mark.parametrize(
    "wrong", [{"view": "newest"}, {"include_tombstones": False}, {"view": "latest", "include_control": True}]
)
def test_a_wrong_view_is_refused(log, wrong):
    log.create_topic("events")
    with pytest.raises(InvalidOptionError):
        log.topic("events").scan(**wrong).batches()


def test_a_map_of_a_share_knows_the_keys_of_that_share_alone():
    keys = pa.array([b"%d" % number for number in range(1000)] + [None])
    offsets = np.arange(1001, dtype=np.int64)
    shares = [LatestKeys(1 << 20, KeyShare(number, 3), seed=5) for number in range(3)]
    assert all(share.put_records(keys, offsets) for share in shares)
    assert sum(len(share) for share in shares) == 1000 and min(len(share) for share in shares) > 250
    superseded = np.zeros(1001, np.bool_)
    for share in shares:
        share.mark_superseded(keys, offsets - 1, superseded)
    assert superseded.all()
    superseded[:] = False
    for share in shares:
        share.mark_superseded(keys, offsets, superseded)
    assert superseded.nonzero()[0].tolist() == [1000]


@pytest.mark.parametrize("isolation_level", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize(("name", "before", "after"), STEPS)
def test_the_view_of_a_log_is_what_kafkas_own_cleaner_left_of_it(name, before, after, isolation_level):
    """Tombstones aside: Kafka removed those whose time had come."""
    topic = GOLDEN_TOPICS[name]
    dirty, clean = (LogDir.open(str(GOLDEN / name / step)) for step in (before, after))
    view = (
        dirty.topic(topic)
        .scan(columns=COLUMNS, view="latest", isolation=isolation_level, include_tombstones=False)
        .batches()
    )
    left = newest(rows(clean.topic(topic).scan(columns=COLUMNS, isolation="read_committed").batches()))
    assert rows(view) == [record for record in left if record[3] is not None]


@pytest.mark.parametrize("topic", ["latest", "orders", "payments"])
def test_a_clean_tail_that_a_broker_left_is_taken_as_it_is(topic):
    log = LogDir.open(str(GOLDEN / "broker-data"))
    plain = rows(log.topic(topic).scan(columns=COLUMNS, isolation="read_committed").batches())
    assert rows(log.topic(topic).scan(columns=COLUMNS, view="latest").batches()) == newest(plain) != []


def test_only_the_dirty_head_is_read_for_its_keys(log):
    histories = Histories(log, "orders", 3, partitions=2)
    histories.append()
    histories.clean_all()
    bounds = log.topic("orders").offsets()
    clean = list(log.topic("orders").scan(view="latest").parts())
    assert clean and all(part.rivals == () for part in clean)
    log.topic("orders").append(pa.table({"partition": pa.array([1], pa.int32()), "key": [b"k0"], "value": [b"new"]}))
    parts = log.topic("orders").scan(view="latest").parts()
    heads = {part.partition: part.rivals for part in parts}
    assert heads.pop(0, ()) == ()
    assert [(one.start_offset, one.end_offset) for one in heads[1]] == [(bounds[1][1], bounds[1][1] + 1)]
