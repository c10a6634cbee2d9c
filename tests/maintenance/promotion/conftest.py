"""A leader and a follower in step with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_segments import LogDir
from verification.world.promoted_copies import followed, led


@pytest.fixture
def leader(tmp_path: Path) -> LogDir:
    return led(tmp_path)


@pytest.fixture
def follower(leader: LogDir) -> LogDir:
    return followed(leader)
