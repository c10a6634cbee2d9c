"""The examples run as README says, from an empty directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from spark_segments import LogDir
from tests.conftest import ROOT


def test_the_quickstart_leaves_the_log_that_it_speaks_of(tmp_path: Path, python_environment: dict[str, str]) -> None:
    uri = str(tmp_path / "log")
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py"), uri],
        cwd=tmp_path,
        env=python_environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert sum(end for _, end in LogDir.open(uri).offsets("orders").values()) == 100_000
    kafka = LogDir.open(str(ROOT / "tests" / "golden" / "broker-data"))
    records = sum(batch.num_rows for batch in kafka.read("orders"))
    assert f"{records:,} records, CRC of every batch checked" in run.stdout
