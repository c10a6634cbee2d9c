"""A pass over a topic of a running cluster.

A partition is read as a follower reads it, up to the high watermark. What is fetched is checked (whole batches, their
CRC, rising offsets), written as chunks, and committed with what follows from the batches: the last stable offset,
producers, aborted transactions, leader epochs. The log end here says where the next pass goes on.
"""

from __future__ import annotations

import base64
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from spark_segments.errors import (
    CommitConflictError,
    CorruptBatchError,
    SegmentsError,
)
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.legacy.upconvert import as_magic_2
from spark_segments.format.sidecars.checkpoints import leader_epochs_of
from spark_segments.format.sidecars.producer_state import (
    ProducerState,
    aborted_transactions,
    parse_producer_snapshot,
    producer_snapshot_bytes,
)
from spark_segments.format.window import Window
from spark_segments.kafka_protocol.capture_branches import CAPTURE, is_here, name_here
from spark_segments.kafka_protocol.source import (
    EARLIEST,
    FIRST_PAUSE_SECONDS,
    LATEST,
    LONGEST_PAUSE_SECONDS,
    OFFSET_OUT_OF_RANGE,
    Fetched,
    SourceCluster,
    SourceError,
    SourceTopic,
    error_of,
    patient,
)
from spark_segments.log.kafka.imported_settings import kept_settings
from spark_segments.log.kafka.segment_scan import UNKNOWN_TOMBSTONES
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.captured import SOURCE_TOPIC_ID, Captured, captured_of, with_captured
from spark_segments.log.manifest.change import CREATE, Change
from spark_segments.log.manifest.holes import REMOVED_BEFORE, Hole, with_holes
from spark_segments.log.manifest.manifest import Manifest
from spark_segments.log.manifest.rows import SEALED, Partition, Segment, partitions_of
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role
from spark_segments.log.manifest.topic_row import TopicRow
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.writer import MAX_RELATIVE_OFFSET, SegmentWriter

COMMIT_BYTES = 256 << 20
"""So much is written before it is committed, unless the end is reached before."""

_NOTE_SHARE = 8  # of delete.retention.ms, within which it is not noted again that all is here
_WAYS_OUT = (
    "With --on-divergence branch what is here stays, and a new copy goes on in another topic here. Or delete this topic"
)
_LATE = (
    "partitions {} were captured later than delete.retention.ms after the time before: tombstones and abort markers "
    "may be missing, so that deleted keys are still here. --recapture makes a true copy"
)


class DivergedError(SegmentsError):
    """The cluster's log is not the one that was captured."""


@dataclass(slots=True)
class _Partition:
    """A partition under way. `row`, `noted`: as committed; `next_offset`: of the fetch that is due; `goal`: the high
    watermark that the pass reaches, None before the first answer; `high_watermark`: as seen last; `hole_start`: where
    offsets began that are gone; `fetched`: batches below `next_offset` that are to be written, and where a segment
    begins that they begin.
    """

    row: Partition
    noted: Captured
    producers: ProducerState
    next_offset: int
    epochs: tuple[tuple[int, int], ...]
    goal: int | None = None
    high_watermark: int | None = None
    hole_start: int | None = None
    fetched: tuple[Window, int] | None = None
    writer: SegmentWriter | None = None
    chunks: list[Segment] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return self.goal is not None and self.next_offset >= self.goal

    @property
    def place(self) -> tuple[int, int]:
        """The offset of the fetch that is due, and the epoch of the record before."""
        return self.next_offset, self.last_epoch

    @property
    def last_epoch(self) -> int:
        """The epoch of the record before `next_offset`; -1 where it is not here."""
        known = [epoch for epoch, start in self.epochs if start < self.next_offset]
        return known[-1] if known and self.hole_start is None else -1


