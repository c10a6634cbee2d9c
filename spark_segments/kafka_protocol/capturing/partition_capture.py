"""Copying partitions of a running cluster: each is read as a follower reads it, up to the high watermark.

What is fetched is checked (whole batches, their CRC, rising offsets) and written as chunks, which no manifest names
yet.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np

from spark_segments.config import SegmentLimits
from spark_segments.errors import CorruptBatchError, SegmentsError
from spark_segments.format.batches import BatchTable, scan_batches
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.checkpoints import leader_epochs_of
from spark_segments.format.sidecars.fields import MAX_RELATIVE_OFFSET
from spark_segments.format.sidecars.producer_state import (
    ProducerEntry,
    ProducerState,
    aborted_transactions,
    parse_producer_snapshot,
)
from spark_segments.format.single_batch import window_from
from spark_segments.format.window import Window
from spark_segments.kafka.segment_scan import UNKNOWN_TOMBSTONES
from spark_segments.kafka_protocol.capturing.erased_batch import agree, batch_here
from spark_segments.kafka_protocol.capturing.open_transactions import missing_ends, with_ends
from spark_segments.kafka_protocol.capturing.source import (
    EARLIEST,
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    OFFSET_OUT_OF_RANGE,
    RESPONSE_BYTES,
    Fetched,
    SourceCluster,
    SourceError,
    SourceTopic,
    error_of,
    patient,
)
from spark_segments.kafka_protocol.own_settings import ERASED_OFFSETS
from spark_segments.kafka_protocol.rate import RateLimit
from spark_segments.log import Captured, CapturedBatch, Hole, Partition, Segment, SegmentWriter, Undecided
from spark_segments.storage import Storage

WAYS_OUT = (
    "With --on-divergence branch what is here stays, and a new copy goes on in another topic here; with keep what is "
    "here stays, and no copy is made. Or delete this topic"
)
_LANES = 2
LEAST_LATE_MS = 10_000  # a cleaner takes longer between two rounds, and so short a pass is worth no question
_EPOCHS_COMPARED, _IDS_COMPARED = 12, 13
"""From these versions of Fetch on a broker compares the epoch of the record before, and the topic's id, as it reads."""


class DivergedError(SegmentsError):
    """The cluster's log is not the one that was captured."""


