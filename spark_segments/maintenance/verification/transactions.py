"""Whether the .txnindex files of a partition list exactly the transactions that its markers abort.

A transaction may begin in a segment and end in a later segment. So each segment is scanned for its transaction events,
and this module combines the events of all segments of a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from spark_segments.errors import SegmentsError
from spark_segments.format import control, layout
from spark_segments.format.layout import NO_PRODUCER_ID
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import TXN_ENTRY_BYTES, AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.rows import Partition
from spark_segments.log.manifest.state.states import Hole

DATA = 0
ABORT = 1
COMMIT = 2


@dataclass(frozen=True, slots=True)
class TransactionEvents:
    """Events of transactions, by offset: data that may begin a transaction, and the markers that end it."""

    producer_id: np.ndarray  # int64
    offset: np.ndarray  # int64, of the log
    kind: np.ndarray  # int8: DATA, ABORT or COMMIT

    @property
    def has_aborts(self) -> bool:
        """Whether there is a marker that aborts a transaction."""
        return bool((self.kind == ABORT).any())

    @classmethod
    def concatenate(cls, parts: Sequence[TransactionEvents]) -> TransactionEvents:
        """The events of all parts, in their order."""
        none = cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int8))
        return cls(
            *(np.concatenate([getattr(part, name) for part in [none, *parts]]) for name in none.__dataclass_fields__)
        )


@dataclass(frozen=True, slots=True)
class SegmentTransactions:
    """A segment's transaction events and the entries of its .txnindex, all at offsets of the log."""

    log_path: str
    index_path: str
    events: TransactionEvents
    indexed: AbortedTransactions


def events_of(window: Window) -> TransactionEvents | None:
    """The events of one window, None where there are none. Raises CorruptBatchError for a bad marker."""
    batches = window.batches
    rows = np.flatnonzero((batches.is_transactional | batches.is_control) & (batches.producer_id > NO_PRODUCER_ID))
    if not len(rows):
        return None
    batches = batches.take(rows)
    is_control = batches.is_control
    kind = np.full(len(batches), DATA, np.int8)
    markers = control.read_markers(window.with_batches(batches.take(is_control)))
    kind[is_control] = np.select([markers.type == layout.ABORT, markers.type == layout.COMMIT], [ABORT, COMMIT], -1)
    is_event = kind >= 0  # an emptied control batch says nothing
    batches = batches.take(is_event)
    kind = kind[is_event]
    # Of a producer's data only the first batch behind a marker can begin a transaction: a window has few events then.
    by_producer = np.argsort(batches.producer_id, kind="stable")
    producer_id = batches.producer_id[by_producer]
    producer_kind = kind[by_producer]
    is_first = np.ones(len(by_producer), bool)
    is_first[1:] = (producer_id[1:] != producer_id[:-1]) | (producer_kind[:-1] != DATA)
    kept = np.sort(by_producer[(producer_kind != DATA) | is_first])
    return TransactionEvents(batches.producer_id[kept], batches.base_offset[kept] + window.offset_shift, kind[kept])


def aborted_by(segments: Iterable[SegmentTransactions]) -> dict[str, AbortedTransactions]:
    """{path of the .log: the transactions that its markers abort} of a partition's segments, in order."""
    return _walked(segments)[0]


def _walked(segments: Iterable[SegmentTransactions]) -> tuple[dict[str, AbortedTransactions], dict[int, int]]:
    """(what `aborted_by` gives, {producer id: where its transaction begins that has no end})"""
    aborted = {}
    under_way: dict[int, int] = {}
    for segment in segments:
        rows = []
        events = segment.events
        for producer_id, offset, kind in zip(
            events.producer_id.tolist(), events.offset.tolist(), events.kind.tolist(), strict=True
        ):
            if kind == DATA:
                under_way.setdefault(producer_id, offset)
                continue
            first = under_way.pop(producer_id, None)
            # The last stable offset right after the marker, as Kafka's ProducerStateManager has it: where the first
            # transaction begins that is still open, else the offset behind the marker.
            if first is not None and kind == ABORT:
                rows.append((producer_id, first, offset, min(under_way.values(), default=offset + 1)))
        aborted[segment.log_path] = AbortedTransactions.of(rows)
    return aborted, under_way


def check_stable_offset(
    row: Partition, segments: Sequence[SegmentTransactions], holes: Sequence[Hole], findings: Findings
) -> None:
    """Checks that the partition's last stable offset is where the first open transaction begins, or the log end.
    `segments`: all of the partition, in order.

    A transaction may have begun below the log start: the row's producer snapshot has it. A marker may have been in a
    hole: then nobody knows whether its transaction has ended.
    """
    # All are compared from the log start on. Records of an open transaction can be deleted from its beginning on; the
    # offset of its first record, which the row and the producer snapshot still have, lies below the log start then.
    start = row.log_start_offset
    end = row.log_end_offset
    opened = {*_walked(segments)[1].values(), *_opened_before(row)}
    stable = max(start, min(opened, default=end))
    found = max(start, row.last_stable_offset)
    allowed = {max(start, offset) for offset in (stable, *_opened_before(row))}
    if found in allowed or any(hole.end_offset > stable for hole in holes):
        return
    effect = "records are hidden from read_committed" if found < stable else "read_committed shows open transactions"
    findings.add(
        f"The last stable offset is not where the first open transaction begins: {effect}",
        rule="M35",
        expected=stable,
        found=row.last_stable_offset,
    )


def _opened_before(row: Partition) -> list[int]:
    """Where the transactions begin that were open when the partition was imported or captured last."""
    if row.producer_snapshot is None:
        return []
    try:
        entries = parse_producer_snapshot(row.producer_snapshot)
    except SegmentsError:  # a finding of its own
        return []
    firsts = (entry.current_txn_first_offset for entry in entries)
    return [first for first in firsts if first >= 0]


def check_transactions(
    segments: Sequence[SegmentTransactions], aborted: dict[str, AbortedTransactions], findings: Findings
) -> None:
    """Compares the .txnindex files with `aborted`, the transactions that the markers abort.

    An entry may begin earlier than any data that is left. An entry whose data the cleaner removed may stay.
    """
    every = TransactionEvents.concatenate([segment.events for segment in segments])
    data = every.kind == DATA
    for segment in segments:
        add = partial(findings.add, rule="I6", path=segment.index_path, rebuilds=segment.log_path)
        entries = {(pid, last): (first, stable) for pid, first, last, stable in _rows(segment.indexed)}
        for number, (pid, first, last, stable) in enumerate(_rows(aborted[segment.log_path])):
            entry = entries.pop((pid, last), None)
            if entry is None or entry[0] > first or entry[1] > stable:
                message = "The transaction index does not show a transaction that was aborted"
                expected = f"producer {pid}, offsets {first} to {last}, last stable offset {stable}"
                found = "none" if entry is None else f"offsets {entry[0]} to {last}, last stable offset {entry[1]}"
                add(message, byte_position=number * TXN_ENTRY_BYTES, expected=expected, found=found)
        for (pid, last), (first, _) in entries.items():
            inside = data & (every.producer_id == pid) & (every.offset >= first) & (every.offset <= last)
            if inside.any():
                add(
                    "The transaction index shows as aborted what was not",
                    expected="no such entry",
                    found=f"producer {pid}, offsets {first} to {last}",
                )


def _rows(aborted: AbortedTransactions) -> list[tuple[int, int, int, int]]:
    columns = (aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.last_stable_offset)
    return list(zip(*(column.tolist() for column in columns), strict=True))
