"""The job `index`: builds an index of a topic's keys, or on a field, where there is none, and keeps it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_segments.config import selected_topics
from spark_segments.errors import CommitConflictError, SegmentsError, UnknownTopicError
from spark_segments.execution import in_bins, run_tasks, task_slots, try_tasks
from spark_segments.extensions import observed_job
from spark_segments.keys.belief import CommitsSince, index_state, without_erased
from spark_segments.keys.build import BuildRun, Damaged, MergeRuns
from spark_segments.keys.hashes import HASH_BITS, hashes_to_find, seed_of
from spark_segments.keys.index_list import (
    CheckedVersion,
    IndexFiles,
    IndexList,
    SupersededRun,
    index_name,
    indexes,
    kept_indexes,
)
from spark_segments.keys.index_plan import RangeToIndex, merges_of, ranges_to_index, runs_within
from spark_segments.keys.index_swap import IndexPlan, commit_list
from spark_segments.keys.key_field import KEY_FIELD
from spark_segments.keys.remedies import unusable_formats_error
from spark_segments.keys.run import Run
from spark_segments.keys.run_file import find_in_run
from spark_segments.log import Erasure, LogDirectory, RecordField, Report, Snapshot
from spark_segments.progress import Progress, part_of
from spark_segments.quantities import Time, plural

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAVE_BYTES_A_SLOT = 2 << 30
"""A wave of ranges ends once it has so many bytes of log for each task slot, and is one commit: a job that is killed
loses the work of its last wave only."""

MOST_NAMED = 10
"""How many indexes a warning names at most."""

MOST_MERGES = 64
"""How many rounds of merges a run of the job makes at most."""


@observed_job("index")
def index(
    log: LogDirectory,
    *,
    topics: Sequence[str] | None = None,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Time | None = None,
    planned: dict[str, Snapshot] | None = None,
    drop: bool = False,
    existing: bool = False,
    hash_bits: int = HASH_BITS,
    on: Sequence[str] | None = None,
    formats: Mapping[str, str] | None = None,
) -> Report:
    """Indexes the keys of the topics, so that a look-up of a key reads few bytes: all that is not indexed yet.

    `on`: fields in place of keys, each with an index that is separate: the values of a header (header.trace-id), or a
    field of the decoded value or key (value.order.id), where `formats` (value.format and its companions) decode it. An
    index remembers its formats, without the credentials of a registry. Where they or the schema change, the next run
    builds it again.

    An index is derived: a scan gives the same records without it, and `drop` takes it away: that of keys, or those
    `on` fields. `existing`: all indexes that a topic has are updated, and no other. With `spark` its executors read the
    log, a task a range. A run of the job that is killed loses its last wave. `hash_bits`: of each key's hash, for a new
    index.

    A line in the report has the offsets and records that were indexed in a partition, and the bytes of its index; on a
    decoded field also how many records are `undecodable`: look-ups pass them over, as value.errors=null does. Raises
    UnknownTopicError, LogDirError for a directory of Kafka's. A topic that fails has a line, as in `Report`.
    """
    log.check_writable()
    report = Report("index", dry_run)
    for field in on or ():
        log.values.check_field(field)
    fields = {index_name(field): field for field in ([""] if on is None else on)}
    missing = {*fields} if drop else set()
    selected = selected_topics(log.topics(), topics)
    for topic in selected:
        for name in indexes(log.storage, topic) if existing else fields:
            update = IndexUpdate(log, IndexFiles(log.storage, topic, name), report, spark, progress, hash_bits)
            update = replace(update, on=fields.get(name), formats=formats)
            try:
                before = update.files.newest_list()
                if (existing or drop) and not before.is_kept:
                    continue
                missing.discard(name)
                if drop:
                    update.take_away()
                else:
                    update.run(before)
            except UnknownTopicError:
                if topics is not None and topic in topics:
                    raise
            except SegmentsError as error:
                missing.discard(name)
                report.fail(topic, None, error)
    for name in sorted(missing, key=[*fields].index):
        named = [f"{topic}: {what}" for topic in selected for what in kept_indexes(log.storage, topic)]
        found = ", ".join(named[:MOST_NAMED] or ["none"]) + (", …" if len(named) > MOST_NAMED else "")
        report.warn(f"There is no index on {fields[name] or 'keys'} to drop. Indexes: {found}")
    return report.finish()


@dataclass(frozen=True, slots=True)
class IndexUpdate:
    """An update of the index of a topic under way."""

    log: LogDirectory
    files: IndexFiles
    report: Report
    spark: SparkSession | None = None
    progress: Progress | None = None
    hash_bits: int = HASH_BITS
    on: str | None = None
    formats: Mapping[str, str] | None = None

    def run(self, before: IndexList) -> None:
        """Indexes what no believed run has, wave by wave, then merges runs."""
        snapshot = self._snapshot()
        field = self._field(snapshot, before)
        if self.report.dry_run:
            is_same = before.fingerprint == field.fingerprint
            self._note_plan(snapshot, self._checked(before, snapshot) if is_same else IndexList(), field)
            return
        # In this order: an index begins before the topic is read. An erasure that commits in between finds the list,
        # and has to be the next one.
        self._commit(lambda state: self._begun(state, snapshot, field))
        snapshot = self._snapshot()
        newest = self._commit(self._with_files)
        if newest.topic_id != snapshot.topic_id or newest.is_dropped or newest.fingerprint != field.fingerprint:
            raise self._overtaken(snapshot)
        ranges = ranges_to_index(self.log.storage, snapshot, newest.runs, field)
        done = undecodable = 0
        for wave in self._waves(ranges):
            part = part_of(self.progress, done, len(wave), len(ranges))
            undecodable += sum(run.undecodable for run in self._build(snapshot, newest, field, wave, part))
            done += len(wave)
        if undecodable:
            records = f"{plural(undecodable, 'record')} of {self.files.topic}"
            text = f"{records} cannot be decoded: a look-up of {field.on} passes them over, as value.errors=null does"
            self.report.warn(text)
        self._merge()
        self._note_state(snapshot)

    def take_away(self) -> None:
        """Takes the index away: its files go with vacuum."""
        lines = self.files.newest_list().runs
        if not self.report.dry_run:

            def dropped(state: IndexList) -> IndexList | None:
                return replace(self._emptied(state), is_dropped=True) if state.is_kept else None

            self._commit(dropped)
        for partition in sorted({run.partition for run in lines}):
            own = [run for run in lines if run.partition == partition]
            records, size_bytes = (sum(getattr(run, name) for run in own) for name in ("records", "size_bytes"))
            figures = {"runs": len(own), "entries": records, "index_bytes": size_bytes}
            self.report.add(self.files.topic, partition, "drop", **_named(self.on), **figures)

    def check(self, *, keys: Sequence[bytes] | None = None, at_once: bool = False) -> IndexList:
        """Takes out of the list what was erased, and what does not hold any more, up to the newest version of the
        topic. `keys`: those that were erased; None where nobody knows them, so that all runs of before the erasure go.
        It commits a list in any case: a job that read before it is overtaken. `at_once`: the next vacuum deletes the
        files of the runs that leave the list.
        """

        def checked(state: IndexList) -> IndexList | None:
            after: IndexList | None = None
            if state.is_damaged:  # which runs have the keys, nobody can tell
                after = self._begun(state, self._snapshot(), state)
                after = replace(after, is_dropped=index_name(state.on) != self.files.index)
            elif state.exists:
                after = self._checked(state, self._snapshot(), erased_keys=keys)
            if after is None or not at_once:
                return after
            return replace(after, superseded=tuple(replace(run, since_ms=0) for run in after.superseded))

        return self._commit(checked)

    def delete_left_runs(self) -> None:
        """Lets the next vacuum delete the runs that left the index, where it was dropped, and all of an index whose
        topic is gone.
        """

        def left(state: IndexList) -> IndexList | None:
            is_gone = state.is_kept and not self.log.is_there(self.files.topic)
            after = self._emptied(state) if is_gone else state
            after = replace(after, superseded=tuple(replace(run, since_ms=0) for run in after.superseded))
            return None if after == state else after

        self._commit(left)

    # Steps

    def _snapshot(self) -> Snapshot:
        return self.log.manifest(self.files.topic).snapshot()

    def _field(self, snapshot: Snapshot, before: IndexList) -> RecordField:
        """The field to index: with the job's formats or, where it has none, with those of the index of before."""
        on = before.on if self.on is None else self.on
        if index_name(on) != self.files.index:
            raise self.files.damage(before)
        if not on:
            return KEY_FIELD
        if self.formats is not None or not before.formats:
            return self.log.values.field(snapshot, on, self.formats or {})
        try:
            return self.log.values.field(snapshot, on, before.formats)
        except SegmentsError as error:
            raise unusable_formats_error(self.files.topic, before, error) from error

    def _commit(self, plan: IndexPlan) -> IndexList:
        return commit_list(self.files, plan)

    def _begun(self, state: IndexList, snapshot: Snapshot, field: RecordField | IndexList) -> IndexList:
        """The list, or that of a new index where there is none of this topic id, and of this field."""
        if state.exists and state.topic_id == snapshot.topic_id and state.fingerprint == field.fingerprint:
            return state
        return replace(
            self._emptied(state),
            on=field.on,
            formats=field.formats,
            fingerprint=field.fingerprint,
            topic_id=snapshot.topic_id,
            hash_bits=self.hash_bits,
            seed=seed_of(snapshot.topic_id),
            is_dropped=False,
            checked_version=snapshot.version,
            checked_commit_id=self._commit_id(snapshot),
        )

    def _emptied(self, state: IndexList) -> IndexList:
        """The list without runs. Of a damaged list all files of runs leave the index, also what a job writes now: it
        finds its runs gone, and builds them again.
        """
        storage = self.log.storage
        now_ms = storage.now_ms()
        if not state.is_damaged:
            return state.with_runs((), now_ms)
        # The damaged list may have been that of an erasure after which the files were not to wait.
        snapshot = self.log.manifest(self.files.topic).snapshot(deleted=True)
        at_once = any(erasure.history for erasure in Erasure.of(snapshot))
        since_ms = {run.path: run.since_ms for run in state.superseded}
        paths = [info.path for info in storage.list(f"{self.files.directory}/runs")]
        superseded = (SupersededRun(path, 0 if at_once else since_ms.get(path, now_ms)) for path in paths)
        # Where no earlier list can be read either, nobody can tell what it was an index of.
        is_dropped = index_name(state.on) != self.files.index
        return replace(state, superseded=tuple(superseded), is_damaged=False, is_dropped=is_dropped)

    def _commit_id(self, snapshot: Snapshot) -> str:
        """The id of the commit that made a version; "" where it is gone, so that no run is believed."""
        facts = self.log.manifest(snapshot.topic).facts(snapshot.version)
        return "" if facts is None else facts.commit_id

    def _checked_now(self, state: IndexList) -> IndexList | None:
        """The list, checked up to the newest version of the topic."""
        return self._checked(state, self._snapshot()) if state.exists else None

    def _with_files(self, state: IndexList) -> IndexList | None:
        """As `_checked_now`, without runs whose file is missing or cut: they are built again."""
        after = self._checked_now(state)
        if after is None:
            return None
        listed = self.log.storage.list(f"{self.files.directory}/runs")
        sizes = {info.path: info.size for info in listed}
        runs = [run for run in after.runs if sizes.get(run.path) == run.size_bytes]
        return after.with_runs(runs, self.log.storage.now_ms())

    def _checked(
        self,
        state: IndexList,
        snapshot: Snapshot,
        built: Sequence[Run] = (),
        erased_keys: Sequence[bytes] | None = None,
    ) -> IndexList:
        """The list, checked up to a snapshot: with the runs that hold there and have nothing that was erased, and with
        the runs that were `built` and hold there, too, as far as no other job was first. `erased_keys`: those of the
        erasure that asks, None for a job that knows of no keys.
        """
        if state.topic_id != snapshot.topic_id:  # it is of a topic of this name that was deleted
            return state.with_runs((), self.log.storage.now_ms())
        commits = CommitsSince.read(self.log.manifest(snapshot.topic), state.checked, snapshot.version)
        starts = {number: start for number, (start, _) in snapshot.offset_bounds().items()}
        runs = commits.believed(runs_within(state, starts))
        if erased_keys is None or state.on:  # the hash of a field's value is no hash of a key
            runs = without_erased(runs, snapshot, state.checked)
        else:
            runs = self._without_keys(state, runs, erased_keys)
        for run in built:
            if not any(run.overlaps(other.partition, other.base_offset, other.end_offset) for other in runs):
                runs.append(run)
        checked = state.with_runs(runs, self.log.storage.now_ms())
        return replace(checked, checked_version=snapshot.version, checked_commit_id=self._commit_id(snapshot))

    def _without_keys(self, state: IndexList, runs: Sequence[Run], keys: Sequence[bytes]) -> list[Run]:
        """The runs that have no record of these keys, whether it is in the log or left it. What cannot be read goes."""
        hashes = hashes_to_find(keys, state.seed, state.hash_bits)
        ask = partial(find_in_run, self.log.storage, state.topic_id, hashes, state.hash_bits)
        answers = list(self.log.storage.at_once(ask, runs))
        return [run for run, answer in zip(runs, answers, strict=True) if answer is not None and not answer.has_records]

    # Runs

    def _waves(self, ranges: Iterable[RangeToIndex]) -> Iterable[list[RangeToIndex]]:
        most_bytes = WAVE_BYTES_A_SLOT * task_slots(self.spark)
        return in_bins(ranges, lambda task: task.log_bytes, lambda _, total, task: total + task.log_bytes > most_bytes)

    def _build(
        self,
        snapshot: Snapshot,
        newest: IndexList,
        field: RecordField,
        wave: Sequence[RangeToIndex],
        progress: Progress | None,
    ) -> list[Run]:
        """Builds the runs of some ranges, and commits them. Returns those that came into the index."""
        read = CheckedVersion(snapshot.topic_id, snapshot.version, self._commit_id(snapshot))
        build = BuildRun(
            self.log.storage,
            self.files.directory,
            snapshot.topic_id,
            snapshot.version,
            newest.seed,
            newest.hash_bits,
            field,
        )
        at_a_time = self.log.storage.tasks_at_a_time
        results = try_tasks(build, wave, self.spark, progress=progress, at_a_time=at_a_time)
        for task, result in zip(wave, results, strict=True):
            if isinstance(result, SegmentsError):
                self.report.fail(self.files.topic, task.partition, result)
        built = [result for result in results if isinstance(result, Run)]
        committed = self._commit_built(read, built, field.fingerprint)
        for run in committed:
            further: dict[str, Any] = {"undecodable": run.undecodable} if run.undecodable else {}
            self.report.add(
                self.files.topic, run.partition, "index", **_named(field.on),
                start=run.base_offset, end=run.end_offset, entries=run.records, index_bytes=run.size_bytes, **further,
            )  # fmt: skip
        return committed

    def _commit_built(self, read: CheckedVersion, built: Sequence[Run], fingerprint: str) -> list[Run]:
        """Adds runs to the index. Returns those that came into it, and deletes the files of the others. `fingerprint`:
        of the field that they are on.
        """

        def added(state: IndexList) -> IndexList | None:
            snapshot = self._snapshot()
            if not state.exists or not state.topic_id == snapshot.topic_id == read.topic_id:
                return None
            if state.fingerprint != fingerprint:  # another job has begun it with other formats
                return None
            # Not from the version up to which the list was checked: another job may have moved that beyond an erasure
            # that came after `read`, the version of which the runs were built.
            commits = CommitsSince.read(self.log.manifest(snapshot.topic), read, snapshot.version)
            return self._checked(state, snapshot, without_erased(commits.believed(built), snapshot, read))

        return self._settled(self._commit(added), built)

    def _settled(self, newest: IndexList, built: Iterable[Run]) -> list[Run]:
        """The runs that are in a list. The files of the others are deleted: no list ever named them."""
        paths = {run.path for run in newest.runs}
        lost = [run.path for run in built if run.path not in paths]
        with contextlib.suppress(SegmentsError):  # vacuum finds them
            self.log.storage.delete(lost)
        return [run for run in built if run.path in paths]

    def _merge(self) -> None:
        """Merges runs by levels, until there is nothing to merge."""
        storage = self.log.storage
        for _ in range(MOST_MERGES):
            newest, snapshot = self.files.newest_list(), self._snapshot()
            starts = {number: start for number, (start, _) in snapshot.offset_bounds().items()}
            # Runs below the log start have nothing that a merge could keep. The next check takes them out of the list.
            tasks = merges_of(runs_within(newest, starts))
            if not tasks or newest.topic_id != snapshot.topic_id:
                return
            merge = MergeRuns(storage, self.files.directory, newest.topic_id, starts)
            results = run_tasks(merge, tasks, self.spark, at_a_time=storage.tasks_at_a_time)
            merged = list(zip(tasks, results, strict=True))
            after = self._commit(partial(_with_merged, merged, storage.now_ms()))
            self._settled(after, [result for result in results if isinstance(result, Run)])

    # The report

    def _note_plan(self, snapshot: Snapshot, before: IndexList, field: RecordField) -> None:
        """The lines of a dry run: what would be indexed."""
        runs = before.runs if before.exists and before.topic_id == snapshot.topic_id else ()
        for task in ranges_to_index(self.log.storage, snapshot, runs, field):
            self.report.add(
                self.files.topic, task.partition, "index", **_named(field.on),
                start=task.base_offset, end=task.end_offset, log_bytes=task.log_bytes,
            )  # fmt: skip

    def _note_state(self, snapshot: Snapshot) -> None:
        """The details of the report: what the index is now."""
        topic, newest = self.files.topic, self.files.newest_list()
        state = index_state(newest, self.log.manifest(topic), snapshot)
        details = self.report.details.setdefault(topic, {})
        if newest.on:
            details.setdefault("field_indexes", {})[newest.on] = state
        else:
            details.update(state)

    def _overtaken(self, snapshot: Snapshot) -> CommitConflictError:
        return CommitConflictError(
            f"The index of {snapshot.topic} was dropped, or its topic made again, while this job ran",
            path=self.files.location,
            hint="Run it again",
        )


def _named(on: str | None) -> dict[str, Any]:
    """What a line of the report says of an index: the field that it is on."""
    return {"on": on} if on else {}


def _with_merged(
    merged: Sequence[tuple[Sequence[Run], Run | Damaged]], now_ms: int, state: IndexList
) -> IndexList | None:
    """The list with merged runs in place of their parts, where all of these are in it; and without damaged runs."""
    if not state.exists:
        return None
    runs = {run.path: run for run in state.runs}
    for parts, result in merged:
        if not all(run.path in runs for run in parts):
            continue
        leaving = parts if isinstance(result, Run) else result.runs
        for run in leaving:
            runs.pop(run.path, None)
        if isinstance(result, Run):
            runs[result.path] = result
    after = state.with_runs([*runs.values()], now_ms)
    return None if {run.path for run in after.runs} == {run.path for run in state.runs} else after
