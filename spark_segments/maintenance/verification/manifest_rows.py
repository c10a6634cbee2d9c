"""Whether the rows of a topic, its partitions, segments and transactions can be true. They must agree with each other
and with the sizes of the files that they name. No file is opened.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import LogDirError, SegmentsError
from spark_segments.format.file_names import (
    BASE_OFFSET_DIGITS,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.format.layout import BATCH_OVERHEAD
from spark_segments.format.sidecars.checkpoints import is_topic_id
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.log.eras import Eras
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.files.row_files import UNBOUNDED, UNKNOWN_ROWS, RowFile, RowFiles, bounds_of
from spark_segments.log.manifest.role import ROLES
from spark_segments.log.manifest.rows import OUT_OF_LOG, Partition, Segment, has_own_path, path_rule
from spark_segments.log.manifest.state.captures import Captured, CapturedBatch, is_of_capture
from spark_segments.log.manifest.state.snapshot import Snapshot
from spark_segments.log.manifest.state.states import (
    PARTITIONS_ADDED,
    CopiedEnd,
    ErasedTombstones,
    Erasure,
    Hole,
    Undecided,
    rewritten_offsets,
)
from spark_segments.log.manifest.transaction import Transaction
from spark_segments.storage import FileInfo

AHEAD_MS = 24 * 60 * 60 * 1000
"""How far a writer's clock may be ahead of the store's."""

_SIZES = ("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes", "records", "batches")
_SUFFIXES = {
    "log_bytes": LOG_SUFFIX,
    "index_bytes": INDEX_SUFFIX,
    "time_index_bytes": TIME_INDEX_SUFFIX,
    "txn_index_bytes": TXN_INDEX_SUFFIX,
}


def check_rows(snapshot: Snapshot, findings: Findings) -> None:
    """Checks the invariants that hold between the rows of a managed topic."""
    partitions = snapshot.partition_rows
    numbers = [row.partition for row in partitions]
    if numbers != list(range(len(numbers))):
        findings.add(
            "Partitions are not numbered from 0", rule="D4", expected=f"0 to {len(numbers) - 1}", found=numbers[:20]
        )
    live = snapshot.live
    strangers = set(live.column("partition").unique().to_pylist()) - set(numbers)
    for number in sorted(strangers):
        findings.add("Segments of a partition that the topic does not have", rule="D4", partition=number)
    _check_values(live, snapshot, findings)
    is_copy = bool(CopiedEnd.of(snapshot.states)) or any(map(is_of_capture, snapshot.states))
    imported = len(partitions) if is_copy else _imported_partitions(snapshot)
    for row in partitions:
        _check_partition(row, row.partition < imported, findings)
        _check_order(row, snapshot.live_table(row.partition), findings)
    _check_removed(snapshot.segments, findings)


def _imported_partitions(snapshot: Snapshot) -> int:
    """How many partitions, from 0 on, an import by an earlier version may have brought.

    Of files without a producer snapshot it left no other trace than the entry about additions of partitions, which is
    empty: nobody knows when they came. What is added here puts its eras into the entry, as it does in a topic that was
    made here. But such a topic has leader epochs: an import brought the partitions of the first era if none has any.
    """
    partitions = snapshot.partition_rows
    if snapshot.states.get(PARTITIONS_ADDED) == "[]":
        return len(partitions)
    eras = Eras.of(snapshot)
    first = len(eras.ends[0]) if eras is not None and eras.ends else 0
    return 0 if any(row.leader_epochs for row in partitions[:first]) else first


def _check_partition(row: Partition, is_from_elsewhere: bool, findings: Findings) -> None:
    """`is_from_elsewhere`: what may have come from a cluster, or from Kafka's files, may have no leader epochs."""
    start = row.log_start_offset
    end = row.log_end_offset
    add = partial(findings.add, partition=row.partition)
    if not 0 <= start <= end:
        message = "The log start offset lies behind the log end offset"
        add(message, rule="M12", expected=f"0 to {end}", found=start)
        return
    offsets = {"first dirty offset": row.first_dirty_offset, "last stable offset": row.last_stable_offset}
    for name, offset in offsets.items():
        if not start <= offset <= end:
            add(f"The {name} lies outside the log", rule="M12", expected=f"{start} to {end}", found=offset)
    for (epoch, begin), (later_epoch, later_begin) in pairwise(row.leader_epochs):
        if not (epoch < later_epoch and begin < later_begin):
            expected = f"an epoch above {epoch} from an offset above {begin} on"
            found = f"epoch {later_epoch} from {later_begin} on"
            add("Leader epochs do not rise", rule="M13", expected=expected, found=found)
    if not row.leader_epochs and not is_from_elsewhere and row.producer_snapshot is None:
        expected = f"epoch {row.leader_epoch} from an offset on"
        add("A partition has no leader epochs", severity=Findings.WARNING, rule="M13", expected=expected, found="none")
    if row.leader_epochs:
        last_epoch, begin = row.leader_epochs[-1]
        if last_epoch != row.leader_epoch:
            message = "The leader epoch is not the last one of its history"
            add(message, rule="M13", expected=last_epoch, found=row.leader_epoch)
        if begin > end:
            add("A leader epoch begins behind the log end", rule="M13", expected=f"≤ {end}", found=begin)
    if row.producer_snapshot is not None:
        try:
            parse_producer_snapshot(row.producer_snapshot)
        except SegmentsError as error:
            message = f"The row's producer snapshot is damaged: {error.message}"
            add(message, rule="M14", expected=error.expected, found=error.found)