@dataclass(slots=True)
class CapturedPartition:
    """A partition under way. `row`, `noted`: as committed; `next_offset`: of the next fetch; `goal`: the high watermark
    that the pass reaches, None before the first answer; `high_watermark`: the newest seen; `hole_start`: the first
    offset that the cluster has removed; `problem`: why the capture stops. `markers_ms`: for how long the cluster keeps
    markers at least, None for ever; `markers_at_ms`: when it had the markers of all transactions open here. `ends`:
    {offset of an abort marker to write: its producer}; `undecided`: the transactions so ended. `last_batch`: as it
    was captured; `last_segment`: the row that has its offset; `is_proved`: whether this pass has found the batch in the
    cluster's log. `appends`: the offsets [start, end) here that are no record of the cluster's: erasures gave them to
    tombstones. `known_holes`: the offsets [start, end) that the cluster had removed before they were captured.
    `copied_end`: where an import left the log end, or the log began, if no capture has brought a batch since.
    """

    row: Partition
    noted: Captured
    producers: ProducerState
    next_offset: int
    epochs: tuple[tuple[int, int], ...]
    markers_ms: int | None
    markers_at_ms: int
    goal: int | None = None
    high_watermark: int | None = None
    hole_start: int | None = None
    chunks: list[Segment] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    ends: dict[int, ProducerEntry] = field(default_factory=dict)
    undecided: list[Undecided] = field(default_factory=list)
    last_batch: CapturedBatch | None = None
    last_segment: Segment | None = None
    is_proved: bool = False
    appends: Sequence[tuple[int, int]] = ()
    known_holes: Sequence[tuple[int, int]] = ()
    copied_end: int | None = None
    problem: SegmentsError | None = None

    @classmethod
    def of(
        cls,
        row: Partition,
        noted: Captured,
        markers_ms: int | None,
        last_batch: CapturedBatch | None,
        live: Iterable[Segment] = (),
        appends: Sequence[tuple[int, int]] = (),
        known_holes: Sequence[tuple[int, int]] = (),
        copied_end: int | None = None,
    ) -> CapturedPartition:
        """A partition whose row was committed."""
        return cls(
            row,
            noted,
            ProducerState(parse_producer_snapshot(row.producer_snapshot) if row.producer_snapshot else ()),
            row.log_end_offset,
            row.leader_epochs if row.log_end_offset > row.log_start_offset else (),
            markers_ms,
            noted.at_ms,
            last_batch=last_batch,
            last_segment=None
            if last_batch is None
            else next((one for one in live if one.base_offset <= last_batch.base_offset < one.next_offset), None),
            appends=appends,
            known_holes=known_holes,
            copied_end=copied_end,
        )

    @property
    def number(self) -> int:
        return self.row.partition

    @property
    def is_done(self) -> bool:
        """Whether the pass has all of it."""
        return self.goal is not None and self.next_offset >= self.goal

    @property
    def is_due(self) -> bool:
        """Whether there is more to be fetched."""
        return not self.is_done and self.problem is None

    @property
    def place(self) -> tuple[int, int]:
        """The offset of the fetch that is due, and the epoch of the record before. A pass begins with the last batch
        that is here.
        """
        if self.last_batch is not None and not self.is_proved:
            return self.last_batch.base_offset, self.epoch_before(self.last_batch.base_offset)
        return self.next_offset, self.last_epoch

    @property
    def last_epoch(self) -> int:
        """The epoch of the record before `next_offset`; -1 where it is not here."""
        return self.epoch_before(self.next_offset) if self.hole_start is None else -1

    def take_back(self) -> None:
        """Forgets what was copied."""
        self.chunks, self.holes, self.undecided = [], [], []

    def may_miss_ends(self, now_ms: int) -> bool:
        """Whether the end of a transaction that is open here may have left the cluster's log."""
        is_late = self.markers_ms is not None and now_ms - self.markers_at_ms > self.markers_ms
        ended = {producer.producer_id for producer in self.ends.values()}
        return is_late and bool(self.producers.open_transactions().keys() - ended)

    def epoch_before(self, offset: int) -> int:
        """The epoch of the record before an offset; -1 where it is not known."""
        epochs = [epoch for epoch, start in self.epochs if start < offset]
        return epochs[-1] if epochs else -1


def check_same(name: str, topic_id: str | None, cluster_id: str | None, topic: SourceTopic) -> None:
    """Raises DivergedError for a topic of another id. A cluster without topic ids is known by its cluster id."""
    if topic.topic_id is not None and topic_id != topic.topic_id:
        raise DivergedError(
            f"Topic {name} is not the topic of this name here: it was deleted and made again",
            expected=f"topic id {topic_id}",
            found=topic.topic_id,
            hint=WAYS_OUT,
        )
    if topic.topic_id is None and None not in (cluster_id, topic.cluster_id) and cluster_id != topic.cluster_id:
        raise DivergedError(
            f"Topic {name} was captured from another cluster",
            expected=f"cluster id {cluster_id}",
            found=topic.cluster_id,
            hint=WAYS_OUT,
        )


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """The `topic` of a cluster that is copied into the topic `name` here."""

    topic: SourceTopic
    name: str
    storage: Storage
    limits: SegmentLimits
    patience_seconds: float


