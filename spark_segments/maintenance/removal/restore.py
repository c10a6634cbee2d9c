"""Restoring a topic's segments as an earlier version had them, while vacuum has not taken their files."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.config import TopicConfig, topic_config
from spark_segments.errors import ErasedRecordsError, LogDirError
from spark_segments.format.batches import scan_batches
from spark_segments.format.single_batch import LARGEST_BATCH_OFFSETS, empty_batch
from spark_segments.log.appending.appender import NO_LEADER_EPOCH
from spark_segments.log.logdir import LogDir
from spark_segments.log.manifest.change import RESTORE
from spark_segments.log.manifest.erasures import Erasure, erasures_of
from spark_segments.log.manifest.manifest import Change, Manifest
from spark_segments.log.manifest.rows import DELETING, Partition, Segment, partitions_of, removed_rows, row_keys
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.log.manifest.states import check_role
from spark_segments.log.segment.limits import SegmentLimits
from spark_segments.log.segment.writer import SegmentWriter
from spark_segments.maintenance.removal.undone_transactions import (
    RestoredTransactions,
    UndoneTransactions,
    transactions_since,
)
from spark_segments.maintenance.retention.plan import expired_records
from spark_segments.maintenance.selection import check_managed

_ROW = ["base_offset", "next_offset", "file_base_offset", "state"]
"""The columns of a row that can change while its file is in the log."""

_SHOWN_ERASURES = 3
"""How many erasures an error names."""


class Restored(dict[int, tuple[int, int]]):
    """{partition: (log start offset, log end offset)} after a restore, and the `transactions` that it undid.

    `leaving`: {partition: [first offset, end) of the records that leave the log}, those appended after the version.
    `returning`: the same of records that retention or delete-records had taken, and that are in the log again.
    `expired_records`: how many of the `records` of that version are in segments older than retention.ms.
    `erasures`: those after that version, whose records are in the log again as far as they were in its files.
    """

    transactions: Sequence[UndoneTransactions] = ()
    leaving: Mapping[int, tuple[int, int]] = MappingProxyType({})
    returning: Mapping[int, tuple[int, int]] = MappingProxyType({})
    expired_records: int = 0
    records: int = 0
    erasures: Sequence[Erasure] = ()


def restore(
    log: LogDir,
    topic: str,
    version: int,
    *,
    forget_transactions: bool = False,
    including_erased: bool = False,
    dry_run: bool = False,
) -> Restored:
    """Brings a topic's records back to those of `version`, in one commit, while the files of that version exist.

    Records that were appended after that version leave the log. Their offsets are not given out again: the log end does
    not go back. The log start may go back: records that retention removed are in the log again. The configuration does
    not change. A deleted topic exists again.

    The transactions whose records leave the log stay remembered, so that repeating them adds nothing. The result names
    them in its `transactions`. `forget_transactions` lets them be sent again: each application goes back to its last
    version in the log. A second restore of the same version can ask for that, too.

    `including_erased`: files of before an erasure may come back, and with them what they have of the erased keys.

    `dry_run` changes nothing and returns what a restore would return.

    Returns {partition: (log start offset, log end offset)}. Raises LogDirError where vacuum has taken a file of that
    version, or where the topic was deleted and made again since; ErasedRecordsError where files of before an erasure
    would come back; NotLeaderError for a follower.
    """
    check_managed(log)
    manifest = log.manifest(topic)
    wanted = manifest.snapshot(version)
    fillers = _Fillers(log, topic)
    undone_transactions: list[UndoneTransactions] = []
    erasures: list[Erasure] = []
    now_ms = log.storage.now_ms()  # not after the commit: its error would say that nothing was committed

    def checked(current: Snapshot) -> tuple[pa.Table, pa.Table, RestoredTransactions]:
        """The rows of the version, those of them that are not in the log as they were, and what transactions it undoes.

        Raises where the rows cannot be, or may not be, the log of `current`.
        """
        check_role(current, RESTORE)
        if wanted.topic_id != current.topic_id:
            raise LogDirError(
                f"Version {version} belongs to another topic of the name {topic}",
                expected=f"topic id {current.topic_id}",
                found=wanted.topic_id,
            )
        rows = wanted.live
        _check_files(current, rows, version)
        returning = rows.filter(pc.invert(_as_they_are(current, rows)))
        transactions = transactions_since(manifest.log, wanted, current)
        undone_transactions[:] = transactions.undone
        erasures[:] = _erasures_since(manifest, current, version, transactions.erased) if returning.num_rows else []
        if erasures and not including_erased:
            raise _erased(topic, version, erasures)
        return rows, returning, transactions

    def change(current: Snapshot) -> Change | None:
        rows, returning, transactions = checked(current)
        leaving = current.live.filter(pc.invert(pc.is_in(row_keys(current.live), row_keys(rows))))
        remembered = [*transactions.again, *(transactions.forgotten if forget_transactions else ())]
        back = None if current.deleted_ms is None else dataclasses.replace(current.topic_row, deleted_ms=None)
        return Change(
            RESTORE,
            add=fillers.after(rows, current),
            replace=pa.concat_tables([returning, removed_rows(leaving, log.storage.now_ms())]),
            partitions=_partitions_again(wanted, current),
            topic=back,
            transactions=remembered,
        )

    if dry_run:
        before = manifest.snapshot(deleted=True)
        checked(before)
        partitions = _partitions_again(wanted, before)
        restored = Restored({row.partition: (row.log_start_offset, row.log_end_offset) for row in partitions})
    else:
        commit = manifest.commit(change, deleted=True)
        before = commit.snapshot_before
        restored = Restored(commit.bounds())
    restored.transactions, restored.erasures = tuple(undone_transactions), tuple(erasures)
    _describe(restored, wanted, before, topic_config(before.config, log.defaults), now_ms)
    return restored


def _describe(restored: Restored, wanted: Snapshot, before: Snapshot, config: TopicConfig, now_ms: int) -> None:
    """Fills in what leaves the log, what returns to it, and how much of it retention takes again."""
    then = {row.partition: row for row in partitions_of(wanted.partitions)}
    now = {row.partition: row for row in partitions_of(before.partitions)}
    leaving, returning = {}, {}
    for number, row in now.items():
        end = then[number].log_end_offset if number in then else 0
        first = max(end, row.log_start_offset)
        if first < row.log_end_offset:
            leaving[number] = (first, row.log_end_offset)
        start = restored[number][0]
        if start < min(row.log_start_offset, end):
            returning[number] = (start, min(row.log_start_offset, end))
    restored.leaving, restored.returning = leaving, returning
    restored.records = pc.sum(wanted.live.column("records")).as_py() or 0
    restored.expired_records = expired_records(wanted.live, config, now_ms)


def _erasures_since(manifest: Manifest, current: Snapshot, version: int, erased: Sequence[int]) -> list[Erasure]:
    """The erasures after a version: those that the topic remembers, and the last of the commits that erased keys and
    that it does not remember, for these were made in format version 1 or by a package that noted none.

    `erased`: the versions after `version` whose commits erased keys.
    """
    found = [one for one in erasures_of(current) if one.version > version]
    if erased and (not found or erased[-1] > found[-1].version):
        found.append(Erasure("", erased[-1], manifest.committed_ms(erased[-1]), None))
    return found


def _erased(topic: str, version: int, erasures: Sequence[Erasure]) -> ErasedRecordsError:
    shown = ", ".join(map(str, erasures[-_SHOWN_ERASURES:]))
    return ErasedRecordsError(
        f"A restore of version {version} of {topic} brings records back that were erased since",
        expected=f"version {erasures[-1].version} or a later one",
        found=f"{len(erasures)} later erasures: {shown}" if len(erasures) > 1 else f"a later erasure: {shown}",
        hint="With --including-erased (including_erased=True) they come back: erase their keys again afterwards",
    )


class _Fillers:
    """Writes segments without records, for the offsets of the records that leave the log.

    So the log has no gap before its end, and a broker that it is exported to does not give these offsets out again.
    """

    def __init__(self, log: LogDir, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._written: dict[tuple[int, int, int], Segment] = {}

    def after(self, rows: pa.Table, current: Snapshot) -> list[Segment]:
        """Segments that fill the log of each partition from the end of its last row in `rows` to the log end."""
        partition, following = rows.column("partition").to_numpy(), rows.column("next_offset").to_numpy()
        last = np.flatnonzero(np.append(partition[1:] != partition[:-1], len(partition) > 0))
        ends = current.partitions.column("log_end_offset").to_numpy()
        found = []
        for number, start in zip(partition[last].tolist(), following[last].tolist(), strict=True):
            while start < ends[number]:
                end = min(int(ends[number]), start + LARGEST_BATCH_OFFSETS)
                found.append(self._fill(current, number, start, end))
                start = end
        return found

    def _fill(self, current: Snapshot, partition: int, start: int, end: int) -> Segment:
        key = (partition, start, end)
        if key not in self._written:  # an earlier try of the commit may have written it
            config = topic_config(current.config, self._log.defaults)
            writer = SegmentWriter(
                self._log.storage,
                self._topic,
                partition,
                start,
                limits=SegmentLimits.of(config),
            )
            data = empty_batch(start, end - 1, NO_LEADER_EPOCH)
            writer.append(pa.py_buffer(data), scan_batches(data).batches)
            self._written[key] = writer.close(topic_id=current.topic_id, created_ms=self._log.storage.now_ms())
        return self._written[key]


def _check_files(current: Snapshot, rows: pa.Table, version: int) -> None:
    there = current.segments.filter(pc.not_equal(current.segments.column("state"), DELETING))
    gone = rows.column("path").filter(pc.invert(pc.is_in(row_keys(rows), row_keys(there))))
    if len(gone):
        raise LogDirError(
            f"Version {version} of {current.topic} cannot be restored: vacuum has deleted {len(gone)} of its files",
            path=gone[0].as_py(),
            hint="Restore a newer version; a larger file.delete.delay.ms keeps files longer",
        )


def _as_they_are(current: Snapshot, rows: pa.Table) -> pa.Array:
    """bool[rows]: which rows are in the log now, with the same offsets and state."""
    position = pc.index_in(row_keys(rows), row_keys(current.live))
    there = current.live.take(position)
    same = functools.reduce(pc.and_, (pc.equal(there.column(name), rows.column(name)) for name in _ROW))
    return pc.fill_null(same, False)


def _partitions_again(wanted: Snapshot, current: Snapshot) -> list[Partition]:
    """All partitions as they were at that version, with the present log ends and leader epochs."""
    before = {row.partition: row for row in partitions_of(wanted.partitions)}
    filled = set(pc.unique(wanted.live.column("partition")).to_pylist())
    rows = []
    for now in partitions_of(current.partitions):
        then, end = before.get(now.partition), now.log_end_offset
        if then is None or now.partition not in filled:  # it held nothing, and its offsets are not given out again
            rows.append(dataclasses.replace(now, log_start_offset=end, first_dirty_offset=end, last_stable_offset=end))
            continue
        stable = then.last_stable_offset
        rows.append(
            dataclasses.replace(
                now,
                log_start_offset=then.log_start_offset,
                first_dirty_offset=then.first_dirty_offset,
                last_stable_offset=end if stable == then.log_end_offset else stable,
                producer_snapshot=then.producer_snapshot,
            )
        )
    return rows
