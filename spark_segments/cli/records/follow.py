"""Following a topic: rounds of what was appended since, and the positions that a group keeps of them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from spark_segments.cli.interrupts import until_interrupted
from spark_segments.errors import InvalidOptionError, LogDirError, MissingFileError, OffsetOutOfRangeError
from spark_segments.log import PartitionState, Position

if TYPE_CHECKING:
    from spark_segments.face.logdir import LogDir
    from spark_segments.log import Snapshot


COMMIT_SECONDS = 5.0
"""How often a group's positions are committed while its reader runs: Kafka's auto.commit.interval.ms."""

ReadRecords = Callable[[int, int, int, int], Iterator[pa.RecordBatch]]
"""Reads records: (partition, start offset, end offset, version of the topic) → batches."""


class GroupReader:
    """The positions of a reader in a group: where it begins, and the commit of what it has printed."""

    def __init__(self, log: LogDir, topic: str, group: str) -> None:
        self._group, self._topic = log.group(group), topic
        self._positions = self._group.positions()
        self._due = 0.0

    def starts(self, snapshot: Snapshot, partitions: list[int]) -> dict[int, int]:
        """See `Positions.starts`."""
        return self._positions.starts(snapshot, partitions)

    def commit(self, follower: Follower, *, now: bool) -> None:
        """Commits positions that moved, at most every COMMIT_SECONDS save `now`. Raises CommitConflictError."""
        there, snapshot = self._positions.offsets.get(self._topic, {}), follower.snapshot
        moved = {number: offset for number, offset in follower.positions.items() if there.get(number) != offset}
        if moved and snapshot is not None and (now or time.monotonic() >= self._due):
            ends = {number: Position.at(snapshot, number, offset) for number, offset in moved.items()}
            self._positions = self._group.commit(self._positions, {self._topic: ends})
            self._due = time.monotonic() + COMMIT_SECONDS


class Follower:
    """Reads a topic in rounds: first from the starts given to the log end, then whatever was appended since.

    A round reads one version of the topic, so rolls, compaction and retention change nothing under it. `positions` are
    {partition: the next offset}, and include all that a round gave once its next batch, or its end, was asked for;
    they are offsets of `snapshot`, the version that was read last.
    """

    def __init__(
        self,
        log: LogDir,
        topic: str,
        positions: Mapping[int, int],
        read: ReadRecords,
        *,
        all_partitions: bool,
        committed: bool,
    ) -> None:
        """`all_partitions`: partitions that are added later are read, too. `committed`: only up to the last stable
        offset.
        """
        if log.is_kafka:
            raise LogDirError(
                "A directory that Kafka wrote is read as it is now, and cannot be followed",
                path=log.uri,
                hint="Import it into a log directory; an import can be repeated while Kafka writes",
            )
        self.positions = dict(positions)
        self._log, self._topic, self._read = log, topic, read
        self._all_partitions, self._committed = all_partitions, committed
        self.snapshot: Snapshot | None = None
        self._version = -1
        self._gone_at: dict[int, int] | None = None  # the positions of the last try that found files gone

    def round(self, most: int | None = None) -> Iterator[pa.RecordBatch]:
        """The records since the last round, at most `most`. Raises OffsetOutOfRangeError where some are gone.

        A round that takes longer than file.delete.delay.ms can find files, or its version, gone to vacuum. It then goes
        on in the newest version, where jobs have put the same records into other files.
        """
        while True:
            snapshot = self._log.topic(self._topic).snapshot
            if snapshot.version == self._version:
                return
            begun = dict(self.positions)
            try:
                for number, batch in self._records(snapshot):
                    if most is not None:
                        batch = batch.slice(0, most)
                        most -= batch.num_rows
                    yield batch
                    if batch.num_rows:
                        self.positions[number] = batch.column("offset")[-1].as_py() + 1
                    if most == 0:
                        return
                self._version = snapshot.version
                return
            except (InvalidOptionError, MissingFileError):
                if begun == self._gone_at or self._log.topic(self._topic).snapshot.version == snapshot.version:
                    raise
                self._gone_at = begun

    def _records(self, snapshot: Snapshot) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(partition, records) of a version from the positions on. A partition that is done is at its end."""
        _check_same_log(self.snapshot or snapshot, snapshot, self.positions)
        self.snapshot = snapshot
        end_column = "last_stable_offset" if self._committed else "log_end_offset"
        for row in snapshot.partitions.to_pylist():
            number, log_start, end = row["partition"], row["log_start_offset"], row[end_column]
            if number not in self.positions and not self._all_partitions:
                continue
            start = self.positions.setdefault(number, log_start)
            if start < end:
                yield from ((number, batch) for batch in self._read(number, start, end, snapshot.version))
            self.positions[number] = max(start, end)


