"""The judge: follows every commit at the moment when it is there, and compares what processes were told and what they
read.

A commit must be what its process set out to do, applied to the version before (model.py). An append that was
acknowledged is there, once, at the offsets that were told; one that was refused is never there; one without an answer
may be there, once. What a reader gets of a version is exactly what the model has of that version.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_segments import LogDir
from spark_segments.log.manifest import schemas
from spark_segments.log.manifest.files.delta.delta_log import MANIFEST_DIRECTORY
from spark_segments.log.manifest.files.row_files import RowFile, _RowCache
from spark_segments.log.manifest.operation import Operation
from spark_segments.log.manifest.rows import OUT_OF_LOG
from verification.long_runs.journal import Commit
from verification.long_runs.model import KafkaStep, PartitionModel
from verification.long_runs.scenario import Record, digest
from verification.simulation.delta import Landed
from verification.simulation.model import AppendIntent, SimulatedTopic, TopicAt
from verification.simulation.store import Store
from verification.simulation.world import World
from verification.world.manifest_rows import topic_of
from verification.world.stores.played_log import TableVersion

REWRITES = ("erase", "retain", "compact", "import", "restore", "roll", "vacuum")
LOOKED_AT = ("compact", "erase", "restore", "import")
ALL_PARTITIONS = ("create", "restore", "delete")
MOVED = "moved"
"""The topic that is promoted to and fro: promotions.py has its judge."""

COLUMNS = ["partition", "offset", "key", "value", "timestamp"]

Saw = dict[int, list[tuple[int, Record]]]

Bounds = dict[int, list[int]]
"""{partition: [log start, log end, first dirty offset]}"""

SegmentRows = dict[tuple[str, int, int], tuple[Any, ...]]
"""{(path, partition, position): (base offset, next offset, state, bytes, topic id)}"""


@dataclass
class Judge:
    """What is known of all topics. `counts`: what there was to judge."""

    world: World
    store: Store
    root: str
    kafka: dict[int, KafkaStep] = field(default_factory=dict)
    topics: dict[str, SimulatedTopic] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    commit_ids: dict[str, int] = field(default_factory=dict)
    log: LogDir | None = None
    caches: Sequence[_RowCache] = ()
    _contents: dict[str, dict[Any, Any]] = field(default_factory=dict)
    _bounds_before: dict[str, Bounds] = field(default_factory=dict)

    def topic(self, name: str) -> SimulatedTopic:
        if name not in self.topics:
            self.topics[name] = SimulatedTopic(self.kafka)
        return self.topics[name]

    # Commits

    def landed(self, landed: Landed) -> None:
        """A commit is there. Raises where it is not what it has to be."""
        if landed.topic == MOVED:
            return
        operation, intent = landed.note.operation, landed.intent
        self.counts[f"commits: {operation}"] += 1
        times = self.commit_ids[landed.note.commit_id] = self.commit_ids.get(landed.note.commit_id, 0) + 1
        assert times == 1, "a commit is there twice"
        assert not intent.get("refused") or operation == Operation.MERGE_FILES, (
            f"it was refused: {intent.get('refused')}"
        )
        topic = self.topic(landed.topic)
        rows = self._segment_rows(landed)
        bounds: Bounds = self._all(landed.topic, landed.made, schemas.PARTITION_KIND)
        moved = self._moved(landed, bounds, rows)
        line: dict[str, Any] | None = None
        if operation == Operation.MERGE_FILES:
            for kind in schemas.SCHEMAS:
                same = self._all(landed.topic, landed.before, kind) == self._all(landed.topic, landed.made, kind)
                assert same, f"merging files changes no row of a {kind}"
        else:
            line = {
                "intent": intent,
                "partitions": moved,
                "segments": {} if rows is None else _segments(*rows, moved),
                "transactions": self._transactions(landed),
                "config": self._all(landed.topic, landed.made, schemas.TOPIC_KIND),
            }
        if operation == "append":
            if "erase" in intent:
                intent["append"] = self._tombstones(landed, topic, bounds, intent["erase"])
            wanted: AppendIntent = intent["append"]
            ends = {number: topic.partitions[number].end for number in wanted.records if number in topic.partitions}
            intent.setdefault("placed", []).append((landed.version, ends))
        self._bounds_before[landed.topic] = bounds
        touched = None if operation in ALL_PARTITIONS else moved.keys()
        commit = Commit(landed.version, landed.committed_ms, operation, line)
        at = topic.follow(commit, touched, self.world.now_us)
        there = {number: [one.start, one.end] for number, one in at.partitions.items()}
        assert there == {number: row[:2] for number, row in bounds.items()}, f"{there} is to be, and there is {bounds}"
        if "calls" in intent and operation != Operation.MERGE_FILES:
            intent["calls"].append((landed.topic, landed.version))
        if operation in LOOKED_AT and not at.is_deleted:
            self.look(landed.topic, at, sorted(moved), intent.get("erase", ()))
        for file in landed.change.removed:
            self._contents.pop(file.path, None)

    def _segment_rows(self, landed: Landed) -> tuple[SegmentRows, SegmentRows] | None:
        """The segment rows of the version before and of the version, where the judge needs them."""
        if landed.note.operation not in REWRITES or not landed.before.is_there:
            return None
        before, after = (self._all(landed.topic, at, schemas.SEGMENT_KIND) for at in (landed.before, landed.made))
        return before, after

    def _all(self, topic: str, at: TableVersion, kind: str) -> dict[Any, Any]:
        """The rows of a kind at a version, by what each of them is known by."""
        found: dict[Any, Any] = {}
        count = 0
        for file in at.files:
            if file.kind == kind:
                rows = self._content(topic, file)
                count += len(rows)
                found |= rows
        assert len(found) == count, "a row is there twice"
        return found

    def _content(self, topic: str, file: RowFile) -> dict[Any, Any]:
        if file.path not in self._contents:
            assert self.log is not None
            key = (self.log.uri, f"{MANIFEST_DIRECTORY}/{topic}", file.path)
            rows = next((rows for cache in self.caches if (rows := cache.get(key)) is not None), None)
            if rows is None:
                data = self.store.files[f"{self.root}/{key[1]}/{file.path}"].data
                rows = schemas.rows_in_file(pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False), file.kind)
            content = self._contents[file.path] = _by_identity(rows, file.kind)
            assert len(content) == rows.num_rows or file.kind == schemas.TOPIC_KIND, "a row is there twice"
        return self._contents[file.path]

    def _moved(self, landed: Landed, new: Bounds, rows: tuple[SegmentRows, SegmentRows] | None) -> Bounds:
        """The bounds of the partitions that the commit changes."""
        old = self._bounds_before.get(landed.topic, {})
        if landed.note.operation in ("create", "restore"):
            return new
        if landed.note.operation in ("vacuum", Operation.MERGE_FILES, "roll"):
            assert old == new, "it moves no offset"
            return {}
        changed = {number for number, row in new.items() if old.get(number) != row}
        if rows is not None:
            changed |= {identity[1] for identity, _ in rows[0].items() ^ rows[1].items()}
        return {number: new[number] for number in sorted(changed)}

    def _transactions(self, landed: Landed) -> dict[str, int]:
        """The transactions of the commit, by Delta's log; the rows of them say the same."""
        found = {action["txn"]["appId"]: action["txn"]["version"] for action in landed.actions if "txn" in action}
        by_rows = self._all(landed.topic, landed.made, schemas.TRANSACTION_KIND)
        assert found.items() <= by_rows.items(), f"the rows have {by_rows}, the log {found}"
        return {name.rpartition("@")[0]: version for name, version in found.items()}

    # Reads

    def look(self, topic: str, at: TopicAt, numbers: Collection[int], erased: Collection[bytes] = ()) -> None:
        """Reads a version past the faults, and from then on knows exactly what is in it.

        `erased`: keys whose records may be gone.
        """
        assert self.log is not None
        with self.world.outside():
            for number in numbers:
                if number in at.partitions:
                    saw = view(self.log, topic, at.version, number)
                    _forget(at.partitions[number], {offset for offset, _ in saw[number]}, erased)
                    self.compare(topic, at, saw, None)

    def _tombstones(
        self, landed: Landed, topic: SimulatedTopic, bounds: Bounds, keys: Collection[bytes]
    ) -> AppendIntent:
        """What an erasure appends: a tombstone for each of some keys, and nothing else."""
        assert self.log is not None
        found = {}
        with self.world.outside():
            for number, (_, end, _) in bounds.items():
                first = topic.partitions[number].end
                if first < end:
                    saw = view(self.log, landed.topic, landed.version, number)
                    found[number] = tuple(record for offset, record in saw[number] if offset >= first)
                    assert len(found[number]) == end - first, "an append without gaps"
        records = [record for of_partition in found.values() for record in of_partition]
        assert all(one.key in keys and one.value is None for one in records), f"tombstones of {keys}: {records}"
        return AppendIntent("eraser", None, found)

    def saw(self, topic: str, version: int, saw: Saw, bounds: Mapping[int, tuple[int, int]]) -> None:
        """A process has read a whole version."""
        at = self.topic(topic).versions.get(version)
        if at is not None:
            self.counts["reads compared"] += 1
            assert not at.is_deleted, "a deleted topic is read"
            assert bounds.keys() == at.partitions.keys(), "it has these partitions"
            self.compare(topic, at, saw, bounds)

    def compare(self, topic: str, at: TopicAt, saw: Saw, bounds: Mapping[int, tuple[int, int]] | None) -> None:
        for number, records in saw.items():
            partition = at.partitions[number]
            if bounds is not None:
                assert bounds[number] == (partition.start, partition.end), f"{topic}-{number} has these bounds"
            self.counts["records compared"] += len(records)
            partition.see([offset for offset, _ in records], digest(records))

    def newest(self, topic: str) -> int:
        """The latest version of a topic, -1 where it has none."""
        return max(self.topic(topic).versions, default=-1)


