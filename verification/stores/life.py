"""The whole life of a topic on an object store, step by step, beside a model of what must be in its log.

    life = Life(uri, options)
    for name, step in life.steps():
        life.do(step)
        life.check()

Steps are done again when they fail, as schedulers do it. `python -m verification.stores.life URI [NAME=VALUE …]` plays
it on a store of your choice, in a directory that is there for nothing else.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import SegmentsError, TopicExistsError
from spark_segments.maintenance import Report, compact, mirror, restore, retain, roll, vacuum, verify
from verification.world.topics import DAY_MS

ORDERS = {"compression.type": "uncompressed", "segment.bytes": "4000"}
KEYS = ORDERS | {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}

Record = tuple[int, int, bytes, bytes]
"""(partition, offset, key, value)"""


class Life:
    """A log directory with the topics orders (deleted by age) and keys (compacted), and what must be in them."""

    def __init__(self, uri: str, options: Mapping[str, str], *, tries: int = 1, partitions: int = 10) -> None:
        self.uri, self.options, self._tries = uri.rstrip("/"), dict(options), tries
        self.partitions = partitions
        self.errors: list[str] = []
        """The texts of the errors on the way, each of which was answered by another try."""
        self.expected: dict[str, list[Record]] = {"orders": [], "keys": []}
        self.log: LogDir
        self._number = 0
        self._exports = 0

    def do(self, step: Callable[[], object]) -> None:
        """Does a step, again where it fails."""
        for left in reversed(range(self._tries)):
            try:
                step()
                return
            except SegmentsError as error:
                self.errors.append(str(error))
                if not left:
                    raise

    def steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """(name, step) of the whole life, in order."""
        yield "create", self._create
        for turn in range(2):
            yield f"append {turn} into {self.partitions} partitions", self._append("orders", 200)
        for turn in range(2):
            yield f"append {turn} into a partition", self._append("keys", 120, partition=0)
        yield "two writers", self._two_writers()
        yield "seek", self._seek
        yield "roll", self._job(roll)
        yield "delete records", self._delete_records
        yield "retain", self._job(retain)
        yield "compact", self._compact
        yield "append and restore", self._append_and_restore()
        yield "mirror", self._mirror
        yield "export", self._export
        yield "import", self._import
        yield "vacuum", self._job(vacuum, days=30)
        yield "append at last", self._append("orders", 50)
        yield "open again", self._open

    def check(self) -> None:
        """Every byte of the log is as it must be, and the records are those of the model."""
        if hasattr(self, "log"):
            assert verify(self.log, deep=True).findings == []
            for topic in self.log.topics():
                assert self._records(self.log, topic) == sorted(self.expected[topic])

    # Steps

    def _create(self) -> None:
        self.log = LogDir.create(self.uri, self.options)
        for topic, config in (("orders", ORDERS), ("keys", KEYS)):
            try:
                self.log.create_topic(topic, self.partitions, config)
            except TopicExistsError:  # a try before has made it
                assert self.log.topic(topic).describe()["partitions"][0]["records"] == 0

    def _open(self) -> None:
        self.log = LogDir.open(self.uri, self.options)

    def _append(self, topic: str, count: int, partition: int | None = None) -> Callable[[], None]:
        self._number += 1
        number = self._number
        table = self._table(number, count, partition)
        placed: list[Record] = []

        def append() -> None:
            if not placed:
                ends = {number: end for number, (_, end) in self.log.topic(topic).offsets().items()}
                for row in table.to_pylist():
                    placed.append((row["partition"], ends[row["partition"]], row["key"], row["value"]))
                    ends[row["partition"]] += 1
                self.expected[topic] += placed
            self.log.topic(topic).append(table, txn=("life", number))

        return append

    def _table(self, number: int, count: int, partition: int | None = None) -> pa.Table:
        now_ms = time.time_ns() // 1_000_000
        return pa.table(
            {
                "key": [b"%d" % (row % 7) for row in range(count)],
                "value": [b"%d/%d " % (number, row) + b"." * 90 for row in range(count)],
                "partition": pa.array(
                    [row % self.partitions if partition is None else partition for row in range(count)]
                ),
                "timestamp": pa.array([now_ms] * count, pa.timestamp("ms")),
            }
        )

    def _two_writers(self) -> Callable[[], None]:
        """Appends of two writers at once, to one partition. The model takes over the order that came of it."""
        tables = {(writer, turn): self._table(1000 * writer + turn, 5, 3) for writer in (1, 2) for turn in range(3)}

        def write(writer: int) -> None:
            log = LogDir.open(self.uri, self.options)
            for turn in range(3):
                log.topic("orders").append(tables[writer, turn], txn=(f"writer {writer}", turn))

        def both() -> None:
            with ThreadPoolExecutor() as pool:
                list(pool.map(write, (1, 2)))
            there = [one for one in self._records(self.log, "orders") if one not in set(self.expected["orders"])]
            values = sorted(value for table in tables.values() for value in table["value"].to_pylist())
            assert sorted(value for *_, value in there) == values
            start = max(offset for number, offset, *_ in self.expected["orders"] if number == 3) + 1
            assert [offset for _, offset, *_ in there] == list(range(start, start + len(values)))
            for table in tables.values():
                mine = table["value"].to_pylist()
                assert [value for *_, value in there if value in mine] == mine
            self.expected["orders"] += there

        return both

    def _seek(self) -> None:
        for number, offset, _, value in sorted(self.expected["orders"])[::97]:
            found = pa.Table.from_batches(
                self.log.topic("orders").scan(partition=number, offsets=(offset, offset + 1)).batches()
            )
            assert found["value"].to_pylist() == [value]
        now_ms = time.time_ns() // 1_000_000
        assert self.log.topic("orders").offsets_for_times(now_ms + DAY_MS) == dict.fromkeys(range(self.partitions))
        assert self.log.topic("orders").offsets_for_times(0)[3][0] == 0

    def _job(self, job: Callable[..., Report], days: int = 0) -> Callable[[], Report]:
        def run() -> Report:
            return self._finished(job(self.log, now_ms=self.log.storage.now_ms() + days * DAY_MS))

        return run

    def _delete_records(self) -> None:
        self.log.topic("orders").delete_records({0: 20})
        self.expected["orders"] = [one for one in self.expected["orders"] if one[0] != 0 or one[1] >= 20]

    def _compact(self) -> None:
        active = {number: self.log.topic("keys").snapshot.live_of(number)[-1].base_offset for number in (0,)}
        self._job(compact)()
        newest = {key: offset for _, offset, key, _ in sorted(self.expected["keys"]) if offset < active[0]}
        self.expected["keys"] = [
            one for one in self.expected["keys"] if one[1] >= active[0] or newest[one[2]] == one[1]
        ]

    def _append_and_restore(self) -> Callable[[], None]:
        version: list[int] = []
        table = self._table(5000, 40)

        def step() -> None:
            if not version:
                version.append(self.log.topic("orders").describe()["version"])
            self.log.topic("orders").append(table, txn=("undone", 1))
            restore(self.log, topics=["orders"], version=version[0])

        return step

    def _mirror(self) -> None:
        follower = LogDir.create(f"{self.uri}-follower", self.options)
        self._finished(mirror(follower, leader=self.log))
        assert verify(follower, deep=True).findings == []
        for topic, expected in self.expected.items():
            assert self._records(follower, topic) == sorted(expected)

    @staticmethod
    def _finished(report: Report) -> Report:
        for line in report.failed:
            raise SegmentsError(line["error"])
        return report

    def _export(self) -> None:
        self._exports += 1  # an export that failed leaves a directory that another refuses
        self.log.export_kafka(self._exported, storage_options=self.options)
        exported = LogDir.open(self._exported, self.options)
        assert self._records(exported, "orders") == sorted(self.expected["orders"])

    @property
    def _exported(self) -> str:
        return f"{self.uri}-kafka-{self._exports}"

    def _import(self) -> None:
        log = LogDir.create(f"{self.uri}-imported", self.options)
        log.import_kafka(self._exported, storage_options=self.options)
        assert verify(log, deep=True).findings == []
        for topic, expected in self.expected.items():
            assert self._records(log, topic) == sorted(expected)

    @staticmethod
    def _records(log: LogDir, topic: str) -> list[Record]:
        read = log.topic(topic).scan(columns=["partition", "offset", "key", "value"]).batches()
        return [tuple(row.values()) for batch in read for row in batch.to_pylist()]


def play(uri: str, options: Mapping[str, str]) -> None:
    """Lives the whole life on a store, and prints how long each step took."""
    life = Life(uri, options)
    for name, step in life.steps():
        started = time.monotonic()
        life.do(step)
        seconds = time.monotonic() - started
        life.check()
        print(f"{name}: {seconds:.2f} s", flush=True)
    print("every step done, every byte verified")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m verification.stores.life", description=__doc__)
    parser.add_argument("uri", help="an empty directory of a store")
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help="storage options, in delta-rs's names")
    given = parser.parse_args()
    play(given.uri, dict(option.split("=", 1) for option in given.options))


if __name__ == "__main__":
    sys.exit(main())
