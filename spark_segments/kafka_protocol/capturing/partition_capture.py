"""Copying partitions of a running cluster: each is read as a follower reads it, up to the high watermark.

What is fetched is checked (whole batches, their CRC, rising offsets) and written as chunks, which no manifest names
yet.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from spark_segments.errors import CorruptBatchError, SegmentsError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.checkpoints import leader_epochs_of
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.format.sidecars.producer_state import aborted_transactions
from spark_segments.format.single_batch import window_from
from spark_segments.format.window import Window
from spark_segments.kafka.segment_scan import UNKNOWN_TOMBSTONES
from spark_segments.kafka_protocol.capturing.captured_partition import CapturedPartition
from spark_segments.kafka_protocol.capturing.cluster_log import ClusterLog, CopiedTopic
from spark_segments.kafka_protocol.capturing.open_transactions import with_ends
from spark_segments.kafka_protocol.capturing.source import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    OFFSET_OUT_OF_RANGE,
    RESPONSE_BYTES,
    Fetched,
    SourceCluster,
    SourceError,
    error_of,
)
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.log import CapturedBatch, SegmentWriter

LEAST_LATE_MS = 10_000  # a cleaner takes longer between two rounds, and so short a pass is worth no question
_LANES = 2
_EPOCHS_COMPARED = 12
_IDS_COMPARED = 13
"""From these versions of Fetch on a broker compares the epoch of the record before, and the topic's id, as it reads."""


@dataclass(frozen=True, slots=True)
class _Question:
    """A fetch under way: the partitions that it asks for, and the answer to come."""

    parts: Mapping[int, CapturedPartition]
    answer: Future[dict[int, Fetched]]


@dataclass(frozen=True, slots=True)
class _NewBatches:
    """Batches to be written. `base`: where a segment begins that the first of them begins."""

    window: Window
    base: int