def view(
    log: LogDir,
    topic: str,
    version: int | None,
    partition: int | None = None,
    start: int | None = None,
    end: int | None = None,
) -> Saw:
    """The records of a version, or of a range of it, as a reader gets them."""
    found: Saw = {} if partition is None else {partition: []}
    for batch in (
        log.topic(topic, version=version).scan(partition=partition, offsets=(start, end), columns=COLUMNS).batches()
    ):
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows = (batch.column(name).to_pylist() for name in COLUMNS[:4])
        for number, offset, key, value, time_us in zip(*rows, times, strict=True):
            found.setdefault(number, []).append((offset, Record(key, value, time_us // 1000)))
    return found


def _forget(partition: PartitionModel, there: Collection[int], keys: Collection[bytes]) -> None:
    """Records of erased keys that are not there any more never were, also those that were cleaned before."""
    for offset in [at for at, record in partition.placed.items() if at not in there and record.key in keys]:
        del partition.placed[offset]
        partition.possible.discard(offset)
        partition.sure.discard(offset)
        partition.horizons.pop(offset, None)


def _by_identity(rows: pa.Table, kind: str) -> dict[Any, Any]:
    """The rows of a file of the manifest, by what each is known by: see `Bounds` and `SegmentRows`; of transactions
    {application and topic id, as Delta's log has them: version}, of the topic its settings.
    """

    def values(*names: str) -> Iterable[tuple[Any, ...]]:
        return zip(*(rows.column(name).to_pylist() for name in names), strict=True)

    match kind:
        case schemas.TOPIC_KIND:
            return dict(topic_of(rows).config)
        case schemas.PARTITION_KIND:
            names = ("partition", "log_start_offset", "log_end_offset", "first_dirty_offset")
            return {number: bounds for number, *bounds in values(*names)}
        case schemas.TRANSACTION_KIND:
            found = values("application_id", "topic_id", "version")
            return {f"{application}@{topic_id}": version for application, topic_id, version in found}
    names = ("path", "partition", "position", "base_offset", "next_offset", "state", "log_bytes", "topic_id")
    return {row[:3]: row[3:] for row in values(*names)}


def _segments(old: SegmentRows, new: SegmentRows, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """By partition, what a commit does to the rows of the log, in the words of the model of the long runs."""
    live = {key: row for key, row in old.items() if row[2] not in OUT_OF_LOG}
    kept = {key: row for key, row in new.items() if row[2] not in OUT_OF_LOG}
    _check_apart(kept)
    found = {}
    for number in numbers:
        mine = {key: row for key, row in live.items() if key[1] == number}
        gone = [row for key, row in mine.items() if key not in kept]
        changed = [row for key, row in new.items() if key[1] == number and old.get(key) != row]
        found[number] = {
            "log_bytes": sum(row[3] for row in mine.values()),
            "gone": sorted([row[0], row[1], row[3]] for row in gone),
            "all_gone": bool(mine) and len(gone) == len(mine),
            "reached": max((row[1] for row in changed), default=0),
        }
    return found


def _check_apart(live: Mapping[tuple[str, int, int], tuple[Any, ...]]) -> None:
    """Rows of the log do not overlap."""
    rows = sorted((key[1], row[0], row[1]) for key, row in live.items())
    for one, other in itertools.pairwise(rows):
        assert one[0] != other[0] or one[2] <= other[1], f"rows overlap: {one} and {other}"
