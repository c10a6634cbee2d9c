"""A look-up equals the filter of a full scan after any history of a topic, of its jobs, and of its index."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from spark_segments import LogDir
from spark_segments.errors import SegmentsError
from spark_segments.keys.job import index
from spark_segments.maintenance import compact, erase, restore, retain, roll, vacuum
from tests.examples import examples
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.small_limits import small_limits

KEYS = [b"", b"a", b"b", b"c", b"\xff" * 300, b"k-1", b"k-2"]
SMALL = {
    "INDEX_RANGE_RECORDS": 6,
    "INDEX_WAVE_BYTES": 1,
    "MOST_MERGED_RUNS": 2,
    "MERGED_SLICE_RECORDS": 3,
    "MOST_INLINE": 2,
    "MOST_LISTED": 12,
    "NEAR_BYTES": 1,
}
CONFIG = {"file.delete.delay.ms": "0", "segment.ms": "1", "segment.bytes": "400", "min.cleanable.dirty.ratio": "0"}


class World:
    """A topic under a history. Each operation is a method."""

    KEYS = KEYS

    def __init__(self, path: str, chance: random.Random) -> None:
        self.log = LogDir.create(path)
        self.chance = chance
        self.hash_bits = chance.choice([4, 48])
        self.log.import_kafka(str(golden_dir("txn-0")), "txn")
        self.topic().alter(CONFIG)
        self.versions = [self.topic().version]

    def topic(self, version: int | None = None):
        return self.log.topic("txn", version)

    def append(self) -> None:
        count = self.chance.randrange(1, 9)
        partitions = len(self.topic().offsets())
        rows = [
            {
                "key": self.chance.choice([*self.KEYS, *self.KEYS[1:2] * 2, None]),
                "value": self.chance.choice([b"v", b"", None]),
                "partition": self.chance.randrange(partitions),
            }
            for _ in range(count)
        ]
        self.topic().append(rows)

    def index(self) -> None:
        assert index(self.log, hash_bits=self.hash_bits).ok

    def drop_index(self) -> None:
        index(self.log, drop=True)

    def roll(self) -> None:
        roll(self.log)

    def compact(self) -> None:
        if any(row.num_rows and row.column("key").null_count for row in self.topic().scan().batches()):
            return
        self.topic().alter({"cleanup.policy": "compact"})
        compact(self.log, force=True)
        self.topic().alter({"cleanup.policy": None})

    def retain(self) -> None:
        bounds = self.topic().offsets()
        self.topic().delete_records({n: self.chance.randint(start, end) for n, (start, end) in bounds.items()})
        retain(self.log)

    def restore(self) -> None:
        version = self.chance.choice(self.versions)
        try:
            restore(self.log, topics=["txn"], version=version)
        except SegmentsError:  # vacuum has taken what it needs
            return

    def erase(self) -> None:
        erase(self.log, topics=["txn"], keys=[self.chance.choice(self.KEYS)])

    def vacuum(self) -> None:
        vacuum(self.log)

    def add_partition(self) -> None:
        count = len(self.topic().offsets())
        if count < 3:
            self.topic().alter(partitions=count + 1)

    def make_again(self) -> None:
        self.log.delete_topic("txn")
        self.log.create_topic("txn", 2, CONFIG)
        self.versions = []

    def check(self) -> None:
        """Compares a look-up in the newest version, or in an earlier one, with a scan."""
        self.versions.append(self.topic().version)
        topic = self.topic(self.chance.choice([self.versions[-1], self.chance.choice(self.versions)]))
        options = self.chance.choice([{}, {"isolation": "read_committed"}, {"view": "latest"}])
        if options.get("view") is None:
            bounds = topic.offsets().items()
            options["offsets"] = {n: (start + self.chance.randrange(3), end) for n, (start, end) in bounds}
        keys = self.chance.sample([*KEYS, b"none"], self.chance.choice([1, 1, 3, 8]))
        try:
            expected = records(topic.scan(**options))
        except SegmentsError:
            assert topic.version != self.versions[-1]
            return  # its files are gone
        expected = expected.filter(pc.is_in(expected.column("key"), value_set=pa.array(keys, pa.binary())))
        assert records(topic.scan(keys=keys, **options)).equals(expected), (keys, options, topic.version)


def records(scan) -> pa.Table:
    return pa.Table.from_batches(scan.batches(threads=1), scan.schema)


OPERATIONS: list[Callable[[World], None]] = [
    World.append,
    World.append,
    World.index,
    World.index,
    World.drop_index,
    World.roll,
    World.compact,
    World.retain,
    World.restore,
    World.erase,
    World.vacuum,
    World.add_partition,
    World.make_again,
]


@given(st.lists(st.sampled_from(OPERATIONS), min_size=3, max_size=10), st.randoms(use_true_random=False))
@examples(60)
def test_a_look_up_equals_a_scan_after_any_history(tmp_path_factory, operations, chance):
    with small_limits(**SMALL):
        world = World(str(tmp_path_factory.mktemp("log")), chance)
        for operation in operations:
            operation(world)
            world.check()
        for _ in range(5):
            world.check()
