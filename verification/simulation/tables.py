"""Tables beside topics, kept by several hosts at once, and their judge: at every commit of a table its rows are those
of the topic at the version that the commit names.

The job is the product's, and so is its way to commit. delta-rs knows no played store: it opens a copy of the table's
log.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import uuid
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from spark_segments.lake import delta_table
from spark_segments.lake import table as job
from spark_segments.lake.table_format import TablePositions
from spark_segments.log.manifest.files.delta.actions import decoded
from spark_segments.maintenance import table
from spark_segments.storage.delta import commit_info, encoded
from verification.long_runs.scenario import Record
from verification.simulation.judge import COLUMNS, Saw
from verification.simulation.model import TopicAt
from verification.simulation.scenario import PARTITIONS, TOPICS, Simulation
from verification.simulation.world import Process, Violation

PLACE = "simulation/tables"
KINDS = {"plain": None, "latest": "latest"}
_COMMIT = re.compile(rf"{PLACE}/(\w+)/([^/]+)/_delta_log/(\d{{20}})\.json")


def keep_tables(simulation: Simulation, process: Process) -> None:
    """Brings one table after the other in step with its topic."""
    random = simulation.random
    log = simulation.open()
    while True:
        simulation.think(process, 4000)
        topic, kind = random.choice(TOPICS), random.choice([*KINDS])
        simulation.attempt_job(process, lambda topic=topic, kind=kind: update(log, topic, kind))  # type: ignore[misc]


def update(log: Any, topic: str, kind: str) -> Any:
    return table(log, topics=[topic], table_uri=f"s3://{PLACE}/{kind}/{topic}", view=KINDS[kind])


@dataclass
class TableJudge:
    """Follows every commit of the tables. `files`: what each of them has now, by kind and topic."""

    simulation: Simulation
    files: dict[tuple[str, str], dict[str, Saw]] = field(default_factory=dict)
    versions: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.simulation.store.watchers.append(self.made)

    def made(self, path: str, content: bytes, process: Process | None, intent: dict[str, Any]) -> None:
        """A file was made that was not there."""
        found, world = _COMMIT.fullmatch(path), self.simulation.world
        if found is None or world.failure is not None:
            return
        kind, topic, version = found.group(1), found.group(2), int(found.group(3))
        try:
            self._judge(kind, topic, version, content, path)
        except Exception as error:
            world.failure = Violation(f"the {kind} table of {topic}: {error!r}")
            world.failure.__cause__ = error

    def _judge(self, kind: str, topic: str, version: int, content: bytes, path: str) -> None:
        assert version == self.versions.get((kind, topic), -1) + 1, "its number is given again, or before its time"
        self.versions[kind, topic] = version
        files = self.files.setdefault((kind, topic), {})
        actions = decoded(content, path)
        for action in actions:
            if "remove" in action:
                assert files.pop(action["remove"]["path"], None) is not None, "a file is removed that is not there"
            if "add" in action:
                name = action["add"]["path"]
                assert name not in files, "a file is added twice"
                files[name] = _rows(self.simulation.store.files[f"{PLACE}/{kind}/{topic}/{name}"].data)
        if version:
            position = TablePositions.from_json(commit_info(actions)["userMetadata"])
            assert position is not None and position.version is not None
            self.compare(kind, topic, position.version)

    def compare(self, kind: str, topic: str, version: int) -> None:
        """The rows of a table are those that the topic had at a version."""
        judge = self.simulation.judge
        at = judge.topic(topic).versions.get(version)
        if at is None:  # a commit that came late
            return
        judge.counts[f"tables compared: {kind}"] += 1
        saw: Saw = {number: [] for number in at.partitions}
        for rows in self.files[kind, topic].values():
            for number, records in rows.items():
                saw[number] += records
        for records in saw.values():
            records.sort(key=lambda one: one[0])
        try:
            if kind == "plain":
                judge.compare(topic, at, saw, None)
            else:
                _check_latest(at, saw)
        except AssertionError as error:
            raise Violation(f"the {kind} table of {topic}, of version {version}: {error}") from error

    def compare_all(self) -> None:
        """Nothing fails any more: each table is brought in step once more, and is what its topic is."""
        log = self.simulation.open()
        there = set(log.topics())
        for kind, topic in self.versions:
            if topic in there:
                failed = update(log, topic, kind).failed
                if failed:
                    raise Violation(f"the last update of the {kind} table of {topic} fails: {failed}")
                self.compare(kind, topic, self.simulation.judge.newest(topic))


def _check_latest(at: TopicAt, saw: Saw) -> None:
    """Raises AssertionError where a table has not the newest record of each key. Where partitions were added, a key has
    one in several: then any of them is the newest, and a tombstone may be.
    """
    found: Saw = {}
    keys: Counter[bytes | None] = Counter()
    deleted: set[bytes | None] = set()
    for number, partition in at.partitions.items():
        newest = [(offset, partition.placed[offset]) for offset in sorted(partition.newest().values())]
        found[number] = [(offset, record) for offset, record in newest if record.value is not None]
        deleted |= {record.key for _, record in newest if record.value is None}
    if len(at.partitions) <= PARTITIONS:
        assert saw == found, "it has not the newest record of each key"
        return
    for number, records in saw.items():
        assert all(one in found[number] for one in records), "it has an older record of a key"
        keys.update(record.key for _, record in records)
    assert set(keys.values()) <= {1}, "it has a key twice"
    wanted = {record.key for records in found.values() for _, record in records} - deleted
    assert wanted <= keys.keys(), "it lacks a key"


def _rows(data: bytes) -> Saw:
    rows = pq.ParquetFile(pa.BufferReader(data)).read(columns=COLUMNS, use_threads=False)
    times = rows.column("timestamp").cast(pa.int64()).to_pylist()
    found: Saw = {}
    columns = (rows.column(name).to_pylist() for name in COLUMNS[:4])
    for number, offset, key, value, time_us in zip(*columns, times, strict=True):
        found.setdefault(number, []).append((offset, Record(key, value, time_us // 1000)))
    return found


@contextmanager
def tables_in(simulation: Simulation) -> Iterator[None]:
    """Tables lie in the played store."""
    real = job.Storage, delta_table.DeltaTable
    job.Storage = lambda uri, options: simulation.storage(uri)  # type: ignore[misc, assignment]
    delta_table.DeltaTable = _Opened(simulation)  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        job.Storage, delta_table.DeltaTable = real  # type: ignore[misc]


@dataclass
class _Opened:
    """What stands for the class `DeltaTable`."""

    simulation: Simulation

    def __call__(self, uri: str, storage_options: object = None) -> PlayedTable:
        return PlayedTable(self.simulation, uri.removeprefix("s3://"))

    def create(self, uri: str, *arguments: Any, **options: Any) -> None:
        name = f"_delta_log/{0:020d}.json"
        with tempfile.TemporaryDirectory() as folder:
            DeltaTable.create(folder, *arguments, **options)
            actions = [json.loads(line) for line in Path(folder, name).read_text().splitlines()]
        path, now_ms = f"{uri.removeprefix('s3://')}/{name}", self.simulation.world.now_ms
        for action in actions:  # what delta-rs takes from the machine, and its order
            if "commitInfo" in action:
                action["commitInfo"] = {"timestamp": now_ms, "operation": "CREATE TABLE"}
            if "metaData" in action:
                action["metaData"] |= {"id": str(uuid.uuid5(uuid.NAMESPACE_URL, path)), "createdTime": now_ms}
        actions = json.loads(json.dumps(actions, sort_keys=True))
        try:
            self.simulation.store.create(path, encoded(actions))
        except FileExistsError:
            return
        except OSError as error:
            raise DeltaError(str(error)) from error


class PlayedTable:
    """delta-rs on a copy of the log as the store has it."""

    def __init__(self, simulation: Simulation, place: str) -> None:
        self._store, self._place = simulation.store, place
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, True)
        prefix = f"{place}/_delta_log/"
        try:
            log = self._store.look(
                "open",
                place,
                lambda: {path: one.data for path, one in self._store.files.items() if path.startswith(prefix)},
            )
        except OSError as error:
            raise DeltaError(str(error)) from error
        if not log:
            raise TableNotFoundError(place)
        self._log = Path(folder, "_delta_log")
        self._log.mkdir()
        for path, data in log.items():
            (self._log / path.removeprefix(prefix)).write_bytes(data)
        self._table = DeltaTable(folder)

    def create_checkpoint(self) -> None:
        self._table.create_checkpoint()
        try:
            for file in sorted(self._log.glob("*checkpoint*")):
                self._store.replace(f"{self._place}/_delta_log/{file.name}", file.read_bytes())
        except OSError as error:
            raise DeltaError(str(error)) from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)