class PartitionsCapture:
    """Partitions of a topic that are copied together, by one client.

    `rate`: shared with other captures. `told` is called after each fetch response.
    """

    def __init__(
        self,
        copied: CopiedTopic,
        source: SourceCluster,
        parts: Iterable[CapturedPartition],
        rate: RateLimit,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        self._copied, self._source, self._rate, self._told = copied, source, rate, told
        self._topic, self._name, self._storage = copied.topic, copied.name, copied.storage
        self._parts = {part.number: part for part in parts}
        self._writers: dict[int, SegmentWriter] = {}
        self._fetched: dict[int, tuple[Window, int]] = {}  # to be written, and where a segment begins that they begin
        self._asked: dict[int, tuple[dict[int, CapturedPartition], Future[dict[int, Fetched]]]] = {}
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
            now_ms = self._storage.now_ms()
            if not part.may_miss_ends(now_ms):
                continue
            self._asked.clear()

            def ask(part: CapturedPartition = part) -> dict[int, ProducerEntry]:
                self._refresh()
                opened = part.producers.open_transactions()
                return missing_ends(self._source, self._topic, part.number, opened, part.next_offset)

            part.ends, part.markers_at_ms = patient(ask, self._copied.patience_seconds), now_ms

    def _give_up(self, *error: object) -> None:
        for writer in self._writers.values():
            writer.__exit__(*error)  # type: ignore[arg-type]

    def _copy(self, most_bytes: int) -> SegmentsError | None:
        answered, pause, self._written = time.monotonic(), FIRST_PAUSE_SECONDS, 0
        while self._due() and self._written < most_bytes and not self._is_late:
            if self._rate.wait():
                answered = time.monotonic()
            try:
                moved, problem = self._step()
                if moved:
                    answered, pause = time.monotonic(), FIRST_PAUSE_SECONDS
                elif time.monotonic() - answered > self._copied.patience_seconds:
                    return problem or SourceError("The cluster gives no batches")
                elif self._due():
                    time.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
                    self._refresh()
            except (SourceError, CorruptBatchError) as error:
                return error
            self._told()
        return None

    def _due(self) -> dict[int, CapturedPartition]:
        return {number: part for number, part in self._parts.items() if part.is_due}

    def _refresh(self) -> None:
        """Looks who leads the partitions now. What is not there for now is tried again."""
        try:
            latest = self._source.topics().get(self._topic.name)
        except SourceError as error:
            if not error.is_passing:
                raise
            return
        if latest is not None and self._is_same(latest) and self._parts.keys() <= latest.leaders.keys():
            self._topic = latest

    def _is_same(self, topic: SourceTopic) -> bool:
        try:
            check_same(self._name, self._topic.topic_id, self._topic.cluster_id, topic)
        except DivergedError as error:
            for part in self._parts.values():
                part.problem = error
            return False
        return True

    def _step(self) -> tuple[bool, SegmentsError | None]:
        """Takes an answer. (Whether any partition went on, what kept one back); raises what is of no use to try again.

        Partitions are divided into two lanes: a broker reads for one while the answer to the other is on its way.
        """
        for lane in range(_LANES):
            self._ask(lane)
        wait([asked for _, asked in self._asked.values()], return_when=FIRST_COMPLETED)
        lane = next(lane for lane, (_, asked) in self._asked.items() if asked.done())  # the one asked first
        due, answered = self._asked.pop(lane)
        moved, problem = False, None
        try:
            fetched = answered.result()
        except SourceError as error:
            if not error.is_passing:
                raise
            return False, error
        self._rate.spend(sum(len(answer.records) for answer in fetched.values()))
        for number, answer in fetched.items():
            if not due[number].is_due:
                continue
            self._oldest_fetch = min(self._oldest_fetch, answer.version)
            try:
                moved |= self._take(due[number], answer)
            except (SourceError, CorruptBatchError) as error:
                problem = error
                if isinstance(error, SourceError) and not error.is_passing:
                    due[number].problem, moved = error, True
        if moved and self._rate.is_free:  # what comes next comes in while this is written
            self._ask(lane)
        self._write_fetched()
        return moved, problem

    def _ask(self, lane: int) -> None:
        due = {number: part for number, part in self._due().items() if number % _LANES == lane}
        if due and lane not in self._asked:
            places = {number: part.place for number, part in due.items()}
            asked = self._source.ask(self._topic, places, self._rate.within(1 / _LANES, RESPONSE_BYTES))
            self._asked[lane] = due, asked

    # What brokers answer

    def _take(self, part: CapturedPartition, fetched: Fetched) -> bool:
        """Takes an answer: whether it led on. Raises SourceError or CorruptBatchError for one to be asked for again."""
        if part.appends and self._meets_appends(part):
            return True
        if part.copied_end is not None and self._is_appended_to(part, part.copied_end):
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
            part.problem = self._diverged(part, part.place[0], *fetched.parted)
            return True
        if is_proof and not self._prove_batch(part, fetched):
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

    def _meets_appends(self, part: CapturedPartition) -> bool:
        """Whether an erasure here gave offsets to tombstones that the cluster's log gives to other records. Else the
        fetch from the log end here would pass over these records, and nobody would miss them.
        """
        log_start = self._source.offset(self._topic, part.number, EARLIEST)
        part.appends = [(start, end) for start, end in part.appends if end > log_start]
        if not part.appends:
            return False
        start = part.appends[0][0]
        part.problem = DivergedError(
            f"{self._name}-{part.number} has tombstones that an erasure appended here, from offset {start} on",
            expected="a log that only captures append to",
            found=f"a log end of {part.row.log_end_offset} here",
            hint="An erasure appends no tombstone where the capture has brought one: write it to Kafka first. "
            + WAYS_OUT,
        )
        return True

    def _is_appended_to(self, part: CapturedPartition, copied_end: int) -> bool:
        """Whether a writer appended here before a capture brought a batch, to offsets that the cluster gives to other
        records.
        """
        end = part.row.log_end_offset
        is_beyond = end > copied_end and end > self._source.offset(self._topic, part.number, EARLIEST)
        part.copied_end = None  # asked once, by an answer: this pass moves the log end on
        if is_beyond:
            part.problem = self._appended_here(part, copied_end, "copied")
        return is_beyond

    def _appended_here(self, part: CapturedPartition, end: int, how: str) -> DivergedError:
        return DivergedError(
            f"{self._name}-{part.number} has records that were appended here, from offset {end} on",
            expected="a log that only captures append to",
            found=f"a log end of {part.row.log_end_offset} here, and {how} batches up to {end}",
            hint=WAYS_OUT,
        )

    def _out_of_range(self, part: CapturedPartition) -> bool:
        number = part.number
        start = self._source.offset(self._topic, number, EARLIEST)
        if start > part.next_offset:
            self._pass_over(part, start)
            return True
        if part.last_epoch >= 0:  # a new leader may say so for a while: its epochs tell
            epoch, epoch_end = self._source.end_of_epoch(self._topic, number, part.last_epoch)
            if epoch < part.last_epoch or epoch_end < part.next_offset:
                part.problem = self._diverged(part, part.next_offset, epoch, epoch_end)
                return True
        return False

    def _diverged(self, part: CapturedPartition, offset: int, epoch: int, end: int) -> DivergedError:
        return DivergedError(
            f"{self._name}-{part.number} parts from the cluster's log: a leader there lacks records that were captured",
            expected=f"offset {offset} after epoch {part.epoch_before(offset)}",
            found=f"epoch {epoch} ends at offset {end}",
            hint=WAYS_OUT,
        )

    def _prove_batch(self, part: CapturedPartition, fetched: Fetched) -> bool:
        """Compares the batch that a pass begins with. False where the answer has nothing else, or the logs part."""
        captured = part.last_batch
        assert captured is not None
        if not fetched.records:  # a new leader's log may end before it for a while
            part.is_proved = (
                fetched.high_watermark <= captured.base_offset or fetched.log_start_offset > captured.base_offset
            )
            return False
        scan = scan_batches(fetched.records, path=f"{self._name}-{part.number}")
        if not len(scan.batches):
            raise scan.error or SourceError("The cluster gives no batches")
        first_batch = CapturedBatch(int(scan.batches.base_offset[0]), int(scan.batches.crc[0]))
        part.is_proved = (
            first_batch == captured or self._is_cleaned(part) or self._is_erased(part, scan.batches, fetched)
        )
        if not part.is_proved:
            part.problem = DivergedError(
                f"{self._name}-{part.number} is not the cluster's log: the last batch that is here is another there",
                expected=f"CRC-32C {captured.crc:08x} at offset {captured.base_offset}",
                found=f"{first_batch.crc:08x} at offset {first_batch.base_offset}",
                hint=WAYS_OUT,
            )
        elif first_batch.base_offset == captured.base_offset:
            self._check_end(part, int(scan.batches.last_offset[0]) + 1)
        return part.is_proved and part.problem is None

    def _check_end(self, part: CapturedPartition, captured_end: int) -> None:
        """Whether the log here ends where the last captured batch does, holes aside.

            here     |captured       |appended here|
            cluster  |captured       |a      |b      |c
                                     ^captured_end ^log end: the next fetch would pass over a

        Records that a writer appended here have offsets that the cluster gives to other records.
        """
        end = captured_end
        for start, stop in sorted(part.known_holes):
            if start <= end:
                end = max(end, stop)
        if end < part.row.log_end_offset:
            part.problem = self._appended_here(part, end, "captured")

    def _is_cleaned(self, part: CapturedPartition) -> bool:
        """Whether a cleaner may have rewritten the partition's batches, now or under its settings of before."""
        if part.markers_ms is not None:
            return True
        settings = self._source.settings(self._topic, with_defaults=True)
        return settings is None or "compact" in settings.get("cleanup.policy", "compact")

    def _is_erased(self, part: CapturedPartition, batches: BatchTable, fetched: Fetched) -> bool:
        """Whether an erasure at a served log directory rewrote the batch, and what it left is what was captured."""
        assert part.last_batch is not None
        offset = part.last_batch.base_offset
        settings = self._source.settings(self._topic, with_defaults=True, names=[ERASED_OFFSETS]) or {}
        ranges = json.loads(settings.get(ERASED_OFFSETS) or "{}").get(str(part.number), ())
        if not any(start <= offset < end for start, end in ranges):
            return False
        here = None if part.last_segment is None else batch_here(self._storage, part.last_segment, offset)
        if here is None:  # retention or an erasure's vacuum took it here: nothing is left that could differ
            return int(batches.base_offset[0]) == offset
        source_batch = Window(fetched.records, batches.take(slice(0, 1)), path=f"{self._name}-{part.number}")
        return agree(here, source_batch, self._name, part.number)

    def _pass_over(self, part: CapturedPartition, start: int) -> None:
        """The cluster's log begins behind what was fetched: the offsets between are gone."""
        if part.hole_start is None:
            part.hole_start = part.next_offset
        self._close_writer(part)
        part.next_offset = start
        if part.goal is not None:
            part.goal = max(part.goal, start)

    def _note_hole(self, part: CapturedPartition, start: int, end: int) -> None:
        part.holes.append(Hole(part.number, start, end, self._storage.now_ms(), Hole.REMOVED_BEFORE))

    def _append(self, part: CapturedPartition, fetched: Fetched) -> bool:
        """Takes the whole batches of an answer below the high watermark, and says whether there were any."""
        place = f"{self._name}-{part.number}"
        scan = scan_batches(fetched.records, path=place)
        floor = part.next_offset if part.hole_start is None else part.hole_start
        begin = max(part.next_offset, fetched.log_start_offset)  # what is below was removed there
        batches = scan.batches
        is_new = (batches.last_offset >= begin) & (batches.last_offset < fetched.high_watermark)
        batches = batches.take(is_new)
        if not len(batches):
            if scan.error is not None:
                raise scan.error
            return False
        parts = [*opened(Window(fetched.records, batches, path=place))]
        window = parts[0]
        if len(parts) > 1:
            records = np.concatenate([part.batch_bytes for part in parts])
            window = Window(records, scan_batches(records, check_crc=False).batches, path=place)
        part.last_batch = CapturedBatch(int(batches.base_offset[-1]), int(batches.crc[-1]))
        if begin > floor:  # a consumer there gets no record below its log start, though the batch has them
            window = window_from(window, begin)
        window = with_ends(window, part.ends, floor, part.epochs[-1][0] if part.epochs else -1)
        batches = window.batches
        first = int(batches.base_offset[0])
        rises = (batches.base_offset[1:] > batches.last_offset[:-1]).all()
        is_start = floor == part.row.log_start_offset  # it may lie within a batch
        if not rises or (first < floor and not is_start):
            raise CorruptBatchError(
                "The broker's batches do not follow what is here",
                path=place,
                expected=f"rising offsets from {floor}",
                found=f"offsets from {first}",
            )
        if begin > floor:
            self._note_hole(part, floor, begin)
        part.hole_start = None
        reaches = int(batches.last_offset[0]) - part.next_offset <= MAX_RELATIVE_OFFSET
        base = min(first, part.next_offset) if is_start and not part.holes and reaches else first
        part.is_proved = True  # it was read behind all that is here
        self._note_ends(part, int(batches.last_offset[-1]))
        self._fetched[part.number] = window, base
        part.next_offset = int(batches.last_offset[-1]) + 1
        part.epochs = leader_epochs_of(batches, part.epochs)
        return True

    def _note_ends(self, part: CapturedPartition, last_offset: int) -> None:
        now_ms = self._storage.now_ms()
        for offset in [offset for offset in part.ends if offset <= last_offset]:
            entry = part.ends.pop(offset)
            first, end = entry.current_txn_first_offset, entry.last_offset + 1
            part.undecided.append(Undecided(part.number, first, end, now_ms, entry.producer_id, offset))

    # What is written

    def _write_fetched(self) -> None:
        while self._fetched:
            number, (window, base) = self._fetched.popitem()
            self._write(self._parts[number], window, base)

    def _write(self, part: CapturedPartition, window: Window, base: int) -> None:
        """`base`: where a segment begins that the first batch begins: the log start, though cleaning left a gap."""
        done = 0
        batches = window.batches
        while done < len(batches):
            writer = self._writers.get(part.number)
            if writer is None:
                base = int(batches.base_offset[done]) if done else base
                writer = SegmentWriter(self._storage, self._name, part.number, base, limits=self._copied.limits)
                self._writers[part.number] = writer.__enter__()
            count = writer.fitting(batches, done)
            if not count:
                self._close_writer(part)
                continue
            piece = batches.take(slice(done, done + count))
            begin = int(piece.byte_position[0]) - window.byte_position
            end = int(piece.byte_position[-1] + piece.size[-1]) - window.byte_position
            data = np.frombuffer(window.data, np.uint8, count=end - begin, offset=begin)
            writer.append(data, piece)
            writer.add_aborted(aborted_transactions(part.producers.add(window.with_batches(piece))))
            self._written += end - begin
            done += count

    def _close_writer(self, part: CapturedPartition) -> None:
        if (writer := self._writers.get(part.number)) is not None:
            row = writer.close(topic_id=part.row.topic_id, created_ms=self._storage.now_ms())
            del self._writers[part.number]
            part.chunks.append(dataclasses.replace(row, tombstones=UNKNOWN_TOMBSTONES))

    def _proved(self) -> SegmentsError | None:
        """Asks about the topic's id and the epochs of what was copied, where the broker did not compare them as it
        read: what is not of the log here is no part of it.
        """
        copied = [part for part in self._parts.values() if part.chunks]
        if not copied or self._oldest_fetch >= _IDS_COMPARED:
            return None
        try:
            topic = self._source.topics().get(self._topic.name)
            if topic is None:
                raise SourceError(f"The cluster shows no topic {self._topic.name} any more")
            if self._is_same(topic) and self._oldest_fetch < _EPOCHS_COMPARED:
                for part in copied:
                    self._prove(part)
        except SourceError as error:
            for part in copied:
                part.take_back()
            return error
        for part in copied:
            if part.problem is not None:
                part.take_back()
        return None

    def _prove(self, part: CapturedPartition) -> None:
        for offset in (part.row.log_end_offset, part.next_offset):
            epoch = part.epoch_before(offset)
            if epoch >= 0:
                last, end = self._source.end_of_epoch(self._topic, part.number, epoch)
                if last < epoch or end < offset:
                    part.problem = self._diverged(part, offset, last, end)
                    return