def _check_values(live: pa.Table, snapshot: Snapshot, findings: Findings) -> None:
    """Checks each row by itself."""
    column = {name: live.column(name).to_numpy(zero_copy_only=False) for name in live.column_names}
    paths = column["path"]

    def report(
        wrong: np.ndarray, message: str, expected: np.ndarray | str, found: np.ndarray, rule: str = "M16"
    ) -> None:
        for row in np.flatnonzero(wrong):
            value = found[row]
            findings.add(
                message,
                rule=rule,
                partition=int(column["partition"][row]),
                path=paths[row],
                expected=expected if isinstance(expected, str) else expected[row],
                found=value.item() if isinstance(value, np.generic) else value,
            )

    base = column["base_offset"]
    end = column["next_offset"]
    file_base = column["file_base_offset"]
    report((base < 0) | (base > end), "A segment ends before it begins", "a base offset ≤ the next offset", base)
    for name in _SIZES:
        report(column[name] < 0, f"A row's {name} is negative", "≥ 0", column[name])
    smallest = column["batches"] * BATCH_OVERHEAD
    report(column["log_bytes"] < smallest, "A row has more batches than its bytes can hold", "≤ bytes / 61", smallest)
    empty = (column["log_bytes"] == 0) & (column["records"] > 0)
    report(empty, "A row counts records in an empty file", "0", column["records"])
    highest = column["max_timestamp_ms"]
    first = column["first_batch_max_timestamp_ms"]
    report(first > highest, "A row's largest timestamp is below that of its first batch", "≤ the largest", first)
    is_unknown = ~np.isin(column["state"].astype(str), [Segment.CHUNK, Segment.SEALED])
    report(
        is_unknown,
        "A row has an unknown state",
        ", ".join((Segment.CHUNK, Segment.SEALED, *OUT_OF_LOG)),
        column["state"],
        "M18",
    )
    names = _names(snapshot.topic, live)
    report(names < 0, "A row's path is not one of its partition", path_rule(snapshot.topic), paths, "D5")
    report(
        (names >= 0) & (file_base < names), "A row's file base offset is below the file's name", "≥ the name", file_base
    )
    where = column["offset_of_max_timestamp"]
    outside = (where >= 0) & (file_base == names) & ((where < base) | (where >= end))
    report(outside, "A row's offset of the largest timestamp lies outside the segment", "an offset of it", where)
    unique, counts = np.unique(_own_files(live).column("path").to_numpy().astype(str), return_counts=True)
    for path in unique[counts > 1]:
        findings.add("Two rows name the same file", rule="M23", path=str(path), expected="one row", found="several")


def _check_order(row: Partition, live: pa.Table, findings: Findings) -> None:
    """Checks that live rows, in order, cover the log from start to end, each offset once, sealed rows first."""
    add = partial(findings.add, rule="M20", partition=row.partition)
    if live.num_rows == 0:
        if row.log_start_offset < row.log_end_offset:
            expected = f"segments of the offsets {row.log_start_offset} to {row.log_end_offset - 1}"
            add("A partition that is not empty has no segments", expected=expected, found="none")
        return
    base = live.column("base_offset").to_numpy()
    end = live.column("next_offset").to_numpy()
    paths = live.column("path").to_pylist()
    if base[0] > row.log_start_offset:
        message = "The first segment begins behind the log start offset"
        add(message, path=paths[0], expected=f"≤ {row.log_start_offset}", found=int(base[0]))
    if end[-1] != row.log_end_offset:
        message = "The last segment does not end at the log end offset"
        add(message, path=paths[-1], expected=row.log_end_offset, found=int(end[-1]))
    for number in np.flatnonzero(base[1:] != end[:-1]):
        overlap = base[number + 1] < end[number]
        message = "Segments overlap" if overlap else "Offsets between segments are missing"
        expected = f"a base offset of {end[number]}"
        add(message, path=paths[number + 1], expected=expected, found=int(base[number + 1]))
    state = live.column("state").to_numpy(zero_copy_only=False)
    for number in np.flatnonzero((state[1:] == Segment.SEALED) & (state[:-1] == Segment.CHUNK)):
        message = "A sealed segment lies behind one of the active segment"
        add(message, rule="M21", path=paths[number + 1], expected=Segment.CHUNK, found=Segment.SEALED)


