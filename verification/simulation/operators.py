"""People: what they do to topics beside the jobs, mistakes included, and the import of a Kafka directory that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from spark_segments.errors import (
    ErasedRecordsError,
    InvalidOptionError,
    LogDirError,
    MissingFileError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SegmentsError,
    TopicExistsError,
)
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.jobs import ImportPolicy, import_all
from spark_segments.maintenance import erase, restore
from verification.long_runs.model import KafkaStep
from verification.long_runs.scenario import kafka_record, kafka_steps
from verification.simulation.judge import Judge
from verification.simulation.scenario import (
    IMPORT_CONFIG,
    IMPORTED,
    KAFKA_URI,
    KEYS,
    OPERATED,
    PARTITIONS,
    SETTINGS,
    WRITTEN,
    Simulation,
)
from verification.simulation.world import Process, Violation
from verification.world.kafka_side import KafkaSide


def operate(simulation: Simulation, process: Process) -> None:
    """Does one thing after the other to a topic."""
    random, judge = simulation.random, simulation.judge
    log = simulation.open()
    while True:
        simulation.think(process, 3500)
        topic = random.choice(OPERATED)
        model = judge.topic(topic)
        if not model.versions:
            continue
        if not model.is_deleted:
            do_one_thing(simulation, process, log, topic)
        elif random.random() < 0.4:
            bring_back(simulation, process, log, topic, judge.newest(topic) - random.randint(0, 8))
        elif topic in WRITTEN:
            create(simulation, process, log, topic)


WEIGHTS = {
    "alter": 5,
    "grow": 1,
    "delete-records": 4,
    "restore": 3,
    "delete": 1,
    "mistake": 2,
    "erase": 1,
}


def do_one_thing(simulation: Simulation, process: Process, log: Any, topic: str) -> None:
    """Something to a topic that was there a moment ago."""
    random, judge = simulation.random, simulation.judge
    match random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]:
        case "alter":
            name = random.choice([*SETTINGS])
            change(simulation, process, log, topic, {name: random.choice(SETTINGS[name])})
        case "grow":
            count = len(judge.topic(topic).partitions) + 1
            if topic in WRITTEN and count <= PARTITIONS + 2:
                one_commit(simulation, process, lambda: log.topic(topic).alter(None, count), alter={})
        case "delete-records":
            delete_records(simulation, process, log, topic)
        case "restore":
            bring_back(simulation, process, log, topic, judge.newest(topic) - random.randint(1, 15))
        case "delete":
            # Not by force: that looks at the files of Delta's log, which is not in the simulated store.
            one_commit(simulation, process, lambda: log.delete_topic(topic), delete=topic)
        case "erase" if topic != IMPORTED:
            keys = [b"key-%d" % number for number in random.sample(range(KEYS), 2)]
            simulation.attempt(process, lambda: erase(log, topics=[topic], keys=keys), erase=keys)
            judge.counts["erasures"] += 1
        case "mistake":
            mistake(simulation, process, log, topic)


def one_commit(
    simulation: Simulation, process: Process, work: Any, *expected: type[SegmentsError], **intent: Any
) -> tuple[Any, SegmentsError | None]:
    """What makes a single commit, or, where it is refused, none."""
    result = simulation.attempt(
        process, work, InvalidOptionError, TopicExistsError, LogDirError, *expected, is_one_commit=True, **intent
    )
    simulation.judge.counts["operator: done" if result[1] is None else "operator: refused"] += 1
    return result


def create(simulation: Simulation, process: Process, log: Any, topic: str) -> None:
    one_commit(simulation, process, lambda: log.create_topic(topic, PARTITIONS, WRITTEN[topic]), create=topic)


def change(simulation: Simulation, process: Process, log: Any, topic: str, settings: dict[str, str]) -> None:
    one_commit(simulation, process, lambda: log.topic(topic).alter(settings), alter=settings)


def delete_records(simulation: Simulation, process: Process, log: Any, topic: str) -> None:
    """Deletes records below an offset, now and then below the end."""
    random = simulation.random
    number, partition = random.choice([*simulation.judge.topic(topic).partitions.items()])
    before = -1 if random.random() < 0.1 else min(partition.end, partition.start + random.randint(0, 30))
    one_commit(
        simulation,
        process,
        lambda: log.topic(topic).delete_records({number: before}),
        PolicyViolationError,
        OffsetOutOfRangeError,
        delete_records={number: before},
    )


def bring_back(simulation: Simulation, process: Process, log: Any, topic: str, version: int) -> None:
    """Restores a version, also of a deleted topic."""
    forget, erased = (simulation.random.random() < share for share in (0.4, 0.5))
    _, error = one_commit(
        simulation,
        process,
        lambda: restore(log, topics=[topic], version=version, forget_transactions=forget, including_erased=erased),
        ErasedRecordsError,
        restore=version,
        forget=forget,
    )
    text = str(error)
    if error is not None and version >= 0 and ("vacuum has deleted" in text or "is not there (any more)" in text):
        simulation.check_late(topic, version, error)


def mistake(simulation: Simulation, process: Process, log: Any, topic: str) -> None:
    """What must be refused, and change nothing."""
    wrong = {
        "a setting": lambda: log.topic(topic).alter({"retention.ms": "soon"}),
        "an unknown setting": lambda: log.topic(topic).alter({"retention": "1"}),
        "fewer partitions": lambda: log.topic(topic).alter(None, 0),
        "a topic that is there": lambda: log.create_topic("kept", 1),
        "a topic that is not": lambda: log.delete_topic("oders"),
        "an offset beyond the end": lambda: log.topic("kept").delete_records({0: 1 << 40}),
        "a version to come": lambda: restore(log, topics=[topic], version=1 << 40),
    }
    name = simulation.random.choice([*wrong])
    _, error = one_commit(simulation, process, wrong[name], OffsetOutOfRangeError, refused=name)
    if error is None:
        raise Violation(f"{process.name}: {name} was not refused")


class Broker:
    """A Kafka partition that grows, rolls and is cleaned; `step` counts its states, and the judge knows each."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._steps: Iterator[KafkaSide] = kafka_steps(simulation.world.seed, Path("nowhere"))
        self.step = -1
        self.advance(1)

    def advance(self, count: int) -> None:
        """Goes on by so many steps, and stops cleanly: its directory can be imported."""
        for _ in range(count):
            kafka = next(self._steps)
            self.step += 1
            history = {offset: kafka_record(offset, record) for offset, record in kafka.history.items()}
            there = frozenset(kafka.records())
            at = KafkaStep(history, there, kafka.log_start_offset, kafka.log_end_offset)
            self._simulation.judge.kafka[self.step] = at
        store, prefix = self._simulation.store, KAFKA_URI.removeprefix("s3://")
        files = {f"{prefix}/{path}": content for path, content in kafka.files().items()}
        for path in [path for path in store.files if path.startswith(f"{prefix}/") and path not in files]:
            store.take(path)
        for path, content in files.items():
            store.put(path, content)


