"""The compaction job: plans which partitions are cleaned and by how many tasks, runs the tasks and reports.

Kafka's cleaner does the same with threads of a broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import ServerConfig, server_config
from spark_segments.execution import run_tasks, task_slots
from spark_segments.extensions import observed_job
from spark_segments.format.cleaner.latest_keys import LatestKeys
from spark_segments.log.directory import LogDirectory
from spark_segments.log.eras import Eras
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import ErasedTombstones
from spark_segments.log.reading.scan import Scan
from spark_segments.log.reading.scan_plan import Part, ScanPart, Selection
from spark_segments.log.report import Report
from spark_segments.maintenance.compaction.compaction_plan import CompactionCandidate, count_large, plan_compaction
from spark_segments.maintenance.compaction.partition_cleaner import PartitionResult, clean_partition
from spark_segments.maintenance.compaction.round import CleanerSettings
from spark_segments.maintenance.compaction.round_tasks import ONE_TASK, RoundTasks
from spark_segments.maintenance.job import Job
from spark_segments.progress import Progress, part_of
from spark_segments.quantities import Time
from spark_segments.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_Task = tuple[CleanerSettings, CompactionCandidate]

MOST_HELD_KEYS = 1 << 20
"""Upper bound on the keys of a topic whose tombstones are looked for in other partitions. Of more than that, all
tombstones stay."""

_READ = Selection(("key", "partition", "value"), value_type=Selection.BINARY_VIEW)
_KEY = ["key", "partition"]
_SCHEMA = pa.schema([pa.field("key", pa.binary()), pa.field("partition", pa.int32())])
_NEVER = np.iinfo(np.int64).max


def _clean_partition(storage: Storage, clean_round: RoundTasks, task: _Task) -> PartitionResult:
    """Task function: cleans a partition, in this task alone or with the help of others."""
    settings, candidate = task
    target = candidate.first_uncleanable_offset
    return clean_partition(
        storage, settings, candidate.partition, target, clean_round=clean_round, cleans_again=candidate.is_clean
    )


@observed_job("compact")
def compact(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    force: bool = False,
    max_partitions: int | None = None,
    planned: dict[str, Snapshot] | None = None,
) -> Report:
    """Compacts the partitions of compacted topics that are due at `now_ms`, the dirtiest first.

    `force` takes all partitions with cleanable bytes, or with a tombstone whose delete horizon has passed. Those of
    an erasure need no force: see `plan_compaction`. `max_partitions` bounds how many are done. A partition is one
    task, and the largest ones begin first. A partition that is a large part of the whole work (see `count_large`) is
    done by many tasks, before the others; a group of its segments that is a large part of it is done by one task of
    several threads. Each round of a partition is one commit. A partition that fails, for a damaged file say, is left to
    the next run: see `Report`. If it fails in a later round, its line has the figures of the rounds before, which
    stand. Records without a key are removed, as Kafka's cleaner does, with one warning for each topic.

    On Spark every slot of an executor runs a task; a task of several threads has as many as there are slots. In this
    process there are log.cleaner.threads. A task adds at most log.cleaner.dedupe.buffer.size to the memory of an idle
    worker, for the offset map, a quarter of it for the notes of the first pass, and 100 MiB a thread for windows of
    8 MiB of the segments. That is 260 MiB for a thread by default, however large the segments, however many the keys,
    and however well they compress. Only a record batch that is larger than a window takes more: a few times its
    decompressed size. In this process all maps together share the buffer. On Spark the driver merges the maps of a
    large partition: it holds one such map, too.

    A dry run reads what the run would read, to count what it would drop: in the first round, where the map does not
    hold all keys. After other jobs' dry runs (`planned`) it reads nothing of topics that those would change.
    """
    job = Job.of("compact", log, topics, spark, dry_run, progress, now_ms, planned)
    server = server_config({}, log.defaults)
    candidates: list[tuple[Snapshot, CompactionCandidate]] = []
    for snapshot, config in job.snapshots("compact"):
        if server.log_cleaner_enable:
            erased = ErasedTombstones.of(snapshot.states)
            plan = plan_compaction(snapshot.live, snapshot.partitions, config, job.now_ms, force=force, erased=erased)
            candidates += [(snapshot, candidate) for candidate in plan]
    candidates.sort(key=lambda pair: -pair[1].ratio)
    picked = [(snapshot, candidate) for snapshot, candidate in candidates if candidate.picked][:max_partitions]
    if dry_run:
        _report_plan(job, server, candidates, picked)
    else:
        _compact_picked(job, server, picked)
    return job.report.finish()


def _report_plan(
    job: Job,
    server: ServerConfig,
    candidates: Sequence[tuple[Snapshot, CompactionCandidate]],
    picked: Sequence[tuple[Snapshot, CompactionCandidate]],
) -> None:
    """A dry run's lines: all candidates, and of those that would be cleaned what would be dropped."""
    within = {(snapshot.topic, candidate.partition) for snapshot, candidate in picked}
    results = _counted(job, server, picked)
    for snapshot, candidate in candidates:
        place = (snapshot.topic, candidate.partition)
        result = results.get(place)
        if result is not None and result.error is not None:
            job.report.fail(*place, result.error)
            continue
        figures = {} if result is None else result.counts()
        job.report.add(snapshot.topic, **candidate.line(is_within=place in within) | figures)
    for _, candidate in picked:
        job.report.count(clean_bytes=candidate.clean_bytes, cleanable_bytes=candidate.cleanable_bytes)