class TopicCapture:
    """A pass over a topic."""

    def __init__(
        self,
        log: LogDir,
        source: SourceCluster,
        topic: SourceTopic,
        keep_retention: bool,
        patience_seconds: float,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:
        self._log, self._source, self._topic = log, source, topic
        self._keep_retention, self._patience, self._progress = keep_retention, patience_seconds, progress
        self._name = name_here(log, topic.name)
        self._manifest: Manifest = log.topic(self._name).manifest
        self._limits: SegmentLimits | None = None
        self._parts: dict[int, _Partition] = {}
        self._written = 0
        self._warnings: list[str] = []
        self._problems: dict[int, SegmentsError] = {}
        self._known: set[int] = set()  # partitions of which something is noted

    def run(self) -> dict[str, Any]:
        current = self._ready()
        self._limits = SegmentLimits.of(self._log.topic(self._name).config)
        noted, now_ms = captured_of(current.states), self._log.storage.now_ms()
        self._known = {*noted}
        self._parts = {
            row.partition: _Partition(
                row,
                noted.get(row.partition, Captured(now_ms, row.log_end_offset)),
                ProducerState(parse_producer_snapshot(row.producer_snapshot) if row.producer_snapshot else ()),
                row.log_end_offset,
                row.leader_epochs if row.log_end_offset > row.log_start_offset else (),
            )
            for row in partitions_of(current.partitions)
            if row.partition in self._topic.leaders
        }
        begun = {number: part.next_offset for number, part in self._parts.items()}
        counts = {"records": 0, "bytes": 0}
        holes: list[Hole] = []
        answered, pause = time.monotonic(), FIRST_PAUSE_SECONDS
        try:
            while due := self._due():
                moved, problem = self._step(due)
                if moved:
                    answered, pause = time.monotonic(), FIRST_PAUSE_SECONDS
                elif time.monotonic() - answered > self._patience:
                    raise problem or SourceError("The cluster gives no batches")
                elif self._due():
                    time.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                    self._refresh()
                if self._written >= COMMIT_BYTES:
                    self._commit(counts, holes)
                self._tell(begun)
        except (SourceError, CorruptBatchError, DivergedError):
            self._commit(counts, holes)  # what came before is good
            raise
        except BaseException as error:
            for part in self._parts.values():
                if part.writer is not None:
                    part.writer.__exit__(type(error), error, None)
            raise
        self._commit(counts, holes)
        if self._problems:
            raise next(iter(self._problems.values()))
        self._note_end()
        late = sorted(number for number, part in self._parts.items() if part.noted.late)
        if late:
            self._warnings.append(_LATE.format(", ".join(map(str, late))))
        return {
            "topic": self._name,
            "source": self._topic.name,
            "partitions": len(self._parts),
            **counts,
            "holes": [hole.to_dict() for hole in holes],
            "lag": sum(part.noted.lag(part.row.log_end_offset) for part in self._parts.values()),
            "late": bool(late),
            "branched": False,
            "warnings": self._warnings,
        }

    def _note(self, part: _Partition) -> Captured:
        """What is to be noted of a partition whose row is written next."""
        now_ms, config = self._log.storage.now_ms(), self._log.topic(self._name).config
        is_late = config.compact and now_ms - part.noted.at_ms > config.delete_retention_ms
        stable_end = part.noted.stable_end
        if is_late and not part.noted.late and part.row.last_stable_offset < part.row.log_end_offset:
            stable_end = part.row.last_stable_offset
        return Captured(
            now_ms if part.is_done else part.noted.at_ms,
            part.noted.high_watermark if part.high_watermark is None else part.high_watermark,
            is_late or part.noted.late,
            stable_end,
        )

    def _note_end(self) -> None:
        """Notes what changed of partitions that got nothing."""
        longest_ms = self._log.topic(self._name).config.delete_retention_ms // _NOTE_SHARE
        new = {number: self._note(part) for number, part in self._parts.items()}
        due = {
            number: one
            for number, one in new.items()
            if dataclasses.replace(one, at_ms=0) != dataclasses.replace(self._parts[number].noted, at_ms=0)
            or one.at_ms - self._parts[number].noted.at_ms > longest_ms
            or number not in self._known
        }
        if due:
            self._manifest.commit(lambda current: Change(CAPTURE, topic=with_captured(current.topic_row, due)))
        for number, one in due.items():
            self._parts[number].noted = one

    def _step(self, due: Mapping[int, _Partition]) -> tuple[bool, SegmentsError | None]:
        """Fetches once. (Whether any partition went on, what kept one back); raises what is of no use to try again."""
        moved, problem = False, None
        try:
            fetched = self._source.fetch(self._topic, {number: one.place for number, one in due.items()})
        except SourceError as error:
            if not error.is_passing:
                raise
            return False, error
        for number, one in fetched.items():
            try:
                moved |= self._take(due[number], one)
            except (SourceError, CorruptBatchError) as error:
                problem = error
                if isinstance(error, SourceError) and not error.is_passing:
                    self._problems[number], moved = error, True
        if moved and (left := self._due()):  # what comes next comes in while this is written
            self._source.fetch_ahead(self._topic, {number: one.place for number, one in left.items()})
        self._write_fetched()
        return moved, problem

    def _due(self) -> dict[int, _Partition]:
        return {n: part for n, part in self._parts.items() if not part.is_done and n not in self._problems}

    def _tell(self, begun: Mapping[int, int]) -> None:
        if self._progress is not None:
            done = sum(part.next_offset - begun[number] for number, part in self._parts.items())
            total = sum((part.goal or part.next_offset) - begun[number] for number, part in self._parts.items())
            self._progress(self._name, done, max(done, total))

    def _ready(self) -> Snapshot:
        """The topic here, made if it is not there, with all of its partitions."""
        topic = self._topic
        if not is_here(self._log, self._name):
            theirs = patient(partial(self._source.settings, topic), self._patience)
            kept = kept_settings(topic.name, theirs, keep_retention=self._keep_retention)
            self._warnings += kept.warnings
            states = {}
            topic_id = topic.topic_id if self._name == topic.name else None
            if topic_id is None:  # the one that this goes on for may have theirs
                topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
                states = {} if topic.topic_id is None else {SOURCE_TOPIC_ID: topic.topic_id}
            row = TopicRow(topic_id, kept.config, states=states)
            self._manifest.create_by(Change(CREATE, partitions=self._empty(topic_id, 0), topic=row))
        current = self._manifest.snapshot()
        check_role(current, CAPTURE)
        self._check_id(current)

        def grown(current: Snapshot) -> Change | None:
            made = self._empty(current.topic_id, current.partitions.num_rows)
            return Change(CAPTURE, partitions=made) if made else None

        if len(topic.leaders) > current.partitions.num_rows:
            self._manifest.commit(grown)
            current = self._manifest.snapshot()
        return current

    def _empty(self, topic_id: str, first: int) -> list[Partition]:
        """Partitions from number `first` on, each empty at its log start."""
        rows = []
        for number in range(first, max(self._topic.leaders) + 1):
            start = patient(partial(self._source.offset, self._topic, number, EARLIEST), self._patience)
            rows.append(Partition(topic_id, number, start, start, start, start, leader_epochs=()))
        return rows

    def _check_id(self, current: Snapshot) -> None:
        theirs, known = self._topic.topic_id, current.states.get(SOURCE_TOPIC_ID, current.topic_id)
        if theirs is not None and known != theirs:
            raise DivergedError(
                f"Topic {self._name} is not the topic of this name here: it was deleted and made again",
                expected=f"topic id {known}",
                found=theirs,
                hint=_WAYS_OUT,
            )

    def _refresh(self) -> None:
        """Looks who leads the partitions now. What is not there for now is tried again."""
        try:
            there = self._source.topics().get(self._topic.name)
        except SourceError as error:
            if not error.is_passing:
                raise
            return
        if there is not None and self._parts.keys() <= there.leaders.keys():
            self._topic = there
            self._check_id(self._manifest.snapshot())

    # What brokers answer

    def _take(self, part: _Partition, fetched: Fetched) -> bool:
        """Takes an answer: whether it led on. Raises SourceError or CorruptBatchError for one to be asked for again."""
        number = part.row.partition
        if fetched.error == OFFSET_OUT_OF_RANGE:
            return self._out_of_range(part)
        if fetched.error:
            raise error_of(fetched.error)
        if fetched.parted is not None:
            self._problems[number] = self._diverged(part, *fetched.parted)
            return True
        if fetched.log_start_offset > part.next_offset and not fetched.records:
            self._pass_over(part, fetched.log_start_offset)
        part.high_watermark = fetched.high_watermark
        is_first = part.goal is None
        if is_first and fetched.high_watermark >= part.next_offset:
            part.goal = fetched.high_watermark
        if not fetched.records:
            if part.is_done and part.hole_start is not None:
                self._note_hole(part, part.hole_start, part.next_offset)
                part.hole_start = None
            return is_first and part.goal is not None
        return self._append(part, fetched)

    def _out_of_range(self, part: _Partition) -> bool:
        number = part.row.partition
        start = self._source.offset(self._topic, number, EARLIEST)
        if start > part.next_offset:
            self._pass_over(part, start)
            return True
        end = self._source.offset(self._topic, number, LATEST)
        if end < part.next_offset and part.last_epoch >= 0:  # a new leader may say so for a while: its epochs tell
            epoch, epoch_end = self._source.end_of_epoch(self._topic, number, part.last_epoch)
            if epoch < part.last_epoch or epoch_end < part.next_offset:
                self._problems[number] = self._diverged(part, epoch, epoch_end)
                return True
        return False

    def _diverged(self, part: _Partition, epoch: int, end: int) -> DivergedError:
        return DivergedError(
            f"{self._name}-{part.row.partition} parts from the cluster's log: a leader there lacks records that "
            "were captured",
            expected=f"offset {part.next_offset} after epoch {part.last_epoch}",
            found=f"epoch {epoch} ends at offset {end}",
            hint=_WAYS_OUT,
        )

    def _pass_over(self, part: _Partition, start: int) -> None:
        """The cluster's log begins behind what was fetched: the offsets between are gone."""
        if part.hole_start is None:
            part.hole_start = part.next_offset
        self._close_writer(part)
        part.next_offset = start
        if part.goal is not None:
            part.goal = max(part.goal, start)

    def _note_hole(self, part: _Partition, start: int, end: int) -> None:
        part.holes.append(Hole(part.row.partition, start, end, self._log.storage.now_ms(), REMOVED_BEFORE))

    def _append(self, part: _Partition, fetched: Fetched) -> bool:
        """Takes the whole batches of an answer below the high watermark, and says whether there were any."""
        place = f"{self._name}-{part.row.partition}"
        scan = scan_batches(fetched.records, path=place)
        floor = part.next_offset if part.hole_start is None else part.hole_start
        batches = scan.batches
        wanted = (batches.last_offset >= floor) & (batches.last_offset < fetched.high_watermark)
        batches = batches.take(wanted)
        if not len(batches):
            if scan.error is not None:
                raise scan.error
            return False
        window = as_magic_2(Window(fetched.records, batches, path=place))
        batches = window.batches
        first = int(batches.base_offset[0])
        rises = (batches.base_offset[1:] > batches.last_offset[:-1]).all()
        is_start = part.next_offset == part.row.log_start_offset  # it may lie within a batch
        if not rises or (first < floor and not is_start):
            raise CorruptBatchError(
                "The broker's batches do not follow what is here",
                path=place,
                expected=f"rising offsets from {floor}",
                found=f"offsets from {first}",
            )
        gone = max(part.next_offset, fetched.log_start_offset)  # what is missing below was removed there
        if first > floor and gone > floor:
            self._note_hole(part, floor, min(first, gone))
        part.hole_start = None
        reaches = int(batches.last_offset[0]) - part.next_offset <= MAX_RELATIVE_OFFSET
        base = min(first, part.next_offset) if is_start and not part.holes and reaches else first
        part.fetched = window, base
        part.next_offset = int(batches.last_offset[-1]) + 1
        part.epochs = leader_epochs_of(batches, part.epochs)
        return True

    # What is written

    def _write_fetched(self) -> None:
        for part in self._parts.values():
            if part.fetched is not None:
                (window, base), part.fetched = part.fetched, None
                self._write(part, window, base)

    def _write(self, part: _Partition, window: Window, base: int) -> None:
        """`base`: where a segment begins that the first batch begins: the log start, though cleaning left a gap."""
        done = 0
        batches = window.batches
        while done < len(batches):
            if part.writer is None:
                base = int(batches.base_offset[done]) if done else base
                part.writer = SegmentWriter(
                    self._log.storage, self._name, part.row.partition, base, limits=self._limits_here
                )
                part.writer.__enter__()
            count = _fitting(batches, done, part.writer, self._limits_here.segment_bytes)
            if not count:
                self._close_writer(part)
                continue
            piece = batches.take(slice(done, done + count))
            begin = int(piece.position[0]) - window.position
            end = int(piece.position[-1] + piece.size[-1]) - window.position
            data = np.frombuffer(window.data, np.uint8, count=end - begin, offset=begin)
            part.writer.append(data, piece)
            part.writer.add_aborted(aborted_transactions(part.producers.add(window.with_batches(piece))))
            self._written += end - begin
            done += count

    @property
    def _limits_here(self) -> SegmentLimits:
        assert self._limits is not None
        return self._limits

    def _close_writer(self, part: _Partition) -> None:
        if part.writer is not None:
            row = part.writer.close(topic_id=part.row.topic_id, created_ms=self._log.storage.now_ms())
            part.chunks.append(dataclasses.replace(row, tombstones=UNKNOWN_TOMBSTONES))
            part.writer = None

    def _commit(self, counts: dict[str, int], holes: list[Hole]) -> None:
        """Makes what was fetched part of the topic."""
        self._write_fetched()
        for part in self._parts.values():
            self._close_writer(part)
        self._written = 0
        ready = {n: part for n, part in self._parts.items() if part.chunks or part.holes}
        if not ready:
            return
        notes = {number: self._note(part) for number, part in ready.items()}
        new = {number: self._row(part, notes[number].stable_end) for number, part in ready.items()}
        found = sorted(hole for part in ready.values() for hole in part.holes)
        chunks = [row for part in ready.values() for row in part.chunks]

        def plan(current: Snapshot) -> Change:
            check_role(current, CAPTURE)
            for number, part in ready.items():
                here = current.partition(number)
                if (current.topic_id, here.log_end_offset) != (part.row.topic_id, part.row.log_end_offset):
                    raise CommitConflictError(
                        f"{self._name}-{number} was appended to while it was captured",
                        path=self._log.uri,
                        expected=f"a log end of {part.row.log_end_offset}",
                        found=here.log_end_offset,
                        hint="One capture at a time writes a topic, and nothing else does",
                    )
            rows: list[Partition] = []
            sealed: list[Segment] = []
            for number, row in new.items():
                here, chunks_here = current.partition(number), ready[number].chunks
                start, live = here.log_start_offset, current.live_of(number)
                if not live:  # the log begins where there is something
                    start = max(start, chunks_here[0].base_offset if chunks_here else row.log_end_offset)
                elif not chunks_here:  # a hole up to the log end: the last segment ends there, and is no chunk then
                    ends = {live[-1].identity: row.log_end_offset}
                    sealed += [
                        dataclasses.replace(one, state=SEALED, next_offset=ends.get(one.identity, one.next_offset))
                        for one in live
                        if one.state != SEALED or one.identity in ends
                    ]
                dirty = max(here.first_dirty_offset, start)
                rows.append(dataclasses.replace(row, log_start_offset=start, first_dirty_offset=dirty))
            topic = with_captured(with_holes(current, found), notes)
            return Change(CAPTURE, add=chunks, replace=sealed, partitions=rows, topic=topic)

        self._manifest.commit(plan)
        counts["records"] += sum(row.records for row in chunks)
        counts["bytes"] += sum(row.log_bytes for row in chunks)
        holes += found
        for number, part in ready.items():
            part.row, part.noted = new[number], notes[number]
            self._known.add(number)
            part.chunks, part.holes = [], []

    def _row(self, part: _Partition, stable_end: int | None) -> Partition:
        """The partition's row with what was written of it."""
        end = max(
            [part.row.log_end_offset, *(row.next_offset for row in part.chunks), *(h.end_offset for h in part.holes)]
        )
        part.producers.expire(time.time_ns() // 1_000_000)
        entries = part.producers.entries()
        return dataclasses.replace(
            part.row,
            log_end_offset=end,
            last_stable_offset=min(part.producers.last_stable_offset(end), end if stable_end is None else stable_end),
            leader_epoch=part.epochs[-1][0] if part.epochs else part.row.leader_epoch,
            leader_epochs=part.epochs or part.row.leader_epochs,
            producer_snapshot=producer_snapshot_bytes(entries) if entries else None,
        )


def _fitting(batches: BatchTable, start: int, writer: SegmentWriter, segment_bytes: int) -> int:
    """How many batches from `start` on a segment has room for; one at least where it is empty."""
    sizes = np.cumsum(batches.size[start:]) + writer.log_bytes
    by_size = int(np.searchsorted(sizes, segment_bytes, side="right"))
    if not writer.log_bytes:
        by_size = max(by_size, 1)
    reach = writer.base_offset + MAX_RELATIVE_OFFSET
    return int(np.searchsorted(batches.last_offset[start : start + by_size], reach, side="right"))