def import_again(simulation: Simulation, process: Process) -> None:
    """Imports a directory that grows and is cleaned, over and over; where its records differ, it is begun anew."""
    random, disk = simulation.random, process.disk
    if "broker" not in disk:
        disk["broker"] = Broker(simulation)
    broker: Broker = disk["broker"]
    log = simulation.open()
    while True:
        simulation.think(process, 7000)
        if ahead := random.choice((0, 1, 1, 2, 6)):
            broker.advance(ahead)
        source = simulation.storage(KAFKA_URI)

        def work(source: Any = source) -> Any:
            directory = KafkaDirectory(source)
            return import_all(directory, log, [IMPORTED], ImportPolicy(overrides=IMPORT_CONFIG))

        found = attempt_import(simulation, process, work, broker)
        simulation.judge.counts[f"imports: {found}"] += 1
        if found == REFUSED and random.random() < 0.5:
            one_commit(simulation, process, lambda: log.delete_topic(IMPORTED), delete=IMPORTED)


REFUSED = "refused"


def attempt_import(simulation: Simulation, process: Process, work: Callable[[], Any], broker: Broker) -> str:
    """Imports, and says how it went: "done", "failed", "overtaken" by others, or REFUSED for records that differ."""
    judge = simulation.judge
    before = judge.newest(IMPORTED)
    calls: list[tuple[str, int]] = []
    _, error = simulation.attempt(process, work, SegmentsError, step=broker.step, calls=calls)
    if error is None:
        return "done"
    text = str(error)
    if "holds other records" in text or "has records that the Kafka directory lacks" in text:
        if not (process.flips or process.stale or differs(judge, broker.step, before)):
            raise Violation(f"{process.name}: the records are those of Kafka, and yet: {error!r}") from error
        return REFUSED
    if isinstance(error, TopicExistsError) or "changed while it was imported" in text:
        if judge.newest(IMPORTED) - before <= len(calls):
            raise Violation(f"{process.name}: nobody changed it: {error!r}") from error
        return "overtaken"
    if isinstance(error, LogDirError | MissingFileError) and (process.flips or process.stale):
        return "failed"  # the directory looked damaged
    simulation.check_cause(process, error, ())
    return "failed"


def differs(judge: Judge, step: int, before: int) -> bool:
    """Whether the imported topic, at any version from `before` on, has other records than Kafka has or had."""
    kafka = judge.kafka[step]
    for version, at in judge.topic(IMPORTED).versions.items():
        for partition in at.partitions.values():
            start = max(partition.start, kafka.start)
            here = {offset: partition.placed[offset] for offset in partition.sure if offset >= start}
            wanted = {offset for offset in kafka.there if start <= offset < partition.end}
            is_kafkas = all(kafka.history.get(offset) == record for offset, record in here.items())
            if version >= before and not (is_kafkas and wanted <= here.keys() and partition.end <= kafka.end):
                return True
    return False
