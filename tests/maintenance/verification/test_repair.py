"""A repair builds sidecars anew under new names and leaves all else as it was."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.errors import CorruptBatchError, LogDirError
from spark_segments.maintenance import verify
from spark_segments.maintenance.verification.deep import Rebuild, rebuild_sidecars
from tests.log.golden_reads import records_of, tree
from tests.maintenance.verification.file_faults import FILE_FAULTS
from tests.maintenance.verification.topics import has, repaired, segment
from verification.world.kafka_bytes.golden_files import golden_dir
from verification.world.kafka_bytes.segment_bytes import AbortedTransactions
from verification.world.topics import SegmentLimits

SIDECAR_FAULTS = [
    "a missing offset index",
    "a missing time index",
    "a missing transaction index",
    "an offset index that is cut",
    "a time index with an entry too many",
    "a position in an offset index",
    "entries of an offset index in the wrong order",
    "an offset index of zeros",
    "a time in a time index that is too low",
    "a time index of zeros",
    "two offset indexes of one size in each other's place",
    "a producer in a transaction index",
    "a last stable offset in a transaction index that is too late",
    "a transaction index that hides a committed transaction",
]


def everything(log: LogDir, topic: str) -> tuple[list, list]:
    levels = ("read_uncommitted", "read_committed")
    return tuple(records_of(log.topic(topic).scan(isolation=level).batches()) for level in levels)


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", SIDECAR_FAULTS)
def test_a_repair_builds_sidecars_anew_under_new_names(name, directory, built):
    path, _ = FILE_FAULTS[name][0](LogDir.open(str(directory)), directory)
    topic = path.partition("-")[0]
    logs = {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.rglob("*.log")}
    before = tree(directory)
    log = LogDir.open(str(directory))
    report = verify(log, repair=True)
    assert repaired(report), [str(finding) for finding in report.findings]
    assert verify(log, deep=True).ok
    assert everything(log, topic) == everything(LogDir.open(str(built)), topic)
    new = {file for file in directory.rglob("*.log") if file not in logs}
    assert {hashlib.sha256(file.read_bytes()).hexdigest() for file in new} <= set(logs.values())
    assert {str(file.relative_to(directory)) for file in new} == {one["new_path"] for one in repaired(report)}
    after = tree(directory)
    assert {file: after[file] for file in before if "." in Path(file).name and "_manifest" not in file} == {
        file: seen for file, seen in before.items() if "." in Path(file).name and "_manifest" not in file
    }


def test_a_repair_leaves_a_damaged_log_alone(directory):
    path, position = FILE_FAULTS["a bit of a record"][0](LogDir.open(str(directory)), directory)
    (directory / path.replace(".log", ".index")).unlink()
    log = LogDir.open(str(directory))
    before = log.topic("orders").snapshot.version
    report = verify(log, topics=["orders"], repair=True)
    assert repaired(report) == []
    assert has(report, (path, position))
    assert log.topic("orders").snapshot.version == before


def test_a_rebuild_of_a_log_that_turns_out_damaged_leaves_no_file(directory):
    """The .log was good when it was looked at."""
    log = LogDir.open(str(directory))
    path, _ = FILE_FAULTS["a bit of a record"][0](log, directory)
    [damaged] = [row for number in range(2) for row in log.topic("orders").snapshot.live_of(number) if row.path == path]
    before = set(directory.rglob("*"))
    with pytest.raises(CorruptBatchError):
        rebuild_sidecars(
            log.storage, Rebuild("orders", damaged, AbortedTransactions.of(), SegmentLimits(1 << 30, 4096, 10 << 20))
        )
    assert set(directory.rglob("*")) == before


def test_a_second_repair_finds_nothing_to_do(log, directory):
    (directory / segment(log, "orders").index_path).unlink()
    assert len(repaired(verify(log, repair=True))) == 1
    version = log.topic("orders").snapshot.version
    assert repaired(verify(log, repair=True)) == []
    assert log.topic("orders").snapshot.version == version


def test_a_directory_of_kafka_is_not_repaired():
    with pytest.raises(LogDirError, match="read-only"):
        verify(LogDir.open(str(golden_dir("plain-0"))), repair=True)
