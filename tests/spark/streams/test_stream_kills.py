"""The short form of python -m verification.spark.stream_kills."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT


@pytest.mark.proof
@pytest.mark.spark
def test_killed_queries_leave_each_record_in_the_sink_once():
    command = [
        sys.executable,
        "-m",
        "verification.spark.stream_kills",
        "--kills",
        "1",
        "--seed",
        "1",
        "--modes",
        "plain",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "each in the sink once and in order" in done.stdout
