"""Whether a topic's rows agree with each other and with the sizes of the files that they name. No file is opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_segments.errors import SegmentsError
from spark_segments.format.file_names import (
    BASE_OFFSET_DIGITS,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.format.layout import BATCH_OVERHEAD
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.log.findings import Findings
from spark_segments.log.manifest.rows import OUT_OF_LOG, Partition, Segment, has_own_path, path_rule
from spark_segments.log.manifest.snapshot import Snapshot
from spark_segments.storage import FileInfo

_SIZES = ("log_bytes", "index_bytes", "time_index_bytes", "txn_index_bytes", "records", "batches")
_SUFFIXES = {
    "log_bytes": LOG_SUFFIX,
    "index_bytes": INDEX_SUFFIX,
    "time_index_bytes": TIME_INDEX_SUFFIX,
    "txn_index_bytes": TXN_INDEX_SUFFIX,
}


def check_rows(snapshot: Snapshot, findings: Findings) -> None:
    """Checks the invariants that hold between the rows of a managed topic."""
    partitions = Partition.of_table(snapshot.partitions)
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
    for row in partitions:
        _check_partition(row, findings)
        _check_order(row, snapshot.live_table(row.partition), findings)
    _check_removed(snapshot.segments, findings)


def _check_partition(row: Partition, findings: Findings) -> None:
    start, end = row.log_start_offset, row.log_end_offset

    def within(name: str, offset: int) -> None:
        if not start <= offset <= end:
            findings.add(
                f"The {name} lies outside the log",
                rule="M12",
                partition=row.partition,
                expected=f"{start} to {end}",
                found=offset,
            )

    if not 0 <= start <= end:
        findings.add(
            "The log start offset lies behind the log end offset",
            rule="M12",
            partition=row.partition,
            expected=f"0 to {end}",
            found=start,
        )
        return
    within("first dirty offset", row.first_dirty_offset)
    within("last stable offset", row.last_stable_offset)
    for (epoch, begin), (later_epoch, later_begin) in pairwise(row.leader_epochs):
        if not (epoch < later_epoch and begin < later_begin):
            findings.add(
                "Leader epochs do not rise",
                rule="M13",
                partition=row.partition,
                expected=f"an epoch above {epoch} from an offset above {begin} on",
                found=f"epoch {later_epoch} from {later_begin} on",
            )
    if row.leader_epochs:
        last_epoch, begin = row.leader_epochs[-1]
        if last_epoch != row.leader_epoch:
            findings.add(
                "The leader epoch is not the last one of its history",
                rule="M13",
                partition=row.partition,
                expected=last_epoch,
                found=row.leader_epoch,
            )
        if begin > end:
            findings.add(
                "A leader epoch begins behind the log end",
                rule="M13",
                partition=row.partition,
                expected=f"≤ {end}",
                found=begin,
            )
    if row.producer_snapshot is not None:
        try:
            parse_producer_snapshot(row.producer_snapshot)
        except SegmentsError as error:
            findings.add(
                f"The row's producer snapshot is damaged: {error.message}",
                rule="M14",
                partition=row.partition,
                expected=error.expected,
                found=error.found,
            )


def _check_values(live: pa.Table, snapshot: Snapshot, findings: Findings) -> None:
    """Checks each row by itself."""
    column = {name: live.column(name).to_numpy(zero_copy_only=False) for name in live.column_names}
    paths = column["path"]

    def report(
        wrong: np.ndarray, message: str, expected: np.ndarray | str, found: np.ndarray, rule: str = "M16"
    ) -> None:
        for row in np.flatnonzero(wrong):
            findings.add(
                message,
                rule=rule,
                partition=int(column["partition"][row]),
                path=paths[row],
                expected=expected if isinstance(expected, str) else expected[row],
                found=_plain(found[row]),
            )

    base, end, file_base = column["base_offset"], column["next_offset"], column["file_base_offset"]
    report((base < 0) | (base > end), "A segment ends before it begins", "a base offset ≤ the next offset", base)
    for name in _SIZES:
        report(column[name] < 0, f"A row's {name} is negative", "≥ 0", column[name])
    smallest = column["batches"] * BATCH_OVERHEAD
    report(column["log_bytes"] < smallest, "A row has more batches than its bytes can hold", "≤ bytes / 61", smallest)
    empty = (column["log_bytes"] == 0) & (column["records"] > 0)
    report(empty, "A row counts records in an empty file", "0", column["records"])
    highest, first = column["max_timestamp_ms"], column["first_batch_max_timestamp_ms"]
    report(first > highest, "A row's largest timestamp is below that of its first batch", "≤ the largest", first)
    known = ~np.isin(column["state"].astype(str), [Segment.CHUNK, Segment.SEALED])
    report(
        known,
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
    if live.num_rows == 0:
        if row.log_start_offset < row.log_end_offset:
            findings.add(
                "A partition that is not empty has no segments",
                rule="M20",
                partition=row.partition,
                expected=f"segments of the offsets {row.log_start_offset} to {row.log_end_offset - 1}",
                found="none",
            )
        return
    base, end = live.column("base_offset").to_numpy(), live.column("next_offset").to_numpy()
    paths = live.column("path").to_pylist()
    if base[0] > row.log_start_offset:
        findings.add(
            "The first segment begins behind the log start offset",
            rule="M20",
            partition=row.partition,
            path=paths[0],
            expected=f"≤ {row.log_start_offset}",
            found=int(base[0]),
        )
    if end[-1] != row.log_end_offset:
        findings.add(
            "The last segment does not end at the log end offset",
            rule="M20",
            partition=row.partition,
            path=paths[-1],
            expected=row.log_end_offset,
            found=int(end[-1]),
        )
    for number in np.flatnonzero(base[1:] != end[:-1]):
        findings.add(
            "Segments overlap" if base[number + 1] < end[number] else "Offsets between segments are missing",
            rule="M20",
            partition=row.partition,
            path=paths[number + 1],
            expected=f"a base offset of {end[number]}",
            found=int(base[number + 1]),
        )
    state = live.column("state").to_numpy(zero_copy_only=False)
    for number in np.flatnonzero((state[1:] == Segment.SEALED) & (state[:-1] == Segment.CHUNK)):
        findings.add(
            "A sealed segment lies behind one of the active segment",
            rule="M21",
            partition=row.partition,
            path=paths[number + 1],
            expected=Segment.CHUNK,
            found=Segment.SEALED,
        )


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
        for log_path, size, partition in zip(
            live.column("path").to_pylist(),
            live.column(name).to_pylist(),
            live.column("partition").to_pylist(),
            strict=True,
        ):
            path = log_path.removesuffix(LOG_SUFFIX) + suffix
            info = files.get(path)
            if info is None and size == 0 and suffix == TXN_INDEX_SUFFIX:
                continue
            rebuilds = None if suffix == LOG_SUFFIX else log_path
            if info is None:
                findings.add(
                    f"A segment's {suffix} is missing",
                    rule="R6" if suffix == LOG_SUFFIX else "I8",
                    partition=partition,
                    path=path,
                    expected=f"{size} bytes",
                    found="no file",
                    rebuilds=rebuilds,
                )
            elif info.size != size:
                findings.add(
                    f"A segment's {suffix} is not as long as its row says",
                    rule="R6" if info.size < size else "I1",
                    partition=partition,
                    path=path,
                    byte_position=min(size, info.size),
                    expected=f"{size} bytes",
                    found=f"{info.size} bytes",
                    rebuilds=rebuilds,
                )
    for path, partition in _lately_removed(snapshot.segments, kept_since_ms):
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


def _lately_removed(segments: pa.Table, since_ms: int) -> Iterator[tuple[str, int]]:
    lately = segments.filter(pc.greater(segments.column("removed_ms"), since_ms))
    yield from zip(lately.column("path").to_pylist(), lately.column("partition").to_pylist(), strict=True)


def _names(topic: str, rows: pa.Table) -> np.ndarray:
    """int64[]: the base offset in each file's name, -1 for a path that is not a path of the partition."""
    paths, own = rows.column("path").to_pylist(), has_own_path(topic, rows).to_pylist()
    digits = (path.rpartition("/")[2][:BASE_OFFSET_DIGITS] for path in paths)
    return np.array([int(name) if is_own else -1 for name, is_own in zip(digits, own, strict=True)], np.int64)


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value
