"""One segment looked at byte by byte: its batches and records, its row's figures, and every entry of its sidecars.

A unit of work of `segments verify`: it reads the files of one segment, in windows, and needs nothing but its row. What
only several segments together can tell is put together from what this returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from spark_segments.config import SegmentLimits
from spark_segments.config.values import LONG_MAX
from spark_segments.errors import CorruptBatchError, SegmentsError
from spark_segments.format.batches import BatchTable
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.layout import MAGIC
from spark_segments.format.legacy import opened
from spark_segments.format.sidecars.index import parse_offset_index
from spark_segments.format.sidecars.txn_index import AbortedTransactions, parse_txn_index
from spark_segments.format.window import Window
from spark_segments.log.appending.appender import NO_LEADER_EPOCH
from spark_segments.log.findings import MOST_OF_A_KIND, Finding, Findings
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.examination import FALLING, Examination
from spark_segments.log.segment.leader_epochs import LeaderEpochs
from spark_segments.maintenance.verification.earlier_settings import EarlierSettings
from spark_segments.maintenance.verification.indexes import IndexLook
from spark_segments.maintenance.verification.transactions import SegmentTransactions, TransactionEvents, events_of
from spark_segments.storage import Storage

WINDOW_BYTES = 8 << 20

_UNUSED_ATTRIBUTES = ~0x7F  # the bits of a batch that mean nothing
_COLUMNS = ("offset", "timestamp", "value")

# The figures of a row that its file must bear out.
_FIGURES = {
    "records": "records",
    "batches": "batches",
    "first_batch_max_timestamp_ms": "largest timestamp of the first batch",
    "max_timestamp_ms": "largest timestamp",
    "offset_of_max_timestamp": "offset of the largest timestamp",
    "tombstones": "tombstones",
    "delete_horizon_ms": "earliest delete horizon",
}


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """A segment to verify, and the facts about it that its row lacks.

    `leader_epochs`: (epoch, start offset) of its partition. `by_kafka`: in a directory that Kafka wrote, where the row
    comes from a scan. `may_end_early`: the offsets behind its last batch may be missing: a cleaner or a hole took them.
    `settings`: those that its writers were bound by, as far as that is known.
    """

    topic: str
    segment: Segment
    log_start_offset: int
    leader_epochs: tuple[tuple[int, int], ...]
    limits: SegmentLimits
    by_kafka: bool
    may_end_early: bool
    settings: EarlierSettings = field(default_factory=EarlierSettings)


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What came out: findings, what the segment says of transactions, and whether its .log itself is damaged.

    `lost`: the offsets of the log, (start, end exclusive), of the damaged batches. `can_be_cut`: nothing else is wrong
    with the .log. `offsets`: (the first, the one after the last) of its batches, in the log; None where it has none.
    `was_cleaned`: whether any of them shows that a cleaner was here.
    """

    segment: Segment
    findings: tuple[Finding, ...]
    left_out: int
    transactions: SegmentTransactions
    damaged: bool
    bytes_read: int
    offsets: tuple[int, int] | None
    was_cleaned: bool
    lost: tuple[tuple[int, int], ...] = ()
    can_be_cut: bool = False


def look_at(storage: Storage, task: SegmentTask) -> SegmentFacts:
    """What is wrong with one segment by itself, with what other segments need to be judged."""
    return _SegmentLook(storage, task).run()


def batch_starts(segment: Segment, index: bytes | None) -> Sequence[int]:
    """Positions in the .log at which batches begin, as far as the .index says."""
    try:
        _, positions = parse_offset_index(index or b"")
    except CorruptBatchError:
        return ()
    starts: list[int] = (positions.astype(np.int64) + segment.byte_position).tolist()
    return starts


