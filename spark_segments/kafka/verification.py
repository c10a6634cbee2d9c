"""`segments verify` of Kafka's directories: a quick check uses the listing, a deep check the recovery."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_segments.errors import SegmentsError
from spark_segments.format.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from spark_segments.format.sidecars.checkpoints import (
    CLEANER_OFFSETS_FILE,
    LEADER_EPOCHS_FILE,
    LOG_START_OFFSETS_FILE,
    META_PROPERTIES_FILE,
    PARTITION_METADATA_FILE,
    RECOVERY_POINTS_FILE,
    REPLICATION_OFFSETS_FILE,
    parse_leader_epochs,
    parse_meta_properties,
    parse_offsets,
    parse_partition_metadata,
)
from spark_segments.format.sidecars.index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from spark_segments.format.sidecars.producer_state import parse_producer_snapshot
from spark_segments.format.sidecars.txn_index import TXN_ENTRY_BYTES
from spark_segments.kafka.listing import CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX, base_offset, file_name
from spark_segments.kafka.partition import (
    TIERED_LEADER_EPOCHS_SUFFIX,
    PartitionSource,
)
from spark_segments.kafka.recovered_log import RecoveryReport
from spark_segments.log import Findings
from spark_segments.storage import FileInfo, Storage

_ENTRY_BYTES = {
    INDEX_SUFFIX: OFFSET_ENTRY_BYTES,
    TIME_INDEX_SUFFIX: TIME_ENTRY_BYTES,
    TXN_INDEX_SUFFIX: TXN_ENTRY_BYTES,
}
_PARSERS: dict[str, Callable[..., Any]] = {
    LEADER_EPOCHS_FILE: parse_leader_epochs,
    PARTITION_METADATA_FILE: parse_partition_metadata,
}
_ABOVE: dict[str, Callable[..., Any]] = {
    META_PROPERTIES_FILE: parse_meta_properties,
    **dict.fromkeys(
        (CLEANER_OFFSETS_FILE, LOG_START_OFFSETS_FILE, RECOVERY_POINTS_FILE, REPLICATION_OFFSETS_FILE), parse_offsets
    ),
}


def check_listing(storage: Storage, source: PartitionSource, findings: Findings) -> None:
    """Checks a partition's directory without reading its log: which files it has, their sizes, its small files."""
    listing = storage.list(source.path)
    names = {file_name(info): info for info in listing}
    for name, info in names.items():
        if base_offset(name) is not None or name in _PARSERS:
            _check_file(storage, info, names, findings)


def _check_file(storage: Storage, info: FileInfo, names: dict[str, FileInfo], findings: Findings) -> None:
    name = file_name(info)
    suffix = "." + name.rpartition(".")[2]
    if suffix in (CLEANED_SUFFIX, DELETED_SUFFIX, SWAP_SUFFIX):
        findings.add(
            "A file that a crash of the cleaner left",
            severity=Findings.WARNING,
            path=info.path,
            expected="none; a broker that starts puts it in place or takes it away",
            found=name,
        )
    elif suffix == LOG_SUFFIX:
        _check_sidecars(name, info, names, findings)
    elif suffix in _ENTRY_BYTES:
        _check_entries(name, info, suffix, names, findings)
    else:
        parser = _parser(name, suffix)
        if parser is not None:
            _check_small_file(storage, info, parser, findings)


def check_log_directory(storage: Storage, findings: Findings) -> None:
    """Checks that the checkpoint files of a log directory parse."""
    for info in storage.list():
        if info.path in _ABOVE:
            _check_small_file(storage, info, _ABOVE[info.path], findings)


def add_report(report: RecoveryReport, findings: Findings) -> None:
    """Adds what recovery left out of the log, and the files it could not use, unless they have findings already."""
    for cut in report.cuts:
        findings.add(
            "The log is cut here: " + cut.reason,
            partition=cut.partition,
            path=cut.path,
            byte_position=cut.byte_position,
            expected="record batches to the end of the file",
            found=f"{cut.bytes} bytes that are not in the log"
            + (f", nor are the {len(cut.dropped)} later segments" if cut.dropped else ""),
        )
    for overlap in report.overlaps:
        findings.add(
            "A segment overlaps another, as after a crash of the cleaner, and a broker that starts keeps both",
            severity=Findings.WARNING,
            partition=overlap.partition,
            path=overlap.path,
            expected="offsets that no other segment holds",
            found=f"offsets {overlap.first_offset} to {overlap.last_offset}, for which {overlap.served} is read instead"
            + (f"; the file is damaged, too: {overlap.problem}" if overlap.problem else ""),
        )
    reported = {finding.path for finding in findings.found}
    for note in report.notes:
        if note.path not in reported:
            findings.add(
                "A file is not used as it is: " + note.message,
                severity=Findings.WARNING,
                partition=note.partition,
                path=note.path,
            )


def _check_sidecars(name: str, info: FileInfo, names: dict[str, FileInfo], findings: Findings) -> None:
    for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX):
        other = name.removesuffix(LOG_SUFFIX) + suffix
        if other not in names:
            findings.add(
                f"A segment's {suffix} is missing",
                severity=Findings.WARNING,
                path=info.path.removesuffix(LOG_SUFFIX) + suffix,
                expected="a file; a broker that starts builds it anew",
                found="no file",
            )


def _check_entries(name: str, info: FileInfo, suffix: str, names: dict[str, FileInfo], findings: Findings) -> None:
    if info.size % _ENTRY_BYTES[suffix]:
        findings.add(
            f"A segment's {suffix} ends within an entry",
            severity=Findings.WARNING,
            path=info.path,
            byte_position=info.size - info.size % _ENTRY_BYTES[suffix],
            expected=f"a multiple of {_ENTRY_BYTES[suffix]} bytes",
            found=f"{info.size} bytes",
        )
    if name.removesuffix(suffix) + LOG_SUFFIX not in names:
        findings.add(
            f"A {suffix} has no .log",
            severity=Findings.WARNING,
            path=info.path,
            expected="none; a broker that starts deletes it",
            found=name,
        )


def _check_small_file(storage: Storage, info: FileInfo, parser: Callable[..., Any], findings: Findings) -> None:
    try:
        parser(storage.read(info.path).to_pybytes(), path=info.path)
    except SegmentsError as error:
        findings.add_error(error, severity=Findings.WARNING)
    except FileNotFoundError:
        return  # a running broker has just replaced the file


def _parser(name: str, suffix: str) -> Callable[..., Any] | None:
    if suffix == PRODUCER_SNAPSHOT_SUFFIX:
        return parse_producer_snapshot
    if suffix == TIERED_LEADER_EPOCHS_SUFFIX:
        return parse_leader_epochs
    return _PARSERS.get(name)
