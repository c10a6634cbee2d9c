"""A follower of the log directory at another place: two mirrors at once, and its vacuum. At every commit of the
follower it is what the leader was at the version that it names."""

from __future__ import annotations

from spark_segments import LogDir
from spark_segments.errors import UnknownTopicError
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.marker import mark
from spark_segments.maintenance import mirror, vacuum, verify
from verification.long_runs.scenario import DEFAULTS
from verification.simulation.delta import DeltaLogs, Landed
from verification.simulation.groups import GroupJudge
from verification.simulation.judge import MOVED, view
from verification.simulation.scenario import TOPICS, Simulation
from verification.simulation.world import Process, Violation
from verification.world.followers import source_version
from verification.world.opened import opened

COMPARED = 0.3
"""The share of the follower's commits that are read whole."""


class Follower:
    """The follower's manifests, and its judge. The newest of `simulation.followers` is mirrored: where a topic of it
    can follow no more, all are mirrored into an empty log directory.
    """

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.root = f"simulation/follower-{len(simulation.followers)}"
        self.logs = DeltaLogs(simulation.store, self.root, self.landed)
        self.groups = GroupJudge(simulation.store, self.root)
        simulation.followers.append(self)

    def open(self) -> LogDir:
        """The follower's log directory, as a process opens it that has just begun."""
        storage = self._simulation.storage(f"s3://{self.root}")
        return opened(storage, defaults=DEFAULTS, open_delta_log=self.logs)

    def landed(self, landed: Landed) -> None:
        """A commit of the follower is there. Raises where it is not what the leader was."""
        self._simulation.judge.counts[f"follower's commits: {landed.note.operation}"] += 1
        if (
            landed.topic != MOVED
            and landed.note.operation == Operation.MIRROR
            and self._simulation.random.random() < COMPARED
        ):
            self.compare(landed.topic, landed.version)

    def is_parted(self, topic: str) -> bool:
        """Whether the leader was deleted, and perhaps made again under the same id, since the version that a follower
        is. A follower that comes so late that the leader's log has forgotten that version cannot tell, and is refused.
        """
        with self._simulation.world.outside():
            try:
                here = self.open().topic(topic).manifest.snapshot(deleted=True)
            except UnknownTopicError:
                return False
        versions = self._simulation.judge.topic(topic).versions
        return any(at.is_deleted for number, at in versions.items() if number > source_version(here))

    def compare(self, topic: str, version: int | None) -> None:
        """Compares a version of the follower with the version of the leader that it names."""
        judge, log = self._simulation.judge, self.open()
        snapshot = log.topic(topic).manifest.snapshot(version, deleted=True)
        leader = judge.topic(topic).versions.get(source_version(snapshot))
        if leader is None:
            return
        assert (snapshot.deleted_ms is not None) == leader.is_deleted, "it is deleted where the leader is"
        if leader.is_deleted:
            return
        names = ("partition", "log_start_offset", "log_end_offset")
        rows = zip(*(snapshot.partitions.column(name).to_pylist() for name in names), strict=True)
        bounds = {number: (start, end) for number, start, end in rows}
        saw = view(log, topic, snapshot.version)
        for number in bounds:
            saw.setdefault(number, [])
        assert bounds.keys() == leader.partitions.keys(), "it has the leader's partitions"
        judge.compare(topic, leader, saw, bounds)
        judge.counts["follower's versions compared"] += 1


def follow(simulation: Simulation, process: Process) -> None:
    """Mirrors topics, and now and then vacuums the follower."""
    random, judge = simulation.random, simulation.judge
    source = simulation.open()
    while True:
        simulation.think(process, 9000)
        follower: Follower = simulation.followers[-1]
        target = process.disk.setdefault(follower.root, follower.open())
        if random.random() < 0.2:
            simulation.attempt_job(process, lambda target=target: vacuum(target, now_ms=simulation.world.now_ms))
        else:
            topic = random.choice(TOPICS)
            parted = follower.is_parted(topic)
            refusals = simulation.attempt_job(
                process,
                lambda topic=topic, target=target: mirror(target, leader=source, topics=[topic], groups=True),
                lambda line, parted=parted: parted and "has records that the topic in" in line["error"],
                expected=[UnknownTopicError],  # nobody has made it yet
            )
            if refusals and follower is simulation.followers[-1]:  # what the error says that helps
                judge.counts["followers of a topic that was made again"] += 1
                mirrored_anew(simulation)


def mirrored_anew(simulation: Simulation) -> None:
    """Makes the empty log directory that the leader is mirrored into from now on."""
    with simulation.world.outside():
        mark(Follower(simulation).open().storage)


def last_mirror(simulation: Simulation) -> None:
    """In peace the follower reaches the leader, and every byte of it is right."""
    source = simulation.open()
    made = {*source.directories()}
    if any(simulation.followers[-1].is_parted(topic) for topic in TOPICS):
        mirrored_anew(simulation)
    target = simulation.followers[-1].open()
    report = mirror(target, leader=source, topics=[topic for topic in TOPICS if topic in made])
    if report.failed:
        raise Violation(f"the last mirror fails: {report.failed[:3]}")
    compare_followers(simulation)
    found = verify(target, deep=True)
    if found.errors:
        raise Violation(f"verify finds {found.findings[:3]} at the follower")


def compare_followers(simulation: Simulation) -> None:
    """Compares the newest version of all followers."""
    follower: Follower = simulation.followers[-1]
    for topic in follower.logs.topics:
        if topic != MOVED:
            follower.compare(topic, None)
