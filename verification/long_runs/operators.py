"""What people do to topics beside the jobs: alter, delete records, restore, delete and create; and import again."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_segments import LogDir
from spark_segments.errors import (
    CommitConflictError,
    InvalidOptionError,
    LogDirError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    SegmentsError,
    TopicExistsError,
    UnknownTopicError,
)
from spark_segments.maintenance import restore
from verification.long_runs.journal import Journal, Notes
from verification.long_runs.scenario import (
    CONFIGS,
    IMPORT_CONFIG,
    IMPORTED,
    OPERATED,
    PARTITIONS,
    WRITTEN,
    kafka_steps,
)
from verification.world.kafka_side import KafkaSide
from verification.world.small_limits import small_limits

if TYPE_CHECKING:
    from verification.long_runs.actors import Run

WAVE_BYTES = 2000
"""So that an import is several commits."""


def operate(run: Run, notes: Notes, journal: Journal, random_: random.Random) -> None:
    """Does one thing after the other to a topic. What another process was quicker at is noted as lost."""
    log = LogDir.open(run.uri)
    while run.is_on():
        topic = random_.choice(OPERATED)
        try:
            if topic in log.topics():
                _change(log, topic, notes, journal, random_)
            else:
                _bring_back(run, log, topic, notes, journal, random_)
        except (CommitConflictError, UnknownTopicError, TopicExistsError) as error:
            notes.write(lost=type(error).__name__)
        time.sleep(random_.uniform(0.05, 0.5))


def _change(log: LogDir, topic: str, notes: Notes, journal: Journal, random_: random.Random) -> None:
    match random_.choices(("alter", "delete-records", "restore", "delete"), (5, 4, 3, 1))[0]:
        case "alter":
            name = random_.choice([*CONFIGS])
            change = {name: random_.choice([*CONFIGS[name]])}
            journal.intent = {"alter": change}
            log.topic(topic).alter(change)
            notes.write(done="alter")
        case "delete-records":
            number, (start, end) = random_.choice([*log.topic(topic).offsets().items()])
            before = {number: random_.choice([-1, *range(start, end + 1, 5)]) if random_.random() < 0.2 else
                      min(end, start + random_.randint(0, 40))}  # fmt: skip
            journal.intent = {"delete_records": before}
            try:
                found = log.topic(topic).delete_records(before)
            except (PolicyViolationError, OffsetOutOfRangeError) as error:
                notes.write(refused=type(error).__name__)
            else:
                assert found[number] >= before[number]
                notes.write(done="delete-records")
        case "restore":
            latest = log.topic(topic).snapshot.version
            _restore(log, topic, latest - random_.randint(1, 15), notes, journal, random_)
        case "delete":
            journal.intent = {"delete": topic}
            log.delete_topic(topic)
            notes.write(done="delete")


def _bring_back(run: Run, log: LogDir, topic: str, notes: Notes, journal: Journal, random_: random.Random) -> None:
    """A deleted topic is made anew, or restored; the importer makes its topic anew."""
    if random_.random() < 0.4:
        latest = log.topic(topic).manifest.snapshot(deleted=True).version
        _restore(log, topic, latest - random_.randint(1, 8), notes, journal, random_)
    elif topic in WRITTEN:
        create(run, log, topic, journal)
        notes.write(done="create")


def create(run: Run, log: LogDir, topic: str, journal: Journal) -> None:
    """Makes a topic that writers write to."""
    journal.intent = {"create": topic}
    log.create_topic(topic, PARTITIONS, WRITTEN[topic] | {"file.delete.delay.ms": str(run.delay_ms)})


def _restore(log: LogDir, topic: str, version: int, notes: Notes, journal: Journal, random_: random.Random) -> None:
    forget = random_.random() < 0.4
    journal.intent = {"restore": version, "forget": forget}
    try:
        restore(log, topics=[topic], version=version, forget_transactions=forget)
    except (LogDirError, InvalidOptionError) as error:
        # Vacuum has taken what that version needs, or it is of a topic that was deleted since.
        notes.write(refused="restore", why=str(error))
    else:
        notes.write(done="restore")


def import_again(run: Run, notes: Notes, journal: Journal, random_: random.Random) -> None:
    """Imports a directory that grows and is cleaned, over and over; one whose records differ is begun anew."""
    steps = kafka_steps(run.seed, Path(run.directory) / "kafka")
    step = max([0, *(line["step"] for line in notes.lines if "step" in line)])
    kafka = _at(steps, step + 1)
    log = LogDir.open(run.uri)
    while run.is_on():
        # Often more than the cleaner's first and second pass lie between two imports: a tombstone comes and goes there.
        ahead = random_.choice((0, 1, 1, 2, 8))
        if ahead:
            kafka, step = _at(steps, ahead), step + ahead
        notes.write(step=step)
        journal.intent = {"step": step}
        try:
            with small_limits(IMPORT_WAVE_BYTES=WAVE_BYTES):
                config = IMPORT_CONFIG | {"file.delete.delay.ms": str(run.delay_ms)}
                [done] = log.import_kafka(kafka.write(), config=config).partitions
        except LogDirError as error:
            assert "holds other records" in str(error), error
            notes.write(refused="import", at_ms=time.time_ns() // 1_000_000)
            if random_.random() < 0.5:
                _delete(log, notes, journal)
        except (CommitConflictError, UnknownTopicError, TopicExistsError) as error:
            notes.write(lost=type(error).__name__)
        except SegmentsError as error:
            assert "while it was imported" in str(error), error
            notes.write(lost="changed while it was imported")
        else:
            notes.write(done="import", segments=done["segments"])
        time.sleep(random_.uniform(0, 0.3))


def _at(steps: Any, count: int) -> KafkaSide:
    for _ in range(count):
        kafka: KafkaSide = next(steps)
    return kafka


def _delete(log: LogDir, notes: Notes, journal: Journal) -> None:
    journal.intent = {"delete": IMPORTED}
    try:
        log.delete_topic(IMPORTED)
    except (CommitConflictError, UnknownTopicError) as error:
        notes.write(lost=type(error).__name__)
    else:
        notes.write(done="delete")