class PartitionsCapture:
    """Partitions of a topic that are copied together, by one client.

    `rate`: shared with other captures. `on_answer` is called after each fetch response.
    """

    def __init__(
        self,
        copied: CopiedTopic,
        source: SourceCluster,
        parts: Iterable[CapturedPartition],
        rate: RateLimit,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        self._copied = copied
        self._name = copied.name
        self._storage = copied.storage
        self._log = ClusterLog(source, copied)
        self._rate = rate
        self._on_answer = on_answer
        self._parts = {part.number: part for part in parts}
        self._writers: dict[int, SegmentWriter] = {}
        self._fetched: dict[int, _NewBatches] = {}
        self._questions: dict[int, _Question] = {}  # by lane
        self._written = 0
        self._oldest_fetch = _IDS_COMPARED
        self._is_late = False  # whether it has to be asked about ends of transactions before this goes on

    def run(self, most_bytes: int) -> SegmentsError | None:
        """Copies until all is here, or so many bytes are written. What kept it from that, if anything did: what came
        before is good.
        """
        self._find_missing_ends()
        with ExitStack() as undone:
            undone.push(self._give_up)
            problem = self._copy(most_bytes)
            self._write_fetched()
            for part in self._parts.values():
                self._close_writer(part)
            undone.pop_all()
        return self._proved() or problem

    def _find_missing_ends(self) -> None:
        """Asks about the transactions whose end may be gone there, and forgets what was asked before."""
        self._is_late = False
        for part in self._due().values():
            # The time before the question: a marker that is removed after it counts from then on.
            now_ms = self._storage.now_ms()
            if part.may_miss_ends(now_ms):
                self._questions.clear()
                part.ends = self._log.missing_ends(part, self._parts)
                part.markers_at_ms = now_ms

    def _give_up(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.__exit__(*error)  # type: ignore[arg-type]

    def _copy(self, most_bytes: int) -> SegmentsError | None:
        # Patience counts from the last answer that led on. Time in which the rate let nobody ask is no silence.
        answered = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        self._written = 0
        while self._due() and self._written < most_bytes and not self._is_late:
            if self._rate.wait():
                answered = time.monotonic()
            try:
                moved, problem = self._step()
                if moved:
                    answered = time.monotonic()
                    pause = FIRST_PAUSE_SECONDS
                elif time.monotonic() - answered > self._copied.patience_seconds:
                    return problem or SourceError("The cluster gives no batches")
                elif self._due():
                    time.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                    self._log.refresh(self._parts)
            except (SourceError, CorruptBatchError) as error:
                return error
            self._on_answer()
        return None

    def _due(self) -> dict[int, CapturedPartition]:
        return {number: part for number, part in self._parts.items() if part.is_due}

    def _step(self) -> tuple[bool, SegmentsError | None]:
        """Takes an answer. (Whether any partition went on, what kept one back); raises what is of no use to try again.

        Partitions are divided into two lanes: a broker reads for one while the answer to the other is on its way.
        """
        for lane in range(_LANES):
            self._ask(lane)
        wait([question.answer for question in self._questions.values()], return_when=FIRST_COMPLETED)
        lane = next(lane for lane, question in self._questions.items() if question.answer.done())  # the one asked first
        question = self._questions.pop(lane)
        try:
            fetched = question.answer.result()
        except SourceError as error:
            if not error.is_passing:
                raise
            return False, error
        self._rate.spend(sum(len(answer.records) for answer in fetched.values()))
        moved, problem = self._take_answers(question.parts, fetched)
        if moved and self._rate.is_free:  # what comes next comes in while this is written
            self._ask(lane)
        self._write_fetched()
        return moved, problem

    def _ask(self, lane: int) -> None:
        due = {number: part for number, part in self._due().items() if number % _LANES == lane}
        if due and lane not in self._questions:
            places = {number: part.place for number, part in due.items()}
            answer = self._log.ask(places, self._rate.within(1 / _LANES, RESPONSE_BYTES))
            self._questions[lane] = _Question(due, answer)

    # What brokers answer

    def _take_answers(
        self, parts: Mapping[int, CapturedPartition], fetched: Mapping[int, Fetched]
    ) -> tuple[bool, SegmentsError | None]:
        """Takes the answers of partitions: as `_step`. One that fails keeps no other one back."""
        moved = False
        problem: SegmentsError | None = None
        for number, answer in fetched.items():
            part = parts[number]
            if not part.is_due:
                continue
            self._oldest_fetch = min(self._oldest_fetch, answer.version)
            try:
                moved |= self._take(part, answer)
            except (SourceError, CorruptBatchError) as error:
                problem = error
                if isinstance(error, SourceError) and not error.is_passing:
                    part.problem = error
                    moved = True
        return moved, problem

    def _take(self, part: CapturedPartition, fetched: Fetched) -> bool:
        """Takes an answer: whether it led on. Raises SourceError or CorruptBatchError for one to be asked for again."""
        if self._is_written_here(part):
            return True
        is_proof = part.place[0] != part.next_offset
        if fetched.error == OFFSET_OUT_OF_RANGE:
            part.is_proved = True  # the batch is not there any more
            return is_proof or self._out_of_range(part)
        if fetched.error:
            raise error_of(fetched.error)
        if part.may_miss_ends(self._storage.now_ms() - LEAST_LATE_MS):  # this machine was asleep, say
            self._is_late = True
            return True
        if fetched.parted is not None:
            part.problem = self._log.diverged(part, part.place[0], *fetched.parted)
            return True
        if is_proof and not self._log.prove_batch(part, fetched):
            return True
        is_first = part.goal is None
        self._take_bounds(part, fetched)
        if fetched.records:
            return self._append(part, fetched)
        self._end_hole(part)
        return is_first and part.goal is not None

    def _is_written_here(self, part: CapturedPartition) -> bool:
        """Whether somebody but a capture has given offsets here that the cluster gives to other records."""
        if part.appends and self._log.meets_appends(part):
            return True
        return part.copied_end is not None and self._log.is_appended_to(part, part.copied_end)

    def _out_of_range(self, part: CapturedPartition) -> bool:
        start = self._log.start(part.number)
        if start > part.next_offset:
            self._pass_over(part, start)
            return True
        return self._log.ends_before(part)

    def _take_bounds(self, part: CapturedPartition, fetched: Fetched) -> None:
        """Notes the log start and the high watermark of an answer. The first high watermark is the goal of the pass:
        with the newest for a goal, a pass over a topic that is written would not end.
        """
        if fetched.log_start_offset > part.next_offset and not fetched.records:
            self._pass_over(part, fetched.log_start_offset)
        part.high_watermark = fetched.high_watermark
        # A leader that has just begun may know a high watermark below what is here: the next answer has a better one.
        if part.goal is None and fetched.high_watermark >= part.next_offset:
            part.goal = fetched.high_watermark

    def _pass_over(self, part: CapturedPartition, start: int) -> None:
        """The cluster's log begins behind what was fetched: the offsets between are gone.

        The hole is noted when a batch comes behind it, or the pass ends in it: until then it may grow.
        """
        if part.hole_start is None:
            part.hole_start = part.next_offset
        self._close_writer(part)
        part.next_offset = start
        if part.goal is not None:
            part.goal = max(part.goal, start)

    def _end_hole(self, part: CapturedPartition) -> None:
        """Notes the hole that a pass ends in."""
        if part.is_done and part.hole_start is not None:
            part.note_hole(part.next_offset, self._storage.now_ms())

    def _append(self, part: CapturedPartition, fetched: Fetched) -> bool:
        """Takes the whole batches of an answer below the high watermark, and says whether there were any.

            here     |=======|floor         the offsets from floor to begin are gone: a hole
            cluster          :     |begin==batch==|==batch==|==batch==|high watermark
                                ^first                                ^beyond: a new leader may lack it

        The first batch may begin before `begin`: it has records that the cluster has deleted.
        """
        place = f"{self._name}-{part.number}"
        floor = part.floor
        begin = max(part.next_offset, fetched.log_start_offset)
        scan = scan_batches(fetched.records, path=place)
        is_new = (scan.batches.last_offset >= begin) & (scan.batches.last_offset < fetched.high_watermark)
        batches = scan.batches.take(is_new)
        if not len(batches):
            if scan.error is not None:
                raise scan.error
            return False
        window = _as_one_window(Window(fetched.records, batches, path=place))
        part.last_batch = CapturedBatch(int(batches.base_offset[-1]), int(batches.crc[-1]))
        if begin > floor:  # a consumer there gets no record below its log start, though the batch has them
            window = window_from(window, begin)
        window = with_ends(window, part.ends, floor, part.epochs[-1][0] if part.epochs else -1)
        is_start = floor == part.row.log_start_offset  # it may lie within a batch
        _check_order(window, floor, is_start=is_start)
        now_ms = self._storage.now_ms()
        if begin > floor:
            part.note_hole(begin, now_ms)
        part.hole_start = None
        batches = window.batches
        last_offset = int(batches.last_offset[-1])
        base = int(batches.base_offset[0])
        # The log start, though cleaning left a gap behind it: but an index has no entry so far from its base offset.
        reaches = int(batches.last_offset[0]) - part.next_offset <= MAX_RELATIVE_OFFSET
        if is_start and not part.holes and reaches:
            base = min(base, part.next_offset)
        part.is_proved = True  # it was read behind all that is here
        part.note_ends(last_offset, now_ms)
        self._fetched[part.number] = _NewBatches(window, base)
        part.next_offset = last_offset + 1
        part.epochs = leader_epochs_of(batches, part.epochs)
        return True

    # What is written

    def _write_fetched(self) -> None:
        while self._fetched:
            number, new = self._fetched.popitem()
            self._write(self._parts[number], new)

    def _write(self, part: CapturedPartition, new: _NewBatches) -> None:
        window = new.window
        batches = window.batches
        done = 0
        while done < len(batches):
            writer = self._writers.get(part.number)
            if writer is None:
                base = int(batches.base_offset[done]) if done else new.base
                writer = SegmentWriter(self._storage, self._name, part.number, base, limits=self._copied.limits)
                self._writers[part.number] = writer.__enter__()
            count = writer.fitting(batches, done)
            if not count:
                self._close_writer(part)
                continue
            self._write_piece(part, writer, window, batches.take(slice(done, done + count)))
            done += count

    def _write_piece(self, part: CapturedPartition, writer: SegmentWriter, window: Window, piece: BatchTable) -> None:
        begin = int(piece.byte_position[0]) - window.byte_position
        end = int(piece.byte_position[-1] + piece.size[-1]) - window.byte_position
        data = np.frombuffer(window.data, np.uint8, count=end - begin, offset=begin)
        writer.append(data, piece)
        writer.add_aborted(aborted_transactions(part.producers.add(window.with_batches(piece))))
        self._written += end - begin

    def _close_writer(self, part: CapturedPartition) -> None:
        writer = self._writers.get(part.number)
        if writer is None:
            return
        row = writer.close(topic_id=part.row.topic_id, created_ms=self._storage.now_ms())
        del self._writers[part.number]
        part.chunks.append(dataclasses.replace(row, tombstones=UNKNOWN_TOMBSTONES))

    def _proved(self) -> SegmentsError | None:
        """Asks about what was copied where the broker did not compare it as it read, and takes back what is not of the
        log here: it is no part of it. What kept it from that, if anything did.
        """
        copied = [part for part in self._parts.values() if part.chunks]
        if not copied or self._oldest_fetch >= _IDS_COMPARED:
            return None
        problem: SegmentsError | None = None
        try:
            self._log.check_copied(self._parts.values(), with_epochs=self._oldest_fetch < _EPOCHS_COMPARED)
        except SourceError as error:
            problem = error
        for part in copied:
            if problem is not None or part.problem is not None:
                part.take_back()
        return problem


def _as_one_window(window: Window) -> Window:
    """A window without batches of earlier versions: they are converted, and may become several."""
    parts = [*opened(window)]
    if len(parts) == 1:
        return parts[0]
    records = np.concatenate([part.batch_bytes for part in parts])
    return Window(records, scan_batches(records, check_crc=False).batches, path=window.path)


def _check_order(window: Window, floor: int, *, is_start: bool) -> None:
    """Raises CorruptBatchError for batches that do not rise, or begin below `floor`: their offsets are taken."""
    batches = window.batches
    rises = (batches.base_offset[1:] > batches.last_offset[:-1]).all()
    first = int(batches.base_offset[0])
    if not rises or (first < floor and not is_start):
        raise CorruptBatchError(
            "The broker's batches do not follow what is here",
            path=window.path,
            expected=f"rising offsets from {floor}",
            found=f"offsets from {first}",
        )
