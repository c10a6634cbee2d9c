"""A topic whose jobs run on a schedule by a clock of its own, and whether what explain says of it comes true."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments import LogDir
from spark_segments.format import window
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.maintenance import compact, retain, roll, vacuum
from spark_segments.maintenance.explanation.explain import explain_record
from spark_segments.maintenance.explanation.record_explanation import Explanation, RecordState, TimeBounds
from verification.world.clock import store_clock
from verification.world.kafka_bytes.segment_bytes import batches_of
from verification.world.manifest_rows import Segment
from verification.world.topics import append_one_by_one, topic_with, under_policy

START_MS = 1_000_000
TOPIC = "orders"
JOBS = {"roll": roll, "retain": retain, "compact": compact, "vacuum": vacuum}


@dataclass(frozen=True)
class Written:
    """A record to append; its timestamp is so many ms after the clock, None: it has none."""

    key: str | None = None
    tombstone: bool = False
    size: int = 10
    ahead_ms: int | None = 0


@dataclass
class Told:
    """What was ever told of a moment: the latest earliest and the earliest latest one."""

    earliest_ms: float = -math.inf
    latest_ms: float = math.inf

    def add(self, window: TimeBounds | None) -> None:
        if window is not None:
            self.earliest_ms = max(self.earliest_ms, _or_never(window.earliest_ms))
            self.latest_ms = min(self.latest_ms, _or_never(window.latest_ms))

    def check(self, now_ms: int, what: object) -> None:
        assert self.earliest_ms <= now_ms <= self.latest_ms, (what, now_ms - START_MS, self)


@contextlib.contextmanager
def scheduled(
    log: LogDir, config: Mapping[str, object], every_ms: int, ago_ms: Mapping[str, int] | None = None
) -> Iterator[Schedule]:
    """A schedule whose clock is the store's as long as it lasts."""
    made: list[Schedule] = []
    with store_clock(lambda: made[0].now_ms if made else START_MS):
        made.append(Schedule(log, config, every_ms, ago_ms))
        yield made[0]


