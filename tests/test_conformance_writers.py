"""The conformance kit for writers: one that keeps the rules passes, and one that breaks any in silence does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from spark_segments import LogDir
from spark_segments.conformance.kit import FAILED, PASSED, UNSUPPORTED
from spark_segments.conformance.writers import RACE, TASKS, check_writer
from spark_segments.maintenance import verify
from tests.conftest import ROOT
from verification.specification.specification_appender import FAULTS
from verification.specification.specification_reader import ManagedLog, as_json
from verification.specification.witness import read

WRITER = (sys.executable, "-m", "verification.specification.specification_appender")

SHOWN_BY = {
    "large batch": "append within the limits of the topic",
    "large chunk": "append within the limits of the topic",
    "no key": "append without a key to a compacted topic",
    "no checkpoint": "append often",
}
"""The task that shows a fault, where it is another than `append`."""


def judged(log: Path) -> list[dict[str, Any]]:
    report = verify(LogDir.open(str(log)), deep=True)
    warnings = [{"rule": "W23", "message": text, "path": None} for text in report.warnings]
    return [*(finding.to_dict() for finding in report.findings), *warnings]


def package_read(log: Path, topic: str) -> list[dict[str, Any]]:
    return read(LogDir.open(str(log)), topic)


def second_read(log: Path, topic: str) -> list[dict[str, Any]]:
    managed = ManagedLog(log)
    snapshot = managed.snapshot(topic)
    return [as_json(number, one) for number in sorted(snapshot.partitions) for one in managed.records(snapshot, number)]


@pytest.mark.parametrize("task", [*TASKS, RACE])
def test_the_writer_of_the_specification_passes(task, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    failures: list[str] = []
    outcomes = check_writer(WRITER, failures.append, tasks=[task], judge=judged, read=second_read)
    assert not failures and outcomes == {PASSED: 1}


@pytest.mark.cases(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_writer_that_breaks_a_rule_in_silence_fails(fault, monkeypatch):
    monkeypatch.chdir(ROOT)
    failures: list[str] = []
    task = SHOWN_BY.get(fault, "append")
    outcomes = check_writer([*WRITER, fault], failures.append, tasks=[task], judge=judged, read=package_read)
    assert outcomes == {FAILED: 1}
    rules = {failure.split(": ")[1] for failure in failures}
    assert rules - {"read"} == {FAULTS[fault]}, failures


def test_a_program_that_knows_no_task_is_not_supported(monkeypatch):
    program = 'import sys\nfor _ in sys.stdin: print(\'{"unsupported": "all"}\', flush=True)'
    outcomes = check_writer([sys.executable, "-c", program], print, tasks=["create", "append"])
    assert outcomes == {UNSUPPORTED: 2}


@pytest.mark.proof
def test_the_command_judges_by_the_commands_of_this_package():
    arguments = [sys.executable, "-m", "spark_segments.conformance", "--writer", *WRITER]
    ran = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT)
    assert ran.stdout.splitlines()[-1] == f"{len(TASKS) + 1} passed, 0 failed, 0 not supported", ran.stdout + ran.stderr
