"""A topic's manifest over a log of commits whose outcome a test decides."""

from __future__ import annotations

import pytest

from tests.log.chunk_rows import new_manifest
from tests.log.played_log import Play
from tests.manifest_rows import Manifest


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.fixture
def manifest(tmp_path, play) -> Manifest:
    """A topic of three partitions at version 0."""
    return new_manifest(tmp_path, open_delta_log=play)
