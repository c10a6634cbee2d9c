"""What was acknowledged is on disk after a power loss, where flush.messages says so; without it, it may be lost."""

from __future__ import annotations

import random

import pytest

from verification.durability.disk import Disk
from verification.durability.run import FORCED, run


@pytest.mark.proof
def test_no_acknowledged_record_of_a_forced_topic_is_lost(tmp_path):
    judged = run(tmp_path, 12, config=FORCED)
    assert not judged.wrong
    assert judged.acknowledged > 10


@pytest.mark.proof
def test_a_topic_that_is_not_forced_loses_records(tmp_path):
    judged = run(tmp_path, 4, config={}, appenders=1)
    assert judged.wrong


def test_the_disk_forgets_what_was_not_forced(tmp_path):
    disk = Disk.make(tmp_path)
    code = """
import os, sys
os.chdir(sys.argv[1])
for name in ("forced", "unforced", "nameless"):
    with open(name, "w") as file:
        file.write(name)
        if name != "unforced":
            file.flush()
            os.fsync(file.fileno())
    if name == "unforced":
        os.fsync(os.open(".", os.O_RDONLY))
"""
    import subprocess
    import sys

    subprocess.run([sys.executable, "-c", code, disk.root], env=disk.environment(), check=True)
    disk.after_power_loss(tmp_path / "image", None)
    assert {path.name: path.read_text() for path in (tmp_path / "image").iterdir()} == {
        "forced": "forced",
        "unforced": "",
    }
    lucky = set()
    for seed in range(20):
        disk.after_power_loss(tmp_path / str(seed), random.Random(seed))
        lucky.add(tuple(sorted((path.name, path.read_text()) for path in (tmp_path / str(seed)).iterdir())))
    assert (("forced", "forced"), ("nameless", "nameless"), ("unforced", "unforced")) in lucky
