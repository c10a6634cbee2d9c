"""Following a topic: rounds of what was appended since, and the positions that a group keeps of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
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

ReadRecords = Callable[[Mapping[int, tuple[int, int]], int], Iterator[pa.RecordBatch]]
"""Reads records: ({partition: (start offset, end offset)}, version of the topic) → batches, each of one partition."""


class GroupReader:
    """The positions of a reader in a group: where it begins, and the commit of what it has printed."""

    def __init__(self, log: LogDir, topic: str, group: str) -> None:
        self._group = log.group(group)
        self._topic = topic
        self._positions = self._group.positions()
        self._due = 0.0

    def starts(self, snapshot: Snapshot, partitions: list[int]) -> dict[int, int]:
        """See `Positions.starts`."""
        return self._positions.starts(snapshot, partitions)

    def commit(self, follower: Follower, *, now: bool) -> None:
        """Commits positions that moved, at most every COMMIT_SECONDS save `now`. Raises CommitConflictError."""
        committed = self._positions.offsets.get(self._topic, {})
        ahead = {number: offset for number, offset in follower.positions.items() if committed.get(number) != offset}
        # A clock that never goes back: with the wall's, a change of the time could put commits off for hours.
        is_due = now or time.monotonic() >= self._due
        if ahead and is_due and follower.snapshot is not None:
            positions = {number: Position.at(follower.snapshot, number, offset) for number, offset in ahead.items()}
            self._positions = self._group.commit(self._positions, {self._topic: positions})
            self._due = time.monotonic() + COMMIT_SECONDS


class Follower:
    """Reads a topic in rounds: first from the given starts to the log end, then the records appended since.

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
        self._log = log
        self._topic = topic
        self._read = read
        self._all_partitions = all_partitions
        self._committed = committed
        self.snapshot: Snapshot | None = None
        self._version = -1
        self._gone_at: dict[int, int] | None = None  # the positions of the last try that found files gone

    def round(self, most: int | None = None) -> Iterator[pa.RecordBatch]:
        """The records since the last round, at most `most`. Raises OffsetOutOfRangeError where some are gone.

        A round that takes longer than file.delete.delay.ms can find files, or its version, gone to vacuum. It then goes
        on in the newest version, where jobs have put the same records into other files.
        """
        remaining = most
        while True:
            snapshot = self._log.topic(self._topic).snapshot
            if snapshot.version == self._version:
                return
            begun_at = dict(self.positions)
            try:
                for batch in self._records(snapshot):
                    records = batch if remaining is None else batch.slice(0, remaining)
                    yield records
                    # Only now: who asks for the next batch has printed this one. A position that moved before could be
                    # committed, and a crash would then lose records that nobody saw.
                    self._move_behind(records)
                    if remaining is not None:
                        remaining -= records.num_rows
                    if remaining == 0:
                        return
                self._version = snapshot.version
                return
            except (InvalidOptionError, MissingFileError):
                # Tried again where a newer version can help, and once from the same positions: files that are lost, and
                # not moved by a job, would be looked for without end.
                if begun_at == self._gone_at or self._log.topic(self._topic).snapshot.version == snapshot.version:
                    raise
                self._gone_at = begun_at

    def _move_behind(self, records: pa.RecordBatch) -> None:
        if records.num_rows:
            number = records.column("partition")[-1].as_py()
            self.positions[number] = records.column("offset")[-1].as_py() + 1

    def _records(self, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        """The records of a version from the positions on. They are at its ends when all are read."""
        _check_same_log(self.snapshot or snapshot, snapshot, self.positions)
        self.snapshot = snapshot
        end_column = "last_stable_offset" if self._committed else "log_end_offset"
        ranges = {}
        for row in snapshot.partitions.to_pylist():
            number = row["partition"]
            if number in self.positions or self._all_partitions:
                start = self.positions.setdefault(number, row["log_start_offset"])
                # The last stable offset can be below a start at the log end. A range that ended there would move the
                # position back, and print records twice once the transaction ends.
                ranges[number] = (start, max(start, row[end_column]))
        yield from self._read(ranges, snapshot.version)
        self.positions |= {number: end for number, (_, end) in ranges.items()}


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
    remaining = most
    with until_interrupted():
        while True:
            written = write(follower.round(remaining))
            if remaining is not None:
                remaining -= written
            is_last = poll_seconds is None or remaining == 0
            if group is not None:
                group.commit(follower, now=is_last)
            if is_last:
                return
            sleep(poll_seconds or 0)
    if group is not None:
        group.commit(follower, now=True)


def _check_same_log(before: Snapshot, now: Snapshot, positions: Mapping[int, int]) -> None:
    """Raises OffsetOutOfRangeError where a topic is no longer the log that was read up to these positions."""
    bounds = before.offset_bounds()
    for number, offset in positions.items():
        if number not in bounds or offset > bounds[number][1]:
            continue  # The reader waits for a record that was not yet appended: there is nothing to compare.
        position = PartitionState.of(before, number).position(offset)
        loss = position.loss_in(PartitionState.of(now, number), (now.topic, number), "this reader")
        if loss is None:
            continue
        hint = f"Begin again at --offset {'beginning' if loss.is_deletion else loss.offset}"
        if loss.is_deletion:
            hint += ", or raise the topic's retention"
        raise OffsetOutOfRangeError(loss.message, expected=loss.expected, found=loss.found, hint=hint)


def last_records(
    read: Callable[..., Iterator[pa.RecordBatch]], bounds: Mapping[int, tuple[int, int]], count: int
) -> Iterator[pa.RecordBatch]:
    """The `count` newest records in [start, end) of each partition of `bounds`, oldest first.

    A partition's records keep their order. Between partitions the timestamp decides, then the partition's number. As
    many records as are asked for are in memory, and the offsets and timestamps of as many in each partition.
    `read`: takes ranges of offsets, and names of columns.
    """
    newest = _newest(read, {number: ends for number, ends in sorted(bounds.items()) if ends[0] < ends[1]}, count)
    if not newest:
        return
    partitions, offsets, ages = (np.concatenate(column) for column in zip(*newest, strict=True))
    by_age = np.lexsort((offsets, partitions, ages))
    order = by_age[max(0, len(offsets) - count) :]
    chosen = np.sort(order)
    # Read from the first chosen offset of each partition on: behind it all its records are chosen, since a record is
    # no younger than a later one.
    starts: dict[int, int] = {}
    for number, offset in zip(partitions[chosen].tolist(), offsets[chosen].tolist(), strict=True):
        starts.setdefault(number, offset)
    if not starts:
        return
    batches = list(read({number: (offset, bounds[number][1]) for number, offset in starts.items()}))
    if batches:
        rows = np.searchsorted(chosen, order)
        yield from pa.Table.from_batches(batches).take(pa.array(rows)).to_batches()


def _newest(
    read: Callable[..., Iterator[pa.RecordBatch]], bounds: Mapping[int, tuple[int, int]], count: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(partition, offset, age), int64[] each, of the last `count` records of each partition, by offset.

    Ages order the records of several partitions: a record is no younger than the later records of its partition.
    """
    newest = {}
    unread = dict(bounds)
    span = max(count, 1)
    while unread:
        # Each partition's last `span` offsets, clipped to its start: |start ······ [end - span ··· end)
        begins = {number: (max(start, end - span), end) for number, (start, end) in unread.items()}
        table = pa.Table.from_batches(
            read(begins, columns=["partition", "offset", "timestamp"]),
            pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us", "UTC"))]),
        )
        partitions = table.column("partition").to_numpy()
        for number, (begin, _) in begins.items():
            first, last = np.searchsorted(partitions, [number, number + 1])
            is_complete = last - first >= count or begin == unread[number][0]
            if is_complete:
                rows = table.slice(max(first, last - count), min(count, last - first))
                times = rows.column("timestamp").cast(pa.int64()).to_numpy()
                ages = np.minimum.accumulate(times[::-1])[::-1]
                newest[number] = (np.full(len(rows), number), rows.column("offset").to_numpy(), ages)
                del unread[number]
        span *= 8  # compaction and transactions leave gaps between offsets
    return [newest[number] for number in bounds]
