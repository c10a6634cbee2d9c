"""Indexes of keys: built, kept and dropped by two hosts, and look-ups by them, which find what the model has."""

from __future__ import annotations

from typing import Any

from spark_segments.keys.job import index
from verification.simulation.readers import attempt_read
from verification.simulation.scenario import TOPICS, Simulation
from verification.simulation.world import Process, Violation

_OVERTAKEN = ("was dropped, or its topic made again", "committed to the index of")


def keep_indexes(simulation: Simulation, process: Process) -> None:
    """Runs the job of one topic after another, and looks for keys."""
    random = simulation.random
    log = simulation.open()
    while True:
        simulation.think(process, 2000)
        topic, drop = random.choice(TOPICS), random.random() < 0.05
        if random.random() < 0.4:
            simulation.attempt_job(
                process, lambda topic=topic, drop=drop: index(log, topics=[topic], drop=drop), _is_overtaken
            )
        else:
            look_up(simulation, process, log, topic)


def _is_overtaken(line: dict[str, Any]) -> bool:
    return any(text in line["error"] for text in _OVERTAKEN)


def look_up(simulation: Simulation, process: Process, log: Any, topic: str) -> None:
    """Asks the newest version for the records of a key."""
    judge, random = simulation.judge, simulation.random
    newest = judge.newest(topic)
    at = judge.topic(topic).versions.get(newest)
    if at is None:
        return
    keys = {record.key for partition in at.partitions.values() for record in partition.placed.values()} - {None}
    key = random.choice([b"none", *sorted(keys)])

    def work() -> Any:
        opened = log.topic(topic)
        version = opened.snapshot.version
        scan = log.topic(topic, version).scan(keys=[key], columns=["partition", "offset", "key", "value"])
        rows: list[Any] = []
        for batch in scan.batches():
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return version, rows, scan.coverage

    found, error = attempt_read(simulation, process, topic, newest, work)
    if error is not None:
        return
    version, rows, coverage = found
    at = judge.topic(topic).versions.get(version)
    if at is None or at.is_deleted:
        return
    expected = [
        (number, offset, key, partition.placed[offset].value)
        for number, partition in sorted(at.partitions.items())
        for offset in sorted(partition.sure)
        if partition.placed[offset].key == key
    ]
    if rows != expected:
        raise Violation(f"{process.name}: {topic} at {version} has {len(expected)} records of {key!r}: {rows[:3]}")
    judge.counts["look-ups of keys compared"] += 1
    judge.counts["offsets that an index answered for"] += coverage.indexed_offsets
