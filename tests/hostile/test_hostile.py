"""A short form of `python -m verification.hostile`, and tests that the harness notices what it is there for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest

from spark_segments.errors import SegmentsError
from verification.hostile import campaign, child, targets
from verification.hostile.child import FIELDS, Share, random_of, run
from verification.hostile.targets import TARGETS, prepared

INPUTS = {
    "Delta's log": 40,
    "command line": 40,
    "values of rows": 60,
    "Kafka directories": 40,
    "text values": 80,
    "binary values": 80,
}


@pytest.mark.proof
@pytest.mark.parametrize("target", TARGETS)
def test_hostile_inputs_give_rows_or_one_clear_error(target, monkeypatch):
    monkeypatch.setattr(child.logging, "disable", lambda level: None)
    state = np.zeros(FIELDS, np.int64)
    assert run(Share(target, 20261122, 0, INPUTS.get(target, 400)), state) == []


def test_every_target_refuses_and_accepts_inputs():
    """Mutations that are all refused at once, or never, would reach nothing."""
    for name in ("decoder", "sidecars", "shared objects", "checkpoints"):
        target, refused = prepared(name), 0
        for number in range(120):
            try:
                target(random_of(Share(name, 3, 0, 0), number))
            except SegmentsError:
                refused += 1
        assert 0 < refused < 120, (name, refused)


@pytest.fixture
def planted(monkeypatch) -> Iterator[None]:
    """A target that raises an error that is none of this package's, or nothing."""
    monkeypatch.setitem(targets.TARGETS, "planted", (1.0, "..test_hostile", "planted_target"))
    yield


def planted_target() -> targets.Run:
    def target(random: Random) -> None:
        if os.environ["HOSTILE_INPUT"] == "foreign":
            raise ZeroDivisionError("division by zero")

    return target


@pytest.mark.parametrize(("number", "problem"), [("good", None), ("foreign", "ZeroDivisionError: division by zero")])
def test_errors_of_others_are_failures(planted, monkeypatch, number, problem):
    monkeypatch.setenv("HOSTILE_INPUT", number)
    monkeypatch.setattr(child.logging, "disable", lambda level: None)
    monkeypatch.setattr(targets, "prepared", lambda name: planted_target())
    failures = run(Share("planted", 1, 5, 3), np.zeros(FIELDS, np.int64))
    assert [failure["input"] for failure in failures] == ([] if problem is None else [5, 6, 7])
    assert all(str(failure["problem"]).startswith(problem or "") for failure in failures)


@pytest.mark.proof
def test_a_crash_and_a_hang_name_their_input_and_the_rest_is_run(monkeypatch, tmp_path):
    script = tmp_path / "child.py"
    script.write_text(_CHILD)
    monkeypatch.setattr(campaign, "HANG_SECONDS", 1.0)
    popen = campaign.subprocess.Popen

    def planted(arguments, **options):
        return popen([arguments[0], str(script), *arguments[3:]], **options)

    monkeypatch.setattr(campaign.subprocess, "Popen", planted)
    found = campaign.run(8, 1, ["decoder"])
    assert found["inputs"] == 8 and found["failed"] == 2
    crash, hang = found["failures"]
    assert (crash["input"], hang["input"]) == (2, 5)
    assert "exit code -11" in crash["problem"] and "no end" in hang["problem"]


_CHILD = """
import ctypes, mmap, sys, time
import numpy as np
first, count, path = int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
file = open(path, "r+b")
state = np.frombuffer(mmap.mmap(file.fileno(), 0), np.int64)
state[7] = 1
for number in range(first, first + count):
    state[0] = number
    if number == 2:
        ctypes.string_at(0)
    if number == 5:
        time.sleep(3600)
    state[1] += 1
print("[]")
"""
