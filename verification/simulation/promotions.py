"""A topic that moves: it is mirrored into an empty log directory, and promoted there, again and again, while writers
append to whichever place takes their records.

Its judge is a history: what was acknowledged lies at the end where its writer was told, and no value is there twice.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_segments import LogDir
from spark_segments.errors import LogDirError, NotLeaderError, UnknownTopicError
from spark_segments.log.marker import mark
from spark_segments.maintenance import mirror, verify
from spark_segments.replicas.role import Role
from verification.long_runs.scenario import DEFAULTS
from verification.simulation.delta import DeltaLogs
from verification.simulation.groups import GroupJudge, commit, read_on
from verification.simulation.judge import MOVED, view
from verification.simulation.scenario import COMMON, Simulation
from verification.simulation.world import Process, Violation
from verification.world.opened import opened
from verification.world.promoted_copies import promote_topic

PARTITIONS = 2
READERS = "readers"
CONFIG = COMMON | {"retention.ms": "-1"}


class History:
    """What writers sent, and what they were told. `told`: (partition, first offset, values) of each acknowledgement.
    `read`: what the readers of the group READERS got.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.sent: set[bytes] = set()
        self.there: set[bytes] = set()
        self.read: set[bytes] = set()
        self.told: list[tuple[int, int, list[bytes]]] = []
        self.sites: list[DeltaLogs] = [simulation.logs]

    def open(self, site: int) -> LogDir:
        """The log directory of a place, as a process opens it that has just begun."""
        logs = self.sites[site]
        return opened(self._simulation.storage(f"s3://{logs.place}"), defaults=DEFAULTS, open_delta_log=logs)

    def new_site(self) -> None:
        """Makes an empty log directory."""
        counts = self._simulation.judge.counts
        root = f"simulation/site-{len(self.sites)}"
        GroupJudge(self._simulation.store, root)
        self.sites.append(DeltaLogs(self._simulation.store, root, lambda landed: counts.update(["commits of sites"])))
        with self._simulation.world.outside():
            mark(self._simulation.storage(f"s3://{root}"))

    def a_site(self) -> int:
        """One of the last two places: one of them leads, or will."""
        return max(0, len(self.sites) - self._simulation.random.randint(1, 2))

    def check(self, log: LogDir) -> None:
        """Compares the leader's log with the history."""
        found = {number: dict(records) for number, records in view(log, MOVED, None).items()}
        values = [record.value for records in found.values() for record in records.values()]
        if len(values) != len(set(values)):
            raise Violation(f"{MOVED}: a record is there twice")
        lost = self.there - set(values)
        if lost or not set(values) <= self.sent:
            raise Violation(f"{MOVED}: lost {sorted(lost)[:3]}, or there is what nobody sent")
        for number, first, sent in self.told:
            there = [found.get(number, {}).get(first + at) for at in range(len(sent))]
            if [None if one is None else one.value for one in there] != sent:
                raise Violation(f"{MOVED}-{number}: {sent[0]!r} was acknowledged at {first}, and there is {there[0]}")
        for number, position in log.group(READERS).positions().starts(log.topic(MOVED).snapshot).items():
            unread = [record.value for at, record in found.get(number, {}).items() if at < position]
            if not self.read.issuperset(value for value in unread if value is not None):
                raise Violation(f"{MOVED}-{number}: the group is at {position}, and nobody has read all below it")


def move_write(simulation: Simulation, process: Process) -> None:
    """Appends with transactions, to the place that took the last append; where that leads no more, to another."""
    history, disk, random = simulation.history, process.disk, simulation.random
    while True:
        simulation.think(process, 700)
        if disk.get("pending") is None:
            number = disk["number"] = disk.get("number", -1) + 1
            values = [f"{process.name} {number} {at}".encode() for at in range(random.randint(1, 4))]
            disk["pending"] = number, random.randrange(PARTITIONS), values
            history.sent.update(values)
        number, partition, values = disk["pending"]
        log = history.open(disk.setdefault("site", 0))
        rows = pa.table({"value": values, "partition": pa.array([partition] * len(values), pa.int32())})
        found, error = simulation.attempt(
            process,
            lambda log=log, rows=rows, number=number: log.topic(MOVED).append(rows, txn=(process.name, number)),
            NotLeaderError,
        )
        if isinstance(error, NotLeaderError | UnknownTopicError):
            disk["site"] = history.a_site()
        elif error is None:
            history.there.update(values)
            if found:
                history.told.append((partition, found[partition][0], values))
            disk["pending"] = None
            simulation.judge.counts["appends to the topic that moves"] += 1


