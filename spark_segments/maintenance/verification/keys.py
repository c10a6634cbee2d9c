"""Whether the clean tail of a compacted partition has every key once, as compaction promises.

A task of `segments verify`: each partition is a task.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_segments.format.cleaner.offset_map import OffsetMap
from spark_segments.format.decoding.decode import decode_batches
from spark_segments.format.sidecars.txn_index import AbortedTransactions
from spark_segments.format.window import Window
from spark_segments.log.findings import MOST_OF_A_KIND, Finding, Findings
from spark_segments.log.manifest.rows import Segment
from spark_segments.log.segment.file import SegmentFile
from spark_segments.storage import Storage

MAP_BYTES = 256 << 20
"""Upper bound on the map of keys. A tail of more keys (about ten million) is checked in parts that fit."""


@dataclass(frozen=True, slots=True)
class KeysTask:
    """A partition's clean tail: the offsets [start_offset, end_offset) of `segments`; `aborted` data does not count."""

    topic: str
    partition: int
    segments: tuple[Segment, ...]
    start_offset: int
    end_offset: int
    aborted: AbortedTransactions
    map_bytes: int = MAP_BYTES


def verify_keys(storage: Storage, task: KeysTask) -> list[Finding]:
    """A finding for each record of the tail that has no key, or whose key a later record of the tail has.

    Raises CorruptBatchError for damaged bytes: the segments must be whole.
    """
    findings = Findings(task.topic, task.partition)
    start = task.start_offset
    while start < task.end_offset:
        keys = OffsetMap(task.map_bytes, start_offset=start)
        keyed = 0
        for window in _windows(storage, task, start):
            keyed += window.put(task, keys, findings)
            if keys.full:
                break
        end = keys.end_offset if keys.full else task.end_offset
        if keyed != len(keys):
            _name_repeated(storage, task, keys, start, end, findings)
        start = max(start + 1, end)
    return findings.found


@dataclass(frozen=True, slots=True)
class _TailWindow:
    """Batches that have offsets of the tail, and which of them belong to aborted transactions."""

    window: Window
    undone: np.ndarray

    def put(self, task: KeysTask, keys: OffsetMap, findings: Findings) -> int:
        """Puts the keys into the map and returns how many records have a key. A record without a key is a finding."""
        keys.put_batches(self.window, end_offset=task.end_offset, exclude=self.undone)
        end = keys.end_offset if keys.full else task.end_offset
        keyed = 0
        for decoded in self.records(task, keys.start_offset, end):
            key, offset = decoded.columns
            keyed += len(key) - key.null_count
            for row in np.flatnonzero(key.is_null().to_numpy(zero_copy_only=False)) if key.null_count else ():
                self.report(
                    findings, "A record of a compacted partition's clean tail has no key", int(offset[row].as_py())
                )
        return keyed

    def records(self, task: KeysTask, start_offset: int, end_offset: int) -> Iterator[pa.RecordBatch]:
        """Keys and offsets of the log, of the records in [start_offset, end_offset)."""
        return decode_batches(
            self.window,
            topic=task.topic,
            partition=task.partition,
            start_offset=start_offset,
            end_offset=end_offset,
            columns=("key", "offset"),
            exclude=self.undone,
        )

    def report(self, findings: Findings, message: str, offset: int, value: object = None) -> None:
        """Adds a finding at the batch that holds `offset`."""
        batches = self.window.batches
        batch = int(np.searchsorted(batches.last_offset, offset - self.window.offset_shift))
        findings.add(
            message,
            rule="W15",
            path=self.window.path,
            byte_position=int(batches.byte_position[batch]),
            expected="every key once, in its newest record",
            found=value or f"offset {offset}",
        )


def _windows(storage: Storage, task: KeysTask, start: int) -> Iterator[_TailWindow]:
    for segment in task.segments:
        if segment.next_offset <= start or segment.base_offset >= task.end_offset:
            continue
        # Clipped to the segment: a file can have offsets beside its row that are in no tail.
        low = max(start, segment.base_offset)
        high = min(task.end_offset, segment.next_offset)
        begin = SegmentFile(storage, segment).locate(low) if low > segment.base_offset else 0
        for window in SegmentFile(storage, segment).windows(begin):
            window = window.between(low, high)
            if len(window.batches):
                yield _TailWindow(window, task.aborted.mask(window.batches, window.offset_shift))


def _name_repeated(storage: Storage, task: KeysTask, keys: OffsetMap, start: int, end: int, findings: Findings) -> None:
    """Adds a finding for each record whose key the map has at a later offset. Slow: done only where there are some."""
    repeated = _repeated(storage, task, keys, start, end)
    for window, offset, latest in itertools.islice(repeated, MOST_OF_A_KIND):
        message = "A key is twice in a compacted partition's clean tail"
        window.report(findings, message, offset, f"offset {offset}, and again {latest}")


def _repeated(
    storage: Storage, task: KeysTask, keys: OffsetMap, start: int, end: int
) -> Iterator[tuple[_TailWindow, int, int | None]]:
    """(a record's window, its offset, the later offset of its key)"""
    for window in _windows(storage, task, start):
        for decoded in window.records(task, start, end):
            key, offset = decoded.columns
            for name, at in zip(key.to_pylist(), offset.to_pylist(), strict=True):
                latest = None if name is None else keys.get(name)
                if name is not None and latest != at:
                    yield window, at, latest
