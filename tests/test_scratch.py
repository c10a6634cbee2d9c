"""Directories for temporary files, in which schemas are compiled, queries spill and recovery copies are unpacked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from spark_segments.storage.scratch import scratch_directory

HELD = """
import sys
from spark_segments.storage.scratch import scratch_directory
with scratch_directory() as directory:
    (directory / "a").mkdir()
    (directory / "a" / "file").write_bytes(b"x" * 1000)
    print(directory, flush=True)
    sys.stdin.read()
"""


def holder(place: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that holds a directory below `place`, and that directory."""
    environment = os.environ | {"TMPDIR": str(place), "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", HELD]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().decode().strip())


def test_what_a_killed_process_left_goes_with_the_next_and_what_another_uses_stays(tmp_path, monkeypatch):
    (killed, left), (working, used) = holder(tmp_path), holder(tmp_path)
    killed.kill()
    killed.communicate()
    assert (left / "a" / "file").exists()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch_directory() as directory:
        assert sorted(tmp_path.iterdir()) == sorted([directory, used])
    assert (used / "a" / "file").exists()
    working.communicate()
    assert list(tmp_path.iterdir()) == []
