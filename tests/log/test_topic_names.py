"""A topic has one name. What is no topic's name is an error wherever a name comes in, and nothing is lost by it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_segments import LogDir, Position, maintenance
from spark_segments.config import RESERVED_NAMES
from spark_segments.errors import InvalidTopicError, SegmentsError, TopicExistsError, UnknownTopicError
from spark_segments.polars import scan_topic
from spark_segments.storage import Storage
from verification.world.clock import ORPHAN_AGE_MS, store_clock
from verification.world.manifest_rows import Change, live_rows, respell
from verification.world.opened import DeltaLog, created, opened
from verification.world.stores.memory_store import MemoryFiles, replayed
from verification.world.topics import values

ALIASES = [
    "./orders",
    "orders/",
    "x/../orders",
    "orders//",
    "./orders/.",
    "/orders",
    "orders\n",
    "ördérs",
    "",
    ".",
    "..",
]
WAYS: dict[str, Callable[[LogDir, str], Any]] = {
    "topic": lambda log, name: log.topic(name),
    "create": lambda log, name: log.create_topic(name),
    "delete": lambda log, name: log.delete_topic(name),
    "delete by force": lambda log, name: log.delete_topic(name, force=True),
    "roll": lambda log, name: maintenance.roll(log, topics=[name]),
    "retain": lambda log, name: maintenance.retain(log, topics=[name]),
    "compact": lambda log, name: maintenance.compact(log, topics=[name]),
    "vacuum": lambda log, name: maintenance.vacuum(log, topics=[name]),
    "maintain": lambda log, name: log.maintain([name]),
    "verify": lambda log, name: maintenance.verify(log, topics=[name]),
    "erase": lambda log, name: maintenance.erase(log, keys=[b"k"], topics=[name]),
    "restore": lambda log, name: maintenance.restore(log, topics=[name], version=1),
    "table": lambda log, name: maintenance.table(log, topics=[name], table_uri=f"{log.uri}-table"),
    "mirror": lambda log, name: maintenance.mirror(LogDir.create(f"{log.uri}-copy"), leader=log, topics=[name]),
    "promote": lambda log, name: maintenance.promote(log, topics=[name]),
    "group": lambda log, name: log.group("audit").commit(log.group("audit").positions(), {name: {0: 1}}),
    "group with the log that was read": lambda log, name: log.group("audit").commit(
        log.group("audit").positions(), {name: {0: Position(1, None, -1, "", 0)}}
    ),
    "reset": lambda log, name: log.group("audit").reset({name: {0: 1}}),
    "import": lambda log, name: log.import_kafka(str(Path(log.uri).parent / "kafka"), name),
    "Polars": lambda log, name: scan_topic(log.uri, name),
    "export": lambda log, name: log.export_kafka(str(Path(log.uri).parent / "kafka"), name),
}


def a_week_later(log: LogDir) -> None:
    """Vacuums as a job would by then."""
    now_ms = log.storage.now_ms() + ORPHAN_AGE_MS + 60_000
    with store_clock(now_ms):
        maintenance.vacuum(log, now_ms=now_ms)


@pytest.fixture
def orders(log: LogDir) -> LogDir:
    log.create_topic("orders", config={"segment.ms": "1"})
    for value in ("a", "b"):
        log.topic("orders").append([{"key": "k", "value": value}])
    return log


@pytest.mark.cases(7)
@pytest.mark.parametrize("way", WAYS)
def test_a_name_that_no_topic_can_have_is_an_error_wherever_it_comes_in(orders, way):
    (Path(orders.uri).parent / "kafka" / "orders-0").mkdir(parents=True)
    version = orders.topic("orders").version
    for name in ALIASES:
        with pytest.raises(InvalidTopicError, match="Invalid topic name"):
            WAYS[way](orders, name)
    assert orders.topic("orders").version == version
    a_week_later(orders)
    assert (values(opened(orders)), orders.topics()) == ([b"a", b"b"], ["orders"])
    assert maintenance.verify(orders, deep=True).findings == []


@pytest.mark.parametrize("name", ["_manifest", "_GROUPS", "_recovery", "log-directory.json"])
def test_no_new_topic_has_the_name_of_something_else_in_a_log_directory(log, name):
    with pytest.raises(InvalidTopicError, match="reserved"):
        log.create_topic(name)
    assert log.topics() == []


def test_all_that_stands_in_a_log_directory_is_reserved(orders):
    orders.group("audit").reset({"orders": {0: 1}})
    names = {path.name for path in Path(orders.uri).iterdir() if not path.name.startswith("orders-")}
    assert {"_manifest", "_groups", "_recovery"} <= names <= RESERVED_NAMES


def test_a_directory_in_the_manifest_whose_name_is_no_topics_is_left_alone(orders):
    strange = Path(orders.uri) / "_manifest" / "a topic"
    strange.mkdir()
    (strange / "notes").write_text("mine")
    a_week_later(orders)
    assert (orders.topics(), (strange / "notes").read_text()) == (["orders"], "mine")


PATHS = ["./orders-0/", "orders-1/", "orders/", "orders-0/x/", "payments-0/", "Orders-0/"]


@pytest.mark.parametrize("directory", PATHS)
def test_a_file_is_added_only_where_the_names_of_its_topic_and_partition_say(orders, directory):
    [row, *_] = live_rows(orders, "orders")
    file = row.path.rpartition("/")[2]
    new = dataclasses.replace(row, path=f"{directory}1{file[1:]}", base_offset=2, next_offset=3)
    end = dataclasses.replace(orders.topic("orders").snapshot.partition(0), log_end_offset=3)
    with pytest.raises(SegmentsError, match="does not lie where its name says"):
        orders.topic("orders").manifest.commit(lambda _: Change("append", add=[new], partitions=[end]))
    assert values(orders) == [b"a", b"b"]


@pytest.mark.parametrize("spelling", ["./{}", ".//{}"])
def test_vacuum_keeps_a_file_that_a_row_names_however_the_path_is_spelt(orders, spelling):
    # As logs of 0.2 have them whose topics were named by another path.
    respell(orders, "orders", lambda path: spelling.format(path.replace("/", spelling[1:-2] or "/")))
    a_week_later(orders)
    assert values(opened(orders)) == [b"a", b"b"]


@pytest.mark.cases(3)
@pytest.mark.parametrize("work", ["append", "roll", "compact", "retain", "erase", "restore"])
def test_what_was_appended_by_another_path_survives_jobs_and_vacuum(orders, work):
    respell(orders, "orders", lambda path: f"./{path}")
    kept = {"erase": [], "append": [b"a", b"b", b"c"], "compact": [b"b"]}.get(work, [b"a", b"b"])
    match work:
        case "append":
            orders.topic("orders").append([{"key": "k", "value": "c"}])
        case "erase":
            maintenance.erase(orders, keys=[b"k"], topics=["orders"])
        case "restore":
            version = orders.topic("orders").version
            maintenance.roll(orders, now_ms=orders.storage.now_ms() + 60_000)
            maintenance.restore(orders, topics=["orders"], version=version)
        case "compact":
            orders.topic("orders").alter({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
            maintenance.roll(orders, now_ms=orders.storage.now_ms() + 60_000)
            maintenance.compact(orders, now_ms=orders.storage.now_ms() + 120_000)
        case _:
            getattr(maintenance, work)(orders, now_ms=orders.storage.now_ms() + 60_000)
    a_week_later(orders)
    assert values(opened(orders)) == kept


class CaselessFiles(MemoryFiles):
    """A disk that keeps the case of a name as it was first written, and finds it in any other."""

    def _there(self, path: str) -> str:
        """The path, with the spelling of those of its parts that are there."""
        parts = path.split("/")
        for end in range(len(parts), 0, -1):
            start = "/".join(parts[:end])
            for name in self.files:
                same = name[: len(start)]
                if same.lower() == start.lower() and name[len(start) : len(start) + 1] in ("", "/"):
                    return same + path[len(start) :]
        return path

    def read(self, path: str, offset: int, length: int | None) -> pa.Buffer:
        return super().read(self._there(path), offset, length)

    def size(self, path: str) -> int:
        return super().size(self._there(path))

    def exists(self, path: str) -> bool:
        return super().exists(self._there(path))

    def list(self, path: str, recursive: bool) -> Any:
        return super().list(self._there(path), recursive)

    def directories(self, path: str) -> Any:
        return super().directories(self._there(path))

    def stream(self, path: str, *, unique: bool = False) -> Any:
        return super().stream(self._there(path), unique=unique)

    def replace(self, path: str, data: Any) -> None:
        super().replace(self._there(path), data)

    def create(self, path: str, data: Any, *, is_forced: bool = True) -> None:
        super().create(self._there(path), data, is_forced=is_forced)

    def delete(self, paths: Sequence[str]) -> None:
        super().delete([self._there(path) for path in paths])


def caseless_log() -> LogDir:
    storage = Storage("/log", filesystem=CaselessFiles())
    return created(storage, open_delta_log=functools.partial(DeltaLog, open_table=replayed))


def test_on_a_disk_that_ignores_case_no_topic_is_found_by_another_spelling():
    log = caseless_log()
    log.create_topic("orders")
    log.topic("orders").append([{"value": "a"}])
    for name in ("Orders", "ORDERS"):
        with pytest.raises(UnknownTopicError, match="ignores case, and has orders"):
            log.topic(name).append([{"value": "b"}])
        with pytest.raises(UnknownTopicError, match="ignores case"):
            log.delete_topic(name)
        with pytest.raises(TopicExistsError, match="cannot lie beside orders"):
            log.create_topic(name)
        with pytest.raises(UnknownTopicError):
            maintenance.vacuum(log, topics=[name])
    a_week_later(log)
    assert (log.topics(), values(log)) == (["orders"], [b"a"])


def test_topics_that_differ_in_case_lie_side_by_side_where_the_disk_tells_them_apart(log):
    for name in ("orders", "Orders", "ORDERS"):
        log.create_topic(name)
        log.topic(name).append([{"value": name}])
    a_week_later(log)
    assert {name: values(opened(log), name) for name in log.topics()} == {
        name: [name.encode()] for name in ("ORDERS", "Orders", "orders")
    }


def test_the_name_of_a_deleted_topic_keeps_its_case_where_the_disk_ignores_it():
    log = caseless_log()
    log.create_topic("orders")
    log.delete_topic("orders")
    with pytest.raises(TopicExistsError, match="cannot lie beside orders"):
        log.create_topic("Orders")
    log.create_topic("orders")
    assert log.topics() == ["orders"]