class _SegmentLook:
    def __init__(self, storage: Storage, task: SegmentTask) -> None:
        self._storage = storage
        self._task = task
        self._segment = segment = task.segment
        self._findings = Findings(task.topic, segment.partition, segment.path)
        self._damaged = False
        # A row of Kafka's directory gives the figures of that part of the file that is in the log.
        self._start_offset = segment.file_base_offset if task.by_kafka else segment.name_offset
        self._examination = Examination.of(storage, segment, self._start_offset)
        self._seen = self._examination.figures
        self._least_ms = LONG_MAX  # the least timestamp
        self._has_control = False
        self._last_record_offset = segment.name_offset - 1
        self._without_epoch = True
        self._events: list[TransactionEvents] = []
        self._offsets: tuple[int, int] | None = None
        self._was_cleaned = False
        self._lost: list[tuple[int, int]] = []
        self._lost_from: int | None = None
        self._can_be_cut = True

    def run(self) -> SegmentFacts:
        segment = self._segment
        index = self._read(segment.index_path, segment.index_bytes, segment.index_position or 0)
        time_index = self._read(segment.time_index_path, segment.time_index_bytes, segment.time_index_position)
        indexes = IndexLook(segment, self._task.limits, index, time_index, self._findings)
        try:
            for window in self._examination.windows(self._goes_on, batch_starts(segment, index)):
                self._add(window, indexes)
        except FileNotFoundError:
            self._begin_loss()
            self._damage(
                "The file is missing",
                self._examination.byte_position,
                f"{segment.end_position} bytes",
                "no file",
                "R6",
                is_lost=True,
            )
        self._end_loss(segment.next_offset)
        if not self._damaged:
            self._check_row()
            self._check_chunk_size()
            if indexes.check_entries() and not self._task.by_kafka and self._seen.batches:
                steps = self._examination.steps(segment.byte_position, check_crc=False)
                indexes.check_rebuilt(self._seen.max_timestamp_ms, by_broker=not self._without_epoch, steps=steps)
        transactions = SegmentTransactions(
            segment.place, segment.txn_index_path, TransactionEvents.concatenate(self._events), self._indexed_aborted()
        )
        return SegmentFacts(
            segment,
            tuple(self._findings.found),
            self._findings.left_out,
            transactions,
            self._damaged,
            self._examination.byte_position - segment.byte_position,
            self._offsets,
            self._was_cleaned,
            tuple(sorted(self._lost)),
            bool(self._lost) and self._can_be_cut,
        )

    # Faults

    def _damage(
        self,
        message: str,
        byte_position: int,
        expected: object,
        found: object,
        rule: str = "B13",
        *,
        is_lost: bool = False,
    ) -> None:
        self._damaged = True
        self._can_be_cut &= is_lost
        self._findings.add(message, rule=rule, byte_position=byte_position, expected=expected, found=found)

    def _damage_of(self, error: SegmentsError, rule: str = "B13", *, is_lost: bool = False) -> None:
        message = error.message[:1].upper() + error.message[1:]
        byte_position = self._examination.byte_position if error.byte_position is None else error.byte_position
        self._damage(message, byte_position, error.expected, error.found, rule, is_lost=is_lost)

    def _goes_on(self, fault: CorruptBatchError, rule: str) -> bool:
        self._damage_of(fault, rule, is_lost=rule != FALLING)
        if rule != FALLING:
            self._begin_loss()
        return True

    def _begin_loss(self) -> None:
        """The batches behind the added ones are lost, up to the next batch that is added."""
        if self._lost_from is None:
            self._lost_from = self._examination.next_offset + self._segment.offset_shift

    def _end_loss(self, offset: int) -> None:
        if self._lost_from is not None:
            self._lose(self._lost_from, offset)
        self._lost_from = None

    def _lose(self, start: int, end: int) -> None:
        # Clipped to the row: what a file has outside of it is not in the log, and a hole there would be no loss.
        first = max(start, self._segment.base_offset)
        last = min(end, self._segment.next_offset)
        if first < last:
            self._lost.append((first, last))

    # Batches and records

    def _add(self, window: Window, indexes: IndexLook) -> None:
        batches = window.batches
        self._has_control |= bool(batches.is_control.any())
        self._end_loss(int(batches.base_offset[0]) + self._segment.offset_shift)
        self._check_range(batches)
        tombstones, records = self._check_records(window)
        in_log = self._examination.add(batches, lambda _: records)
        self._seen.tombstones += tombstones if len(in_log) else 0
        self._note_offsets(in_log)
        self._check_epochs(in_log)
        self._check_limits(in_log)
        try:
            indexes.add(batches)
        except CorruptBatchError as error:
            self._damage_of(error)
        try:
            events = events_of(window.with_batches(in_log))
        except CorruptBatchError as error:
            self._damage_of(error)
        else:
            self._events += [] if events is None else [events]

    def _note_offsets(self, batches: BatchTable) -> None:
        """Notes which offsets of the log the batches are for, as far as the row has them."""
        segment = self._segment
        shift = segment.offset_shift
        self._was_cleaned |= batches.has_cleaned()
        batches = batches.take(batches.last_offset + shift >= segment.base_offset)
        batches = batches.take(batches.base_offset + shift < segment.next_offset)
        if len(batches):
            # A batch may reach over an end of the row, which is clipped in it: a gap is looked for within the log.
            first = max(int(batches.base_offset[0]) + shift, segment.base_offset)
            end = min(int(batches.last_offset[-1]) + shift + 1, segment.next_offset)
            self._offsets = (first if self._offsets is None else self._offsets[0], end)

    def _check_range(self, batches: BatchTable) -> None:
        segment = self._segment
        shift = segment.offset_shift
        if segment.file_base_offset != segment.name_offset:
            return  # a clipped row: some of the file is not in the log
        for row in np.flatnonzero(batches.last_offset + shift >= segment.next_offset)[:1]:
            self._damage(
                "A batch lies outside the offsets of its segment's row",
                int(batches.byte_position[row]),
                f"offsets from {segment.base_offset} to {segment.next_offset - 1}",
                f"{batches.base_offset[row] + shift} to {batches.last_offset[row] + shift}",
                "M16",
            )

    def _check_epochs(self, batches: BatchTable) -> None:
        """A batch that has a leader epoch has that of its offset in the partition's history."""
        legacy = batches.magic < 2  # which has no epoch, and which a broker wrote
        self._without_epoch &= bool((~legacy & (batches.leader_epoch == NO_LEADER_EPOCH)).all())
        offset = batches.base_offset + self._segment.offset_shift
        epochs = LeaderEpochs(self._task.leader_epochs).epochs_of(offset)
        # Below the log start the history is cut: a batch there may have an epoch that it lacks by now.
        has_history = (epochs >= 0) & (offset >= self._task.log_start_offset)
        wrong = (has_history & (epochs != batches.leader_epoch)) | (batches.leader_epoch < NO_LEADER_EPOCH)
        for row in np.flatnonzero(wrong & (batches.leader_epoch != NO_LEADER_EPOCH)):
            self._findings.add(
                "A batch's leader epoch is not that of its offset",
                rule="W13",
                byte_position=int(batches.byte_position[row]),
                expected=int(epochs[row]),
                found=int(batches.leader_epoch[row]),
            )

    def _check_limits(self, batches: BatchTable) -> None:
        """A batch has no bits that mean nothing, and is no larger than the topic allowed when it was appended."""
        settings = self._task.settings
        offset = batches.base_offset + self._segment.offset_shift
        is_judged = settings.known_at(offset) & (batches.magic >= MAGIC)
        if not is_judged.any():
            return
        unused = batches.attributes & _UNUSED_ATTRIBUTES
        for row in np.flatnonzero(is_judged & (unused != 0)):
            self._findings.add(
                "A batch has attributes that mean nothing",
                severity=Findings.WARNING,
                rule="B17",
                byte_position=int(batches.byte_position[row]),
                expected="bits 7 to 15 that are 0",
                found=f"0x{int(batches.attributes[row]) & 0xFFFF:04x}",
            )
        most = settings.most_message_bytes(offset)
        for row in np.flatnonzero(is_judged & (batches.size > most)):
            self._findings.add(
                "A batch is larger than max.message.bytes was when it was appended",
                severity=Findings.WARNING,
                rule="M30",
                byte_position=int(batches.byte_position[row]),
                expected=f"at most {most[row]} bytes",
                found=int(batches.size[row]),
            )

    def _check_chunk_size(self) -> None:
        """A chunk of several batches is no larger than a segment might be."""
        segment = self._segment
        most = self._task.settings.most_segment_bytes(segment.base_offset)
        if segment.state == Segment.CHUNK and most is not None and segment.batches > 1 and segment.log_bytes > most:
            self._findings.add(
                "A chunk is larger than segment.bytes was when it was appended",
                severity=Findings.WARNING,
                rule="W9",
                expected=f"at most {most} bytes",
                found=segment.log_bytes,
            )

    def _check_keys(self, decoded: pa.RecordBatch, batches: BatchTable, of_batch: np.ndarray) -> None:
        """No record that was appended to a compacted topic is without a key: compaction would take it."""
        if len(decoded.columns) < len(_COLUMNS) + 1 or not decoded.column("key").null_count:
            return
        offset = decoded.column("offset").to_numpy() + self._segment.offset_shift
        is_null = decoded.column("key").is_null().to_numpy(zero_copy_only=False) & ~batches.is_control[of_batch]
        for row in np.flatnonzero(is_null & self._task.settings.is_compacted_at(offset))[:MOST_OF_A_KIND]:
            self._findings.add(
                "A record without a key was appended to a compacted topic",
                rule="W12",
                byte_position=int(batches.byte_position[of_batch[row]]),
                expected="a key",
                found=f"none at offset {offset[row]}",
            )

    def _check_records(self, window: Window) -> tuple[int, int]:
        """(tombstones, records) of the batches, each record decoded; bad ones are reported and passed over."""
        tombstones = 0
        records = 0
        parts = [window]
        # Counted, since each bad batch costs another reading of the rest: a file of noise would be read without end.
        bad_batches = 0
        while parts and bad_batches < MOST_OF_A_KIND:
            part = parts.pop(0)
            try:
                part_tombstones, part_records = self._decode(part)
                tombstones += part_tombstones
                records += part_records
            except CorruptBatchError as error:
                self._damage_of(error, is_lost=True)
                bad = max(
                    0, int(np.searchsorted(part.batches.byte_position, error.byte_position or 0, side="right")) - 1
                )
                shift = self._segment.offset_shift
                self._lose(int(part.batches.base_offset[bad]) + shift, int(part.batches.last_offset[bad]) + shift + 1)
                # The batches on both sides are read for themselves: |before|bad|behind|
                parts = [part.take(slice(0, bad)), part.take(slice(bad + 1, None)), *parts]
                bad_batches += 1
        return tombstones, records

    def _decode(self, window: Window) -> tuple[int, int]:
        """(tombstones, records) of the batches, at the offsets in the file."""
        batches = window.batches
        last_offset = self._last_record_offset
        tombstones = 0
        records = 0
        largest = np.full(len(batches), -1, np.int64)
        marked: list[int] = []
        for decoded in self._decoded(replace(window, offset_shift=0), marked):
            offset = decoded.column(0).to_numpy()
            timestamp_us = decoded.column(1).view(pa.int64()).to_numpy()
            of_batch = np.searchsorted(batches.last_offset, offset)
            self._check_keys(decoded, batches, of_batch)
            if offset[0] <= last_offset or (offset[1:] <= offset[:-1]).any():
                first = int(np.argmax(np.diff(offset, prepend=last_offset) <= 0))
                raise CorruptBatchError(
                    "Offsets of records do not rise",
                    path=self._segment.path,
                    byte_position=int(batches.byte_position[of_batch[first]]),
                    expected=f"an offset above {offset[first - 1] if first else last_offset}",
                    found=int(offset[first]),
                )
            last_offset = int(offset[-1])
            self._least_ms = min(self._least_ms, int(timestamp_us.min()) // 1000)
            begins = np.flatnonzero(np.diff(of_batch, prepend=-1))
            largest_ms = np.maximum.reduceat(timestamp_us, begins) // 1000
            largest[of_batch[begins]] = np.maximum(largest[of_batch[begins]], largest_ms)
            first_row = int(np.searchsorted(offset, self._start_offset))
            records += len(offset) - first_row
            if decoded.column(2).null_count:
                nulls = np.flatnonzero(decoded.column(2).is_null().to_numpy(zero_copy_only=False))
                tombstones += int((~batches.is_control[of_batch[nulls[nulls >= first_row]]]).sum())
        self._last_record_offset = last_offset
        self._check_record_attributes(batches, marked)
        for row in np.flatnonzero(largest > batches.max_timestamp):
            self._findings.add(
                "A record is younger than its batch says",
                rule="B14",
                byte_position=int(batches.byte_position[row]),
                expected=f"at most {batches.max_timestamp[row]}",
                found=int(largest[row]),
            )
        return tombstones, records

    def _check_record_attributes(self, batches: BatchTable, marked: list[int]) -> None:
        is_judged = self._task.settings.known_at(batches.base_offset + self._segment.offset_shift)
        for row in np.flatnonzero(is_judged & np.isin(batches.byte_position, marked)):
            self._findings.add(
                "A record has attributes, which mean nothing",
                severity=Findings.WARNING,
                rule="B18",
                byte_position=int(batches.byte_position[row]),
                expected="0 in each record of the batch",
                found="another number",
            )

    def _decoded(self, window: Window, marked: list[int]) -> Iterator[pa.RecordBatch]:
        for part in opened(window):
            yield from decode_batches(
                part,
                topic=self._task.topic,
                partition=self._segment.partition,
                columns=(*_COLUMNS, "key") if self._task.settings.has_compaction else _COLUMNS,
                include_control=True,
                target_bytes=2 * WINDOW_BYTES,
                view_values=True,  # only whether there is one is asked
                marked=marked,
            )

    def _check_row(self) -> None:
        """Checks that the row's figures agree with its file."""
        segment = self._segment
        seen = self._seen
        if seen.offset_of_max_timestamp >= 0:
            seen = replace(seen, offset_of_max_timestamp=seen.offset_of_max_timestamp + segment.offset_shift)
        for name, meaning in _FIGURES.items():
            figure = getattr(segment, name)
            expected = getattr(seen, name)
            is_uncounted = name == "tombstones" and figure < 0
            if figure != expected and not is_uncounted:
                self._findings.add(
                    f"The row does not say the {meaning} of its file", rule="M16", expected=expected, found=figure
                )
        least_ms = segment.min_timestamp_ms
        if least_ms is not None and (self._least_ms < least_ms or self._has_control):
            found = "a control record" if self._has_control else self._least_ms
            message = "The row does not say the least timestamp of its file"
            self._findings.add(message, rule="M16", expected=f"at most {least_ms}", found=found)
        if segment.state == Segment.CHUNK and segment.file_base_offset == segment.name_offset and seen.batches:
            end = seen.next_offset + segment.offset_shift
            if end > segment.next_offset or (end < segment.next_offset and not self._task.may_end_early):
                self._findings.add(
                    "The row's next offset is not the one after its file's last",
                    rule="M16",
                    expected=end,
                    found=segment.next_offset,
                )

    # Sidecars

    def _read(self, path: str, size: int, byte_position: int = 0) -> bytes | None:
        """The bytes of a sidecar, None where it is missing or shorter than the row says."""
        if size == 0 and self._task.by_kafka:
            return b""
        try:
            data = self._storage.read(path, byte_position, size).to_pybytes()
        except FileNotFoundError:
            return None  # found by comparing files with rows
        return data if len(data) == size else None

    def _indexed_aborted(self) -> AbortedTransactions:
        segment = self._segment
        try:
            data = self._read(segment.txn_index_path, segment.txn_index_bytes) if segment.txn_index_bytes else b""
            aborted = parse_txn_index(data or b"", path=segment.txn_index_path)
        except CorruptBatchError as error:
            self._findings.add_error(error, rebuilds=segment.place, rule="I7")
            return AbortedTransactions.of()
        return aborted.shifted(segment.offset_shift)
