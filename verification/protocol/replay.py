"""Paths of the model played on the real code, step by step: where each process is, how it ends, and the log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from spark_segments import LogDir
from spark_segments.log import Snapshot
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.marker import mark
from spark_segments.maintenance import roll
from spark_segments.storage import Storage
from verification.protocol.explore import Trace
from verification.protocol.model import (
    ACKNOWLEDGED,
    FAILURES,
    NOTHING,
    REPEATED,
    Append,
    Compact,
    DeleteRecords,
    Fence,
    Program,
)
from verification.protocol.scenarios import TOPIC, Scenario
from verification.protocol.stage import DONE, READ, SEND, Actor, Outcome, StagedLogs
from verification.protocol.state import State
from verification.world.manifest_rows import Change
from verification.world.opened import DeltaLog, OpenDeltaLog, opened
from verification.world.rounds import ONE_TASK, CleanerSettings, RoundPlan, RoundResult, clean_partition
from verification.world.small_limits import small_limits
from verification.world.stores.memory_store import MemoryFiles, replayed

NAME = "orders"
_MONTH_MS = 30 * 24 * 3_600_000
_PLACES = {"send": SEND, "read": READ, "doubt": READ, "working": READ, "done": DONE}


_PLAIN = partial(DeltaLog, open_table=replayed)


@contextmanager
def without_waiting() -> Iterator[None]:
    """The protocol of the package with the model's number of tries, and without its pauses."""
    with small_limits(COMMIT_FAILURES=FAILURES, COMMIT_PAUSE_SECONDS=0.0):
        yield


@dataclass
class Theatre:
    """The topic of `scenarios.TOPIC` in a store in memory. Every play begins with a copy of it."""

    store: MemoryFiles = field(default_factory=MemoryFiles)

    def __post_init__(self) -> None:
        log = self.log(self.store)
        mark(log.storage)
        log.create_topic(NAME, 1, {"cleanup.policy": "compact,delete", "retention.ms": "-1"})
        for records in (("k=1", "j=1"), ("k=2",), ("x=1",)):
            log.topic(NAME).append([_record(text) for text in records])
            if records != ("x=1",):
                roll(log, now_ms=log.storage.now_ms() + _MONTH_MS)
        snapshot = log.topic(NAME).snapshot
        rows = [(row.base_offset, row.next_offset, row.state == "sealed") for row in snapshot.live_of(0)]
        assert rows == [(row.base, row.end, row.sealed) for row in TOPIC.rows]
        self.first_version = snapshot.version

    @staticmethod
    def log(store: MemoryFiles, open_delta_log: OpenDeltaLog = _PLAIN) -> LogDir:
        return opened("s3://theatre/log", store, open_delta_log=open_delta_log)

    def play(self, scenario: Scenario, trace: Trace) -> None:
        """Plays a path of the model. Raises AssertionError at the first step where the code does otherwise."""
        store = self.store.copy()
        programs = {program.name: (number, program) for number, program in enumerate(scenario.programs)}
        actors: dict[str, Actor] = {}  # by commit id
        played: list[str] = []
        before = scenario.start()
        try:
            for step, after in trace:
                played.append(str(step))
                number, program = programs[step.process]
                process = after.processes[number]
                commit_id = f"{step.process}.{process.life}"
                if step.what == "lands":
                    made = after.versions[-1]
                    sender = ".".join(made.commit_id.split(".")[:2])  # a planted fault adds the number of the try
                    actors[sender].late.pop(made.attempt)()
                elif step.what != "again":
                    if commit_id not in actors:
                        actors[commit_id] = Actor(_work(program, lambda actor: self.log(store, StagedLogs(actor))))
                        where = actors[commit_id].start()
                    else:
                        where = _tell(actors[commit_id], step.what, before.processes[number].phase)
                    assert where == _PLACES[process.phase], (
                        f"the process is at {where}, in the model at {process.phase}"
                    )
                    if where == DONE:
                        ended, expected = actors[commit_id].outcome, (process.outcome, process.offsets)
                        assert ended == expected, f"the commit ends as {ended}, in the model as {expected}"
                commits = _latest(store) - self.first_version
                assert commits == after.latest, f"{commits} commits, in the model {after.latest}"
                before = after
            self._compare(store, before)
        except AssertionError as error:
            raise AssertionError(f"{scenario.name}: {error}, after: {'; '.join(played)}") from error
        finally:
            for actor in actors.values():
                actor.end()

    def _compare(self, store: MemoryFiles, state: State) -> None:
        log, latest = self.log(store), state.versions[-1]
        read = [
            (record["offset"], f"{record['key'].decode()}={record['value'].decode()}")
            for batch in log.topic(NAME).scan(partition=0).batches()
            for record in batch.to_pylist()
        ]
        assert tuple(read) == latest.records, f"the log holds {read}, in the model {latest.records}"
        row = log.topic(NAME).snapshot.partition(0)
        offsets = (row.log_start_offset, row.log_end_offset, row.first_dirty_offset)
        assert offsets == (latest.log_start, latest.log_end, latest.first_dirty)
        operations = [one["operation"] for one in log.topic(NAME).manifest.history()][self.first_version + 1 :]
        assert operations == [version.operation for version in state.versions[1:]]


def _latest(store: MemoryFiles) -> int:
    names = (path.rpartition("/_delta_log/")[2] for path in store.files)
    return max(int(name.removesuffix(".json")) for name in names if name.endswith(".json") and name[:20].isdecimal())


def _tell(actor: Actor, what: str, phase: str) -> str:
    """Tells an actor that was in a phase what happens. After a failed try the log is read so many times."""
    times = FAILURES if what == "cannot read" and phase == "read" else 1
    return [actor.tell(what) for _ in range(times)][-1]


def _record(text: str) -> dict[str, str]:
    key, _, value = text.partition("=")
    return {"key": key, "value": value}


def _work(program: Program, open_log: Callable[[Actor], LogDir]) -> Callable[[Actor], Outcome]:
    """The real code that a program of the model stands for."""

    def append(actor: Actor) -> Outcome:
        assert isinstance(program, Append)
        txn = (program.transaction, 0) if program.transaction else None
        offsets = open_log(actor).topic(NAME).append([_record(program.record)], txn=txn)
        return (ACKNOWLEDGED, offsets[0]) if offsets else (REPEATED, None)

    def compact(actor: Actor) -> Outcome:
        log = open_log(actor)
        snapshot = log.topic(NAME).snapshot
        settings = CleanerSettings(
            NAME, snapshot.topic_id, {}, log.storage.now_ms(), 1 << 20, 0.9, open_delta_log=log.open_delta_log
        )

        def clean_round(storage: Storage, work: RoundPlan) -> RoundResult:
            done = ONE_TASK(storage, work)
            actor.wait(READ)
            return done

        result = clean_partition(log.storage, settings, 0, 3, clean_round=clean_round)
        if result.error is not None:
            raise result.error
        return (ACKNOWLEDGED if result.rounds else NOTHING, None)

    def delete_records(actor: Actor) -> Outcome:
        assert isinstance(program, DeleteRecords)
        open_log(actor).topic(NAME).delete_records({0: program.before})
        return ACKNOWLEDGED, None

    def fence(actor: Actor) -> Outcome:
        def plan(snapshot: Snapshot) -> Change:
            return Change(Operation.PROMOTE, topic=dataclasses.replace(snapshot.topic_row, states={"role": "fenced"}))

        open_log(actor).topic(NAME).manifest.commit(plan)
        return ACKNOWLEDGED, None

    return {Append: append, Compact: compact, DeleteRecords: delete_records, Fence: fence}[type(program)]
