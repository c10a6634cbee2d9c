"""Histories of a few operations on one of several grounds, with every reader after each step.

A history is written as a line, `compacted: add partitions, erase`, and is played again from that line and its seed.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verification.pairs.model import Partition, TopicModel
from verification.pairs.operations import (
    OPERATIONS,
    Operation,
    capture_it,
    expired,
    export_and_import,
    has_captured,
    has_imported,
    is_deleting,
    late_rows,
    let_expire,
    mirror_it,
    run_table,
    source_appends,
    source_appends_and_rolls,
    table_has_run,
)
from verification.pairs.readers import READERS
from verification.pairs.spark_readers import SparkSide
from verification.pairs.world import DAY_MS, HOUR_MS, Clock, World
from verification.world.kafka_side import TOPIC, KafkaSide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLAIN_KEYS = (b"ann", b"bob", b"", None)
"""The first is in another partition after each doubling of their number."""
TYPED_KEYS = (b'{"id":1}', b'{"id":1,"tenant":"x"}', b'{"id":2}', None, b"bad")
TYPED = {"key.format": "json", "key.schema": "id int", "key.errors": "null"}
CLOCK_STEP_MS = 1000
"""Between two steps."""

BY_NAME = {operation.name: operation for operation in OPERATIONS}


class Found(AssertionError):
    """A step after which a reader does not see what the model has, or that failed."""


# Grounds: what a history begins with


def _begun(world: World) -> None:
    """Some records, in a sealed segment and in the active one."""
    world.model.append(world.append(late_rows(world)))
    BY_NAME["roll"].on_log(world)
    for name in ("append", "append tombstones"):
        BY_NAME[name].on_model(world, BY_NAME[name].on_log(world))


def deleted(world: World) -> None:
    world.create("delete", 1)
    _begun(world)


def compacted(world: World) -> None:
    """Records without a key are from before it was compacted."""
    world.create("delete", 1)
    world.model.append(world.append(late_rows(world)))
    for name in ("policy compact", "append"):
        BY_NAME[name].on_model(world, BY_NAME[name].on_log(world))


def both(world: World) -> None:
    world.create("compact,delete", 2)
    _begun(world)


def archived(world: World) -> None:
    """Beside it is an archive in both formats."""
    world.create("delete", 1)
    _begun(world)
    for table_format in ("delta", "iceberg"):
        _run_table(world, f"{table_format} archive")


def typed(world: World) -> None:
    """Keys that decode alike or not at all."""
    world.formats = TYPED
    archived(world)


def imported(world: World) -> None:
    _from_kafka(world)
    world.log.import_kafka(world.kafka.write(), config=_config(world))
    has_imported(world, world.kafka)


def captured(world: World) -> None:
    _from_kafka(world)
    world.is_captured = True
    has_captured(world, capture_it(world))
    world.log.topic(world.topic).alter(_config(world))


def _from_kafka(world: World) -> None:
    world.topic = TOPIC
    world.kafka = KafkaSide(world.directory / "kafka")
    world.model = TopicModel(frozenset({"delete"}), -1, DAY_MS, {0: Partition()})
    source_appends_and_rolls(world)
    source_appends(world)


def _config(world: World) -> dict[str, str]:
    world.config = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.ms": str(HOUR_MS),
        "delete.retention.ms": str(DAY_MS),
        "min.cleanable.dirty.ratio": "0",
        "file.delete.delay.ms": str(HOUR_MS),
    }
    return world.config


@dataclass(frozen=True, slots=True)
class Ground:
    prepare: Callable[[World], None]
    keys: tuple[bytes | None, ...] = PLAIN_KEYS


KAFKA_KEYS = (b"ann", b"bob", b"")

GROUNDS: dict[str, Ground] = {
    "deleted": Ground(deleted),
    "compacted": Ground(compacted),
    "both": Ground(both),
    "archived": Ground(archived),
    "typed": Ground(typed, TYPED_KEYS),
    "imported": Ground(imported, KAFKA_KEYS),
    "captured": Ground(captured, KAFKA_KEYS),
}


# Histories


@dataclass(frozen=True, slots=True)
class History:
    ground: str
    operations: tuple[str, ...]
    seed: int = 1

    def __str__(self) -> str:
        return f"{self.ground}: {', '.join(self.operations)}"

    @staticmethod
    def of_line(line: str, seed: int = 1) -> History:
        """The history that a line names. Raises KeyError for a name that is none."""
        ground, _, names = line.partition(": ")
        operations = tuple(name.strip() for name in names.split(","))
        for name in operations:
            BY_NAME[name]
        GROUNDS[ground]
        return History(ground, operations, seed)


def play(
    history: History, *, slow: bool = False, without: Collection[str] = (), session: SparkSession | None = None
) -> int:
    """Plays a history, and returns how many steps were compared. Raises Found at the first difference.

    An operation that cannot be done where its turn comes is passed over. `slow`: readers that take longer are asked at
    the end. `without`: names of readers that are not asked. `session`: Spark reads, too.
    """
    ground = GROUNDS[history.ground]
    with tempfile.TemporaryDirectory(prefix="pairs-") as directory:
        clock = Clock()
        world = World(Path(directory), clock, random.Random(history.seed), ground.keys)
        world.spark = None if session is None else SparkSide(session)
        with clock.playing(), contextlib.closing(world):
            steps = _Steps(world, slow, without)
            steps.prepare(ground)
            steps.remember()
            for name in history.operations:
                operation = BY_NAME[name]
                if operation.when(world):
                    steps.do(name, lambda operation=operation: _operate(world, operation))
            steps.finish()
            return steps.count


def _operate(world: World, operation: Operation) -> None:
    operation.on_model(world, operation.on_log(world))


class _Steps:
    """The steps of a history, each compared by every reader."""

    def __init__(self, world: World, slow: bool, without: Collection[str]) -> None:
        self.world, self.slow, self.count = world, slow, 0
        self.readers = [reader for reader in READERS if reader.name not in without]

    def prepare(self, ground: Ground) -> None:
        """What all histories of a ground begin with is compared by one reader."""
        try:
            ground.prepare(self.world)
            self.world.model.settle(self.world.seen())
        except Exception as error:
            raise Found(f"the ground: {type(error).__name__}: {error}") from error

    def do(self, name: str, action: Callable[[], None]) -> None:
        world = self.world
        world.clock.go_on(CLOCK_STEP_MS)
        try:
            action()
        except Exception as error:
            raise Found(f"{name}: {type(error).__name__}: {error}") from error
        self.compare(name)

    def compare(self, name: str, *, slow: bool = False) -> None:
        world = self.world
        try:
            world.model.settle(world.seen())
        except Exception as error:
            raise Found(f"after {name}: {error}") from error
        for reader in self.readers:
            if reader.is_slow == slow and reader.when(world):
                try:
                    reader.compare(world)
                except Exception as error:
                    raise Found(f"after {name}, {reader.name}: {type(error).__name__}: {error}") from error
        self.count += 1

    def remember(self) -> None:
        """A later restore comes back to this."""
        world = self.world
        world.first_version = world.log.topic(world.topic).version
        world.versions[world.first_version] = world.model.copy()
        if world.spark is not None:
            world.spark.begin(world)

    def finish(self) -> None:
        """Records come that are older than others, beside all that was done before; then all expires."""
        world = self.world
        if self.slow or world.spark is not None:
            self.compare("all", slow=True)
        self.do("more records", lambda: _more(world))
        if world.tables or world.follower or world.copied:
            self.do("all beside it runs again", lambda: _beside(world))
        if is_deleting(world) and world.tables:
            self.do("all expires", lambda: expired(world, let_expire(world)))
            self.do("the tables run again", lambda: _beside(world))


def _more(world: World) -> None:
    if world.kafka is None or world.has_own_records:
        world.model.append(world.append(late_rows(world)))
        return
    source_appends_and_rolls(world)
    name = "capture" if world.is_captured else "import"
    BY_NAME[name].on_model(world, BY_NAME[name].on_log(world))


def _beside(world: World) -> None:
    for name in sorted(world.tables):
        _run_table(world, name)
    if world.follower:
        mirror_it(world)
    if world.copied:
        export_and_import(world)


def _run_table(world: World, name: str) -> None:
    table_has_run(world, name, run_table(world, name))


# Which histories


def pairs(seed: int = 1, grounds: Sequence[str] = (), *, spark: bool = False) -> Iterator[History]:
    """Each pair of operations in both orders: on each of the grounds, or without any on one, which changes from pair to
    pair. `spark`: of operations that need a session, too.
    """
    names = _names(spark=spark)
    number = seed
    for two in itertools.product(names, names):
        possible = [ground for ground in grounds or GROUNDS if all(_is_possible(ground, name) for name in two)]
        if possible and not grounds:
            number += 1
            possible = [possible[number % len(possible)]]
        yield from (History(ground, two, seed) for ground in possible)


def triples(count: int, seed: int = 1, *, spark: bool = False) -> Iterator[History]:
    """So many random histories of three operations."""
    chance = random.Random(seed)
    names = _names(spark=spark)
    while count > 0:
        ground = chance.choice([*GROUNDS])
        three = tuple(chance.choice(names) for _ in range(3))
        if all(_is_possible(ground, name) for name in three):
            count -= 1
            yield History(ground, three, chance.randrange(1 << 16))


def _names(*, spark: bool) -> list[str]:
    return [operation.name for operation in OPERATIONS if spark or not operation.is_spark]


def _is_possible(ground: str, name: str) -> bool:
    is_of_kafka = ground in ("imported", "captured")
    of_kafka = name.startswith("source") or name in ("import", "import replica", "capture")
    of_own = name in ("log append time", "add partitions", "make again", "make again later")
    return not (of_kafka and not is_of_kafka) and not (of_own and is_of_kafka)
