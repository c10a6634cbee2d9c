"""A streaming query from topic to topic, by two drivers at once: each takes the other for dead, and goes on from the
same checkpoint. The sink is the product's: tasks write chunks, the driver commits them as the batch's transaction.
"""

from __future__ import annotations

from typing import Any

from spark_segments.log.appending.append import append_target, commit_chunks
from spark_segments.log.appending.appender import Chunks
from verification.long_runs.scenario import Record
from verification.simulation.judge import view
from verification.simulation.model import AppendIntent
from verification.simulation.readers import attempt_read
from verification.simulation.scenario import PARTITIONS, Simulation
from verification.simulation.world import Process
from verification.simulation.writers import send, table_of
from verification.world.manifest_rows import Transaction
from verification.world.topics import Appender

SOURCE, SINK = "orders", "copied"
QUERY = "query"

Range = dict[int, tuple[int, int]]


def stream(simulation: Simulation, process: Process) -> None:
    """Runs batch after batch. `disk` is the checkpoint: the ranges that are planned, and the batches that are done."""
    checkpoint = process.disk
    log = simulation.open()
    while True:
        simulation.think(process, 1600)
        batch = checkpoint.get("done", -1) + 1
        planned: dict[int, Range] = checkpoint.setdefault("planned", {})
        if batch not in planned:
            offsets, error = simulation.attempt(process, lambda: log.topic(SOURCE).offsets())
            if error is not None or batch in planned:
                continue
            before: Range = planned.get(batch - 1, {})
            planned[batch] = {
                number: (min(max(start, before.get(number, (0, start))[1]), end), end)
                for number, (start, end) in offsets.items()
            }
        if run_batch(simulation, process, log, batch, planned[batch]):
            checkpoint["done"] = max(checkpoint.get("done", -1), batch)


def run_batch(simulation: Simulation, process: Process, log: Any, batch: int, ranges: Range) -> bool:
    """Whether a batch is in the sink."""
    txn = Transaction(QUERY, batch, QUERY)

    def read() -> dict[int, tuple[Record, ...]]:
        version = log.topic(SOURCE).snapshot.version
        found = {}
        for number, (start, end) in ranges.items():
            if start < end and number < PARTITIONS:
                saw = view(log, SOURCE, version, number, start, end)
                if saw[number]:
                    found[number] = tuple(record for _, record in saw[number])
        return found

    records, error = attempt_read(simulation, process, SOURCE, simulation.judge.newest(SOURCE), read)
    if error is not None:
        return False
    if not records:
        return True  # a batch without rows leaves nothing behind
    written: list[Chunks] = []

    def task(numbers: list[int]) -> None:
        target = append_target(log, SINK, txn)
        mine = {number: records[number] for number in numbers}
        if target.repeated or not mine:
            return
        for _ in range(2 if simulation.random.random() < 0.1 else 1):  # speculation: the first attempt is not used
            with Appender(log.storage, lambda _: target, topic=SINK) as appender:
                for rows in table_of(mine).to_batches():
                    appender.write(rows)
                chunks = appender.close()
        written.extend(chunks)

    def run() -> dict[int, tuple[int, int]]:
        for numbers in ([number for number in records if number == 0], [number for number in records if number]):
            task(numbers)
        if not written:  # the tasks have found that it is a repeat
            return {}
        return dict(commit_chunks(log, SINK, written, txn))

    return send(simulation, process, SINK, AppendIntent(QUERY, batch, records), run)
