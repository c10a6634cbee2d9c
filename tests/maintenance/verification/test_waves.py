"""A deep look in waves of partitions finds and repairs what a look at all of them together does."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_segments import LogDir
from spark_segments.maintenance import Report, verify
from tests.maintenance.verification.file_faults import FILE_FAULTS
from tests.maintenance.verification.topics import repaired

FAULTS = [
    "a missing offset index",
    "a transaction index that hides a committed transaction",
    "a bit of a record",
    "a key that is twice in a clean tail, with good CRCs",
]


@pytest.fixture(params=FAULTS)
def damaged(request, directory: Path) -> LogDir:
    FILE_FAULTS[request.param][0](LogDir.open(str(directory)), directory)
    return LogDir.open(str(directory))


@pytest.fixture
def small_waves(limits) -> None:
    limits(VERIFY_SEGMENTS_A_WAVE=1)


def found(report: Report) -> tuple[list[str], int, int]:
    return [str(finding) for finding in report.findings], report.bytes_in, report.details["segments"]


@pytest.mark.cases(2)
def test_waves_find_what_a_look_at_all_finds(damaged, request):
    whole = found(verify(damaged, deep=True))
    request.getfixturevalue("small_waves")
    assert found(verify(damaged, deep=True)) == whole
    assert whole[0]


def test_a_good_log_has_no_findings_in_waves(log, small_waves):
    assert verify(log, deep=True).ok


def test_a_repair_in_waves_leaves_a_clean_log(directory, small_waves):
    FILE_FAULTS["a missing offset index"][0](LogDir.open(str(directory)), directory)
    assert repaired(verify(LogDir.open(str(directory)), repair=True))
    assert verify(LogDir.open(str(directory)), deep=True).ok
