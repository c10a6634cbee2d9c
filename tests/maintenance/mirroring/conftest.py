"""A follower of the leader that a test makes."""

from __future__ import annotations

import pytest

from spark_segments import LogDir
from verification.world.followers import followers_of


@pytest.fixture
def follower(leader: LogDir) -> LogDir:
    return followers_of(leader)
