"""Writers: appends with and without transactions, repeated after every doubt, and streams from topic to topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_segments.errors import InvalidRecordError, TransactionOrderError, UnknownOutcomeError
from verification.long_runs.scenario import Record
from verification.simulation.model import AppendIntent
from verification.simulation.scenario import KEYS, WRITTEN, Simulation
from verification.simulation.world import Process, Violation

Offsets = dict[int, tuple[int, int]]

STALE_VERSIONS = 60
"""How many versions a stale look may be behind."""


def table_of(records: dict[int, tuple[Record, ...]]) -> pa.Table:
    """Rows for `Topic.append`, of all partitions by turns."""
    rows = [(number, *record) for number, of_partition in records.items() for record in of_partition]
    numbers, keys, values, times = zip(*rows, strict=True)
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "timestamp": pa.array(times, pa.timestamp("ms", "UTC")),
            "partition": pa.array(numbers, pa.int32()),
        }
    )


def write(simulation: Simulation, process: Process) -> None:
    """Appends. Where no answer came, and after a restart, the same append is sent again: with its transaction.

    Now and then an append is sent again that was answered before: nothing, or an error, may come of it.
    """
    disk, random = process.disk, simulation.random
    log = simulation.open()
    while True:
        simulation.think(process, disk.setdefault("pause_ms", random.uniform(30, 400)))
        sent: list[tuple[str, AppendIntent]] = disk.setdefault("sent", [])
        if disk.get("pending") is None and sent and random.random() < 0.08:
            append(simulation, process, log, *random.choice(sent[-6:]))
            continue
        if disk.get("pending") is None:
            topic = random.choice([*WRITTEN])
            number = disk["number"] = disk.get("number", -1) + 1
            is_exact = random.random() < 0.7
            records = _records(simulation, process)
            disk["pending"] = topic, AppendIntent(process.name, number if is_exact else None, records)
        topic, intent = disk["pending"]
        is_answered = append(simulation, process, log, topic, intent)
        if is_answered or intent.transaction is None:
            disk["pending"] = None
            if intent.transaction is not None:
                sent.append((topic, intent))


def _records(simulation: Simulation, process: Process) -> dict[int, tuple[Record, ...]]:
    """Records for one partition, or for several: then they share a file."""
    random, disk = simulation.random, process.disk
    numbers = random.sample(range(3), random.choice((1, 1, 1, 2, 3)))
    now_ms = simulation.world.clock_us() // 1000
    found: dict[int, tuple[Record, ...]] = {}
    for number in sorted(numbers):
        records = []
        for _ in range(random.randint(1, 5)):
            disk["records"] = disk.get("records", 0) + 1
            value = f"{process.name} {disk['records']}".encode().ljust(random.randrange(20, 70), b".")
            key: bytes | None = b"key-%d" % random.randrange(KEYS)
            if random.random() < 0.01:
                key = None
            records.append(Record(key, None if random.random() < 0.1 else value, now_ms))
        found[number] = tuple(records)
    return found


def append(simulation: Simulation, process: Process, log: Any, topic: str, intent: AppendIntent) -> bool:
    """Whether an append was answered, or refused for good."""
    txn = None if intent.transaction is None else (intent.writer, intent.transaction)
    rows = table_of(dict(intent.records))
    return send(simulation, process, topic, intent, lambda: log.topic(topic).append(rows, txn=txn))


def send(
    simulation: Simulation, process: Process, topic: str, intent: AppendIntent, work: Callable[[], Offsets]
) -> bool:
    """Whether an append was answered, or refused for good; and whether the answer is true."""
    judge, first = simulation.judge, simulation.judge.newest(topic)
    placed: list[tuple[int, dict[int, int]]] = []
    found, error = simulation.attempt(
        process, work, InvalidRecordError, TransactionOrderError, append=intent, placed=placed, is_one_commit=True
    )
    if isinstance(error, InvalidRecordError | TransactionOrderError):
        return True
    if error is not None:
        judge.counts["appends without an answer"] += isinstance(error, UnknownOutcomeError)
        return False
    if found:
        wanted = [_offsets(intent, ends) for _, ends in placed]
        if wanted != [found]:
            raise Violation(f"{process.name}: {topic} acknowledged {found}, but it is there at {placed}")
        judge.counts["appends acknowledged"] += 1
        return True
    if intent.transaction is None or placed:
        raise Violation(f"{process.name}: {topic} acknowledged nothing of {intent.transaction}, which is at {placed}")
    versions = judge.topic(topic).versions.items()
    remembered = [at.last.get(intent.writer, -1) for number, at in versions if number >= first - STALE_VERSIONS]
    if intent.transaction not in remembered:
        raise Violation(f"{process.name}: {topic} never had {intent.transaction}, and answers that it is a repeat")
    judge.counts["repeats that added nothing"] += 1
    return True


def _offsets(intent: AppendIntent, ends: dict[int, int]) -> Offsets:
    return {number: (ends[number], ends[number] + len(records) - 1) for number, records in intent.records.items()}