def move_consume(simulation: Simulation, process: Process) -> None:
    """Reads in a group at the place that leads: positions go along, and a reader goes on where the group came to."""
    history, disk, random = simulation.history, process.disk, simulation.random
    while True:
        simulation.think(process, 1500)
        log = history.open(disk.setdefault("site", 0))
        number = random.randrange(PARTITIONS)

        done, error = simulation.attempt(
            process, lambda log=log, number=number: read_on(log, READERS, MOVED, number, random)
        )
        if error is None and done.stop is not None:
            raise Violation(f"{MOVED}-{number}: nobody promotes by force, and the group cannot go on: {done.stop!r}")
        if error is not None or done.snapshot.role != Role.LEADER:
            if error is None or isinstance(error, UnknownTopicError):
                disk["site"] = history.a_site()
            continue
        history.read.update(record.value for _, record in done.records)
        simulation.judge.counts["positions in the topic that moves"] += commit(simulation, process, log, done)


def move(simulation: Simulation, process: Process) -> None:
    """Mirrors, and now and then promotes. `leader` is the place that led when it was last known."""
    history, disk, random = simulation.history, process.disk, simulation.random
    while True:
        simulation.think(process, 5000)
        leader = disk.setdefault("leader", 0)
        if len(history.sites) == leader + 1:
            history.new_site()
        here, there = history.open(leader), history.open(leader + 1)
        if disk.get("is_promoting") or random.random() < 0.25:
            disk["is_promoting"] = True
            _, error = simulation.attempt(
                process, lambda a=there, b=here: promote_topic(a, MOVED, b), NotLeaderError, LogDirError
            )
            if error is None:
                simulation.judge.counts["promotions"] += 1
                disk.update(leader=leader + 1, is_promoting=False)
            elif isinstance(error, UnknownTopicError):
                disk["is_promoting"] = False
            continue
        simulation.attempt_job(
            process,
            lambda a=here, b=there: mirror(b, leader=a, topics=[MOVED], groups=True),
            expected=[UnknownTopicError],  # nobody has made it yet
        )


def make(log: LogDir) -> None:
    """Makes the topic at the first place."""
    log.create_topic(MOVED, PARTITIONS, CONFIG)


def last_move(simulation: Simulation) -> None:
    """In peace a promotion that was under way ends, the leader has all, and another place becomes its copy."""
    history = simulation.history
    roles = [_role(history.open(site)) for site in range(len(history.sites))]
    if Role.LEADER not in roles:
        site = roles.index(Role.FOLLOWER)
        promote_topic(history.open(site), MOVED, history.open(site - 1))
        roles[site] = Role.LEADER
    if roles.count(Role.LEADER) != 1 or {*roles[: roles.index(Role.LEADER)]} - {Role.FENCED}:
        raise Violation(f"{MOVED}: the roles are {roles}")
    leader = history.open(roles.index(Role.LEADER))
    history.check(leader)
    if roles[-1] == Role.LEADER:
        history.new_site()
    report = mirror(history.open(-1), leader=leader, topics=[MOVED], groups=True)
    if report.failed:
        raise Violation(f"{MOVED}: the last mirror fails: {report.failed}")
    history.check(history.open(-1))
    for site in range(len(history.sites)):
        found = verify(history.open(site), topics=[MOVED], deep=True)
        if found.errors:
            raise Violation(f"{MOVED}: verify finds {found.findings[:3]}")


def _role(log: LogDir) -> Any:
    try:
        return log.topic(MOVED).snapshot.role
    except UnknownTopicError:
        return None