class Schedule:
    """Runs each job at most `every_ms` after it last ran, which was `ago_ms` before all begins.

    What is gone is seen in the files and rows themselves.
    `leaves`, `deleted` and `cleaned` have what was told of each offset: when it leaves the log, when no file has it,
    and by when cleaning has looked at it.
    """

    def __init__(
        self,
        log: LogDir,
        config: Mapping[str, object],
        every_ms: int,
        ago_ms: Mapping[str, int] | None = None,
    ) -> None:
        self.log = log
        self.every_ms = every_ms
        self.now_ms = START_MS
        self.ran_ms = {job: START_MS - (ago_ms or {}).get(job, 0) for job in JOBS}
        self.timestamps: list[int] = []
        self.leaves: list[Told] = []
        self.deleted: list[Told] = []
        self.cleaned: list[Told] = []
        self._records_of: dict[str, set[int]] = {}
        self._told_at_once: dict[int, Explanation] = {}
        topic_with(log, TOPIC, config)
        self.config = log.topic(TOPIC).config
        self._look()

    def append(self, records: Sequence[Written]) -> None:
        """Appends each as a batch and a chunk of its own, in one commit."""
        times = [-1 if one.ahead_ms is None else self.now_ms + one.ahead_ms for one in records]
        table = pa.table(
            {
                "key": pa.array([one.key and one.key.encode() for one in records], pa.binary()),
                "value": pa.array([None if one.tombstone else b"v" * one.size for one in records], pa.binary()),
                "timestamp": pa.array(times, pa.timestamp("ms")),
            }
        )
        with under_policy(self.log, TOPIC, "delete"):  # records without a key are from before it was compacted
            append_one_by_one(self.log, TOPIC, table)
        self.timestamps += times
        for told in (self.leaves, self.deleted, self.cleaned):
            told += [Told() for _ in times]
        self._look()

    def wait(self, until_ms: int) -> None:
        """Lets the clock go on; the jobs run when they have to."""
        while (due_ms := min(self.ran_ms.values()) + self.every_ms) <= until_ms:
            self.now_ms = due_ms
            for job in [job for job, ran_ms in self.ran_ms.items() if ran_ms + self.every_ms == due_ms]:
                self.run(job)
        self.now_ms = until_ms

    def wait_for_all(self) -> None:
        """Lets the clock go on until everything that was told of has happened."""
        told = [one.latest_ms for one in (*self.leaves, *self.deleted, *self.cleaned) if one.latest_ms < math.inf]
        self.wait(int(max(told, default=self.now_ms)) + 1)
        self.check_nothing_is_late()

    def run(self, job: str) -> None:
        """Runs a job now. What it makes disappear, and what it leaves, has to be what was told."""
        in_log, in_files = self.in_log, self.in_files
        report = JOBS[job](self.log, now_ms=self.now_ms)
        assert not report.failed
        self.ran_ms[job] = self.now_ms
        if report.partitions:
            self._look()
        for offset in in_log - self.in_log:
            self.leaves[offset].check(self.now_ms, f"offset {offset} left the log by {job}")
        for offset in in_files - self.in_files:
            self.deleted[offset].check(self.now_ms, f"offset {offset} was deleted by {job}")
        self.check_nothing_is_late()

    def check_nothing_is_late(self) -> None:
        first_dirty = self.snapshot.partition(0).first_dirty_offset
        for offset in range(len(self.timestamps)):
            for told, is_to_come in (
                (self.leaves, offset in self.in_log),
                (self.deleted, offset in self.in_files),
                (self.cleaned, offset >= first_dirty),
            ):
                assert not is_to_come or self.now_ms <= told[offset].latest_ms, (offset, told[offset], self.now_ms)

    def explain(self) -> None:
        """Asks about the first and the last offset of every file, and the next offset to be given out."""
        offsets = {0, len(self.timestamps)}
        for one in Segment.of_table(self.snapshot.segments):
            offsets |= {one.base_offset, one.next_offset - 1}
        for offset in sorted(offsets):
            known = self.timestamps[offset] if offset < len(self.timestamps) and self.timestamps[offset] >= 0 else None
            one, at_once = (
                explain_record(
                    self.snapshot, self.config, 0, offset, self.now_ms, every_ms=every_ms, timestamp_ms=known
                )
                for every_ms in (self.every_ms, 0)
            )
            self._check_coherence(offset, at_once)
            self._note(offset, one)

    def _check_coherence(self, offset: int, at_once: Explanation) -> None:
        """What is told later lies within what was told before, save that a job may come later than at once.

        Where an index may be full, only a look tells where a segment ends; and merging hides which chunk had a record.
        """
        if self.config.segment_index_bytes < 10 << 20:
            return
        delay_ms = self.config.file_delete_delay_ms + 1
        before = self._told_at_once.get(offset)
        if before is not None:
            for old, new, late_ms in (
                (before.leaves_log, at_once.leaves_log, self.now_ms),
                (before.files_deleted, at_once.files_deleted, self.now_ms + delay_ms),
            ):
                if old is not None and new is not None:
                    assert _or_never(new.earliest_ms) >= _or_never(old.earliest_ms), (offset, old, new)
                    assert _or_never(new.latest_ms) <= max(_or_never(old.latest_ms), late_ms), (offset, old, new)
        self._told_at_once[offset] = at_once

    def _note(self, offset: int, one: Explanation) -> None:
        if offset == len(self.timestamps):
            assert one.state == RecordState.NOT_WRITTEN
            return
        if one.segment is not None and offset not in self._records_of[one.segment.path]:
            assert self.config.compact  # cleaned away: the manifest does not tell
            return
        assert (one.leaves_log is not None) == (offset in self.in_log)
        assert (one.files_deleted is not None) == (offset in self.in_files) or self.config.compact
        self.leaves[offset].add(one.leaves_log)
        self.deleted[offset].add(one.files_deleted)
        for step in one.steps:
            if step.job == "compact":
                self.cleaned[offset].add(TimeBounds(0, step.facts["cleaned_by_ms"]))

    def _look(self) -> None:
        """`in_log` and `in_files`: the offsets of the records that a reader finds, and of those in any file."""
        self.snapshot = self.log.topic(TOPIC).manifest.snapshot()
        rows = Segment.of_table(self.snapshot.segments)
        for row in rows:
            if row.path not in self._records_of:
                self._records_of[row.path] = _offsets_in(self.log, row)
        start = self.snapshot.partition(0).log_start_offset
        self.in_log = {at for row in rows if row.is_live for at in self._records_of[row.path] if at >= start}
        files = [file.path for file in self.log.storage.list(f"{TOPIC}-0") if file.path.endswith(".log")]
        self.in_files = {offset for path in files for offset in self._records_of[path]}


def _or_never(at_ms: int | None) -> float:
    return math.inf if at_ms is None else at_ms


def _offsets_in(log: LogDir, segment: Segment) -> set[int]:
    data = np.frombuffer(log.storage.read(segment.path).to_pybytes(), np.uint8)
    batches = batches_of(data)
    decoded = decode_batches(
        window.Window(data, batches, offset_shift=segment.offset_shift),
        topic=TOPIC,
        partition=segment.partition,
        columns=("offset",),
    )
    return {offset for batch in decoded for offset in batch.column(0).to_pylist()}