def _compact_picked(job: Job, server: ServerConfig, picked: Sequence[tuple[Snapshot, CompactionCandidate]]) -> None:
    records_without_key: Counter[str] = Counter()
    for (settings, _), result in _run(job, server, _tasks(job, server, picked)):
        # Rounds before the one that failed are committed: their figures are no failure.
        if result.error is not None and not result.rounds:
            job.report.fail(settings.topic, result.partition, result.error)
        elif result.rounds or result.lost:
            job.report.add(settings.topic, **result.line())
        # Else nothing was to be cleaned after all: by its rows alone, a segment may have a tombstone that is due.
        records_without_key[settings.topic] += result.stats.no_key
    for name, count in records_without_key.items():
        if count:
            job.report.warn(
                f"Topic {name} is compacted and held {count:,} records without a key, appended before it was or "
                "imported: compaction has removed them, as Kafka's cleaner does"
            )


def _counted(
    job: Job, server: ServerConfig, picked: Sequence[tuple[Snapshot, CompactionCandidate]]
) -> dict[tuple[str, int], PartitionResult]:
    """{(topic, partition): what a run would drop}, without topics that other jobs of a dry run would change before: the
    segments that those would make are nowhere.
    """
    existing = [(snapshot, candidate) for snapshot, candidate in picked if snapshot.topic not in (job.planned or {})]
    tasks = [(replace(settings, counts_only=True), candidate) for settings, candidate in _tasks(job, server, existing)]
    return {(settings.topic, result.partition): result for (settings, _), result in _run(job, server, tasks)}


def _tasks(job: Job, server: ServerConfig, picked: Sequence[tuple[Snapshot, CompactionCandidate]]) -> list[_Task]:
    """A task for each partition, the largest first."""
    log = job.log
    partitions: dict[str, list[int]] = defaultdict(list)
    for snapshot, candidate in picked:
        partitions[snapshot.topic].append(candidate.partition)
    settings = {
        snapshot.topic: CleanerSettings(
            snapshot.topic,
            snapshot.topic_id,
            log.defaults,
            job.now_ms,
            server.log_cleaner_dedupe_buffer_size,
            server.log_cleaner_io_buffer_load_factor,
            log.open_delta_log,
            _held_keys(job, snapshot, partitions[snapshot.topic]),
        )
        for snapshot in {snapshot.topic: snapshot for snapshot, _ in picked}.values()
    }
    tasks = [(settings[snapshot.topic], candidate) for snapshot, candidate in picked]
    return sorted(tasks, key=lambda task: -task[1].log_bytes)


