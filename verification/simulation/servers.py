"""Servers that hold the groups of a log directory in turn, by files of `_serve/`.

At no moment do two hold them. Whoever holds them commits, and no commit follows one that was begun under a later lease.
"""

from __future__ import annotations

from spark_segments.errors import CommitConflictError
from spark_segments.kafka_protocol.serving.lease import Lease
from spark_segments.log.groups.group import Positions
from spark_segments.log.positions import Position
from verification.simulation.scenario import KEPT, Simulation
from verification.simulation.world import SECOND_US, Process, Violation

SERVED = "served"


def serve(simulation: Simulation, process: Process) -> None:
    """Takes the lease or renews it, commits under it, and ends now and then."""
    random, counts = simulation.random, simulation.judge.counts
    group = simulation.open().group(SERVED)
    while True:
        lease = simulation.leases[process.name] = Lease(simulation.storage())
        for _ in range(random.randint(1, 40)):
            simulation.think(process, 1000)
            simulation.attempt(process, lease.take)
            held = sorted(name for name, one in simulation.leases.items() if one.is_held())
            if len(held) > 1:
                raise Violation(f"the groups are held by {' and '.join(held)}")
            if not lease.is_held():
                continue
            counts["leases held"] += 1
            number = lease.number
            if random.random() < 0.2:  # the machine stands still within
                simulation.world.wait(random.randint(1, 40) * SECOND_US)

            def check(begun: Positions, number: int = number) -> None:
                if begun.lease > number:
                    raise CommitConflictError("another server has the groups")

            moved = {(KEPT, 0): Position(0, metadata=str(simulation.number(SERVED)))}
            simulation.attempt(
                process,
                lambda moved=moved, check=check, number=number: group.update(  # type: ignore[misc]
                    lambda rows: rows | moved, check=check, lease=number
                ),
                lease=number,
            )
        simulation.attempt(process, lease.end)