def consume_rounds(
    follower: Follower,
    write: Callable[[Iterator[pa.RecordBatch]], int],
    *,
    group: GroupReader | None,
    poll_seconds: float | None,
    most: int | None = None,
    sleep: Callable[[float], Any] = time.sleep,
) -> None:
    """Writes round after round, until `most` records were written; without `poll_seconds` only the first round.

    Positions are committed after what they cover was written and flushed: a crash prints some records again and loses
    none. Ctrl-C and SIGTERM end it after a last commit.
    """
    if poll_seconds is not None and poll_seconds <= 0:
        raise InvalidOptionError("The poll interval is above 0", expected="such as 1s or 500ms", found=poll_seconds)
    with until_interrupted():
        while True:
            written = write(follower.round(most))
            most = None if most is None else most - written
            last = poll_seconds is None or most == 0
            if group is not None:
                group.commit(follower, now=last)
            if last:
                return
            sleep(poll_seconds or 0)
    if group is not None:
        group.commit(follower, now=True)


def _check_same_log(before: Snapshot, now: Snapshot, positions: Mapping[int, int]) -> None:
    """Raises OffsetOutOfRangeError where a topic is no longer the log that was read up to these positions."""
    there = before.offset_bounds()
    for number, offset in positions.items():
        if number in there and offset <= there[number][1]:  # else the reader waits for a record that was never there
            position = PartitionState.of(before, number).position(offset)
            loss = position.loss_in(PartitionState.of(now, number), (now.topic, number), "this reader")
            if loss is not None:
                raise OffsetOutOfRangeError(
                    loss.message,
                    expected=loss.expected,
                    found=loss.found,
                    hint=f"Begin again at --offset {'beginning' if loss.is_deletion else loss.offset}"
                    + (", or raise the topic's retention" if loss.is_deletion else ""),
                )


# (partition, first offset, end offset, columns or None for all) → the records, by offset
ReadColumns = Callable[[int, int, int, list[str] | None], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class _Ends:
    """The last records of a partition: their offsets and timestamps, int64[] each, by offset."""

    offset: np.ndarray
    timestamp: np.ndarray


def last_records(read: ReadColumns, bounds: Mapping[int, tuple[int, int]], count: int) -> Iterator[pa.RecordBatch]:
    """The `count` newest records in [start, end) of each partition of `bounds`, oldest first.

    A partition's records keep their order. Between partitions the timestamp decides, then the partition's number. As
    many records as are asked for are in memory, and the offsets and timestamps of as many in each partition.
    """
    ends = {number: _ends(read, number, start, end, count) for number, (start, end) in bounds.items()}
    newest = [(-int(one.timestamp[-1]), -number, 1) for number, one in ends.items() if len(one.offset)]
    heapq.heapify(newest)
    order: list[tuple[int, int]] = []  # (partition, how many of its records come after it, and itself)
    while newest and len(order) < count:
        _, negative, taken = heapq.heappop(newest)
        order.append((-negative, taken))
        timestamps = ends[-negative].timestamp
        if taken < len(timestamps):
            heapq.heappush(newest, (-int(timestamps[-1 - taken]), negative, taken + 1))
    chosen = {number: taken for number, taken in order}  # the largest of each partition comes last
    batches: list[pa.RecordBatch] = []
    first_row: dict[int, int] = {}
    rows = 0
    for number, taken in chosen.items():
        first_row[number] = rows
        rows += taken
        batches += read(number, int(ends[number].offset[-taken]), bounds[number][1], None)
    if batches:
        wanted = [first_row[number] + chosen[number] - taken for number, taken in reversed(order)]
        yield from pa.Table.from_batches(batches).take(pa.array(wanted, pa.int64())).to_batches()


def _ends(read: ReadColumns, number: int, start: int, end: int, count: int) -> _Ends:
    """The last `count` records of a partition; fewer where there are fewer."""
    span = max(count, 1)
    while True:
        begin = max(start, end - span)
        batches = list(read(number, begin, end, ["offset", "timestamp"]))
        rows = sum(batch.num_rows for batch in batches)
        if rows >= count or begin == start:
            break
        span *= 8  # compaction and transactions leave gaps between offsets
    if not rows:
        return _Ends(np.empty(0, np.int64), np.empty(0, np.int64))
    table = pa.Table.from_batches(batches).slice(max(0, rows - count))
    return _Ends(
        table.column("offset").to_numpy(), table.column("timestamp").cast(pa.int64()).combine_chunks().to_numpy()
    )