def _run(job: Job, server: ServerConfig, tasks: Sequence[_Task]) -> Iterator[tuple[_Task, PartitionResult]]:
    """Cleans partitions: the large ones one after the other by many tasks, then all others side by side."""
    storage = job.storage
    spark = job.spark
    threads = server.log_cleaner_threads if spark is None else None  # of this process
    slots = threads or task_slots(spark)
    large = count_large([candidate.log_bytes for _, candidate in tasks], slots)
    if large:
        # Threads share the map's memory: two parts for the first, whose map takes in the others, one for each of those.
        parts = 1 if threads is None else threads + 1
        slice_bytes = tasks[0][0].map_bytes // parts
        many = RoundTasks(slots, slice_bytes, slice_bytes * min(parts, 2), spark)
        clean = partial(_clean_partition, storage, many)
        progress = part_of(job.progress, 0, large, len(tasks))
        results = run_tasks(clean, tasks[:large], at_a_time=1, progress=progress)
        yield from zip(tasks, results, strict=False)
    others = tasks[large:]
    at_a_time = None if threads is None else max(1, min(len(others), threads))
    bounded = [
        (replace(settings, map_bytes=settings.map_bytes // (at_a_time or 1)), candidate)
        for settings, candidate in others
    ]
    clean = partial(_clean_partition, storage, ONE_TASK)
    progress = part_of(job.progress, large, len(others), len(tasks))
    yield from zip(others, run_tasks(clean, bounded, spark, at_a_time=at_a_time, progress=progress), strict=True)


def _held_keys(job: Job, snapshot: Snapshot, partitions: Collection[int]) -> pa.Array | None:
    """binary[n]: the keys of which cleaning these partitions keeps the tombstones; None: it keeps all tombstones.

    Such a tombstone stays although its time has come: another partition has an older value of the key. Partitions were
    added to the topic since, and the key moved to another one. Cleaning a partition removes what it has superseded
    itself; without the tombstone, the view latest would have the value of the other partition again.

    Nothing is read of a topic to which no partitions were added, or that has no tombstone whose time has come.
    """
    eras = Eras.of(snapshot)
    nothing = pa.array([], pa.binary())
    if eras is None or not eras.ends:
        return nothing
    due = _due_tombstones(snapshot, partitions, eras.ends[0], job.now_ms)
    parts = _parts(job.storage, snapshot, due)
    tombstones = _once(run_tasks(partial(_tombstones, job.storage), parts, job.spark))
    keys = tombstones.column("key").unique()
    if len(keys) > MOST_HELD_KEYS:
        return None
    if not len(keys):
        return nothing
    earlier = {number: (0, end) for number, end in enumerate(eras.ends[-1])}
    parts = _parts(job.storage, snapshot, earlier)
    values = _once(run_tasks(partial(_values, job.storage, keys), parts, job.spark))
    both = values.join(tombstones, "key", right_suffix="_of_tombstone", join_type="inner")
    elsewhere = pc.not_equal(both.column("partition"), both.column("partition_of_tombstone"))
    return both.filter(elsewhere).column("key").unique()


def _parts(storage: Storage, snapshot: Snapshot, offsets: Mapping[int, tuple[int, int]]) -> list[ScanPart]:
    return list(Scan.of(storage, snapshot, offsets=offsets, selection=_READ).parts(Part.DEFAULT_BYTES))


def _due_tombstones(
    snapshot: Snapshot, partitions: Collection[int], first: Sequence[int], now_ms: int
) -> dict[int, tuple[int, int]]:
    """Offsets that have all tombstones which cleaning may drop, and which came after partitions were first added."""
    due = {}
    for number in partitions:
        rows = snapshot.live_table(number)
        begin = first[number] if number < len(first) else 0
        horizon = pc.fill_null(rows.column("delete_horizon_ms"), _NEVER).to_numpy()
        base = rows.column("base_offset").to_numpy()
        following = rows.column("next_offset").to_numpy()
        is_due = np.flatnonzero((horizon <= now_ms) & (following > begin))
        if len(is_due):
            # Clipped to where partitions were first added: no key of a tombstone before has an older value elsewhere.
            due[number] = (max(begin, int(base[is_due[0]])), int(following[is_due[-1]]))
    return due


def _tombstones(storage: Storage, part: ScanPart) -> pa.Table:
    """Task function: the keys of a part that have a tombstone, each with its partition."""
    return _keys_with(
        storage, part, lambda batch: pc.and_(batch.column("value").is_null(), batch.column("key").is_valid())
    )


def _values(storage: Storage, keys: pa.Array, part: ScanPart) -> pa.Table:
    """Task function: the keys among `keys` that have a value in a part, each with its partition."""
    latest_keys = LatestKeys.of(keys)
    return _keys_with(
        storage,
        part,
        lambda batch: pc.and_(batch.column("value").is_valid(), pa.array(latest_keys.contains(batch.column("key")))),
    )


def _keys_with(storage: Storage, part: ScanPart, condition: Callable[[pa.RecordBatch], pa.Array]) -> pa.Table:
    return _once(
        [pa.Table.from_batches([batch.select(_KEY).filter(condition(batch))]) for batch in Scan.read(storage, [part])]
    )


def _once(tables: Sequence[pa.Table]) -> pa.Table:
    every = pa.concat_tables([_SCHEMA.empty_table(), *tables], promote_options="default")
    return every.group_by(_KEY).aggregate([])
