"""A run of a seed: everything at once until so many commits are there, then peace, and the last look at all of it."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import IO, Any

from spark_segments import LogDir
from spark_segments.log.marker import mark
from spark_segments.maintenance import vacuum, verify
from spark_segments.maintenance.rebuild.rebuild import rebuild_manifest
from spark_segments.maintenance.removal.vacuum import SUFFIXES
from verification.simulation.delta import DeltaLogs
from verification.simulation.environment import simulated
from verification.simulation.faults import drawn, shown
from verification.simulation.groups import GroupJudge, consume
from verification.simulation.indexes import keep_indexes
from verification.simulation.jobs import maintain
from verification.simulation.judge import Judge, view
from verification.simulation.mirrors import Follower, compare_followers, follow, last_mirror, mirrored_anew
from verification.simulation.operators import import_again, operate
from verification.simulation.promotions import History, last_move, make, move, move_consume, move_write
from verification.simulation.readers import read, tail
from verification.simulation.scenario import COMMON, PARTITIONS, ROOT, WRITTEN, Pace, Simulation
from verification.simulation.servers import serve
from verification.simulation.store import Store
from verification.simulation.streams import SINK, stream
from verification.simulation.tables import TableJudge, keep_tables, tables_in
from verification.simulation.world import HOUR_US, START_US, Host, Process, Violation, World
from verification.simulation.writers import write
from verification.world.manifest_rows import Segment
from verification.world.small_limits import small_limits

HOSTS = 2
DAY_US = 24 * HOUR_US
WAVE_BYTES = 2000
"""So that an import is several commits."""

ACTORS: dict[str, Callable[[Simulation, Process], None]] = {
    "writer-a": write,
    "writer-b": write,
    "writer-c": write,
    "writer-d": write,
    "stream-a": stream,
    "stream-b": stream,
    "reader-a": read,
    "reader-b": read,
    "tail": tail,
    "group-a": consume,
    "group-b": consume,
    "server-a": serve,
    "server-b": serve,
    "maintainer-a": maintain,
    "maintainer-b": maintain,
    "operator": operate,
    "importer": import_again,
    "mirror-a": follow,
    "mirror-b": follow,
    "moving-writer-a": move_write,
    "moving-writer-b": move_write,
    "moving-reader-a": move_consume,
    "moving-reader-b": move_consume,
    "mover": move,
}
ALWAYS = ("writer-a", "reader-a", "maintainer-a")
TABLE_ACTORS = {"table-a": keep_tables, "table-b": keep_tables}
"""Of every third seed: delta-rs takes its time."""

INDEX_ACTORS = {"index-a": keep_indexes, "index-b": keep_indexes}
"""Of another third of the seeds."""

SHARED_DISKS = {"stream-b": "stream-a"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of a seed was. `violation` None: nothing was found."""

    seed: int
    commits: int
    seconds: float
    virtual_days: float
    steps: int
    kills: int
    faults: int
    chosen: str
    trace: str
    counts: dict[str, int]
    violation: str | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run(seed: int, commits: int, trace: IO[str] | None = None) -> Outcome:
    """Runs a seed until `commits` commits are there, and judges it."""
    started = time.perf_counter()
    world = World(seed, trace)
    faults = drawn(seed)
    store = Store(world, faults)
    judge = Judge(world, store, ROOT)
    logs = DeltaLogs(store, ROOT, judge.landed, judge.counts)
    hosts = [Host(f"host-{number}") for number in range(HOSTS)]
    groups = GroupJudge(store, ROOT)
    simulation = Simulation(world, store, logs, judge, hosts, Pace(seed, START_US))
    tables = TableJudge(simulation)
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the product's warnings of damage, which is the store's here
    violation: str | None = None
    try:
        with simulated(world, store), tables_in(simulation), small_limits(IMPORT_WAVE_BYTES=WAVE_BYTES):
            judge.log = simulation.open()
            judge.caches = [host.cache for host in hosts]
            mirrored_anew(simulation)
            simulation.history = History(simulation)
            _begin(simulation)
            _start(simulation)
            world.run(lambda: simulation.commits >= commits)
            _end(simulation)
            tables.compare_all()
            _lose_manifests(simulation)
            judge.counts["commits of groups"] = sum(commit.number for commit in groups.commits.values())
            judge.counts["numbers of groups that were free again"] = groups.again
            if world.failure is not None:  # of a commit in peace
                raise world.failure
    except Exception as error:
        violation = f"{type(error).__name__}: {error}" + _where(error)
    finally:
        logging.disable(level)
    return Outcome(
        seed,
        simulation.commits,
        round(time.perf_counter() - started, 2),
        round((world.now_us - START_US) / DAY_US, 1),
        world.steps,
        world.kills,
        store.injected,
        shown(faults),
        world.trace_hash(),
        dict(sorted(judge.counts.items())),
        violation,
    )


def _where(error: BaseException) -> str:
    """The line that raised an error which is not the judge's: the product must have no such error."""
    if isinstance(error, Violation):
        return ""
    [*_, last] = traceback.extract_tb(error.__traceback__)
    return f" ({last.filename}:{last.lineno})"


