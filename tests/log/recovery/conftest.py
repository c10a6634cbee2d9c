"""A partition directory that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from verification.world.kafka_bytes.golden_files import golden_dir


@pytest.fixture
def plain(tmp_path) -> Path:
    directory = tmp_path / "plain-0"
    shutil.copytree(golden_dir("plain-0"), directory)
    return directory
