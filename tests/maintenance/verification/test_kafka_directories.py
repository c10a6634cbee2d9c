"""Verify finds damage in Kafka's directories, as deep as it is asked to look, and changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import verify
from tests.log.golden_reads import tree
from tests.maintenance.verification.topics import Place, has, overwrite
from verification.world.kafka_bytes.golden_files import damaged_dir, golden_dir

KAFKA_FAULTS: dict[str, tuple[Callable[[Path], Place], bool]] = {
    "a bit of a record": (lambda path: _flip(path / "00000000000000000649.log", 3000), True),
    "an entry of an offset index": (lambda path: _flip(path / "00000000000000000649.index", 15), True),
    "an entry of a time index": (lambda path: _flip(path / "00000000000000000649.timeindex", 7), True),
    "an entry of a transaction index": (lambda path: _flip(path / "00000000000000000649.txnindex", 9), True),
    "a cut transaction index": (lambda path: _cut(path / "00000000000000000649.txnindex", 50), False),
    "a cut offset index": (lambda path: _cut(path / "00000000000000000649.index", 13), False),
    "a missing time index": (lambda path: _remove(path / "00000000000000000649.timeindex"), False),
    "a missing transaction index": (lambda path: _remove(path / "00000000000000000649.txnindex"), True),
    "an index without a log": (lambda path: _copy(path, "00000000000000000000.index", f"{9:020d}.index"), False),
    "a producer snapshot": (lambda path: _flip(path / "00000000000000003168.snapshot", 20), False),
    "leader epochs": (lambda path: _flip(path / "leader-epoch-checkpoint", 2), False),
    "partition.metadata": (lambda path: _flip(path / "partition.metadata", 3), False),
    "a leftover of the cleaner": (
        lambda path: _copy(path, "00000000000000000649.log", "00000000000000000649.log.deleted"),
        False,
    ),
    "a torn end": (lambda path: _cut(path / "00000000000000003156.log", 650), True),
}


def _flip(path: Path, position: int) -> Place:
    overwrite(path, position, bytes([path.read_bytes()[position] ^ 0x40]))
    return path.name, None


def _cut(path: Path, size: int) -> Place:
    path.write_bytes(path.read_bytes()[:size])
    return path.name, None


def _remove(path: Path) -> Place:
    path.unlink()
    return path.name, None


def _copy(directory: Path, name: str, copy: str) -> Place:
    shutil.copy(directory / name, directory / copy)
    return copy, None


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", KAFKA_FAULTS)
def test_a_fault_in_a_directory_of_kafka_is_found(name, tmp_path):
    fault, deep = KAFKA_FAULTS[name]
    copy = tmp_path / "txn-0"
    shutil.copytree(golden_dir("txn-0"), copy)
    place = fault(copy)
    before = tree(copy)
    log = LogDir.open(str(copy))
    report = verify(log, deep=True)
    assert has(report, place), [str(finding) for finding in report.findings]
    assert has(verify(log), place) != deep
    assert tree(copy) == before


def test_a_checkpoint_of_kafkas_log_directory_that_does_not_parse_is_found(tmp_path):
    shutil.copytree(golden_dir("canary300dense-0"), tmp_path / "orders-0")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\nmany\n")
    assert has(verify(LogDir.open(str(tmp_path))), ("recovery-point-offset-checkpoint", 2))


def test_damage_that_kafka_would_cut_is_an_error_with_what_is_lost(tmp_path):
    report = verify(LogDir.open(str(damaged_dir("flipped-byte", tmp_path))), deep=True)
    [finding] = report.findings
    assert (finding.severity, finding.path, finding.byte_position) == ("error", "00000000000000002773.log", 31654)
    assert "3 later segments" in str(finding)
    assert report.errors == 1