def _begin(simulation: Simulation) -> None:
    """Makes the log directory and its topics."""
    log, random = simulation.open(), simulation.random
    mark(log.storage)
    make(log)
    codec = random.choice(("uncompressed", "uncompressed", "producer", "lz4"))
    for topic, config in {**WRITTEN, SINK: COMMON | {"retention.bytes": "6000"}}.items():
        log.create_topic(topic, PARTITIONS, config | {"compression.type": codec})


def _start(simulation: Simulation) -> None:
    """Starts the processes: those that every seed has, and most of the others."""
    disks: dict[str, dict[str, Any]] = {}
    there = [name for name in ACTORS if name in ALWAYS or simulation.random.random() < 0.8]
    actors = ACTORS
    if simulation.world.seed % 3 == 2:
        actors = ACTORS | TABLE_ACTORS
        there += TABLE_ACTORS
    if simulation.world.seed % 3 == 0:
        actors = ACTORS | INDEX_ACTORS
        there += INDEX_ACTORS
    for number, name in enumerate(there):
        disk = disks.setdefault(SHARED_DISKS.get(name, name), {})
        host = simulation.hosts[number % HOSTS]

        def work(process: Process, act: Any = actors[name]) -> None:
            act(simulation, process)

        simulation.world.start(Process(name, host, work, disk), simulation.random.randint(0, 1_000_000))
    simulation.world.kill_chance = simulation.store.faults.killed
    simulation.world.stall_chance = simulation.store.faults.stalled


def _end(simulation: Simulation) -> None:
    """Nothing fails any more. All that was acknowledged is there, and no byte is wrong, before and after a vacuum."""
    judge, world = simulation.judge, simulation.world
    log = simulation.open()
    _compare_all(simulation, log)
    report = verify(log, deep=True)
    if report.errors:
        raise Violation(f"verify finds {report.findings[:3]}")
    last_mirror(simulation)
    last_move(simulation)
    world.now_us += 60 * DAY_US
    followers: list[Follower] = simulation.followers
    for place, logs, root in (
        (log, simulation.logs, ROOT),
        *((follower.open(), follower.logs, follower.root) for follower in followers),
    ):
        failed = vacuum(place, now_ms=world.now_ms).failed
        if failed:
            raise Violation(f"the last vacuum of {root} fails: {failed[:3]}")
        left = left_behind(simulation, place, logs, root)
        if left:
            raise Violation(f"files of {root} that no row names, after 60 days: {left[:3]}")
        report = verify(place, deep=True)
        if not report.ok:
            raise Violation(f"verify finds {report.findings[:3]} of {root} at the end")
    _compare_all(simulation, log)
    compare_followers(simulation)
    judge.counts["records at the end"] = sum(
        len(partition.sure)
        for topic in judge.topics.values()
        if not topic.is_deleted
        for partition in topic.partitions.values()
    )


def _lose_manifests(simulation: Simulation) -> None:
    """Every manifest is lost, and made anew from its recovery copy and notes. The mark of a last commit may be lost."""
    judge, store = simulation.judge, simulation.store
    store.watchers.remove(simulation.logs.made)
    for topic in sorted(set(simulation.open().topics()) & judge.topics.keys()):
        for path in [path for path in store.files if path.startswith(f"{ROOT}/_manifest/{topic}/")]:
            store.take(path)
        details = rebuild_manifest(simulation.open(), topic).details
        judge.counts["manifests rebuilt"] += 1
        if details["known_version"] != judge.newest(topic):
            judge.counts["manifests rebuilt without what nothing proves"] += 1
            if details["is_exact"]:
                raise Violation(f"{topic} is said to be rebuilt whole, at {details['known_version']}")
            judge.topics[topic].versions.clear()  # what is compared next
    _compare_all(simulation, simulation.open())


def _compare_all(simulation: Simulation, log: Any) -> None:
    judge = simulation.judge
    there = set(log.topics())
    for name, topic in judge.topics.items():
        if not topic.versions:
            continue
        if (name in there) == topic.is_deleted:
            raise Violation(
                f"{name} is {'not ' * topic.is_deleted}to be there, and it is {'' if name in there else 'not'}"
            )
        if topic.is_deleted:
            continue
        bounds = log.topic(name).offsets()
        saw = view(log, name, None)
        for number in bounds:
            saw.setdefault(number, [])
        judge.compare(name, topic.versions[judge.newest(name)], saw, bounds)


def left_behind(simulation: Simulation, log: LogDir, logs: DeltaLogs, root: str) -> list[str]:
    """Files of partitions that no row names."""
    named: set[str] = set()
    for topic in logs.topics:
        rows = log.topic(topic).manifest.snapshot(deleted=True).source.read(None)
        named |= {segment.stem + suffix for segment in Segment.of_table(rows) for suffix in SUFFIXES}
    found = [path.removeprefix(f"{root}/") for path in simulation.store.files if path.startswith(f"{root}/")]
    left = [path for path in found if re.match(r"[a-z]+-(\d+|shared)/", path) and path not in named]
    if root == ROOT:
        return left
    # A mirror copies before it makes a topic. Where the leader deletes that topic meanwhile, there is no manifest, and
    # vacuum leaves the copies: nobody can tell them from the files of a topic whose manifest was lost.
    of_topics = [path for path in left if path.rpartition("/")[0].rpartition("-")[0] in logs.topics]
    simulation.judge.counts["files of topics that a mirror never made"] += len(left) - len(of_topics)
    return of_topics
