"""A look-up of a field equals the filter of all records in plain Python, after any history of a topic and its indexes.

What is compared is computed from the bytes of the records that a scan of everything gives: no field of the package.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_segments.errors import SegmentsError
from spark_segments.keys.index_list import IndexFiles, index_name, indexes
from spark_segments.keys.job import index
from spark_segments.keys.run_file import RunFile
from spark_segments.maintenance import erase, vacuum
from tests.examples import examples
from tests.keys import test_histories
from tests.keys.test_histories import KEYS, SMALL
from verification.world.small_limits import small_limits

HEADERS = ["trace", "a.b"]
HEADER_VALUES = [b"", b"x", b"y", b"\xff\0", b"often"]
IDS = [None, 0, -1, 7, 1 << 40]
TAGS = [None, "", "x", "ä", "often"]
GARBAGE = [b"{", b"\xff", b"7 8", b""]
FORMATS = {"value.format": "json", "value.schema": "id bigint, in struct<tag string>"}
OTHER_FORMATS = {"value.format": "json", "value.schema": "in struct<tag string>, id bigint, more string"}
FIELDS = ["header.trace", "header.a.b", "value.id", "value.in.tag"]


class World(test_histories.World):
    """A topic whose records have headers and JSON, and whose indexes are on these. It begins with a few of Kafka's
    transactions.
    """

    def __init__(self, path: str, chance: random.Random) -> None:
        super().__init__(path, chance)
        self.topic().delete_records({0: self.topic().offsets()[0][1] - 60})
        self.versions = [self.topic().version]

    def append(self) -> None:
        chance = self.chance
        partitions = len(self.topic().offsets())
        rows = [
            {
                "key": chance.choice([*KEYS, None]),
                "value": self._value(),
                "headers": [(chance.choice(HEADERS), self._header_value()) for _ in range(chance.choice([0, 1, 1, 3]))],
                "partition": chance.randrange(partitions),
            }
            for _ in range(chance.randrange(1, 9))
        ]
        self.topic().append(rows)

    def _header_value(self) -> bytes | None:
        return b"often" if self.chance.random() < 0.4 else self.chance.choice([*HEADER_VALUES, None])

    def _value(self) -> bytes | None:
        chance = self.chance
        kind = chance.randrange(6)
        if kind == 0:
            return None
        if kind == 1:
            return chance.choice(GARBAGE)
        tag = "often" if chance.random() < 0.4 else chance.choice(TAGS)
        return json.dumps({"id": chance.choice(IDS), "in": chance.choice([None, {"tag": tag}])}).encode()

    def index_fields(self) -> None:
        """A part of the fields, with one of two formats: those of the other are built again."""
        on = self.chance.sample(FIELDS, self.chance.randrange(1, 5))
        report = index(self.log, on=on, formats=self.chance.choice([FORMATS, OTHER_FORMATS]), hash_bits=self.hash_bits)
        assert report.ok, report.failed

    def index_existing(self) -> None:
        report = index(self.log, existing=True)
        assert report.ok, report.failed

    def drop_field(self) -> None:
        index(self.log, drop=True, on=[self.chance.choice(FIELDS)])

    def damage(self) -> None:
        """A run is cut, changed or lost, or the newest list of an index is."""
        directory = Path(self.log.uri, "_keys/txn", index_name(self.chance.choice(FIELDS)))
        runs = sorted(directory.glob("runs/*"))
        lists = sorted(directory.glob("0*.json"))
        if lists and self.chance.random() < 0.3:
            for path in (lists[-1], directory / "newest.json"):
                path.write_bytes(b"{}")
        elif runs:
            path = self.chance.choice(runs)
            data = path.read_bytes()
            path.unlink()
            if self.chance.random() < 0.6:
                path.write_bytes(self.chance.choice([data[:-9], data[:-30] + bytes(30), b"\1" + data[1:]]))

    def erase(self) -> None:
        """No live run of a field has an entry of an erased record, and after vacuum no file does."""
        key = self.chance.choice(KEYS)
        rows = [row for row in consumed(self.topic().scan(columns=["key", "partition", "offset"])) if row["key"] == key]
        erase(self.log, topics=["txn"], keys=[key])
        erased = {(row["partition"], row["offset"]) for row in rows}
        assert not erased & {*self._entries()}
        vacuum(self.log)
        for name in self._field_indexes():
            files = IndexFiles(self.log.storage, "txn", name)
            newest = files.newest_list()
            left = {run.path for run in newest.superseded}
            assert not left & {info.path for info in self.log.storage.list(f"{files.directory}/runs")}

    def _field_indexes(self) -> list[str]:
        return [name for name in indexes(self.log.storage, "txn") if name != "key"]

    def _entries(self) -> Iterable[tuple[int, int]]:
        """The places of all entries of all live runs that can be read."""
        for name in self._field_indexes():
            newest = IndexFiles(self.log.storage, "txn", name).newest_list()
            for run in newest.runs:
                try:
                    parts = list(RunFile(self.log.storage, run, newest.topic_id).all_records())
                except Exception:
                    continue
                for part in parts:
                    assert not len(part.scattered[0]) or run.end_offset - run.base_offset > SMALL["MOST_LISTED"]
                    yield from ((run.partition, run.base_offset + offset) for offset in part.offsets.tolist())

    def check(self) -> None:
        """Compares a look-up in the newest version, or in an earlier one, with a filter of all records."""
        self.versions.append(self.topic().version)
        topic = self.topic(self.chance.choice([self.versions[-1], self.chance.choice(self.versions)]))
        options = self.chance.choice([{}, {"isolation": "read_committed"}, {"view": "latest"}])
        if options.get("view") is None:
            bounds = topic.offsets().items()
            options["offsets"] = {n: (start + self.chance.randrange(3), end) for n, (start, end) in bounds}
        try:
            rows = consumed(topic.scan(**options))
        except SegmentsError:
            assert topic.version != self.versions[-1]
            return  # its files are gone
        where = {}
        for field in self.chance.sample(FIELDS, self.chance.choice([1, 1, 1, 2])):
            where[field] = self.chance.sample(values_of(field), self.chance.choice([1, 1, 2]))
        keys = self.chance.choice([None, None, [b"a", b"b"]])
        expected = [place(row) for row in rows if has_all(row, where) and (keys is None or row["key"] in keys)]
        formats = self.chance.choice([FORMATS, OTHER_FORMATS])
        decodes = self.chance.random() < 0.5
        columns = None if decodes else self.chance.choice([["partition", "offset"], ["offset", "partition", "value"]])
        formats = formats | {"value.errors": "null"}  # for what has a header and cannot be decoded
        scan = topic.scan(**options, where=where, keys=keys, formats=formats, columns=columns)
        assert [place(row) for row in consumed(scan)] == expected, (where, keys, options, topic.version)
        coverage = scan.coverage
        total = sum(max(0, end - start) for start, end in clipped(topic, options))
        assert coverage.indexed_offsets + coverage.scanned_offsets == total


def clipped(topic: Any, options: dict[str, Any]) -> list[tuple[int, int]]:
    """The ranges of offsets that a scan with these options has."""
    isolation = options.get("isolation", "read_uncommitted")
    bounds = topic.snapshot.offset_bounds(isolation)
    asked = options.get("offsets", bounds)
    return [(max(bounds[n][0], asked[n][0]), min(bounds[n][1], asked[n][1])) for n in bounds]


def consumed(scan: Any) -> list[dict[str, Any]]:
    return [row for batch in scan.batches(threads=1) for row in batch.to_pylist()]


def place(row: dict[str, Any]) -> tuple[int, int]:
    return row["partition"], row["offset"]


def values_of(field: str) -> list[Any]:
    """Values to look for, some of which no record has."""
    return {"value.id": [0, -1, 7, "7", 1 << 40, 99], "value.in.tag": [*TAGS[1:], "none"]}.get(
        field, [*HEADER_VALUES, "x", "none"]
    )


def has_all(row: dict[str, Any], where: dict[str, list[Any]]) -> bool:
    return all(has_any(row, field, values) for field, values in where.items())


def has_any(row: dict[str, Any], field: str, values: list[Any]) -> bool:
    """Whether a record has a value of a field: by the standard library alone."""
    if field.startswith("header."):
        encoded = [value.encode() if isinstance(value, str) else value for value in values]
        name = field.removeprefix("header.")
        return any(header["key"] == name and header["value"] in encoded for header in row["headers"] or ())
    try:
        value = json.loads(row["value"])
    except (TypeError, ValueError):
        return False
    if field == "value.id":
        return value["id"] is not None and value["id"] in map(int, values)
    return value["in"] is not None and value["in"]["tag"] in values


OPERATIONS: list[Callable[[World], None]] = [
    World.append,
    World.append,
    World.append,
    World.index_fields,
    World.index_fields,
    World.index_existing,
    World.index,
    World.drop_field,
    World.damage,
    World.roll,
    World.compact,
    World.retain,
    World.restore,
    World.erase,
    World.erase,
    World.vacuum,
    World.add_partition,
    World.make_again,
]


@given(st.lists(st.sampled_from(OPERATIONS), min_size=4, max_size=12), st.randoms(use_true_random=False))
@examples(60)
def test_a_look_up_of_a_field_equals_a_filter_after_any_history(tmp_path_factory, operations, chance):
    with small_limits(**SMALL):
        world = World(str(tmp_path_factory.mktemp("log")), chance)
        for operation in operations:
            operation(world)
            world.check()
        for _ in range(8):
            world.check()
