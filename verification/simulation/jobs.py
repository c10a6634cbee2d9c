"""The jobs, as a schedule runs them, at once and by several hosts; verification beside them; exports."""

from __future__ import annotations

from copy import copy
from typing import Any

from spark_segments import LogDir
from spark_segments.errors import UnknownTopicError
from spark_segments.kafka.directory import KafkaDirectory
from spark_segments.kafka.jobs import export_all
from spark_segments.maintenance import compact, retain, roll, vacuum, verify
from verification.simulation.judge import view
from verification.simulation.scenario import TOPICS, Simulation
from verification.simulation.world import Process, Violation

JOBS = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}
WEIGHTS = {"roll": 6, "retain": 3, "compact": 4, "vacuum": 2, "verify": 1, "export": 1}


def maintain(simulation: Simulation, process: Process) -> None:
    """Runs one job after the other, on a topic or on all of them."""
    random = simulation.random
    log = simulation.open()
    while True:
        simulation.think(process, 3000)
        name = random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
        topic = random.choice([None, *TOPICS])
        match name:
            case "verify":
                check(simulation, process, log, topic)
            case "export":
                export(simulation, process, log, topic or "latest")
            case _:
                run_job(simulation, process, log, name, topic)


def run_job(simulation: Simulation, process: Process, log: Any, name: str, topic: str | None) -> None:
    """Runs a job by the store's clock."""
    now_ms = simulation.world.now_ms
    simulation.attempt_job(
        process, lambda: JOBS[name](log, topics=None if topic is None else [topic], now_ms=now_ms), now_ms=now_ms
    )


def check(simulation: Simulation, process: Process, log: Any, topic: str | None) -> None:
    """Verifies every byte. It finds no errors, unless the store misled it; then it finds none in another look."""
    topics = None if topic is None else [topic]
    report, error = simulation.attempt(process, lambda: verify(log, topics=topics, deep=True))
    if error is None and report.errors:
        if process.is_disturbed:
            simulation.judge.counts["verified again"] += 1
            try:
                with simulation.world.outside():
                    report = verify(log, topics=topics, deep=True)
            except UnknownTopicError:  # somebody deleted it meanwhile
                return
        if report.errors:
            raise Violation(f"{process.name}: verify finds {report.findings[:3]}")
    simulation.judge.counts["verified"] += error is None


def export(simulation: Simulation, process: Process, log: Any, topic: str) -> None:
    """Exports a topic to a new Kafka directory, and compares what is there with the version that was exported."""
    target = simulation.storage(f"s3://simulation/export-{simulation.number('export')}")
    seen: list[Any] = []

    def snapshot_of(name: str) -> Any:
        seen.append(log.topic(name).snapshot)
        return seen[-1]

    exported = copy(log)
    exported.snapshot = snapshot_of
    _, error = simulation.attempt(process, lambda: export_all(exported, target, [topic]))
    world, judge = simulation.world, simulation.judge
    if error is None:
        at = judge.topic(topic).versions.get(seen[-1].version)
        with world.outside():
            there = LogDir(target, kafka=KafkaDirectory(target))
            if at is not None and not at.is_deleted:
                saw = view(there, topic, None)
                for number in at.partitions:
                    saw.setdefault(number, [])
                judge.compare(topic, at, saw, None)
                judge.counts["exports compared"] += 1
    with world.outside():
        for path in [
            path for path in simulation.store.files if path.startswith(f"{target.uri.removeprefix('s3://')}/")
        ]:
            simulation.store.take(path)
