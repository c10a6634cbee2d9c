"""A topic's manifest over a log of commits whose outcome a test decides."""

from __future__ import annotations

import pytest

from verification.world.chunk_rows import new_manifest
from verification.world.manifest_rows import Manifest
from verification.world.stores.played_log import Play


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def manifest(tmp_path, play) -> Manifest:
    """A topic of three partitions at version 0."""
    return new_manifest(tmp_path, open_delta_log=play)