def _check_removed(segments: pa.Table, findings: Findings) -> None:
    state = segments.column("state").to_numpy(zero_copy_only=False)
    removed_ms = segments.column("removed_ms")
    wrong = np.isin(state.astype(str), OUT_OF_LOG) == removed_ms.is_null().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(wrong):
        findings.add(
            "A row's state does not go with its time of removal",
            rule="M24",
            partition=segments.column("partition")[int(row)].as_py(),
            path=segments.column("path")[int(row)].as_py(),
            expected="a time where it is removed, and only there",
            found=f"{state[row]}, removed at {removed_ms[int(row)].as_py()}",
        )


def check_files(snapshot: Snapshot, files: Mapping[str, FileInfo], findings: Findings, *, kept_since_ms: int) -> None:
    """Checks that every file of a live row is there and as long as the row says. `files`: the listed files by path.

    A file that left the log after `kept_since_ms` must still be there for the readers of older snapshots.
    """
    live = _own_files(snapshot.live)
    for name, suffix in _SUFFIXES.items():
        for (log_path, partition), size in zip(_places(live), live.column(name).to_pylist(), strict=True):
            path = log_path.removesuffix(LOG_SUFFIX) + suffix
            info = files.get(path)
            if info is None and size == 0 and suffix == TXN_INDEX_SUFFIX:
                continue
            rebuilds = None if suffix == LOG_SUFFIX else log_path
            add = partial(findings.add, partition=partition, path=path, expected=f"{size} bytes", rebuilds=rebuilds)
            if info is None:
                rule = "R6" if suffix == LOG_SUFFIX else "I8"
                add(f"A segment's {suffix} is missing", rule=rule, found="no file")
            elif info.size != size:
                add(
                    f"A segment's {suffix} is not as long as its row says",
                    rule="R6" if info.size < size else "I1",
                    byte_position=min(size, info.size),
                    found=f"{info.size} bytes",
                )
    lately = pc.greater(snapshot.segments.column("removed_ms"), kept_since_ms)
    for path, partition in _places(snapshot.segments.filter(lately)):
        if path not in files:
            findings.add(
                "A file was deleted while readers of an older snapshot may need it",
                severity=Findings.WARNING,
                partition=partition,
                path=path,
                expected="a file, until file.delete.delay.ms has passed",
                found="no file",
            )


def well_named(snapshot: Snapshot) -> set[str]:
    """The paths of live rows that are valid segment paths of the row's partition."""
    paths = snapshot.live.column("path").to_numpy(zero_copy_only=False)
    return set(paths[_names(snapshot.topic, snapshot.live) >= 0].tolist())


def _own_files(rows: pa.Table) -> pa.Table:
    """The rows whose batches are not in a shared object."""
    return rows.filter(pc.is_null(rows.column("index_position")))


def _names(topic: str, rows: pa.Table) -> np.ndarray:
    """int64[]: the base offset in each file's name, -1 for a path that is not a path of the partition."""
    paths = rows.column("path").to_pylist()
    own = has_own_path(topic, rows).to_pylist()
    digits = (path.rpartition("/")[2][:BASE_OFFSET_DIGITS] for path in paths)
    return np.array([int(name) if is_own else -1 for name, is_own in zip(digits, own, strict=True)], np.int64)


def readable(snapshot: Snapshot, findings: Findings) -> Snapshot:
    """The snapshot without states that cannot be read, each of which is a finding: other checks go by the rest."""
    states = {}
    for name, value in snapshot.states.items():
        try:
            for kind in (Hole, Undecided, ErasedTombstones, Captured, CapturedBatch, CopiedEnd):
                kind.of({name: value})
            rewritten_offsets({name: value})
            Erasure.appends({name: value})
            for of_snapshot in (Eras, Erasure):
                of_snapshot.of(dataclasses.replace(snapshot, states={name: value}))
            states[name] = value
        except LogDirError as error:
            findings.add_error(error, rule="M27" if kind in (Hole, Undecided) else None)
    return snapshot if len(states) == len(snapshot.states) else dataclasses.replace(snapshot, states=states)


