"""Readers: whole versions, new ones and those that they hold; tails that follow the log; look-ups by time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_segments.errors import InvalidOptionError, MissingFileError, SegmentsError
from spark_segments.log.reading.times import offsets_for_times
from verification.simulation.judge import view
from verification.simulation.scenario import TOPICS, Simulation
from verification.simulation.world import Process, Violation


def read(simulation: Simulation, process: Process) -> None:
    """Reads whole versions: the newest, and again those that it had read, while their files must be there."""
    random, judge = simulation.random, simulation.judge
    log = simulation.open()
    held: list[tuple[str, int]] = []
    while True:
        simulation.think(process, 1000)
        if held and random.random() < 0.3:
            topic, wanted = held.pop(random.randrange(len(held)))
        else:
            topic, wanted = random.choice(TOPICS), -1
        newest = judge.newest(topic)

        def whole(topic: str = topic, wanted: int = wanted) -> Any:
            snapshot = log.topic(topic, None if wanted < 0 else wanted).snapshot
            bounds = {
                row["partition"]: (row["log_start_offset"], row["log_end_offset"])
                for row in snapshot.partitions.to_pylist()
            }
            return snapshot.version, bounds, view(log, topic, snapshot.version)

        found, error = attempt_read(simulation, process, topic, newest if wanted < 0 else wanted, whole)
        if error is not None:
            continue
        version, bounds, saw = found
        if wanted < 0 and version < newest:
            raise Violation(f"{process.name}: a look at {topic} gave version {version} after {newest} was there")
        for number in bounds:
            saw.setdefault(number, [])
        judge.saw(topic, version, saw, bounds)
        if random.random() < 0.2:
            look_up(simulation, process, log, topic, version)
        held = [*held, (topic, version)][-8:]


def look_up(simulation: Simulation, process: Process, log: Any, topic: str, version: int) -> None:
    """Asks a version for the first offsets of a time, and for the newest record of each key."""
    judge, number = simulation.judge, 0
    at = judge.topic(topic).versions.get(version)
    if at is None:
        return
    time_ms = simulation.world.now_ms - int(10 ** simulation.random.uniform(2, 8))
    columns = ["offset", "key", "value"]

    def work() -> Any:
        snapshot = log.topic(topic, version).snapshot
        by_time = offsets_for_times(log.storage, snapshot, {number: time_ms})[number]
        newest = []
        for batch in log.topic(topic, version=version).scan(partition=number, columns=columns, view="latest").batches():
            newest += zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        return by_time, newest

    found, error = attempt_read(simulation, process, topic, version, work)
    if error is not None:
        return
    partition = at.partitions[number]
    there = sorted((offset, partition.placed[offset]) for offset in partition.sure)
    first = next(((offset, one.timestamp_ms) for offset, one in there if one.timestamp_ms >= time_ms), None)
    if found[0] != first:
        raise Violation(f"{topic}-{number} at {version}: the first offset from {time_ms} is {found[0]}, not {first}")
    newest = {one.key: (offset, one.key, one.value) for offset, one in there if one.key is not None}
    if found[1] != sorted(newest.values()):
        raise Violation(f"{topic}-{number} at {version}: the latest view is {found[1][:3]}")
    judge.counts["look-ups compared"] += 1


def attempt_read(
    simulation: Simulation, process: Process, topic: str, version: int, work: Callable[[], Any]
) -> tuple[Any, SegmentsError | None]:
    """As `Simulation.attempt`, of what reads `version`, or a later one."""
    found, error = simulation.attempt(process, work, MissingFileError, InvalidOptionError)
    if isinstance(error, MissingFileError | InvalidOptionError):
        simulation.check_late(topic, version, error)
    return found, error


def tail(simulation: Simulation, process: Process) -> None:
    """Follows a partition by offset, as a consumer does: what it gets next is what comes next in the log."""
    random, judge = simulation.random, simulation.judge
    log = simulation.open()
    while True:
        simulation.think(process, 500)
        topic = process.disk.setdefault("topic", random.choice(TOPICS[:4]))
        number = process.disk.setdefault("partition", random.randrange(3))
        position = process.disk.get("position", 0)

        def step(topic: str = topic, number: int = number, position: int = position) -> Any:
            snapshot = log.topic(topic).snapshot
            start, end = log_bounds(snapshot, number)
            first = max(position, start)
            found = []
            if first < end:
                for batch in (
                    log.topic(topic, version=snapshot.version)
                    .scan(partition=number, offsets=(first, end), columns=["offset", "key", "value"])
                    .batches()
                ):
                    found += zip(*(batch.column(name).to_pylist() for name in ("offset", "key", "value")), strict=True)
            return snapshot, first, end, found

        result, error = attempt_read(simulation, process, topic, judge.newest(topic), step)
        if error is not None:
            continue
        snapshot, first, end, found = result
        at = judge.topic(topic).versions.get(snapshot.version)
        if at is None:
            continue
        partition = at.partitions[number]
        wanted = [
            (offset, partition.placed[offset].key, partition.placed[offset].value)
            for offset in sorted(partition.sure)
            if first <= offset < end
        ]
        if found != wanted:
            raise Violation(
                f"{process.name}: {topic}-{number} from {first} to {end} of {snapshot.version}: {found[:3]}"
            )
        judge.counts["tails compared"] += 1
        if process.disk.get("topic_id") != snapshot.topic_id:
            process.disk["topic_id"], process.disk["position"] = snapshot.topic_id, 0
        else:
            process.disk["position"] = end


def log_bounds(snapshot: Any, number: int) -> tuple[int, int]:
    row = snapshot.partition(number)
    return row.log_start_offset, row.log_end_offset