def check_topic(snapshot: Snapshot, findings: Findings) -> None:
    """Checks the topic's row."""
    if not is_topic_id(snapshot.topic_id):
        expected = "22 characters of URL-safe base64: a UUID"
        findings.add("The topic id is no UUID", rule="M29", expected=expected, found=snapshot.topic_id)
    try:
        role = snapshot.role
    except LogDirError as error:
        role = str(error)
    if role not in ROLES:
        findings.add("The topic's role is unknown", rule="M26", expected=", ".join(ROLES), found=role)
    for hole in Hole.of(snapshot.states):
        if not 0 <= hole.start_offset < hole.end_offset:
            found = f"{hole.start_offset} to {hole.end_offset}"
            findings.add("A hole has no offsets", rule="M27", partition=hole.partition, expected="some", found=found)
    for transaction in Undecided.of(snapshot.states):
        findings.add(
            "A captured transaction is undecided",
            partition=transaction.partition,
            expected="its end (segments capture --recapture: a true copy)",
            found=transaction,
        )
    for number, captured in Captured.of(snapshot.states).items():
        if captured.late:
            expected = "within delete.retention.ms of the time before"
            findings.add("A compacted partition was captured late", partition=number, expected=expected, found="later")


def check_shared_rows(live: pa.Table, findings: Findings) -> None:
    """Rows of shared objects are chunks."""
    sealed = pc.and_(pc.is_valid(live.column("index_position")), pc.equal(live.column("state"), "sealed"))
    for path, partition in _places(live.filter(sealed)):
        message = "A run of a shared object is sealed by its row"
        findings.add(message, rule="O5", partition=partition, path=path, expected="chunk", found="sealed")


def check_clocks(segments: pa.Table, now_ms: int, findings: Findings) -> None:
    """No row was written, or left the log, in the future: rolls, retention and vacuum would wait for it."""
    for name in ("created_ms", "removed_ms"):
        ahead = pc.fill_null(pc.greater(segments.column(name), now_ms + AHEAD_MS), False)
        rows = segments.filter(ahead)
        for (path, partition), moment_ms in zip(_places(rows), rows.column(name).to_pylist(), strict=True):
            findings.add(
                f"A row's {name} lies in the future",
                severity=Findings.WARNING,  # of a clock that was wrong for a while; no record is
                rule="M17",
                partition=partition,
                path=path,
                expected=f"at most {now_ms + AHEAD_MS}, a day after the store's clock",
                found=moment_ms,
            )


def check_statistics(store: RowFiles, files: Sequence[RowFile], findings: Findings) -> None:
    """Checks that Delta's log says of each file of rows what is true: readers pass over files by its statistics."""
    sizes = {info.path: info.size for info in store.storage.list(store.directory, recursive=True)}
    for file, rows in zip(files, store.read_all(files), strict=True):
        add = partial(findings.add, rule="M34", path=f"{store.directory}/{file.path}")
        if file.rows not in (UNKNOWN_ROWS, rows.num_rows):
            message = "The statistics of a file of rows count other rows than it has"
            add(message, expected=f"{rows.num_rows} rows", found=file.rows)
        for name, (least, greatest) in bounds_of(rows).items():
            low, high = file.bounds[name]
            if rows.num_rows and (low, high) != UNBOUNDED and not low <= least <= greatest <= high:
                message = f"The statistics of a file of rows leave out a {name} that it has"
                add(message, expected=f"bounds around {least} to {greatest}", found=f"{low} to {high}")
        size = sizes.get(store.path(file), file.size)  # vacuum may take a file that was read already
        if file.size != size:
            add("A file of rows has another size than Delta's log says", expected=f"{size} bytes", found=file.size)


def check_applications(transactions: Sequence[Transaction], findings: Findings) -> None:
    """Each application has one last transaction."""
    for application, count in Counter(sent.application for sent in transactions).items():
        if count > 1:
            message = "An application has several rows of transactions"
            findings.add(message, rule="M25", expected="one row", found=f"{count} of {application}")


def _places(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows.column("path").to_pylist(), rows.column("partition").to_pylist(), strict=True))
